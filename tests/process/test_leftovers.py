# SPDX-License-Identifier: Apache-2.0
"""What a leg leaves behind is found and removed, and nothing of anybody else's."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
from _multiprocessing import SemLock
from multiprocessing import shared_memory
from pathlib import Path

import psutil
import pytest

from harness import footprint
from harness import shared_memory as files
from harness.footprint import Footprint
from harness.records import Ending
from harness.runner import Runner


@pytest.mark.parametrize("stage", ["load", "restore"])
def test_children_daemons_sockets_files_and_shared_memory_are_gone(folder, make_leg, traces, stage):
    """The conftest's fixture looks for them; here, that they had been there."""
    observation = Runner(folder).ensure(make_leg(fake={"stages": {stage: "litter"}}))
    assert (observation.ending, observation.failure.kind, observation.failure.stage) == (
        Ending.CRASHED, "SIGKILL", stage,
    )
    line = next(line for line in observation.log_tail if line.startswith("littered"))
    _, temporary, shared, *below = line.split()
    assert temporary == str(traces[0].folder) and not Path(temporary).exists()
    assert not Path("/dev/shm", shared).exists()
    assert len(below) == 2 and not any(footprint._is_alive(int(pid)) for pid in below)


def test_a_daemon_that_left_the_session_and_its_parent_is_found_by_its_token(make_leg):
    trace = Footprint(make_leg())
    daemon = "import signal; print('up', flush=True); signal.pause()"
    script = (
        f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {daemon!r}], stdout=subprocess.PIPE, "
        "start_new_session=True); p.stdout.readline(); print(p.pid, flush=True)"
    )
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True,
                             env={**os.environ, **trace.environment()})
    trace.begin(child)
    lost = int(child.stdout.readline())
    child.wait()
    assert trace.processes() == [lost]
    assert trace.end(child) == []
    assert not footprint._is_alive(lost)
    child.stdout.close()


def test_a_leg_that_has_not_begun_has_no_processes(make_leg):
    """Session 0 is the kernel's own."""
    trace = Footprint(make_leg())
    assert trace.processes() == trace.kill() == footprint.kill_all() == []
    footprint.end_all()
    assert not trace.folder.exists()


def test_a_stopped_process_dies_too(make_leg):
    trace = Footprint(make_leg())
    child = subprocess.Popen([sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"],
                             start_new_session=True)
    trace.begin(child)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
    assert trace.end(child) == []
    assert child.returncode == -signal.SIGKILL


def test_shared_memory_of_others_is_left_alone(make_leg):
    named = shared_memory.SharedMemory(create=True, size=16, name=f"kvparity-test-{os.getpid()}")
    trace = Footprint(make_leg(env={"KVPARITY_SHARED_STORE": "/dev/shm/kvparity-named"}))
    mapped = shared_memory.SharedMemory(create=True, size=16)
    own = Path("/dev/shm", f"torch_{os.getpid()}_left")
    own.write_bytes(b"x")
    scenarios = Path("/dev/shm/kvparity-named")
    scenarios.write_bytes(b"x")
    trace._shared |= {files.inode(name) for name in (scenarios.name, own.name, named.name)}
    try:
        trace.end(None)
        assert not own.exists(), "made meanwhile, under a library's name, and nobody maps it"
        assert scenarios.exists(), "the scenario names it"
        assert Path("/dev/shm", named.name).exists(), "it had been there before"
        assert Path("/dev/shm", mapped.name).exists(), "somebody maps it"
    finally:
        scenarios.unlink()
        for shared in (named, mapped):
            shared.close()
            shared.unlink()


def test_a_semaphore_of_an_engine_that_starts_beside_is_left_alone(make_leg):
    """As ``multiprocessing`` makes one for a child to open by its name, which no process's maps show."""
    trace = Footprint(make_leg())
    lock = multiprocessing.get_context("spawn").Lock()
    name = lock._semlock.name
    assert f"sem.{name[1:]}" in files.names() - trace._before
    trace.end(None)
    assert SemLock._rebuild(-1, lock._semlock.kind, lock._semlock.maxvalue, name).acquire(False)


def test_a_semaphore_that_nobody_holds_any_more_is_removed(make_leg):
    trace = Footprint(make_leg())
    script = (
        "import multiprocessing, os; lock = multiprocessing.get_context('spawn').Lock(); "
        "print(lock._semlock.name, flush=True); "
        "os.kill(multiprocessing.resource_tracker._resource_tracker._pid, 9); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    name = f"sem.{done.stdout.strip()[1:]}"
    assert name in files.names() - trace._before, "the kernel leaves it"
    trace.end(None)
    assert name not in files.names()


def test_what_a_legs_server_still_maps_goes_once_the_server_has_ended(folder, make_leg, monkeypatch):
    """As LMCache's server maps the engine's KV cache; the leg ends before its server does."""
    name, servers = f"torch_{os.getpid()}_served", []
    script = (
        "import mmap, sys; file = open(sys.argv[1], 'w+b'); file.truncate(16); held = mmap.mmap(file.fileno(), 16); "
        "print('mapped', flush=True); sys.stdin.read()"
    )

    @contextlib.contextmanager
    def serving(self, config):
        yield {}
        assert files.inode(name), "the server still maps it"
        servers[0].communicate()

    def begin(self, child):
        command = [sys.executable, "-c", script, f"/dev/shm/{name}"]
        servers.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True))
        assert servers[0].stdout.readline() == b"mapped\n"
        self._leader = child.pid

    monkeypatch.setattr("harness.runner.Servers.serving", serving)
    monkeypatch.setattr(Footprint, "begin", begin)
    assert Runner(folder).ensure(make_leg()).ending is Ending.OK
    assert name not in files.names()


def test_folders_of_a_runner_that_was_killed_are_swept_and_no_others(make_leg, monkeypatch, tmp_path):
    monkeypatch.setattr(footprint, "temporary_base", lambda: tmp_path)
    monkeypatch.setattr(footprint, "YOUNG_S", 0.0)
    trace = Footprint(make_leg())
    stale, other = tmp_path / "kvparity-leg-gone", tmp_path / "kvparity-controls-x"
    for path in (stale, other):
        path.mkdir()
        (path / "file").write_text("x")
    assert footprint.sweep() == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([trace.folder.name, other.name])
    monkeypatch.setattr(footprint, "YOUNG_S", 60.0)
    stale.mkdir()
    assert footprint.sweep() == 0, "it may be about to get its lock"
    trace.end(None)


def test_a_folder_for_sockets_has_a_short_path(monkeypatch, make_leg, tmp_path):
    monkeypatch.setattr(footprint.tempfile, "gettempdir", lambda: str(tmp_path / ("x" * 80)))
    trace = Footprint(make_leg())
    assert trace.folder.parent == Path("/tmp")
    trace.end(None)


def test_the_runner_leaves_its_own_children_alone(folder, make_leg):
    mine = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    Runner(folder).ensure(make_leg())
    assert psutil.Process(mine.pid).status() != psutil.STATUS_ZOMBIE and mine.poll() is None
    mine.kill()
    mine.wait()
