# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C: once ends the run in order, twice ends it now. Neither leaves anything alive.

The first one is Python's own KeyboardInterrupt: the running legs are ended, what has finished is kept, the reports are
written. Whoever presses again does not want to wait for that.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from types import FrameType

import psutil

from harness import footprint
from harness.errors import ExitCode

#: Seconds in which killed processes are waited for.
GONE_S = 5.0


class Interrupts:
    """Handles SIGINT from ``install`` on, in the main thread of a process that runs legs."""

    def __init__(self) -> None:
        self.count = 0

    def install(self) -> None:
        """Does nothing where another thread runs the show; the interrupt is not handled there either."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.count == 1:
            raise KeyboardInterrupt
        end_now()


def end_now() -> None:
    """Kill every process below this one and every process of its legs, remove what they left, and be gone."""
    with contextlib.suppress(psutil.Error):
        tree = psutil.Process().children(recursive=True)
        legs = footprint.kill_all()
        for process in tree:
            with contextlib.suppress(psutil.Error):
                process.kill()
        footprint.await_gone({*legs, *(process.pid for process in tree)}, GONE_S)
    footprint.end_all()
    os._exit(ExitCode.INTERRUPTED)
