# SPDX-License-Identifier: Apache-2.0
"""How a leg's child ended, as its parent sees it: its own observation, or one that says how it was lost."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import signal
from dataclasses import dataclass, replace
from pathlib import Path

from harness import wire
from harness.errors import WireError
from harness.records import SCHEMA_VERSION, Ending, Failure, Leg, Observation

#: What a SIGKILL means that nobody sent on purpose.
MEMORY_KILLED = "the kernel killed for memory meanwhile"

#: What a machine says that has no process, memory or descriptor left for a child.
SCARCE = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)

#: How a failure's words end when one of the engine's processes was killed, or died while nobody saw of what.
_KILLED = re.compile(r" died( of SIGKILL)?$")

#: A log is read from its end only; a leg may write a hundred megabytes.
LOG_TAIL_LINES, LOG_TAIL_BYTES = 40, 64 * 1024

#: A longer log is cut in the middle once its leg has ended; one that filled the disk makes room for the next leg.
LOG_BYTES, LOG_KEPT_BYTES = 16 * 2**20, 2**20
CUT = b"\n--- N bytes cut here\n"


@dataclass(frozen=True, kw_only=True)
class Lost:
    """What the parent knows of a child that left no observation.

    Attributes:
        digest: of the leg.
        stage: the last one that the child entered.
        peak_bytes: of the child with its children, as sampled.
        hung: whether a stage outlived its deadline.
        deadline_s: that stage's.
        memory_kills: how often the kernel killed for memory meanwhile, anybody's process.
        code: exit code, negative for a signal.
        seconds: from start to end.
    """

    digest: str
    stage: str
    peak_bytes: int
    hung: bool
    deadline_s: float
    memory_kills: int
    code: int | None
    seconds: float

    def observation(self, problem: str) -> Observation:
        ending, kind, message = self._ending(problem)
        return Observation(
            schema=SCHEMA_VERSION,
            leg=self.digest,
            ending=ending,
            resolved=None,
            phases=(),
            failure=Failure(stage=self.stage, kind=kind, message=message),
            environment={},
            seconds={"total": self.seconds},
            peak_bytes=self.peak_bytes,
        )

    def _ending(self, problem: str) -> tuple[Ending, str, str]:
        stage = self.stage
        if self.hung:
            words = f"stage {stage} outlived its deadline of {self.deadline_s:g} s; stacks are at the end of the log"
            return Ending.HUNG, "deadline", words
        if self.code is not None and self.code < 0:
            name = signal.Signals(-self.code).name
            if name == "SIGKILL" and self.memory_kills:
                words = f"child died of {name} in stage {stage}, and {MEMORY_KILLED}"
                return Ending.OUT_OF_MEMORY, name, words
            # The kernel's memory killer sends SIGKILL; so may anyone, hence "likely".
            hint = "; likely out of memory or killed from outside" if name == "SIGKILL" else ""
            return Ending.CRASHED, name, f"child died of {name} in stage {stage}{hint}"
        return Ending.NO_OBSERVATION, f"exit {self.code}", f"child left no observation in stage {stage}: {problem}"


def child_observation(path: Path, lost: Lost) -> Observation:
    """What the child wrote, or what is known of it without."""
    if lost.hung:
        return lost.observation("hung")
    try:
        observation = wire.read(Observation, path)
    except WireError as error:
        return lost.observation(str(error))
    if observation.leg != lost.digest:
        return lost.observation(f"it wrote the observation of leg {observation.leg}")
    failure = observation.failure
    if failure is None or observation.ending is not Ending.CRASHED:
        return observation
    if not (lost.memory_kills and _KILLED.search(failure.message)):
        return observation
    words = f"{failure.message}, and {MEMORY_KILLED}"
    return replace(observation, ending=Ending.OUT_OF_MEMORY, failure=replace(failure, message=words))


def unwritten(leg: Leg, error: OSError, seconds: float) -> Observation:
    """The observation, kept in memory alone, of a leg whose files could not be written or whose child not started."""
    what = "the leg could not be started" if error.errno in SCARCE else "the run folder cannot be written"
    return Observation(
        schema=SCHEMA_VERSION, leg=leg.digest, ending=Ending.NO_OBSERVATION, resolved=None, phases=(),
        failure=Failure(stage="write", kind=type(error).__name__, message=f"{what}: {error}"),
        environment={}, seconds={"total": seconds}, peak_bytes=0,
    )


def completed(observation: Observation, sampled: int, log: Path, root: Path, left: list[str]) -> Observation:
    """The observation with what only the parent knows: the tree's peak memory, the log, and what would not die."""
    shorten(log)
    last = () if observation.ending is Ending.OK else tail(log)
    return replace(
        observation,
        peak_bytes=max(observation.peak_bytes, sampled),
        log=str(log.relative_to(root)),
        log_tail=(*last, *(f"still alive after SIGKILL: {one}" for one in left)),
    )


def shorten(log: Path) -> None:
    """Keep the beginning and the end of a log that is too long, in place: it may be what fills the disk.

    Too long is more than ``LOG_BYTES``, or more than what would be kept where no more than that is free.
    """
    with contextlib.suppress(OSError), log.open("r+b") as stream:
        size = stream.seek(0, os.SEEK_END)
        scarce = shutil.disk_usage(log.parent).free < LOG_BYTES
        if size > (2 * LOG_KEPT_BYTES + len(CUT) if scarce else LOG_BYTES):
            stream.seek(size - LOG_KEPT_BYTES)
            end = stream.read()
            stream.seek(LOG_KEPT_BYTES)
            stream.write(CUT.replace(b"N", str(size - 2 * LOG_KEPT_BYTES).encode()) + end)
            stream.truncate()


def tail(log: Path) -> tuple[str, ...]:
    """Its last lines, however long it is."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, stream.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
            text = stream.read().decode("utf-8", errors="replace")
    except OSError as error:
        return (f"the log cannot be read: {error}",)
    return tuple(text.splitlines()[-LOG_TAIL_LINES:])
