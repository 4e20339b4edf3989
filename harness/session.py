# SPDX-License-Identifier: Apache-2.0
"""One run from start to end, independent of pytest: which scenario files, the plan, the folder, cells, the reports.

``harness.pytest_plugin`` and ``harness.cli`` are the two doors to it.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import footprint, host
from harness.archive import RunFolder
from harness.compare import judge
from harness.device import room_for_pairs
from harness.errors import UsageError
from harness.garbage import collector_at_rest
from harness.models import find_model
from harness.plan import make_plan, missing_modules, select
from harness.records import Cell, Observation, Plan, Verdict
from harness.report import RunView
from harness.row import row_of
from harness.runner import Runner
from harness.scenario import read_scenarios
from harness.stored import answered

#: Folder whose YAML files are scenarios.
SCENARIO_FOLDER = "scenarios"


def scenario_files(arguments: Iterable[str], root: Path) -> list[Path]:
    """Scenario files that the command line's paths name: YAML files, or folders named ``scenarios`` and below.

    Raises:
        UsageError: a YAML file that does not exist.
    """
    found: dict[Path, None] = {}
    for argument in arguments:
        path = Path(argument.split("::")[0])
        absolute = path if path.is_absolute() else root / path
        if path.suffix in {".yaml", ".yml"}:
            if not absolute.is_file():
                known = ", ".join(sorted(p.name for p in (root / SCENARIO_FOLDER).glob("*.yaml"))) or "none"
                raise UsageError(f"{argument}: no such scenario file; in {SCENARIO_FOLDER}/: {known}")
            found[absolute] = None
        elif absolute.is_dir() and SCENARIO_FOLDER in absolute.resolve().parts:
            found.update(dict.fromkeys(sorted(absolute.rglob("*.yaml"))))
    return list(found)


def load_plan(
    files: Sequence[Path],
    *,
    root: Path,
    model: str | None,
    fake: Mapping[str, Mapping[str, Any]] | None = None,
) -> tuple[Plan, list[str]]:
    """The whole plan of ``files`` on this machine, and one sentence for each file that is made for other platforms.

    Raises:
        ScenarioError: every problem of every file.
        UsageError: no vLLM, no such model.
    """
    names = [_shown(path, root) for path in files]
    scenarios = read_scenarios(names) if root == Path.cwd() else read_scenarios([str(path) for path in files])
    platform = "cpu" if fake is not None else host.platform()
    notes = [
        f"{scenario.path}: made for {', '.join(scenario.platforms)}, this machine is {platform}: no cells"
        for scenario in scenarios
        if platform not in scenario.platforms
    ]
    plan = make_plan(
        scenarios,
        platform=platform,
        find_model=lambda name: find_model(name, given=model),
        identity=host.identity(),
        fake=fake,
    )
    return plan, notes + missing_modules(plan)


def _shown(path: Path, root: Path) -> str:
    """A path as users type it: relative to the root where it lies below."""
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


@dataclass
class Run:
    """A run in progress: runs cells, knows what they need, writes the reports."""

    plan: Plan
    folder: RunFolder
    started: float = field(default_factory=time.time)
    reused: int = 0

    def __post_init__(self) -> None:
        self._runner = Runner(self.folder, pairs=room_for_pairs())
        self._legs = {leg.digest: leg for leg in self.plan.legs}

    def close(self) -> None:
        """End what the runner kept warm, and what an interrupt left of a leg."""
        footprint.end_all()
        self._runner.close()

    def run_cell(self, cell: Cell) -> Verdict:
        """Run the legs of a cell that have not run yet, and judge it."""
        return judge(cell, self._legs, *self._runner.ensure_cell(cell, self._legs))

    def help(self, cells: Iterable[Cell]) -> None:
        """Run legs of ``cells`` that no process has got to yet (``harness.helping``)."""
        for cell in cells:
            self._runner.help(cell, self._legs)

    def row(self, cell: Cell, verdict: Verdict) -> dict[str, Any]:
        """The row that the cell has in the frame, from what is stored; values that nobody knows are left out."""
        stored = {digest: self.folder.read_observation(digest) for digest in (cell.oracle, cell.subject)}
        seen = {digest: one for digest, one in stored.items() if one is not None}
        row = row_of(cell, verdict, self._legs, seen)
        return {name: value for name, value in row.items() if value not in (None, "")}

    def facts(self, peak_bytes: int | None) -> dict[str, Any]:
        """Platform, versions and model of the run, and the most memory that all of its processes held together."""
        legs = self.plan.legs
        faked = any(leg.engine_name == "fake" for leg in legs)
        facts: dict[str, Any] = {"platform": "fake engine" if faked else host.platform(), **host.identity()}
        if peak_bytes is not None:
            facts["peak_gib"] = f"{peak_bytes / 2**30:.2f}"
        if legs:
            facts["model"] = ", ".join(sorted({f"{leg.model.alias}: {leg.model.source}" for leg in legs}))
        return facts

    def judge_stored(
        self, plan: Plan, ended: Collection[str] | None = None
    ) -> tuple[list[Verdict], dict[str, Observation]]:
        """Verdicts of ``plan``'s cells from what is stored.

        Left out are those whose subject never ended, and of cells that are not among ``ended`` (None: all are) those
        that lack another leg.
        """
        observations = self.folder.read_observations(plan)
        with collector_at_rest():
            verdicts = [
                judge(cell, self._legs, observations.get(cell.oracle), observations[cell.subject], observations)
                for cell in plan.cells
                if cell.subject in observations
                and (ended is None or cell.name in ended or answered(cell, observations))
            ]
        return verdicts, observations

    def view(self, names: Iterable[str], facts: Mapping[str, str], asked: Iterable[str] = ()) -> RunView:
        """What the reports show: the cells of ``names``, which have ended, and those that were ``asked`` for.

        One whose legs have not all ended, and one that has and of which nothing could be kept, is shown as not run.
        """
        ended = set(names)
        plan = select(self.plan, {*ended, *asked})
        verdicts, observations = self.judge_stored(plan, ended)
        return RunView(
            plan=plan,
            verdicts=tuple(verdicts),
            observations=observations,
            folder=_shown(self.folder.path, Path.cwd()),
            platform=facts.get("platform", ""),
            versions=dict(facts),
            seconds=time.time() - self.started,
            reused_legs=self.reused,
        )


def open_run(plan: Plan, *, results: Path, chosen: Path | None) -> Run:
    """The run folder for ``plan``: ``chosen`` (resumed when it holds legs of this plan) or a new one under ``results``.

    Raises:
        UsageError: ``chosen`` is not a run folder, another process runs in it, or it cannot be written.
    """
    try:
        if chosen is None:
            folder = RunFolder.create(results, plan)
            reused = 0
        else:
            folder = RunFolder(chosen)
            folder.prepare()
            folder.own()
            folder.forget_unfinished()
            reused = folder.ended(plan)
        folder.write_plan(plan)
    except OSError as error:
        raise UsageError(f"the run folder {chosen or results} cannot be written: {error}") from None
    return Run(plan=plan, folder=folder, reused=reused)


def join_run(folder: RunFolder) -> Run:
    """The run that another process opened."""
    return Run(plan=folder.read_plan(), folder=folder)


def write_results(run: Run, view: RunView, facts: Mapping[str, object]) -> None:
    """``plan.json`` (the cells that were run), ``env.json``, ``verdicts.jsonl``, the frames and both reports."""
    from harness.report.files import write_reports

    run.folder.write_plan(view.plan)
    run.folder.write_environment(facts)
    run.folder.write_verdicts(view.verdicts)
    write_reports(view, run.folder.path)


def leg_names(plan: Plan) -> dict[str, str]:
    """Leg digest -> ``role cell`` for the progress line; a shared leg is named after its first cell."""
    names: dict[str, str] = {}
    for cell in plan.cells:
        names.setdefault(cell.subject, f"subject {cell.id}")
        names.setdefault(cell.oracle, f"oracle {cell.id}")
    # Another cell's oracle is one of these as well; it has its name by now where that cell is in the plan.
    for cell in plan.cells:
        for digest in cell.further:
            leg = plan.leg(digest)
            names.setdefault(digest, f"{leg.backend.lower()} {leg.engine.get('dtype', leg.layout)}")
    return names
