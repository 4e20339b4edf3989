# SPDX-License-Identifier: Apache-2.0
"""Refused, crashed, out of memory: how the child tells them apart, and what it may write down."""

from __future__ import annotations

import pytest

from harness import worker
from harness.errors import LegError
from harness.records import Ending
from harness.worker import RECORDED_VARIABLES, Stages, classify, run_leg


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


@pytest.mark.parametrize(
    ("name", "recorded"),
    [
        ("VLLM_KV_CACHE_LAYOUT", True), ("KVPARITY_BACKEND", True), ("OMP_NUM_THREADS", True), ("PYTHONHASHSEED", True),
        ("HIP_VISIBLE_DEVICES", True), ("VLLM_API_KEY", False), ("HF_TOKEN", False), ("AWS_SECRET_ACCESS_KEY", False),
        ("PATH", False), ("X_VLLM_KEY", False),
    ],
)
def test_only_listed_variables_are_written_down(name, recorded):
    assert bool(RECORDED_VARIABLES.match(name)) is recorded


@pytest.mark.parametrize("spent", [0.0, 1000.0])
def test_the_import_of_a_warm_process_is_on_the_account_of_the_leg_that_waited_for_it(
    make_leg, tmp_path, monkeypatch, spent
):
    monkeypatch.setattr(worker, "import_seconds", spent)
    with (tmp_path / "stages").open("wb") as stages:
        observation = run_leg(make_leg(), Stages(stages.fileno()), tmp_path / "log")
    assert observation.ending is Ending.OK
    assert spent <= observation.seconds["import"] < spent + 1000.0
    assert (tmp_path / "stages").read_text().splitlines()[:2] == ["import", "load"]
