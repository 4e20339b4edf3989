# SPDX-License-Identifier: Apache-2.0
"""Stacks of processes that wait for each other, one of them stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from harness import stacks

#: Ends as soon as the other process writes.
WAITING = """
import os
from harness import stacks
def waits_for_the_other():
    os.write(1, b"ready")
    os.read(0, 1)
    os._exit(0)
stacks.listen()
waits_for_the_other()
"""

#: Writes as soon as it is let.
STOPPED = """
import os, signal
from harness import stacks
def is_stopped_first():
    os.kill(os.getpid(), signal.SIGSTOP)
    os.write({other}, b"x")
    signal.pause()
stacks.listen()
is_stopped_first()
"""


@pytest.fixture
def pair(tmp_path):
    """A log that both write to, the stopped process, and the one that waits for it."""
    path = tmp_path / "log"
    end, other = os.pipe()
    ready, say = os.pipe()
    with path.open("ab") as log:
        waiting = subprocess.Popen([sys.executable, "-c", WAITING], stdin=end, stdout=say, stderr=log)
        code = STOPPED.format(other=other)
        stopped = subprocess.Popen([sys.executable, "-c", code], pass_fds=(other,), stderr=log)
    for descriptor in (end, other, say):
        os.close(descriptor)
    assert os.read(ready, 5) == b"ready"
    os.close(ready)
    os.waitid(os.P_PID, stopped.pid, os.WSTOPPED | os.WNOWAIT)
    yield path, stopped, waiting
    for process in (stopped, waiting):
        process.kill()
        process.wait()


@pytest.mark.parametrize("swapped", [False, True])
def test_nobody_goes_on_because_another_one_is_woken_for_its_stack(pair, swapped):
    log, stopped, waiting = pair
    pids = [waiting.pid, stopped.pid] if swapped else [stopped.pid, waiting.pid]
    stacks.dump(pids, log)
    first, second = log.read_text().split("--- stacks of ")[1:]
    assert first.startswith(f"{waiting.pid} ") and "in waits_for_the_other" in first
    assert second.startswith(f"{stopped.pid} ") and "(stopped)" in second and "in is_stopped_first" in second
    for process in (waiting, stopped):
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        assert stacks.is_stopped(process.pid)


def test_a_process_that_is_gone_is_no_stopped_one(pair):
    _, stopped, _ = pair
    assert stacks.is_stopped(stopped.pid)
    stopped.send_signal(signal.SIGKILL)
    stopped.wait()
    assert not stacks.is_stopped(stopped.pid)
