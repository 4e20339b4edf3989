# SPDX-License-Identifier: Apache-2.0
"""Follows one leg's child through its stages: deadlines, and the memory of everything below it.

The child tells its stages through a pipe. What it says of itself is believed only as far as its observation goes,
which it renames into place as its last act; everything here is for the case that it does not.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from harness import stacks
from harness.endings import Lost
from harness.errors import CalledOff
from harness.footprint import Footprint
from harness.records import RESTORES, Phase
from harness.warm import WarmChild

#: A leg's process, however it was started.
Process = subprocess.Popen[bytes] | WarmChild

#: Seconds for the two stages that no scenario speaks of.
FIXED_S: Mapping[str, float] = {"spawn": 120.0, "close": 120.0}

#: How often a running child is looked at, seconds.
POLL_S = 0.25


def deadline_of(stage: str, deadlines: Mapping[str, float]) -> float:
    """Seconds that a stage may take; ``deadlines`` has the keys of ``DEADLINES_S``, and may name stages of its own.

    A reset gives up by itself when its deadline is over, so it hangs only when it does not answer for twice as long.
    """
    if stage in deadlines:
        return deadlines[stage]
    if stage in FIXED_S:
        return FIXED_S[stage]
    if stage.endswith(".reset") or stage == "drain":
        return 2 * deadlines["reset"]
    return deadlines["restore" if stage in (Phase.OWN_RESTORE, *RESTORES) else "prefill"]


class Watch:
    """Follows one child.

    Attributes:
        stage: the stage that it entered last.
        peak_bytes: largest sum of resident bytes of its processes.
        hung: a stage outlived its deadline; the stacks are in the log then.
    """

    def __init__(
        self,
        process: Process,
        footprint: Footprint,
        *,
        reader: int,
        deadlines: Mapping[str, float],
        stage_path: Path,
        result: Path,
        log: Path,
        called_off: threading.Event,
        tend: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Args:
            called_off: set by whoever no longer needs the leg.
            tend: called whenever the child is looked at.
        """
        self._called_off = called_off
        self._process, self._footprint, self._reader = process, footprint, reader
        self._deadlines = deadlines
        self._stage_path, self._result, self._log = stage_path, result, log
        self._tend = tend
        self._kills = memory_kills()
        self.peak_bytes = 0
        self.hung = False
        self.stage = ""
        self._enter("spawn")

    def _enter(self, stage: str) -> None:
        self.stage = stage
        self._until = time.monotonic() + deadline_of(stage, self._deadlines)
        # For the progress line only; a full disk must not end the leg.
        with contextlib.suppress(OSError):
            self._stage_path.write_text(stage)

    def until_end(self) -> None:
        """Wait for the child to end, or to hang.

        Raises:
            CalledOff: nobody needs the leg any more.
        """
        buffer = b""
        while True:
            if self._called_off.is_set():
                raise CalledOff
            ready, _, _ = select.select([self._reader], [], [], POLL_S)
            chunk = os.read(self._reader, 4096) if ready else b""
            buffer += chunk
            *stages, buffer = buffer.split(b"\n")
            for stage in stages:
                self._enter(stage.decode(errors="replace"))
            self._sample()
            self._tend()
            if self._process.poll() is not None:
                self._drain(buffer)
                return
            if ready and not chunk:
                # The child closed its end: it is ending, or has become something else.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(FIXED_S["close"])
                if self._process.poll() is None:
                    self._give_up()
                return
            if time.monotonic() > self._until:
                self._give_up()
                return

    def _drain(self, buffer: bytes) -> None:
        """Read what the child still said before it ended, so that the stage it died in is the last one it entered."""
        while select.select([self._reader], [], [], 0)[0] and (chunk := os.read(self._reader, 4096)):
            buffer += chunk
        for stage in buffer.split(b"\n")[:-1]:
            self._enter(stage.decode(errors="replace"))

    def _give_up(self) -> None:
        """The child hangs, unless its last act is done: then it only does not end, and what it saw stands."""
        self.hung = not self._result.exists()
        if self.hung:
            stacks.dump(self._footprint.processes(), self._log)

    def _sample(self) -> None:
        with contextlib.suppress(psutil.Error):
            tree = psutil.Process(self._process.pid)
            processes = [tree, *tree.children(recursive=True)]
            self._footprint.see(processes)
            self.peak_bytes = max(self.peak_bytes, sum(process.memory_info().rss for process in processes))

    def lost(self, digest: str, seconds: float) -> Lost:
        """What is known of the child, should it turn out to have left no observation."""
        return Lost(
            digest=digest, stage=self.stage, peak_bytes=self.peak_bytes, hung=self.hung,
            deadline_s=deadline_of(self.stage, self._deadlines), memory_kills=memory_kills() - self._kills,
            code=self._process.returncode, seconds=seconds,
        )


def memory_kills() -> int:
    """How often the kernel of this machine has killed a process for memory since it started."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
