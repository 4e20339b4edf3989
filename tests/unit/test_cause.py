# SPDX-License-Identifier: Apache-2.0
"""Refused, crashed, out of memory, died: how the child tells them apart."""

from __future__ import annotations

import multiprocessing
import os
import signal

import pytest

from harness.cause import classify
from harness.errors import LegError
from harness.offspring import Offspring
from harness.records import Ending


def caught(error: Exception, through: str = "") -> Exception:
    """``error`` with a traceback, raised inside a function named ``through``."""
    namespace: dict = {"error": error}
    exec(f"def {through or 'start'}():\n    raise error\n", namespace)
    try:
        namespace[through or "start"]()
    except Exception as seen:
        return seen
    raise AssertionError


@pytest.mark.parametrize(
    ("error", "accepted", "through", "ending"),
    [
        (ValueError("VLLM_KV_CACHE_LAYOUT=X does not satisfy every supported set"), False, "", Ending.REFUSED),
        (NotImplementedError("no ALiBi"), False, "", Ending.REFUSED),
        # The connector had the KV tensors: the configuration was accepted, and then it died.
        (ValueError("KV region bytes (65536) exceed its stride (8192)"), False, "register_kv_caches", Ending.CRASHED),
        (ValueError("KV region bytes (65536) exceed its stride (8192)"), False, "from_kv_cache_config", Ending.CRASHED),
        (ValueError("late"), True, "", Ending.CRASHED),
        (RuntimeError("operator missing"), False, "", Ending.CRASHED),
        (LegError("x"), False, "", Ending.CRASHED),
        (MemoryError(), False, "", Ending.OUT_OF_MEMORY),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), False, "", Ending.OUT_OF_MEMORY),
        # vLLM's CPU worker says it with a ValueError, which is no refusal of the configuration.
        (ValueError("Available memory on node 0 (1/7 GiB) on kv cache"), False, "", Ending.OUT_OF_MEMORY),
    ],
)
def test_endings(tmp_path, error, accepted, through, ending):
    got, failure = classify(caught(error, through), "load", accepted=accepted, log=tmp_path / "none.log")
    assert (got, failure.stage, failure.message) == (ending, "load", str(error))


LOG = """\
(EngineCore pid=7) ERROR 11-30 [core.py:99] Traceback (most recent call last):
(EngineCore pid=7) ERROR 11-30 [core.py:99]   File "x.py", line 3, in {through}
(EngineCore pid=7) ERROR 11-30 [core.py:99] ValueError: VLLM_KV_CACHE_LAYOUT=BHLNC does not satisfy it
RuntimeError: Engine core initialization failed. See root cause above.
"""


@pytest.mark.parametrize(
    ("through", "ending"), [("resolve_kv_cache_layout", Ending.REFUSED), ("register_kv_caches", Ending.CRASHED)]
)
def test_with_multiprocessing_the_engine_cores_own_words_count(tmp_path, through, ending):
    log = tmp_path / "leg.log"
    log.write_text(LOG.format(through=through))
    error = caught(RuntimeError("Engine core initialization failed. See root cause above. Failed core proc(s): {}"))
    got, failure = classify(error, "load", accepted=False, log=log)
    assert (got, failure.kind) == (ending, "ValueError")
    assert failure.message == "VLLM_KV_CACHE_LAYOUT=BHLNC does not satisfy it"


def test_without_a_log_the_front_ends_words_stay(tmp_path):
    error = caught(RuntimeError("Engine core initialization failed."))
    got, failure = classify(error, "load", accepted=False, log=tmp_path / "none.log")
    assert (got, failure.message) == (Ending.CRASHED, "Engine core initialization failed.")


def _wait() -> None:
    signal.pause()


@pytest.fixture
def core():
    """What vLLM would start as its engine core, remembered; ended with the test."""
    with Offspring() as offspring:
        process = multiprocessing.get_context("spawn").Process(target=_wait, daemon=True)
        process.start()
    yield process, offspring
    process.kill()
    process.join()


CORE_DEATHS = [
    # vLLM has looked before the kernel had an exit code, or after.
    RuntimeError("Engine core initialization failed. See root cause above. Failed core proc(s): {}"),
    RuntimeError("Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': -9}"),
    type("EngineDeadError", (Exception,), {})("EngineCore encountered an issue. See stack trace (above)."),
]


@pytest.mark.parametrize("error", CORE_DEATHS, ids=["no code yet", "code", "later"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
def test_a_killed_engine_core_has_the_name_of_its_signal_whatever_vllm_says(tmp_path, core, error, number):
    process, offspring = core
    log = tmp_path / "leg.log"
    log.write_text("ValueError: what it had said before is not the reason\n")
    os.kill(process.pid, number)
    multiprocessing.connection.wait([process.sentinel])
    got, failure = classify(caught(error), "load", accepted=False, log=log, offspring=offspring)
    assert (got, failure.kind, failure.message) == (
        Ending.CRASHED, number.name, f"engine core died of {number.name}"
    )


def test_an_engine_core_that_lives_or_that_vllm_ended_itself_is_no_cause(tmp_path, core):
    process, offspring = core
    assert offspring.killed_by() is None
    process.terminate()
    process.join()
    assert offspring.killed_by() is None
    log = tmp_path / "leg.log"
    log.write_text(LOG.format(through="resolve_kv_cache_layout"))
    got, failure = classify(caught(CORE_DEATHS[0]), "load", accepted=False, log=log, offspring=offspring)
    assert (got, failure.kind) == (Ending.REFUSED, "ValueError")


def test_only_what_starts_meanwhile_is_remembered(core):
    process, offspring = core
    with Offspring() as later:
        pass
    process.kill()
    process.join()
    assert (offspring.killed_by(), later.killed_by()) == ("SIGKILL", None)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("Worker proc VllmWorker-0 died unexpectedly (exit code: -9), shutting down executor.", " of SIGKILL"),
        ("Worker proc VllmWorker-0 died unexpectedly (exit code: 3), shutting down executor.", " with exit code 3"),
        ("Worker proc VllmWorker-0 died unexpectedly (exit code: None), shutting down executor.", ""),
        ("Worker proc VllmWorker-0 died unexpectedly, shutting down executor.", ""),
    ],
)
@pytest.mark.parametrize(
    "error", [Exception("Call to collective_rpc method failed: cancelled"), CORE_DEATHS[2], TimeoutError("x")]
)
def test_a_dead_worker_has_one_name_whatever_vllm_says(tmp_path, error, said, words):
    log = tmp_path / "leg.log"
    log.write_text(f"(EngineCore pid=7) ERROR 11-30 [multiproc_executor.py:281] {said}\n")
    got, failure = classify(caught(error), "restore", accepted=True, log=log)
    assert (got, failure.kind, failure.message) == (
        Ending.CRASHED, "EngineDeadError", f"worker VllmWorker-0 died{words}"
    )


def test_what_an_earlier_engine_of_the_leg_or_the_front_end_said_is_no_cause(tmp_path):
    log = tmp_path / "leg.log"
    log.write_text("(EngineCore pid=5) ValueError: of the part before\nWorker proc W-0 died unexpectedly\n")
    since = log.stat().st_size
    with log.open("a") as stream:
        stream.write("(MainProcess pid=6) WARNING [base.py:380] ValueError: Tokenizer not available\n")
        stream.write("(EngineCore pid=7) ERROR OSError: shared segment is gone\n")
    got, failure = classify(caught(CORE_DEATHS[0]), "load", accepted=False, log=log, since=since)
    assert (got, failure.kind, failure.message) == (Ending.CRASHED, "OSError", "shared segment is gone")


def test_a_worker_that_ended_by_itself_did_not_die_unseen(tmp_path):
    log = tmp_path / "leg.log"
    log.write_text("Worker proc VllmWorker-0 died unexpectedly (exit code: 0), shutting down executor.\n")
    _, failure = classify(caught(CORE_DEATHS[2]), "restore", accepted=True, log=log)
    assert failure.message == "worker VllmWorker-0 died with exit code 0"
