# SPDX-License-Identifier: Apache-2.0
"""A seeded LoRA adapter for a model directory of one of the stand-ins' architecture, in PEFT's file format.

It changes the projections that make queries, keys and values in every layer, by as much as the weights themselves are
large, so that both KV and answers are other ones. Made in a moment and without torch, as the stand-ins are.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

from harness.standin import Tensor, write_safetensors

RANK = 8
SEED = 0

#: Projections that the adapter changes.
TARGETS = ("q_proj", "k_proj", "v_proj")


def write_adapter(directory: Path, model: Path) -> None:
    """Write ``adapter_config.json`` and ``adapter_model.safetensors`` into ``directory``.

    Args:
        directory: an existing folder.
        model: the directory of a Qwen3 model, for its sizes.

    Raises:
        OSError, ValueError, KeyError: the model's ``config.json`` cannot be read, or lacks a size.
    """
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    hidden, head_dim = config["hidden_size"], config["head_dim"]
    rows = {
        "q_proj": config["num_attention_heads"] * head_dim,
        "k_proj": config["num_key_value_heads"] * head_dim,
        "v_proj": config["num_key_value_heads"] * head_dim,
    }
    # Each entry of B A is a sum of RANK products; the two scales make it as large as a weight of the stand-ins.
    scale = (1 / math.sqrt(hidden * RANK)) ** 0.5
    tensors = []
    for layer in range(config["num_hidden_layers"]):
        for target in TARGETS:
            name = f"base_model.model.model.layers.{layer}.self_attn.{target}"
            tensors.append(Tensor(f"{name}.lora_A.weight", (RANK, hidden), scale))
            tensors.append(Tensor(f"{name}.lora_B.weight", (rows[target], RANK), scale))
    write_safetensors(directory / "adapter_model.safetensors", tensors, SEED)
    described = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": RANK, "lora_dropout": 0.0,
        "bias": "none", "target_modules": list(TARGETS),
    }
    (directory / "adapter_config.json").write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
