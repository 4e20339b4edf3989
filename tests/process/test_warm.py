# SPDX-License-Identifier: Apache-2.0
"""A warm process that no longer says what it is asked: no leg of it may run beside the one that is spawned instead."""

from __future__ import annotations

import json
import socket
import subprocess
import sys

import pytest

from harness.warm import WarmError, WarmProcesses

ENVIRONMENT = {"KVPARITY_BACKEND": "REFERENCE", "OMP_NUM_THREADS": "1"}

#: Ends when its socket closes, as a warm process does.
WARM = "import socket, sys; socket.socket(fileno=int(sys.argv[1])).recv(1)"


@pytest.mark.parametrize("said", [{"code": -9}, {}], ids=["the code of an earlier leg", "nothing"])
def test_one_that_answers_something_else_is_ended(said, tmp_path):
    warm = WarmProcesses()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ending, held = socket.socketpair()
    process = subprocess.Popen([sys.executable, "-c", WARM, str(held.fileno())], pass_fds=(held.fileno(),))
    held.close()
    key = json.dumps({"OMP_NUM_THREADS": "1"}, sort_keys=True)
    warm._ready[key] = (ours, process)
    theirs.send(json.dumps(said).encode())
    ending.close()
    with (tmp_path / "log").open("wb") as log, pytest.raises(WarmError):
        warm.start_leg(["leg", "out", "log"], ENVIRONMENT, log.fileno(), log.fileno())
    assert (warm._ready, ours.fileno(), process.returncode) == ({}, -1, 0)
    order, *_ = socket.recv_fds(theirs, 1 << 16, 2)
    assert json.loads(order)["arguments"] == ["leg", "out", "log"]
    assert theirs.recv(1) == b"", "what it might have forked sees that nobody listens"
