# SPDX-License-Identifier: Apache-2.0
"""Every test in this folder also checks that nothing of its legs is left."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from harness import footprint, shared_memory
from harness.archive import RunFolder
from harness.footprint import Footprint
from harness.runner import Runner


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path / "run")
    made.prepare()
    return made


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """One run folder for all legs of a module."""
    made = RunFolder(tmp_path_factory.mktemp("runs") / "run")
    made.prepare()
    return made


@pytest.fixture(scope="module")
def runner(runs: RunFolder) -> Iterator[Runner]:
    """One for all legs of a module: its warm process has imported vLLM once."""
    made = Runner(runs)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def traces(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Footprint]]:
    """Footprints of the test's legs; at its end none of them has a process, a folder or shared memory."""
    made: list[Footprint] = []
    real = Footprint.__init__

    def noted(self: Footprint, leg) -> None:
        real(self, leg)
        made.append(self)

    monkeypatch.setattr(Footprint, "__init__", noted)
    before = shared_memory.names()
    yield made
    assert not footprint.ACTIVE
    for trace in made:
        assert [footprint.describe(pid) for pid in trace.processes()] == []
        assert not trace.folder.exists()
    named = {name for name in shared_memory.names() - before if shared_memory.is_librarys(name)}
    left = {shared_memory.inode(name): name for name in named}
    # What is mapped is another test's, in a process beside this one: this test's processes are gone.
    for pid in psutil.pids() if left else ():
        for number in shared_memory.mapped(pid):
            left.pop(number, None)
    # What is gone by now was another one's too: a semaphore has a name only for a moment.
    there = shared_memory.names() if left else set()
    assert [name for name in left.values() if name in there] == []
    below = [_command(process) for process in psutil.Process().children(recursive=True)]
    assert [command for command in below if "harness.worker" in command] == []


def _command(process: psutil.Process) -> str:
    """Its command line; nothing for one that has ended, whether or not its parent has noticed."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return ""
