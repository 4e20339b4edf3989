# SPDX-License-Identifier: Apache-2.0
"""The child of the plugin's tests: ``python plugin_child.py TASK RESULT`` runs one real vLLM engine.

Engines in one process disturb each other, and the plugin reads its environment when a process starts.
"""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import Any

NEW_TOKENS = 6


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


if __name__ == "__main__":
    main()
