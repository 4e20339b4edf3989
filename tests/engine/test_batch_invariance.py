# SPDX-License-Identifier: Apache-2.0
"""Batch invariance at Qwen3-0.6B's shape: a prompt alone and the same prompt in a batch of eight, in real engines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
PROMPTS = 8
NEW_TOKENS = 4


def child(model: str) -> dict[str, Any]:
    """Cold alone, then cold in a batch of eight; float32 bits of every logprob by token id."""
    from vllm import LLM, SamplingParams

    from harness.engines.answers import float_bits
    from harness.prompts import make_prompts
    from harness.records import PromptSpec

    llm = LLM(
        model=model, skip_tokenizer_init=True, enforce_eager=True, max_model_len=256, block_size=16,
        kv_cache_memory_bytes=512 << 20, worker_extension_cls="harness.plugin.probe.Probe",
    )
    sampling = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, logprobs=5, ignore_eos=True, detokenize=False)
    prompts = make_prompts(PromptSpec(count=PROMPTS, prefix_tokens=32, tail_tokens=9, seed=3), 151_936)

    def bits(batch: list) -> list:
        assert llm.reset_prefix_cache()
        outputs = llm.generate([{"prompt_token_ids": list(prompt)} for prompt in batch], sampling, use_tqdm=False)
        return [
            [sorted([token, float_bits(entry.logprob)] for token, entry in step.items())
             for step in output.outputs[0].logprobs]
            for output in outputs
        ]

    return {
        "alone": bits([prompts[0]])[0],
        "batch": bits(list(prompts))[0],
        "batch_invariant": llm.collective_rpc("kvparity_resolved")[0]["batch_invariant"],
    }


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, dict[str, Any]]:
    from harness.models import find_model

    model = find_model("qwen3-0.6b")
    answers = {}
    for flag in (False, True):
        out = tmp_path_factory.mktemp("batch") / "said.json"
        environment = {
            **os.environ, "PYTHONPATH": str(ROOT), "KVPARITY_BACKEND": "REFERENCE", "VLLM_PLUGINS": "kvparity",
            "VLLM_BATCH_INVARIANT": str(int(flag)), "VLLM_KV_CACHE_LAYOUT": "LBHNC", "OMP_NUM_THREADS": "1",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "TORCH_COMPILE_DISABLE": "1", "HF_HUB_OFFLINE": "1",
        }
        subprocess.run(
            [sys.executable, __file__, model.path, str(out)], env=environment, check=True, capture_output=True
        )
        answers[flag] = json.loads(out.read_text())
    return answers


def test_with_batch_invariance_alone_equals_a_batch_of_eight(said):
    assert said[True]["batch_invariant"] is True
    assert len(said[True]["alone"]) == NEW_TOKENS and all(len(step) >= 5 for step in said[True]["alone"])
    assert said[True]["alone"] == said[True]["batch"]


def test_without_it_the_worker_says_so(said):
    """Whether the bits then differ is the CPU's affair: they do where the matrix product's rounding depends on M."""
    assert said[False]["batch_invariant"] is False


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(child(sys.argv[1])))
