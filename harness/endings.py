# SPDX-License-Identifier: Apache-2.0
"""How a leg's child ended, as its parent sees it: its own observation, or one that says how it was lost."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, replace
from pathlib import Path

from harness import wire
from harness.errors import WireError
from harness.records import SCHEMA_VERSION, Ending, Failure, Observation

#: A log is read from its end only; a leg may write a hundred megabytes.
LOG_TAIL_LINES, LOG_TAIL_BYTES = 40, 64 * 1024


@dataclass(frozen=True, kw_only=True)
class Lost:
    """What the parent knows of a child that left no observation.

    Attributes:
        digest: of the leg.
        stage: the last one that the child entered.
        peak_bytes: of the child with its children, as sampled.
        hung: whether a stage outlived its deadline.
        code: exit code, negative for a signal.
        seconds: from start to end.
    """

    digest: str
    stage: str
    peak_bytes: int
    hung: bool
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
            return Ending.HUNG, "deadline", f"stage {stage} outlived its deadline; stacks are at the end of the log"
        if self.code is not None and self.code < 0:
            name = signal.Signals(-self.code).name
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
    return observation


def completed(observation: Observation, sampled: int, log: Path, root: Path) -> Observation:
    """The observation with what only the parent knows: the tree's peak memory and the log."""
    return replace(
        observation,
        peak_bytes=max(observation.peak_bytes, sampled),
        log=str(log.relative_to(root)),
        log_tail=() if observation.ending is Ending.OK else tail(log),
    )


def tail(log: Path) -> tuple[str, ...]:
    with log.open("rb") as stream:
        stream.seek(max(0, stream.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
        text = stream.read().decode("utf-8", errors="replace")
    return tuple(text.splitlines()[-LOG_TAIL_LINES:])
