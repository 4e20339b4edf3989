# SPDX-License-Identifier: Apache-2.0
"""A run folder: what a run planned, what its legs saw, what was judged.

``<root>/<UTC>-<plan digest>/{plan.json, env.json, legs/, verdicts.jsonl, frame.csv, steps.csv, report.md,
report.html}``; ``<root>/latest`` points to the newest. ``legs/<digest>.json`` exists exactly when that leg has ended,
so several processes can share the work: who holds ``legs/<digest>.lock`` runs the leg, everybody else waits and reads.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import itertools
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from filelock import FileLock, Timeout

from harness import wire
from harness.errors import UsageError, WireError
from harness.garbage import collector_at_rest
from harness.records import Ending, Leg, Observation, Plan, Verdict

#: File in ``legs/`` that is locked by the one process that runs in the folder, and says who that is.
OWNER = "run.lock"

#: Endings that a resumed run need not repeat: the answer would be the same.
FINAL_ENDINGS = (Ending.OK, Ending.REFUSED)


class RunFolder:
    """One run folder; opening it writes nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.legs = path / "legs"
        self._owned: IO[str] | None = None

    @classmethod
    def create(cls, root: Path, plan: Plan, *, now: datetime.datetime | None = None) -> RunFolder:
        """Make a new folder under ``root`` for ``plan`` and point ``latest`` to it."""
        now = now or datetime.datetime.now(datetime.UTC)
        folder = cls(_new_folder(root, f"{now:%Y%m%dT%H%M%SZ}-{wire.digest(plan)[:8]}"))
        folder.prepare()
        folder.own()
        folder.point_latest(root)
        return folder

    def prepare(self) -> None:
        """Make the folder itself.

        Raises:
            UsageError: the path is a file, or a folder that holds something other than a run.
        """
        if self.path.exists() and not self.path.is_dir():
            raise UsageError(f"{self.path}: is a file, a run folder is a directory")
        if self.path.is_dir() and any(self.path.iterdir()) and not self.legs.is_dir():
            raise UsageError(f"{self.path}: holds files but no legs/: not a run folder; name an empty or a new one")
        self.legs.mkdir(parents=True, exist_ok=True)

    def own(self) -> None:
        """Be the one run of this folder, until this process ends or ``disown`` is called.

        Raises:
            UsageError: another process has it.
        """
        stream = (self.legs / OWNER).open("a+", encoding="utf-8")
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stream.seek(0)
            owner = stream.read().strip() or "another process"
            stream.close()
            raise UsageError(
                f"{self.path}: a run is going on in this folder ({owner}); wait until it has ended, or name another "
                "folder"
            ) from None
        stream.truncate(0)
        now = datetime.datetime.now().astimezone()
        stream.write(f"process {os.getpid()} on {socket.gethostname()}, since {now:%Y-%m-%d %H:%M:%S %Z}\n")
        stream.flush()
        self._owned = stream

    def disown(self) -> None:
        """Let another process run in this folder."""
        if self._owned is not None:
            self._owned.close()
            self._owned = None

    def point_latest(self, root: Path) -> None:
        """``<root>/latest`` -> this folder, replaced in one step."""
        link = root / "latest"
        temporary = root / f".latest.{os.getpid()}"
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(self.path.name)
        os.replace(temporary, link)

    def forget_unfinished(self) -> int:
        """Drop observations of legs that died, so that a resumed run tries them again; how many are kept."""
        kept = 0
        for path in self.legs.glob("*.json"):
            if path.name.endswith((".leg.json", ".child.json")):
                continue
            try:
                keep = wire.read(Observation, path).ending in FINAL_ENDINGS
            except WireError:
                keep = False
            kept += keep
            if not keep:
                path.unlink()
        return kept

    # --- legs ---

    def observation_path(self, digest: str) -> Path:
        return self.legs / f"{digest}.json"

    def log_path(self, digest: str) -> Path:
        return self.legs / f"{digest}.log"

    def stage_path(self, digest: str) -> Path:
        return self.legs / f"{digest}.stage"

    def store_path(self, digest: str) -> Path:
        """Folder in which the leg's connector may keep files while the leg runs."""
        return self.legs / f"{digest}.store"

    def read_observation(self, digest: str) -> Observation | None:
        """The leg's observation, None when the leg has not ended in this folder."""
        path = self.observation_path(digest)
        return wire.read(Observation, path) if path.exists() else None

    def write_observation(self, observation: Observation) -> None:
        wire.write(self.observation_path(observation.leg), observation)

    @contextlib.contextmanager
    def claim(self, leg: Leg, given_up: Callable[[], bool] = lambda: False) -> Iterator[bool]:
        """Hold the leg, waiting while another process runs it, or until ``given_up`` says so; whether it is held."""
        with self._lock_of(leg, cancel_check=given_up) as held:
            yield held

    @contextlib.contextmanager
    def claim_free(self, leg: Leg) -> Iterator[bool]:
        """Hold the leg if no process does; whether it is held."""
        with self._lock_of(leg, timeout=0) as held:
            yield held

    @contextlib.contextmanager
    def _lock_of(self, leg: Leg, **patience: Any) -> Iterator[bool]:
        lock = FileLock(self.legs / f"{leg.digest}.lock")
        try:
            lock.acquire(**patience)
        except Timeout:
            yield False
            return
        try:
            yield True
        finally:
            lock.release()

    def is_claimed(self, leg: Leg) -> bool:
        """Whether some process holds the leg at this moment."""
        with self.claim_free(leg) as held:
            return not held

    def running(self) -> dict[str, str]:
        """Leg digest -> stage, of the legs that run now."""
        stages = {}
        for path in self.legs.glob("*.stage"):
            with contextlib.suppress(OSError):
                stages[path.stem] = path.read_text().strip()
        return stages

    def ended(self, plan: Plan) -> int:
        """How many of the plan's legs have an observation."""
        return sum(self.observation_path(leg.digest).exists() for leg in plan.legs)

    # --- the run ---

    @property
    def plan_path(self) -> Path:
        return self.path / "plan.json"

    def read_plan(self) -> Plan:
        """The plan of this run.

        Raises:
            UsageError: the folder is not a run folder.
        """
        if not self.plan_path.exists():
            raise UsageError(f"{self.path}: has no plan.json: not a run folder; runs live under results/")
        with collector_at_rest():
            return wire.read(Plan, self.plan_path)

    def write_plan(self, plan: Plan) -> None:
        wire.write(self.plan_path, plan)

    def write_environment(self, facts: Mapping[str, object]) -> None:
        wire.write(self.path / "env.json", facts, indent=2)

    def write_verdicts(self, verdicts: Sequence[Verdict]) -> None:
        """One verdict a line (JSON lines)."""
        wire.write_text(self.path / "verdicts.jsonl", "".join(wire.to_json(verdict) + "\n" for verdict in verdicts))

    def read_observations(self, plan: Plan) -> dict[str, Observation]:
        """Leg digest -> observation, of those legs that have ended."""
        with collector_at_rest():
            found = {leg.digest: self.read_observation(leg.digest) for leg in plan.legs}
        return {digest: observation for digest, observation in found.items() if observation is not None}


def _new_folder(root: Path, name: str) -> Path:
    """Make a folder that no other run has, also when two start in the same second."""
    root.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        path = root / (name if number == 1 else f"{name}-{number}")
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            return path
    raise AssertionError
