# SPDX-License-Identifier: Apache-2.0
"""Runs the controls through the runner and the comparator of every other cell, several side by side."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from harness import wire
from harness.archive import RunFolder
from harness.compare import judge
from harness.controls.build import Planted
from harness.records import Finding, Outcome, Verdict
from harness.runner import Runner

#: The fake engine's hanging restore is given up after this many seconds.
HANG_DEADLINE_S = 3.0


@dataclass(frozen=True, kw_only=True)
class Result:
    """What became of one control.

    Attributes:
        planted: the control and its cell.
        verdict: the comparator's.
        finding: the expected one if it is there, otherwise the worst; None without findings.
        problem: why it does not hold, empty when it does.
    """

    planted: Planted
    verdict: Verdict
    finding: Finding | None
    problem: str

    @property
    def caught(self) -> bool:
        return not self.problem


def run_controls(
    planted: Sequence[Planted], folder: RunFolder, *, workers: int, done: Callable[[Result], None] = lambda result: None
) -> list[Result]:
    """Results in the order of ``planted``; ``done`` is told each as it ends."""
    queue = _Queue(planted)
    results: dict[str, Result] = {}
    lock = threading.Lock()

    def work(_: int) -> None:
        runner, own = Runner(folder), ""
        try:
            while (one := queue.take(own)) is not None:
                own = _warmth(one)
                result = _run(one, runner, folder)
                with lock:
                    results[one.name] = result
                    done(result)
        finally:
            runner.close()

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(work, range(workers)))
    return [results[one.name] for one in planted]


class _Queue:
    """Controls that wait; a worker gets one whose processes it has warm already, if there is one."""

    def __init__(self, planted: Sequence[Planted]) -> None:
        self._waiting = list(planted)
        self._lock = threading.Lock()
        self._taken: set[str] = set()

    def take(self, warmth: str) -> Planted | None:
        with self._lock:
            fitting = [one for one in self._waiting if _warmth(one) == warmth]
            # Where none fits, what no other worker has warm comes first: a warm process is dear to make.
            others = [one for one in self._waiting if _warmth(one) not in self._taken]
            chosen = next(iter(fitting or others or self._waiting), None)
            if chosen is not None:
                self._waiting.remove(chosen)
                self._taken.add(_warmth(chosen))
            return chosen


def _warmth(one: Planted) -> str:
    return "fake" if one.control.fake is not None else f"bi{int(one.control.batch_invariant)}"


def _run(one: Planted, runner: Runner, folder: RunFolder) -> Result:
    if one.control.fault == "hang":
        runner = Runner(folder, deadlines={"restore": HANG_DEADLINE_S})
    if one.first is not None:
        runner.ensure(one.first)
    if one.control.fault == "older_result":
        # As if a run folder's files had been copied: the result lies under another leg's name.
        wire.write(folder.observation_path(one.subject.digest), runner.ensure(one.oracle))
    return result_of(one, judge(one.cell, one.legs, *runner.ensure_cell(one.cell, one.legs)))


def result_of(one: Planted, verdict: Verdict) -> Result:
    """Whether the verdict is the one that the table asks for."""
    control, kinds = one.control, [finding.kind for finding in verdict.findings]
    wanted = (control.finding, *control.must)
    missing = [kind for kind in wanted if kind not in kinds]
    foreign = sorted({kind for kind in kinds if kind not in (*wanted, *control.also)})
    expected = next((finding for finding in verdict.findings if finding.kind is control.finding), None)
    worst = next((finding for finding in verdict.findings if finding.outcome is verdict.outcome), None)
    if verdict.outcome is Outcome.PASS:
        problem = "not caught"
    elif missing:
        problem = f"caught for the wrong reason: no finding {', '.join(missing)}"
    elif foreign:
        problem = f"caught with findings that are not the fault's: {', '.join(foreign)}"
    elif verdict.outcome is not control.outcome:
        problem = f"caught, but as {verdict.outcome} and not as {control.outcome}"
    else:
        problem = ""
    return Result(planted=one, verdict=verdict, finding=expected or worst, problem=problem)
