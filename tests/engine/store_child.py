# SPDX-License-Identifier: Apache-2.0
"""Scenarios of the embedded store: ``python store_child.py SCENARIO,... MODEL RESULT`` runs them in real engines."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.engine.store_engine import ENGINES, OBJECT_BYTES, PREFIX, Engine

STEPS_BEFORE_GIVING_UP = 10_000


def restore(model: str, extra: dict | None = None) -> dict:
    engine = Engine(model, extra)
    answers, local, external, resets = {}, {}, {}, []
    for phase in ("populate", "local", "restore", "again"):
        if phase in ("restore", "again"):
            resets.append(engine.clear())
        answers[phase], local[phase], external[phase] = engine.counted()
    return {
        "local": local,
        "external": external,
        "resets": resets,
        "equal": {phase: answers[phase] == answers["local"] for phase in ("local", "restore", "again")}
        | {"local": answers["local"] == answers["populate"]},
        "evidence": engine.evidence(),
        "metrics": {
            name: engine.metric(f"embedded_store_{name}")
            for name in ("promised_tokens", "delivered_tokens", "stored_bytes", "objects", "slots")
        },
    }


def limits(model: str) -> dict:
    engine = Engine(model)
    prompt = [engine.prompts[0][:PREFIX]]
    first = engine.generate(prompt)
    engine.clear()
    _, _, skipped = engine.counted(prompt, skip_reading_prefix_cache=True)
    engine.clear()
    second, _, full_hit = engine.counted(prompt)
    return {
        "skipped": skipped,
        "full_hit": full_hit,
        "equal": first == second,
        "promised": engine.scheduler.evidence()["promised_tokens"],
    }


def missing(model: str, load: str, policy: str) -> dict:
    engine = Engine(model, {"load": load}, policy)
    engine.generate()
    local = engine.generate()
    engine.clear()
    engine.lose(prompt=1, block=3)
    restored = engine.generate()
    finish, counts = engine.finish, engine.evidence()
    engine.clear()
    again, _, external_again = engine.counted()
    return {
        "finish": finish,
        "failed_loads": counts["failed_loads"],
        "delivered_tokens": counts["delivered_tokens"],
        "equal": {"restore": restored == local, "again": again == local},
        "equal_others": restored[::2] == local[::2],
        "equal_again": again == local,
        "external_again": external_again,
    }


def pressure(model: str) -> dict:
    """Chunks of 48 tokens, and too few blocks for three requests to finish together."""
    engine = Engine(model, num_gpu_blocks_override=22, max_num_batched_tokens=48, max_num_seqs=4, max_model_len=320)
    pressed = engine.generate(max_tokens=100)
    preemptions = engine.metric("num_preemptions")
    alone = [engine.generate([prompt], max_tokens=100, skip_reading_prefix_cache=True)[0] for prompt in engine.prompts]
    restored, external = [], 0
    for prompt in engine.prompts:
        engine.clear()
        answer, _, hits = engine.counted([prompt], max_tokens=100)
        restored += answer
        external += hits
    return {
        "preemptions": preemptions,
        "equal": {"pressed": pressed == alone, "restore": restored == alone},
        "external": external,
    }


def eviction(model: str) -> dict:
    """Room for 8 of the 18 blocks; one prompt after the other, and back."""
    engine = Engine(model, {"capacity_mib": 8 * OBJECT_BYTES / 2**20})
    cold = [engine.generate([prompt]) for prompt in engine.prompts]
    engine.clear()
    warm, hits = [], []
    for prompt in reversed(engine.prompts):
        answer, _, external = engine.counted([prompt])
        warm.append(answer)
        hits.append(external)
    scheduler, worker = engine.scheduler.evidence(), engine.evidence()
    return {
        "objects": scheduler["objects"],
        "evicted": [scheduler["evicted_objects"], worker["evicted_blocks"]],
        "hits": hits,
        "delivered": worker["delivered_tokens"],
        "equal": cold == warm[::-1],
    }


def abort(model: str) -> dict:
    import threading

    from vllm import SamplingParams

    engine = Engine(model, {"load": "async"})
    prompt = [engine.prompts[0]]
    engine.generate(prompt)
    local = engine.generate(prompt)
    engine.clear()
    gate, path = threading.Event(), engine.worker.path
    original = path.load

    def gated(blocks, slots):
        gate.wait()
        original(blocks, slots)

    path.load = gated
    core = engine.llm.llm_engine
    core.add_request("stopped", {"prompt_token_ids": prompt[0]}, SamplingParams(max_tokens=8, detokenize=False))
    for _ in range(3):
        core.step()
    running = engine.scheduler.evidence()["running_loads"]
    core.abort_request(["stopped"])
    core.step()
    gate.set()
    for _ in range(STEPS_BEFORE_GIVING_UP):
        if not engine.scheduler.evidence()["running_loads"]:
            break
        engine.core.step()
    path.load = original
    after = engine.scheduler.evidence()["running_loads"]
    reset = engine.clear()
    answer, _, external = engine.counted(prompt)
    return {
        "loads_running": running,
        "loads_after": after,
        "reset": reset,
        "external": external,
        "equal": answer == local,
        "store_reset": engine.llm.reset_prefix_cache(reset_connector=True),
        "objects": engine.scheduler.evidence()["objects"],
    }


def refused(model: str, extra: dict) -> dict:
    """The scenario's result, or the words with which the engine refused to start."""
    try:
        return restore(model, extra)
    except (ValueError, RuntimeError) as error:
        return {"refused": str(error)}


SCENARIOS = {
    "restore": restore,
    "restore_ranges": lambda model: restore(model, {"transfer": "ranges"}),
    "restore_async": lambda model: restore(model, {"load": "async"}),
    "limits": limits,
    "missing_sync": lambda model: missing(model, "sync", "recompute"),
    "missing_async": lambda model: missing(model, "async", "recompute"),
    "missing_fail": lambda model: missing(model, "sync", "fail"),
    "pressure": pressure,
    "eviction": eviction,
    "abort": abort,
    "single_span": lambda model: refused(model, {"fault": "single_span"}),
    "bad_setting": lambda model: refused(model, {"capacity": 1}),
}


def main(names: str, model: str, result: str) -> None:
    import gc
    import traceback

    from vllm.distributed.kv_transfer import ensure_kv_transfer_shutdown

    outcome = {}
    for name in names.split(","):
        try:
            outcome[name] = SCENARIOS[name](model)
        except Exception:
            outcome[name] = {"error": traceback.format_exc()}
        while ENGINES:
            ENGINES.pop().llm.llm_engine.engine_core.shutdown()
        # A refused engine leaves its connector behind.
        ensure_kv_transfer_shutdown()
        gc.collect()
    part = Path(result + ".part")
    part.write_text(json.dumps(outcome))
    part.replace(result)


if __name__ == "__main__":
    main(*sys.argv[1:])
