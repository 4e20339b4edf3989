# SPDX-License-Identifier: Apache-2.0
"""Watches a run from the side: which legs run now, how many remain, and the memory of everything together.

It looks at the run folder and at the process table only, so it sees the legs of every pytest-xdist worker.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable

import psutil

from harness.archive import RunFolder
from harness.errors import WireError
from harness.records import Ending, Plan
from harness.session import leg_names

#: How often the run is looked at, seconds.
LOOK_S = 0.5


class Progress:
    """Prints one line whenever other legs run than before, and keeps the peak of resident memory.

    Attributes:
        peak_bytes: largest sum of resident bytes of this process and all its descendants seen so far. Pages that two
            processes share are counted in each, so this is an upper bound.
    """

    def __init__(self, folder: RunFolder, plan: Plan, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._plan = plan
        self._names = leg_names(plan)
        self._say = say
        self._running: dict[str, str] = {}
        self._endings: dict[str, Ending] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="kvparity-progress", daemon=True)
        self.peak_bytes = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(LOOK_S):
            self.peak_bytes = max(self.peak_bytes, _resident_bytes())
            running = self._folder.running()
            if running.keys() - self._running.keys():
                self._say(self.line(running))
            self._running = running

    def line(self, running: dict[str, str]) -> str:
        """``legs: 12 of 51 ended, 37 remain, running: subject LBHNC-REFERENCE-bi1 (load), ...``"""
        ended, remain = self.counts(running)
        now = ", ".join(f"{self._names.get(digest, digest)} ({stage})" for digest, stage in sorted(running.items()))
        return f"legs: {ended} of {len(self._plan.legs)} ended, {remain} remain, running: {now or 'none'}"

    def counts(self, running: dict[str, str]) -> tuple[int, int]:
        """(ended, remaining) legs; an oracle whose every subject was refused or died is not going to run."""
        for leg in self._plan.legs:
            if leg.digest not in self._endings:
                with contextlib.suppress(WireError):
                    observation = self._folder.read_observation(leg.digest)
                    if observation is not None:
                        self._endings[leg.digest] = observation.ending
        needed = set()
        for cell in self._plan.cells:
            needed.add(cell.subject)
            if self._endings.get(cell.subject, Ending.OK) is Ending.OK:
                needed.update((cell.oracle, *cell.further))
        return len(self._endings), len(needed - self._endings.keys() - running.keys())


def _resident_bytes() -> int:
    total = 0
    with contextlib.suppress(psutil.Error):
        tree = psutil.Process(os.getpid())
        for process in [tree, *tree.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                total += process.memory_info().rss
    return total
