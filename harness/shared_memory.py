# SPDX-License-Identifier: Apache-2.0
"""Files in /dev/shm: which there are, who maps them, and the removal of those that nobody does."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

SHARED_MEMORY = Path("/dev/shm")

#: How names of shared memory begin that libraries choose; a leg may die between two looks at its maps.
LIBRARIES = ("psm_", "torch_", "vllm", "nccl-", "sem.mp-")


def names() -> set[str]:
    """Of all files there."""
    with contextlib.suppress(OSError):
        return set(os.listdir(SHARED_MEMORY))
    return set()


def is_librarys(name: str) -> bool:
    """Whether a library names its shared memory so, and the file is this user's."""
    with contextlib.suppress(OSError):
        return name.startswith(LIBRARIES) and (SHARED_MEMORY / name).stat().st_uid == os.getuid()
    return False


def inode(name: str) -> int:
    """Inode of a file in /dev/shm; 0, which no file has, when it is gone."""
    with contextlib.suppress(OSError):
        return (SHARED_MEMORY / name).stat().st_ino
    return 0


def mapped(pid: int) -> set[int]:
    """Inodes of the files on /dev/shm that a process maps or has open.

    Not names: a semaphore is made under another name and linked to its own, so that maps call it deleted
    (``sem_open``). Inodes of other file systems may be among them.
    """
    numbers = set()
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/maps", "rb") as lines:
        numbers = {int(line.split(None, 5)[4]) for line in lines if b" /dev/shm/" in line}
    with contextlib.suppress(OSError):
        numbers.update(_open_files(pid))
    return numbers


def _open_files(pid: int) -> Iterator[int]:
    with os.scandir(f"/proc/{pid}/fd") as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if os.readlink(entry.path).startswith("/dev/shm/"):
                    yield os.stat(entry.path).st_ino


def unlink_unmapped(files: Mapping[str, int]) -> dict[str, int]:
    """Remove shared memory (name -> inode) that nobody maps any more; what somebody still maps."""
    used = set().union(*map(mapped, psutil.pids())) if files else set()
    for name, number in files.items():
        if number not in used and inode(name) == number:
            with contextlib.suppress(OSError):
                (SHARED_MEMORY / name).unlink()
    return {name: number for name, number in files.items() if number in used}
