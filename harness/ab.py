# SPDX-License-Identifier: Apache-2.0
"""A/B of two versions of a connector's source: the same scenarios against both overlays, one row per cell.

Everything else is equal: model, prompts, engine, this installation. Each side is an ordinary run folder, ``base`` and
``candidate``; oracles have no connector, so those of the base are taken over for the candidate. Outcomes are compared
before expectations, which are written for one version and would hide what changed.
"""

from __future__ import annotations

import datetime
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from harness.archive import RunFolder
from harness.errors import ExitCode, UsageError
from harness.overlay import Overlay, OverlayError, find_overlay
from harness.records import Change, Ending, Observation, Outcome, Plan, Role, Verdict
from harness.scenario import read_scenarios
from harness.session import join_run
from harness.subjects import OVERLAY_CHOICE

#: What is run where no scenario is named.
SCENARIOS = ("scenarios/umbp.yaml",)

#: Exit codes of one side's run after which its cells can be compared.
RAN = (ExitCode.OK, ExitCode.FAILED, ExitCode.AMBER)

#: What can become of a cell here, in the order of the counts. Outcomes are compared, not verdicts: there is no amber.
CHANGES = (Change.FIXED, Change.NEWLY_FAILING, Change.STILL_FAILING, Change.SAME, Change.NOT_COMPARABLE)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One cell: both outcomes, what changed, and where the workers' resolved state differs."""

    cell: str
    base: Outcome | None
    candidate: Outcome | None
    change: Change
    resolved: tuple[str, ...] = ()


def change_of(base: Outcome | None, candidate: Outcome | None) -> Change:
    """Compare two outcomes of one cell; None where it was not run.

    Passing is the only good outcome. A cell that is rejected on both sides is the same; one that could not run on a
    side says nothing.
    """
    if None in (base, candidate) or Outcome.UNAVAILABLE in (base, candidate):
        return Change.NOT_COMPARABLE
    if base is candidate and base in (Outcome.PASS, Outcome.REJECTED):
        return Change.SAME
    if candidate is Outcome.PASS:
        return Change.FIXED
    return Change.NEWLY_FAILING if base in (Outcome.PASS, Outcome.REJECTED) else Change.STILL_FAILING


def compare(base: Path, candidate: Path) -> list[Row]:
    """Rows of the cells of two run folders, in the base's order."""
    left, right = _judged(base), _judged(candidate)
    rows = []
    for name in [*left, *(name for name in right if name not in left)]:
        one, two = left.get(name), right.get(name)
        outcomes = [side[0].outcome if side else None for side in (one, two)]
        different = _resolved_differences(one[1], two[1]) if one and two else ()
        rows.append(Row(cell=name, base=outcomes[0], candidate=outcomes[1], change=change_of(*outcomes),
                        resolved=different))
    return rows


def _judged(folder: Path) -> dict[str, tuple[Verdict, Observation]]:
    """Cell name -> verdict and the subject's observation."""
    run = join_run(RunFolder(folder))
    verdicts, observations = run.judge_stored(run.plan)
    subjects = {cell.name: cell.subject for cell in run.plan.cells}
    found = {}
    for verdict in verdicts:
        found[verdict.name] = (verdict, observations[subjects[verdict.name]])
    return found


def _resolved_differences(base: Observation, candidate: Observation) -> tuple[str, ...]:
    """``name: base -> candidate`` per differing fact of the subject's worker and of what served its connector."""
    one, two = base.resolved, candidate.resolved
    runtime = "env:KVPARITY_UMBP_RUNTIME"
    pairs = [("runtime", base.environment.get(runtime), candidate.environment.get(runtime))]
    if one is not None and two is not None:
        pairs += [(field.name, getattr(one, field.name), getattr(two, field.name)) for field in fields(one)]
    return tuple(f"{name}: {left} -> {right}" for name, left, right in pairs if left != right)


def render(rows: Sequence[Row], names: Mapping[str, str]) -> str:
    """The table: what is compared, a line per cell, resolved state that differs, counts."""
    lines = [f"{side}: {name}" for side, name in names.items()]
    width = max((len(row.cell) for row in rows), default=4)
    lines += ["", f"{'cell':<{width}}  {'base':<12}{'candidate':<12}change"]
    for row in rows:
        base, candidate = (outcome or "not run" for outcome in (row.base, row.candidate))
        lines.append(f"{row.cell:<{width}}  {base:<12}{candidate:<12}{row.change}")
        lines += [f"{'':<{width}}  {difference}" for difference in row.resolved]
    counts = [f"{count} {change}" for change in CHANGES if (count := sum(row.change is change for row in rows))]
    return "\n".join([*lines, "", f"{len(rows)} cells: {', '.join(counts) or 'none'}"])


def exit_code(rows: Sequence[Row]) -> ExitCode:
    """Failed when a cell newly fails, amber when one cannot be compared."""
    changes = {row.change for row in rows}
    if Change.NEWLY_FAILING in changes:
        return ExitCode.FAILED
    if not rows:
        return ExitCode.NOTHING_SELECTED
    return ExitCode.AMBER if Change.NOT_COMPARABLE in changes else ExitCode.OK


def run(
    base: str,
    candidate: str,
    scenarios: Sequence[str],
    *,
    expression: str | None = None,
    workers: int = 1,
    results: Path = Path("results"),
    folder: Path | None = None,
    rest: Sequence[str] = (),
) -> ExitCode:
    """Run both sides through pytest, print the table; it is kept as ``ab.txt`` beside the two run folders.

    Args:
        base, candidate: overlays as ``subject.overlay`` takes them.
        scenarios: scenario files; they must have the subject ``umbp``.
        expression: cells whose name matches (pytest -k).
        workers: cells side by side.
        results: where the folder is made; ``folder`` names it instead.
        rest: further arguments for pytest.

    Raises:
        UsageError: an overlay that cannot be had, scenarios without UMBP, or a side that did not run.
    """
    if not any(scenario.subject.connector == "umbp" for scenario in read_scenarios(scenarios)):
        raise UsageError(f"{', '.join(scenarios)}: no scenario with the subject umbp, so there is nothing to compare")
    overlays = {"base": _found(base), "candidate": _found(candidate)}
    folder = folder or results / f"{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%SZ}-ab"
    for side, spec in (("base", base), ("candidate", candidate)):
        path = folder / side
        if side == "candidate":
            _take_oracles(folder / "base", path)
        _run_side(path, spec, scenarios, expression, workers, rest)
    rows = compare(folder / "base", folder / "candidate")
    names = {side: f"{overlay.origin}, files {overlay.digest}" for side, overlay in overlays.items()}
    text = render(rows, names)
    (folder / "ab.txt").write_text(text + "\n", encoding="utf-8")
    print(f"\n{text}\n\nrun folders: {folder}/base, {folder}/candidate")
    return exit_code(rows)


def _found(spec: str) -> Overlay:
    try:
        return find_overlay(spec)
    except OverlayError as error:
        raise UsageError(str(error)) from None


def _run_side(
    path: Path, spec: str, scenarios: Sequence[str], expression: str | None, workers: int, rest: Sequence[str]
) -> None:
    command = [sys.executable, "-m", "pytest", *scenarios, "--kvparity-run", str(path)]
    command += ["-n", str(workers)] if workers > 1 else []
    command += ["-k", expression] if expression else []
    code = subprocess.run([*command, *rest], env={**os.environ, OVERLAY_CHOICE: spec}, check=False).returncode
    if code not in RAN:
        raise UsageError(f"{path.name} ({spec}) did not run to its end: pytest ended with {code}; see above")


def _take_oracles(base: Path, candidate: Path) -> None:
    """Copy what the base's oracles saw, so that they do not run again; their digests say whether they fit."""
    source, target = RunFolder(base), RunFolder(candidate)
    target.prepare()
    plan: Plan = source.read_plan()
    for leg in plan.legs:
        observation = source.read_observation(leg.digest) if leg.role is Role.ORACLE else None
        if observation is not None and observation.ending is Ending.OK:
            for path in source.legs.glob(f"{leg.digest}.*"):
                if path.suffix in {".json", ".log"} and path.stem == leg.digest:
                    shutil.copy2(path, target.legs / path.name)
