# SPDX-License-Identifier: Apache-2.0
"""What the parent makes of a leg that the machine failed: killed for memory, not started, worth a second attempt."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from harness import wire
from harness.endings import Lost, child_observation, unwritten
from harness.records import SCHEMA_VERSION, Ending, Failure, Observation
from harness.runner import infrastructure_failed

KILLED = ["engine core died of SIGKILL", "worker VllmWorker-0 died of SIGKILL", "worker VllmWorker-0 died",
          "the prefill engine died of SIGKILL"]
OTHER = ["engine core died of SIGSEGV", "worker VllmWorker-0 died with exit code 3", "x died of SIGKILL, they say"]


def told(tmp_path, message: str, memory_kills: int) -> Observation:
    path = tmp_path / "child.json"
    observation = Observation(
        schema=SCHEMA_VERSION, leg="ab" * 8, ending=Ending.CRASHED, resolved=None, phases=(),
        failure=Failure(stage="load", kind="X", message=message), environment={}, seconds={}, peak_bytes=1,
    )
    wire.write(path, observation)
    lost = Lost(digest="ab" * 8, stage="load", peak_bytes=1, hung=False, deadline_s=1.0, memory_kills=memory_kills,
                code=0, seconds=1.0)
    return child_observation(path, lost)


@pytest.mark.parametrize("message", KILLED)
def test_a_process_that_was_killed_while_the_kernel_killed_for_memory_lacked_memory(tmp_path, message):
    observation = told(tmp_path, message, memory_kills=1)
    assert observation.ending is Ending.OUT_OF_MEMORY
    assert observation.failure.message == f"{message}, and the kernel killed for memory meanwhile"
    assert told(tmp_path, message, memory_kills=0).ending is Ending.CRASHED


@pytest.mark.parametrize("message", OTHER)
def test_another_death_stays_a_crash_whatever_the_kernel_did_meanwhile(tmp_path, message):
    observation = told(tmp_path, message, memory_kills=1)
    assert (observation.ending, observation.failure.message) == (Ending.CRASHED, message)


@pytest.mark.parametrize(("number", "words"), [
    (errno.ENOSPC, "the run folder cannot be written: [Errno 28] x"),
    (errno.EAGAIN, "the leg could not be started: [Errno 11] x"),
    (errno.EMFILE, "the leg could not be started: [Errno 24] x"),
])
def test_a_leg_without_files_or_without_a_process_says_which(make_leg, number, words):
    observation = unwritten(make_leg(), OSError(number, "x"), 1.0)
    assert (observation.ending, observation.failure.message) == (Ending.NO_OBSERVATION, words)


@pytest.mark.parametrize("message", ["Device or resource busy", "DefaultCPUAllocator: can't allocate memory"])
@pytest.mark.parametrize(("through", "again"), [("load_model", True), ("register_kv_caches", False)])
def test_what_a_store_was_denied_at_work_is_not_tried_again(tmp_path, message, through, again):
    """A store that fails now and then must not look as if it never did."""
    observation = told(tmp_path, message, memory_kills=0)
    ending = Ending.OUT_OF_MEMORY if "memory" in message else Ending.CRASHED
    failure = replace(observation.failure, trace=f'File "x.py", line 3, in {through}\n{message}')
    assert infrastructure_failed(replace(observation, ending=ending, failure=failure)) is again
