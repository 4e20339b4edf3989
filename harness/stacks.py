# SPDX-License-Identifier: Apache-2.0
"""Stacks of every process of a leg that hangs, written to the end of its log before it is killed.

py-spy where it is installed, since it needs no help from the process; otherwise faulthandler, which listens on SIGUSR1
in a leg's child from its first line on and in vLLM's own processes once they load plugins (``harness.plugin``). A
process that is stopped is woken for it, after all others: they are about to be killed anyway, and none may go on, and
have another stack or none at all, because the one that it waited for is awake again.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from harness.footprint import describe

#: How long all the stacks together may take, seconds, and how long one process may.
ALL_S, ONE_S = 60.0, 10.0

#: How often a log is looked at while a stack is being written into it, seconds.
LOOK_S = 0.05

#: A stack is whole when the log has not grown for so many looks; who writes it may have to wait for a processor.
QUIET = 20

_NO_WAIT = threading.Event()


def listen() -> None:
    """Write the stacks of all threads of this process to its standard error on SIGUSR1."""
    # By number: vLLM puts an object of its own in the place of sys.stderr.
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)


def dump(pids: Iterable[int], log: Path) -> None:
    """Append a section for each process to ``log``, which must be the processes' own standard error, and stop it."""
    until = time.monotonic() + ALL_S
    spy = shutil.which("py-spy")
    for pid in sorted(pids, key=is_stopped):
        _say(log, f"--- stacks of {describe(pid)}")
        if time.monotonic() > until:
            _say(log, "none: out of time")
        elif spy is None or not _spied(spy, pid, log):
            _asked(pid, log)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGSTOP)


def _spied(spy: str, pid: int, log: Path) -> bool:
    """Let py-spy write; False when it may not look into the process."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        answer = subprocess.run([spy, "dump", "--pid", str(pid)], capture_output=True, timeout=ONE_S, check=False)
        if answer.returncode == 0:
            _say(log, answer.stdout.decode(errors="replace"))
            return True
    return False


def _asked(pid: int, log: Path) -> None:
    if not listens(pid):
        _say(log, "none: the process does not listen, and py-spy is not installed or may not look into it")
        return
    size = _size(log)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGUSR1)
        os.kill(pid, signal.SIGCONT)
    _await_growth(log, size)


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped it; False too when it is gone."""
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    return False


def listens(pid: int) -> bool:
    """Whether a process handles SIGUSR1; one that does not would die of it."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (signal.SIGUSR1 - 1) & 1)
    return False


def _await_growth(log: Path, size: int) -> None:
    until, quiet, last = time.monotonic() + ONE_S, 0, size
    while time.monotonic() < until and quiet < QUIET:
        _NO_WAIT.wait(LOOK_S)
        now = _size(log)
        quiet = quiet + 1 if now == last and now > size else 0
        last = now


def _size(log: Path) -> int:
    with contextlib.suppress(OSError):
        return log.stat().st_size
    return 0


def _say(log: Path, text: str) -> None:
    # A full disk must not keep the leg from being ended.
    with contextlib.suppress(OSError), log.open("a", encoding="utf-8") as stream:
        stream.write(f"{text}\n")
