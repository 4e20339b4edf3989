# SPDX-License-Identifier: Apache-2.0
"""The nightly job: matrix, controls, comparison with the last good run; a summary, and one exit code for all of it.

Everything goes through ``python -m harness`` in processes of its own, so a night's steps are those of any other day.
The run lies in ``<folder>/<UTC>/`` with ``changes.md`` and ``summary.md`` beside its own files; ``<folder>/summary.md``
and ``<folder>/exit`` are the newest night's, for the CI system: make ends with 2 whatever a recipe ends with, so the
code is read from that file.
"""

from __future__ import annotations

import datetime
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import wire
from harness.errors import ExitCode, UsageError
from harness.stored import listed, read_facts

#: Bytes that a GitHub job's summary takes; Buildkite's annotations take as many.
MOST_BYTES = 1024 * 1024

#: Exit codes of a matrix after which there is something to compare.
RAN = (ExitCode.OK, ExitCode.FAILED, ExitCode.AMBER)

WORDS = {ExitCode.OK: "green", ExitCode.AMBER: "amber"}


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step of the night: its name, its exit code, and its last line."""

    name: str
    code: int
    said: str = ""


def nightly(
    folder: Path,
    *,
    good: Path,
    matrix: Sequence[str] = (),
    controls: Sequence[str] = (),
    rest: Sequence[str] = (),
    environment: Mapping[str, str] = os.environ,
) -> ExitCode:
    """Run a night.

    Args:
        folder: where nights are kept.
        good: frame and report of the last night that was green; replaced by this one's when it is green.
        matrix, controls: further arguments of these verbs.
        rest: arguments for the matrix's pytest.
        environment: what a CI system says of itself.
    """
    (folder / "exit").unlink(missing_ok=True)
    run = folder / f"{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%SZ}"
    tail = ["--", *rest] if rest else []
    steps = [_step("matrix", "matrix", *matrix, "--run", str(run), *tail)]
    steps.append(_step("controls", "controls", *controls))
    changes = run / "changes.md"
    base = base_of(run, good) if steps[0].code in RAN else None
    if base is not None:
        steps.append(_step("compare", "compare", str(base), str(run), "--common", "--markdown", str(changes)))
    lost = lost_cells(run, base) if base is not None and steps[-1].code == ExitCode.AMBER else ()
    code = worst(deciding(steps, lost=bool(lost)))
    text = summary(steps, code, run, base, lost)
    wire.write_text(folder / "summary.md", text)
    if run.is_dir():
        wire.write_text(run / "summary.md", text)
    if code is ExitCode.OK:
        keep_good(run, good)
    tell(text, code, environment)
    wire.write_text(folder / "exit", f"{int(code)}\n")
    print(f"nightly: {WORDS.get(code, 'red')}; {folder}/summary.md; run folder {run}")
    return code


def _step(name: str, *arguments: str) -> Step:
    """Carry out a verb, its output shown as it comes; its exit code and its last line."""
    print(f"nightly: {name}", flush=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "harness", *arguments], stdout=subprocess.PIPE, text=True, errors="replace"
    )
    last = ""
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="", flush=True)
        # pytest frames its last line.
        last = line.strip().strip("= ") or last
    return Step(name=name, code=process.wait(), said=last)


def base_of(run: Path, good: Path) -> Path | None:
    """What the night is compared with: the last good run, else the accepted one of its platform, else nothing."""
    from harness import accepted

    if (good / "frame.csv").exists():
        return good
    facts, _ = read_facts(run)
    folder = accepted.reference_of(accepted.REFERENCE, str(facts.get("platform", "unknown")))
    return folder if (folder / "frame.csv").exists() else None


def lost_cells(run: Path, base: Path) -> tuple[str, ...]:
    """Cells that the night was asked for as its base was, and has not."""
    from harness import accepted, baseline

    # Read as `compare` does: a cell that was asked for by name and has no result is lost, too.
    loaded = baseline.load(run)
    return accepted.lost_cells(base, loaded.frame, loaded.asked)


def deciding(steps: Sequence[Step], *, lost: bool = False) -> list[int]:
    """The exit codes that make the night's.

    Where every cell is green and none is ``lost``, a comparison can be amber only because no cell was comparable
    (other prompts, another model). The cells have passed on their own evidence; such a night is the good one that the
    next is compared with.
    """
    green = not lost and all(step.code == ExitCode.OK for step in steps if step.name != "compare")
    return [step.code for step in steps if not (green and step.name == "compare" and step.code == ExitCode.AMBER)]


def worst(codes: Sequence[int]) -> ExitCode:
    """Failed where any step ended with something else than green or amber: a step that broke is no amber."""
    if any(code not in (ExitCode.OK, ExitCode.AMBER) for code in codes):
        return ExitCode.FAILED
    return ExitCode.AMBER if ExitCode.AMBER in codes else ExitCode.OK


def summary(
    steps: Sequence[Step], code: ExitCode, run: Path, base: Path | None, lost: Sequence[str] = ()
) -> str:
    """What a reader of the morning sees: outcome, steps, what changed, the report; at most ``MOST_BYTES`` bytes."""
    lines = [f"# KV parity nightly: {WORDS.get(code, 'red')}", ""]
    lines += ["| step | exit code | last line |", "| -- | -- | -- |"]
    lines += [f"| {step.name} | {step.code} | {step.said.replace('|', chr(92) + '|')} |" for step in steps]
    head = "\n".join(lines) + "\n"
    if base is None:
        head += "\nNothing to compare with: no good run is kept, and none was accepted.\n"
    if lost:
        head += f"\nGone since {base}: {listed(lost)}. If that is meant, remove that folder.\n"
    parts = [path.read_text(encoding="utf-8") for path in (run / "changes.md", run / "report.md") if path.exists()]
    text = "\n".join([head, *parts])
    if len(text.encode()) <= MOST_BYTES:
        return text
    note = f"\n\nCut at {MOST_BYTES} bytes; the whole report is {run}/report.md.\n"
    kept = text.encode()[: MOST_BYTES - len(note.encode())].decode(errors="ignore")
    return kept[: kept.rfind("\n")] + note


def keep_good(run: Path, good: Path) -> None:
    """Frame and report of a green night, for the next one to be compared with.

    Raises:
        UsageError: the run has no frame, so it cannot have been green.
    """
    if not (run / "frame.csv").exists():
        raise UsageError(f"{run}: has no frame.csv; a night without one is not kept as good")
    good.mkdir(parents=True, exist_ok=True)
    # The frame last: it is what makes the folder a base.
    for name in ("report.md", "frame.csv"):
        shutil.copyfile(run / name, good / f".{name}.new")
        os.replace(good / f".{name}.new", good / name)


def tell(text: str, code: ExitCode, environment: Mapping[str, str]) -> None:
    """Hand the summary to the CI system that runs this, if any: GitHub's job summary, Buildkite's annotation."""
    if path := environment.get("GITHUB_STEP_SUMMARY"):
        with Path(path).open("a", encoding="utf-8") as stream:
            stream.write(text)
        if code is not ExitCode.OK:
            level = "warning" if code is ExitCode.AMBER else "error"
            print(f"::{level} title=KV parity nightly::{WORDS.get(code, 'red')}; see the job summary")
    if environment.get("BUILDKITE") and shutil.which("buildkite-agent"):
        style = {ExitCode.OK: "success", ExitCode.AMBER: "warning"}.get(code, "error")
        command = ["buildkite-agent", "annotate", "--style", style, "--context", "kvparity"]
        subprocess.run(command, input=text, text=True, check=False)
