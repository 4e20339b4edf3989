# SPDX-License-Identifier: Apache-2.0
"""What the verbs that read a stored run share: the run, what its reports see, and its exit code."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from harness.errors import ExitCode, UsageError
from harness.records import AMBER, GREEN, Verdict
from harness.report import RunView
from harness.stored import StoredRun, read_run


def open_stored(path: str) -> StoredRun:
    """The run of the folder ``path``, which has a plan.

    Raises:
        UsageError: no such folder, or one that is no run.
    """
    run = read_run(Path(path))
    if not run.plan.cells and not run.facts and (run.path / "frame.csv").exists():
        raise UsageError(f"{path}: holds a frame alone, its legs were not kept; read its report.md, or compare with it")
    return run


def view_of(run: StoredRun) -> RunView:
    """What the reports of a stored run show; planned cells without a result are shown as not run."""
    facts = {key: str(value) for key, value in run.facts.items()}
    return RunView(
        plan=run.plan,
        verdicts=run.judged,
        observations=run.observations,
        folder=str(run.path),
        platform=facts.get("platform", ""),
        versions=facts,
        # The stored duration, not the time since this process read the folder.
        seconds=float(facts.get("seconds", 0.0)),
    )


def exit_code(verdicts: Iterable[Verdict], *, whole: bool) -> ExitCode:
    """Failed for a red verdict, amber for an amber one or a run that is not whole, otherwise OK."""
    words = {verdict.verdict for verdict in verdicts}
    if words - set(GREEN) - set(AMBER):
        return ExitCode.FAILED
    return ExitCode.AMBER if words & set(AMBER) or not whole else ExitCode.OK


def say_gaps(run: StoredRun) -> None:
    """One line for each thing that the run lacks."""
    for gap in run.gaps:
        print(f"not whole: {gap}")
