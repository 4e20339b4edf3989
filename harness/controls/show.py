# SPDX-License-Identifier: Apache-2.0
"""The controls on the terminal: the list, a line per control as it ends, JSON, and the verb itself."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from harness import host
from harness.archive import RunFolder
from harness.controls.build import plant
from harness.controls.run import Result, run_controls
from harness.controls.table import CONTROLS, Control
from harness.device import slots
from harness.errors import ExitCode, UsageError
from harness.models import find_model


def main(*, expression: str | None, list_only: bool, to_json: bool, workers: int | None, run: str | None) -> int:
    """``python -m harness controls``; exit code 1 when a control does not hold.

    A control whose connector is not installed is left out, and says so.

    Raises:
        UsageError: no control's name contains ``expression``, or none of them can run here; or the machine has no CPU
            build of vLLM.
    """
    wanted = [""] if expression is None else expression.split(",")
    chosen = [control for control in CONTROLS if any(text in control.fault for text in wanted)]
    if not chosen:
        names = ", ".join(dict.fromkeys(control.fault for control in CONTROLS))
        raise UsageError(f"no planted fault's name contains {expression!r}; there are: {names}")
    if list_only:
        print(listing(chosen))
        return ExitCode.OK
    if host.platform() != "cpu":
        raise UsageError("controls need a CPU build of vLLM: the faults are planted in its reference backends")
    lacking = [control for control in chosen if control.missing is not None]
    chosen = [control for control in chosen if control.missing is None]
    if not to_json:
        for control in lacking:
            print(f"left out: {control.fault}: {control.missing}", flush=True)
    if not chosen:
        raise UsageError("; ".join(f"{control.fault}: {control.missing}" for control in lacking))
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kvparity-controls-") as scratch:
        folder = RunFolder(Path(run or scratch) / "run")
        folder.prepare()
        planted = plant(chosen, find_model=find_model, identity=host.identity(), stores=scratch)
        width = max(len(one.name) for one in planted)

        def done(result: Result) -> None:
            if not to_json:
                print(line(result, width), flush=True)

        results = run_controls(planted, folder, workers=workers or slots(), done=done)
    print(as_json(results) if to_json else summary(results, time.monotonic() - started, len(lacking)))
    return ExitCode.OK if all(result.caught for result in results) else ExitCode.FAILED


def listing(controls: Sequence[Control]) -> str:
    """One line per control: fault, where it is planted, what it must lead to, what is wrong."""
    width = max(len(control.fault) for control in controls)
    return "\n".join(
        f"{control.fault:{width}}  {control.where:6}  {control.outcome:8}  {control.finding:29}  {control.sentence}"
        for control in controls
    )


def line(result: Result, width: int) -> str:
    """``ok  load_dropped  fail kv_digests: <where>``; what was found instead where it does not hold."""
    control, verdict = result.planted.control, result.verdict
    mark = "ok  " if result.caught else "MISS"
    saw = "nothing" if result.finding is None else f"{result.finding.kind}: {result.finding.message}"
    head = f"{mark} {result.planted.name:{width}}  {verdict.outcome:8} {saw}"
    if result.caught:
        return head
    expected = ", ".join((control.finding, *control.must))
    return f"{head}\n     {result.problem}; expected {control.outcome}: {expected}"


def as_json(results: Sequence[Result]) -> str:
    """A list of objects, one per control."""
    return json.dumps(
        [
            {
                "fault": result.planted.name,
                "where": result.planted.control.where,
                "expected_outcome": result.planted.control.outcome,
                "expected_finding": result.planted.control.finding,
                "outcome": result.verdict.outcome,
                "finding": result.finding.kind if result.finding else None,
                "message": result.finding.message if result.finding else "",
                "findings": sorted({finding.kind for finding in result.verdict.findings}),
                "caught": result.caught,
                "problem": result.problem,
            }
            for result in results
        ],
        indent=2,
    )


def summary(results: Sequence[Result], seconds: float, left_out: int = 0) -> str:
    """``49 of 49 planted faults caught for the right reason, 2 left out, 143 s``."""
    caught = sum(result.caught for result in results)
    rest = f" {left_out} left out," if left_out else ""
    return f"{caught} of {len(results)} planted faults caught for the right reason,{rest} {seconds:.0f} s"
