# SPDX-License-Identifier: Apache-2.0
"""What a leg leaves outside the run folder: processes, a folder for temporary files, shared memory; and its removal.

A leg's processes are those of its session, those that inherited its token in their environment (also after a
``setsid`` of their own), and those that were seen below it while it ran. Temporary files, vLLM's sockets among them,
go to a folder of the leg's own. Shared memory is what its processes had mapped, or a library made meanwhile, and
nobody maps now.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import os
import secrets
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

import psutil

from harness import shared_memory, wire
from harness.records import Leg
from harness.shared_memory import inode, is_librarys, unlink_unmapped

#: Environment variable with the leg's token. Every process of the leg has it.
TOKEN = "KVPARITY_LEG"

#: Names of legs' folders begin so.
PREFIX = "kvparity-leg-"

#: A folder without a lock belongs to nobody after so many seconds; before, it may be about to get one.
YOUNG_S = 60.0

#: Longest path of a folder in which vLLM may make its sockets: a socket's path has 107 bytes at most.
SOCKET_FOLDER_BYTES = 60

#: How often the maps of a leg's processes are read for shared memory, seconds.
LOOK_S = 1.0

#: How long a killed process may take to go, seconds; one that waits for a driver takes its time.
GONE_S = 30.0


class Child(Protocol):
    """What is needed of a leg's first process, however it was started."""

    pid: int

    def wait(self, timeout: float | None = None) -> int: ...


class Footprint:
    """One leg's, from before it starts until nothing of it is left.

    Attributes:
        token: value of ``TOKEN`` for its processes.
        folder: for its temporary files.
        held: name -> inode of shared memory of its own that another process, such as a server, still mapped at its end.
    """

    def __init__(self, leg: Leg) -> None:
        self.token = secrets.token_hex(8)
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=temporary_base()))
        # Held as long as this process lives, also where process numbers mean something else (another container).
        self._lock = os.open(self.folder, os.O_RDONLY)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._leader: int | None = None
        self._seen: dict[int, float] = {}
        self._shared: set[int] = set()
        self.held: Mapping[str, int] = {}
        self._before = shared_memory.names()
        # A file that the scenario itself names is not the leg's to lose.
        self._mentioned = wire.to_json([leg.env, leg.engine, leg.kv_transfer_config])
        self._looked = 0.0
        ACTIVE.add(self)

    def environment(self) -> dict[str, str]:
        """Variables for the leg's child; what torch compiles stays shared between legs."""
        compiled = Path(tempfile.gettempdir()) / f"torchinductor_{getpass.getuser()}"
        return {
            TOKEN: self.token,
            "TMPDIR": str(self.folder),
            "TORCHINDUCTOR_CACHE_DIR": os.environ.get("TORCHINDUCTOR_CACHE_DIR", str(compiled)),
        }

    def begin(self, child: Child) -> None:
        self._leader = child.pid

    def see(self, processes: Iterable[psutil.Process]) -> None:
        """Note processes that belong to the leg now, and from time to time the shared memory that they map."""
        look = time.monotonic() - self._looked > LOOK_S
        for process in processes:
            if process.pid not in self._seen:
                with contextlib.suppress(psutil.Error):
                    self._seen[process.pid] = process.create_time()
            if look:
                self._shared |= shared_memory.mapped(process.pid)
        if look:
            self._looked = time.monotonic()

    def processes(self) -> list[int]:
        """Processes of the leg that are alive, zombies not counted."""
        return [pid for pid in psutil.pids() if pid != os.getpid() and self._owns(pid)]

    def _owns(self, pid: int) -> bool:
        try:
            state, session = _state_and_session(pid)
            if state in "ZX":
                return False
            if session == self._leader or self.token.encode() in Path(f"/proc/{pid}/environ").read_bytes():
                return True
        except (OSError, ValueError, IndexError):
            # Gone meanwhile, or another user's.
            return False
        with contextlib.suppress(psutil.Error):
            return pid in self._seen and psutil.Process(pid).create_time() == self._seen[pid]
        return False

    def kill(self) -> list[int]:
        """Kill whatever of the leg is alive, without waiting; the processes it was sent to."""
        alive = self.processes()
        for pid in alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        return alive

    def end(self, child: Child | None) -> list[str]:
        """Kill and remove everything; descriptions of what is still alive after ``GONE_S``, normally none."""
        until = time.monotonic() + GONE_S
        alive: list[int] = []
        if child is not None:
            for pid in self.processes():
                self._shared |= shared_memory.mapped(pid)
            alive = self.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(GONE_S)
            while (alive := self.kill()) and time.monotonic() < until:
                _await(alive, until)
        left = [describe(pid) for pid in alive]
        self.remove()
        return left

    def remove(self) -> None:
        """Remove the folder and the shared memory that nobody maps any more."""
        if self not in ACTIVE:
            return
        ACTIVE.discard(self)
        os.close(self._lock)
        shutil.rmtree(self.folder, ignore_errors=True)
        new = {name: inode(name) for name in shared_memory.names() - self._before if name not in self._mentioned}
        own = {name: number for name, number in new.items() if number in self._shared or is_librarys(name)}
        self.held = unlink_unmapped(own)


#: Footprints of the legs that run in this process now, for whoever has to end it at once.
ACTIVE: set[Footprint] = set()


def temporary_base() -> Path:
    """Where legs' folders are made: the caller's own folder for temporary files, unless its path is too long."""
    base = tempfile.gettempdir()
    return Path(base if len(os.fsencode(base)) <= SOCKET_FOLDER_BYTES else "/tmp")


def sweep() -> int:
    """Remove folders of legs whose runner was killed before it could; how many."""
    stale = [path for path in temporary_base().glob(f"{PREFIX}*") if _is_stale(path)]
    for path in stale:
        shutil.rmtree(path, ignore_errors=True)
    return len(stale)


def _is_stale(path: Path) -> bool:
    try:
        if time.time() - path.stat().st_mtime < YOUNG_S:
            return False
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def kill_all() -> list[int]:
    """Kill what is alive of every leg that this process runs, without waiting."""
    return [pid for trace in list(ACTIVE) for pid in trace.kill()]


def end_all() -> None:
    """Kill and remove what is left of every leg that this process runs."""
    for trace in list(ACTIVE):
        trace.kill()
        trace.remove()


def await_gone(pids: Iterable[int], seconds: float) -> None:
    """Wait until none of these processes is alive, at most so long."""
    until = time.monotonic() + seconds
    while (alive := [pid for pid in pids if _is_alive(pid)]) and time.monotonic() < until:
        _await(alive, until)


def _is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return _state_and_session(pid)[0] not in "ZX"
    return False


def describe(pid: int) -> str:
    """``1234 EngineCore (sleeping): python -m harness.worker ...``, as far as it can be told."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        return f"{pid} {process.name()} ({process.status()}): {' '.join(process.cmdline())[:120]}"
    return str(pid)


def _state_and_session(pid: int) -> tuple[str, int]:
    # The name in parentheses may have blanks and parentheses of its own.
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return fields[0].decode(), int(fields[3])


def _await(pids: Iterable[int], until: float) -> None:
    """Wait until one of these processes ends; they may be anybody's children."""
    handles = []
    try:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                handles.append(os.pidfd_open(pid))
        if handles:
            select.select(handles, [], [], max(0.0, min(1.0, until - time.monotonic())))
    finally:
        for handle in handles:
            os.close(handle)
