# SPDX-License-Identifier: Apache-2.0
"""The plugin inside real vLLM engines: layouts, backends, refusals, batch invariance, probe.

Each engine lives in a child process that runs this very file: engines in one process disturb each other, and the
plugin reads its environment when a process starts.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.engine

ROOT = Path(__file__).resolve().parents[2]
LAYOUTS = ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC")
BLOCK = 16
#: Prompt lengths: partial last block, whole blocks, shorter than a block, and five more for batches of eight.
LENGTHS = (72, 64, 9, 33, 50, 17, 70, 41)
NEW_TOKENS = 6


# --- the child --------------------------------------------------------------------------------------------------


def plant_batch_dependence() -> None:
    """Make every linear layer round by the number of its rows, as kernels of other CPUs do on their own."""
    import torch
    from vllm.model_executor.layers import utils

    dispatch = utils.dispatch_cpu_unquantized_gemm

    def planted(layer: torch.nn.Module, remove_weight: bool) -> None:
        dispatch(layer, remove_weight)
        product = layer.cpu_linear
        layer.cpu_linear = lambda x, weight, bias: (product(x, weight, bias).float() * (1 + x.shape[0] / 512)).to(
            x.dtype
        )

    utils.dispatch_cpu_unquantized_gemm = planted


def generate(llm: Any, prompts: list[list[int]]) -> list[dict[str, Any]]:
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, logprobs=5, ignore_eos=True, detokenize=False)
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], sampling, use_tqdm=False)
    return [
        {
            "cached": output.num_cached_tokens,
            "tokens": list(output.outputs[0].token_ids),
            "bits": [
                sorted(
                    [token, struct.unpack("<I", struct.pack("<f", entry.logprob))[0]] for token, entry in step.items()
                )
                for step in output.outputs[0].logprobs
            ],
        }
        for output in outputs
    ]


def child(task: dict[str, Any]) -> dict[str, Any]:
    if task["planted"]:
        plant_batch_dependence()
    from vllm import LLM

    llm = LLM(
        model=task["model"],
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=256,
        num_gpu_blocks_override=96,
        kv_cache_memory_bytes=64 << 20,
        disable_log_stats=False,
        worker_extension_cls="harness.plugin.probe.Probe",
        **task["engine"],
    )

    def ask(name: str, *args: Any) -> Any:
        return llm.collective_rpc(f"kvparity_{name}", args=args)[0]

    said: dict[str, Any] = {"resolved": ask("resolved"), "transfer": ask("transfer")}
    said["patched"] = "harness.plugin.selection" in sys.modules
    ask("watch")
    prompts = task["prompts"]
    said["cold"] = generate(llm, prompts)
    said["blocks"] = ask("take_blocks")
    block_size = said["resolved"]["block_size"]
    full = [entry["blocks"][: len(entry["prompt_token_ids"]) // block_size] for entry in said["blocks"]]
    said["digests"] = [ask("digests", blocks) for blocks in full]
    said["hit"] = generate(llm, prompts)
    said["digests_after_hit"] = [ask("digests", blocks) for blocks in full]
    assert llm.reset_prefix_cache()
    said["zero"] = ask("zero")
    said["zero_digests"] = ask("digests", full[0])
    said["alone"] = []
    for index in task["alone"]:
        said["alone"] += generate(llm, [prompts[index]])
    return said


def main() -> None:
    task = json.loads(Path(sys.argv[1]).read_text())
    try:
        said = child(task)
    except Exception as error:
        said = {"error": [type(error).__name__, str(error)]}
    Path(sys.argv[2]).write_text(json.dumps(said))


# --- the tests --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a seeded tiny Qwen3 and the entry point of an installed kvparity."""
    folder = tmp_path_factory.mktemp("plugin")
    installed = folder / "site" / "kvparity-0.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: kvparity\nVersion: 0.0\n")
    (installed / "entry_points.txt").write_text("[vllm.general_plugins]\nkvparity = harness.plugin:register\n")
    script = """
import sys, torch
from transformers import Qwen3Config, Qwen3ForCausalLM
torch.manual_seed(0)
model = Qwen3ForCausalLM(Qwen3Config(
    vocab_size=1024, hidden_size=128, intermediate_size=256, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, head_dim=32, max_position_embeddings=1024, tie_word_embeddings=False))
for name, parameter in model.named_parameters():
    if "norm" not in name:
        torch.nn.init.normal_(parameter, std=0.08)
    elif "q_norm" in name:
        parameter.data.mul_(3)
model.to(torch.bfloat16).save_pretrained(sys.argv[1])
"""
    subprocess.run([sys.executable, "-c", script, str(folder / "model")], check=True, capture_output=True)
    return folder


class Engines:
    """Runs children, each distinct one once."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._done: dict[str, dict[str, Any]] = {}

    def run(
        self,
        backend: str | None,
        layout: str | None = None,
        *,
        invariant: bool = False,
        count: int = 3,
        alone: tuple[int, ...] = (),
        planted: bool = False,
        multiprocessing: bool = False,
        **engine: Any,
    ) -> dict[str, Any]:
        prompts = [
            [(13 + i * 7 + j * 131 + i * i * (j + 1)) % 1000 for i in range(length)]
            for j, length in enumerate(LENGTHS[:count])
        ]
        task = {
            "model": str(self._place / "model"),
            "engine": {"block_size": BLOCK, "dtype": "bfloat16"} | engine,
            "prompts": prompts,
            "alone": alone,
            "planted": planted,
        }
        extra = {
            "OMP_NUM_THREADS": "1",
            "TORCH_COMPILE_DISABLE": "1",
            "HF_HUB_OFFLINE": "1",
            "VLLM_ENABLE_V1_MULTIPROCESSING": str(int(multiprocessing)),
            "VLLM_BATCH_INVARIANT": str(int(invariant)),
            "VLLM_LOGGING_LEVEL": "ERROR",
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(self._place / "site")]),
        }
        if multiprocessing:
            extra["VLLM_CPU_OMP_THREADS_BIND"] = "0"
        if backend is not None:
            extra["KVPARITY_BACKEND"] = backend
        if layout is not None:
            extra["VLLM_KV_CACHE_LAYOUT"] = layout
        key = json.dumps([task, extra], sort_keys=True)
        if key not in self._done:
            dropped = ("KVPARITY_", "VLLM_")
            environment = {name: value for name, value in os.environ.items() if not name.startswith(dropped)} | extra
            number = len(self._done)
            paths = [self._place / f"{kind}{number}.json" for kind in ("task", "said")]
            paths[0].write_text(json.dumps(task))
            ran = subprocess.run(
                [sys.executable, __file__, *map(str, paths)], env=environment, capture_output=True, text=True
            )
            assert paths[1].exists(), ran.stderr[-3000:]
            self._done[key] = json.loads(paths[1].read_text())
        return self._done[key]


@pytest.fixture(scope="session")
def engines(place: Path) -> Engines:
    return Engines(place)


def values(results: list[dict[str, Any]]) -> list[tuple[Any, Any]]:
    return [(result["tokens"], result["bits"]) for result in results]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_bits_and_the_same_digests(engines: Engines, layout: str) -> None:
    first, said = engines.run("REFERENCE", "LBHNC"), engines.run("REFERENCE", layout)
    assert values(said["cold"]) == values(first["cold"])
    assert [len(digests) for digests in said["digests"]] == [4, 4, 0]
    assert said["digests"] == first["digests"]
    assert len({digest for digests in said["digests"] for digest in digests}) == 8


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_local_hit_equals_the_recompute(engines: Engines, layout: str) -> None:
    said = engines.run("REFERENCE", layout)
    assert [result["cached"] for result in said["cold"]] == [0, 0, 0]
    # A prompt of whole blocks keeps its last block to be computed (n - 1 rule).
    assert [result["cached"] for result in said["hit"]] == [64, 48, 0]
    assert values(said["hit"]) == values(said["cold"])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_probe_reads_the_layout_from_the_tensors(engines: Engines, layout: str) -> None:
    resolved = engines.run("REFERENCE", layout)["resolved"]
    assert resolved["layout"] == layout
    assert resolved["layout_by_strides"] == [layout]
    # [L, B, H, N, C] = [3, 96, 2, 16, 64]
    page = 2 * 16 * 64
    strides = {
        "LBHNC": [96 * page, page, 1024, 64, 1],
        "LBNHC": [96 * page, page, 64, 128, 1],
        "LHBNC": [96 * page, 1024, 96 * 1024, 64, 1],
        "BLHNC": [page, 3 * page, 1024, 64, 1],
        "BLNHC": [page, 3 * page, 64, 128, 1],
        "BHLNC": [1024, 3 * page, 3 * 1024, 64, 1],
    }
    assert resolved["strides"] == strides[layout]
    assert resolved | {"layout": "", "layout_by_strides": [], "strides": []} == {
        "layout": "",
        "layout_by_strides": [],
        "shape": [96, 2, 16, 64],
        "strides": [],
        "dtype": "bfloat16",
        "num_layers": 3,
        "backend": "REFERENCE",
        "backend_class": ["harness.plugin.reference.ReferenceBackend"],
        "batch_invariant": False,
        "block_size": 16,
        "kernel_block_size": 16,
        "num_blocks": 96,
        "threads": 1,
        "connector": None,
    }


def test_zeroing_leaves_no_byte_and_changes_the_digests(engines: Engines) -> None:
    said = engines.run("REFERENCE", "BHLNC")
    assert said["zero"] == {"zeroed_bytes": 3 * 96 * 2 * 16 * 64 * 2, "nonzero_after": 0}
    assert len(set(said["zero_digests"])) == 1
    assert said["zero_digests"][0] not in said["digests"][0]
    assert said["digests_after_hit"] == said["digests"]
    assert said["transfer"] == {}


def test_the_watch_knows_prompts_and_blocks(engines: Engines) -> None:
    blocks = engines.run("REFERENCE", "LBHNC")["blocks"]
    assert [len(entry["prompt_token_ids"]) for entry in blocks] == [72, 64, 9]
    # 6 new tokens, the last of which is never written: 77, 69 and 14 tokens.
    assert [len(entry["blocks"]) for entry in blocks] == [5, 5, 1]
    assert [entry["reused"] for entry in blocks] == [False, False, False]


@pytest.mark.parametrize("layout", ["LHBNC", "LBHNC"])
def test_shuffle_computes_the_same_from_two_head_slots(engines: Engines, layout: str) -> None:
    said = engines.run("REFERENCE_SHUFFLE", layout)
    resolved = said["resolved"]
    assert (resolved["backend"], resolved["layout_by_strides"]) == ("REFERENCE_SHUFFLE", [layout])
    assert resolved["shape"] == [96, 2, 16, 64]
    assert values(said["cold"]) == values(engines.run("REFERENCE", "LBHNC")["cold"])
    assert values(said["hit"]) == values(said["cold"])
    assert said["digests"] == engines.run("REFERENCE_SHUFFLE", "LBHNC")["digests"]


def test_shuffle_prefers_the_head_outermost_layout(engines: Engines) -> None:
    assert engines.run("REFERENCE_SHUFFLE")["resolved"]["layout"] == "LHBNC"


def test_cpu_attn_is_vllms_own(engines: Engines) -> None:
    resolved = engines.run("CPU_ATTN", "LBHNC", block_size=32)["resolved"]
    assert resolved["backend"] == "CPU_ATTN"
    assert resolved["backend_class"] == ["vllm.v1.attention.backends.cpu_attn.CPUAttentionBackend"]


@pytest.mark.parametrize(
    ("backend", "layout", "options", "words"),
    [
        (
            "REFERENCE_SHUFFLE",
            "BHLNC",
            {},
            "VLLM_KV_CACHE_LAYOUT=BHLNC does not satisfy every supported set; valid layouts: ['LHBNC', 'LBHNC'].",
        ),
        (
            "CPU_ATTN",
            "LBNHC",
            {"block_size": 32},
            "VLLM_KV_CACHE_LAYOUT=LBNHC does not satisfy every supported set; valid layouts: ['LBHNC'].",
        ),
        (
            "CPU_ATTN",
            "LBHNC",
            {},
            "Selected backend CPU_ATTN is not valid for this configuration. Reason: ['block_size not supported']",
        ),
        (
            "CPU_ATTN",
            "LBHNC",
            {"block_size": 32, "invariant": True},
            "Selected backend CPU_ATTN is not valid for this configuration. Reason: ['batch invariance not supported']",
        ),
        (
            "REFERENCE_SHUFFLE",
            "LHBNC",
            {"invariant": True},
            "Selected backend REFERENCE_SHUFFLE is not valid for this configuration. "
            "Reason: ['batch invariance not supported']",
        ),
        (
            "TRITON_ATTN",
            None,
            {"attention_backend": "CPU_ATTN"},
            "Selected backend TRITON_ATTN is not available on CPU; "
            "valid backends: REFERENCE, REFERENCE_SHUFFLE, CPU_ATTN.",
        ),
    ],
)
def test_an_invalid_combination_refuses_with_its_reason(
    engines: Engines, backend: str, layout: str | None, options: dict[str, Any], words: str
) -> None:
    assert engines.run(backend, layout, **options) == {"error": ["ValueError", words]}


def test_the_plugin_is_inert_without_the_variable(engines: Engines) -> None:
    said = engines.run(None, block_size=32, attention_backend="TRITON_ATTN")
    # vLLM's own behaviour: another backend than the one asked for, without a word.
    assert said["resolved"]["backend"] == "CPU_ATTN"
    assert said["patched"] is False


def test_without_batch_invariance_a_batch_of_eight_differs_on_a_kernel_that_sees_the_batch(engines: Engines) -> None:
    said = engines.run("REFERENCE", "LBHNC", count=8, alone=(0, 3), planted=True)
    assert values(said["alone"]) != values([said["cold"][0], said["cold"][3]])


@pytest.mark.parametrize("planted", [False, True], ids=["this CPU's kernel", "a kernel that sees the batch"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_alone_equals_a_batch_of_eight(engines: Engines, planted: bool, dtype: str) -> None:
    said = engines.run("REFERENCE", "LBHNC", invariant=True, count=8, alone=(0, 3, 7), planted=planted, dtype=dtype)
    assert said["resolved"]["batch_invariant"] is True
    assert values(said["alone"]) == values([said["cold"][index] for index in (0, 3, 7)])
    assert values(said["hit"]) == values(said["cold"])
    assert [result["cached"] for result in said["hit"]] == [64, 48, 0, 32, 48, 16, 64, 32]


def test_the_probe_answers_from_another_process(engines: Engines) -> None:
    said = engines.run("REFERENCE", "BHLNC", multiprocessing=True)
    inside = engines.run("REFERENCE", "BHLNC")
    assert said["resolved"] == inside["resolved"]
    assert said["digests"] == inside["digests"]
    assert values(said["cold"]) == values(inside["cold"])


if __name__ == "__main__":
    main()
