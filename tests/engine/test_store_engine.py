# SPDX-License-Identifier: Apache-2.0
"""The embedded store in real vLLM engines on the CPU, in child processes.

Run as a script this file is the child: ``python test_store_engine.py SCENARIO,... MODEL RESULT``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

pytestmark = pytest.mark.engine

ROOT = Path(__file__).resolve().parents[2]
BLOCK = 32
PREFIX = 192
PAGE_BYTES = 2 * BLOCK * 2 * 32 * 2  # heads x tokens x (K, V) x head_dim x bf16
OBJECT_BYTES = 4 * PAGE_BYTES
STEPS_BEFORE_GIVING_UP = 10_000
ENVIRONMENT = {
    "TORCH_COMPILE_DISABLE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_KV_CACHE_LAYOUT": "LBHNC",
    "VLLM_LOGGING_LEVEL": "WARNING",
}
MULTIPROCESS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "0",
}
#: Group -> scenarios and environment of its process.
GROUPS: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "cpu": (
        (
            "restore", "restore_ranges", "restore_async", "limits", "missing_sync", "missing_async", "missing_fail",
            "pressure", "eviction", "abort", "bad_setting",
        ),
        {},
    ),
    "multiprocess": (("restore",), MULTIPROCESS),
    "LHBNC": (("restore", "single_span"), {"KVPARITY_BACKEND": "REFERENCE", "VLLM_KV_CACHE_LAYOUT": "LHBNC"}),
    "BHLNC": (("restore", "single_span"), {"KVPARITY_BACKEND": "REFERENCE", "VLLM_KV_CACHE_LAYOUT": "BHLNC"}),
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A random Qwen3 of 4 layers, 2 KV heads and head_dim 32, whose logprobs depend on its KV cache."""
    torch = pytest.importorskip("torch", reason="needs torch")
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    pytest.importorskip("vllm", reason="needs vLLM")
    config = transformers.Qwen3Config(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        initializer_range=0.08,
    )
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("model")
    transformers.Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def child(model, tmp_path_factory):
    """child(group, scenario) -> the scenario's result; a group's scenarios share one process and run once."""
    results: dict[str, dict] = {}

    def run(group: str) -> dict:
        scenarios, env = GROUPS[group]
        folder = tmp_path_factory.mktemp("child")
        result = folder / "result.json"
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        done = subprocess.run(
            [sys.executable, __file__, ",".join(scenarios), str(model), str(result)],
            env={**os.environ, **ENVIRONMENT, "PYTHONPATH": path, **env},
            capture_output=True,
            text=True,
            timeout=600,
            cwd=folder,
        )
        assert result.is_file(), done.stderr[-4000:]
        return json.loads(result.read_text())

    def seen(group: str, scenario: str) -> dict:
        if group not in results:
            results[group] = run(group)
        answer = results[group][scenario]
        assert "error" not in answer, answer["error"]
        return answer

    return seen


@pytest.mark.parametrize(
    ("group", "scenario"),
    [("cpu", "restore"), ("cpu", "restore_ranges"), ("cpu", "restore_async"), ("multiprocess", "restore")],
)
def test_a_restore_is_bitwise_a_local_hit(child, group, scenario):
    seen = child(group, scenario)
    assert seen["external"] == {"populate": 0, "local": 0, "restore": 3 * PREFIX, "again": 3 * PREFIX}
    assert seen["local"] == {"populate": 0, "local": 3 * PREFIX, "restore": 0, "again": 0}
    assert seen["resets"] == [True, True]
    assert seen["equal"] == {"local": True, "restore": True, "again": True}
    assert seen["evidence"] == {
        "delivered_tokens": 2 * 3 * PREFIX,
        "loaded_blocks": 2 * 18,
        "loaded_bytes": 2 * 18 * OBJECT_BYTES,
        "stored_blocks": 18,
        "stored_bytes": 18 * OBJECT_BYTES,
        "evicted_blocks": 0,
        "failed_loads": 0,
    }
    assert seen["metrics"] == {
        "promised_tokens": 2 * 3 * PREFIX,
        "delivered_tokens": 2 * 3 * PREFIX,
        "stored_bytes": 18 * OBJECT_BYTES,
        "objects": 18,
        "slots": 16 * 2**20 // OBJECT_BYTES,
    }


def test_skipped_reads_and_full_hits(child):
    seen = child("cpu", "limits")
    assert seen["skipped"] == 0
    # 192 tokens are 6 whole blocks, but one token must be computed, so the last block is.
    assert seen["full_hit"] == PREFIX - BLOCK
    assert seen["equal"] is True
    assert seen["promised"] == PREFIX - BLOCK


@pytest.mark.parametrize("load", ["sync", "async"])
def test_a_missing_object_is_recomputed_never_stale(child, load):
    seen = child("cpu", f"missing_{load}")
    assert seen["failed_loads"] == 1
    assert seen["delivered_tokens"] == 3 * PREFIX - BLOCK
    assert seen["finish"] == ["length"] * 3
    assert seen["equal"] == {"restore": True, "again": True}
    # What was recomputed is stored again: the next restore is whole.
    assert seen["external_again"] == 3 * PREFIX


def test_a_missing_object_fails_the_request_when_the_policy_says_so(child):
    seen = child("cpu", "missing_fail")
    assert seen["finish"] == ["length", "error", "length"]
    assert seen["equal_others"] is True
    assert seen["equal_again"] is True


def test_chunked_prefill_and_preemption_store_the_right_bytes(child):
    seen = child("cpu", "pressure")
    assert seen["preemptions"] > 0
    assert seen["equal"] == {"pressed": True, "restore": True}
    assert seen["external"] == 3 * PREFIX


def test_a_small_store_evicts_and_stays_right(child):
    seen = child("cpu", "eviction")
    assert seen["objects"] == 8
    # The last prompt is whole, of the one before the first two blocks are left, of the first none.
    assert seen["hits"] == [PREFIX, 2 * BLOCK, 0]
    assert seen["delivered"] == 8 * BLOCK
    # 4 and 6 on the way there, 4 and 6 on the way back.
    assert seen["evicted"] == [20, 20]
    assert seen["equal"] is True


def test_an_aborted_request_leaves_nothing_pinned(child):
    seen = child("cpu", "abort")
    assert seen["loads_running"] == 1
    assert seen["loads_after"] == 0
    assert seen["reset"] is True
    assert (seen["external"], seen["equal"]) == (PREFIX, True)
    assert seen["store_reset"] is True
    assert seen["objects"] == 0


def need_plugin() -> None:
    if not entry_points(group="vllm.general_plugins", name="kvparity"):
        pytest.skip("the kvparity package is not installed, so vLLM does not load its reference backend")


@pytest.mark.parametrize("layout", ["LHBNC", "BHLNC"])
def test_split_layouts_restore_bitwise(child, layout):
    need_plugin()
    seen = child(layout, "restore")
    assert seen["external"]["restore"] == 3 * PREFIX
    assert seen["equal"] == {"local": True, "restore": True, "again": True}


def test_single_span_claims_full_hits_and_restores_wrong_kv_in_bhlnc(child):
    need_plugin()
    seen = child("BHLNC", "single_span")
    assert seen["external"]["restore"] == 3 * PREFIX
    assert seen["equal"] == {"local": True, "restore": False, "again": False}


def test_single_span_is_refused_in_lhbnc(child):
    need_plugin()
    seen = child("LHBNC", "single_span")
    assert "(LHBNC): KV region bytes (8192) exceed its stride (4096)" in seen["refused"]


def test_an_unknown_setting_is_refused_at_start(child):
    assert "['capacity']; valid are" in child("cpu", "bad_setting")["refused"]


# --- child ------------------------------------------------------------------------------------------------------


def zero(worker) -> None:
    for layer in worker.vllm_config.compilation_config.static_forward_context.values():
        layer.kv_cache.zero_()


def evidence(worker) -> dict[str, int]:
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    return get_kv_transfer_group().evidence()


ENGINES: list[Engine] = []


class Engine:
    """A vLLM engine with the embedded store, and what the scenarios ask of it."""

    def __init__(self, model: str, extra: dict | None = None, policy: str = "recompute", **arguments) -> None:
        from vllm import LLM

        transfer = {
            "kv_connector": "EmbeddedStoreConnector",
            "kv_connector_module_path": "harness.kvstore.connector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"capacity_mib": 16, **(extra or {})},
            "kv_load_failure_policy": policy,
        }
        engine = {
            "skip_tokenizer_init": True,
            "enforce_eager": True,
            "max_model_len": 1024,
            "block_size": BLOCK,
            "num_gpu_blocks_override": 64,
            "disable_log_stats": False,
            "kv_cache_memory_bytes": 64 << 20,
            "dtype": "bfloat16",
        }
        self.llm = LLM(model=model, kv_transfer_config=transfer, **{**engine, **arguments})
        self.prompts = [
            [(3 + token * (7 + 2 * row) + token * token * row) % 500 for token in range(200)] for row in range(3)
        ]
        self.finish: list[str] = []
        ENGINES.append(self)

    def generate(self, prompts=None, max_tokens: int = 8, **sampling) -> list:
        from vllm import SamplingParams

        outputs = self.llm.generate(
            [{"prompt_token_ids": prompt} for prompt in prompts or self.prompts],
            SamplingParams(
                temperature=0, max_tokens=max_tokens, logprobs=5, ignore_eos=True, detokenize=False, **sampling
            ),
            use_tqdm=False,
        )
        self.finish = [output.outputs[0].finish_reason for output in outputs]
        return [
            [list(output.outputs[0].token_ids)]
            + [
                sorted((token, entry.logprob) for token, entry in step.items())
                for step in output.outputs[0].logprobs or ()
            ]
            for output in outputs
        ]

    def metric(self, name: str) -> int:
        return next((int(metric.value) for metric in self.llm.get_metrics() if metric.name == f"vllm:{name}"), 0)

    def counted(self, *arguments, **named) -> tuple[list, int, int]:
        """generate, and its local and external hit tokens."""
        local, external = self.metric("prefix_cache_hits"), self.metric("external_prefix_cache_hits")
        answer = self.generate(*arguments, **named)
        return (
            answer,
            self.metric("prefix_cache_hits") - local,
            self.metric("external_prefix_cache_hits") - external,
        )

    def clear(self) -> bool:
        done = self.llm.reset_prefix_cache()
        self.llm.collective_rpc(zero)
        return done

    def evidence(self) -> dict[str, int]:
        return self.llm.collective_rpc(evidence)[0]

    @property
    def core(self):
        return self.llm.llm_engine.engine_core.engine_core

    @property
    def scheduler(self):
        return self.core.scheduler.connector.scheduler

    @property
    def worker(self):
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        return get_kv_transfer_group().worker

    def lose(self, prompt: int, block: int) -> None:
        """Lose one stored block behind the scheduler's back."""
        scheduler, allocated = self.scheduler, self.scheduler.allocated

        def forget_then_allocate(request, blocks, tokens):
            allocated(request, blocks, tokens)
            if tokens and list(request.prompt_token_ids) == self.prompts[prompt]:
                self.worker.pool.forget(scheduler._loads[-1].slots[block])
                scheduler.allocated = allocated

        scheduler.allocated = forget_then_allocate


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
