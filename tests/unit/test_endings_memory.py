# SPDX-License-Identifier: Apache-2.0
"""An engine whose process the kernel killed for memory, as its leg's child tells of it and its parent knows it."""

from __future__ import annotations

import pytest

from harness import wire
from harness.endings import Lost, child_observation
from harness.records import SCHEMA_VERSION, Ending, Failure, Observation

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
