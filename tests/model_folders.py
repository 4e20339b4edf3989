# SPDX-License-Identifier: Apache-2.0
"""Model directories that nobody loads: a config, and bytes in the place of weights."""

from __future__ import annotations

import json
from pathlib import Path

QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "num_attention_heads": 2,
    "hidden_size": 16,
    "head_dim": 8,
    "vocab_size": 1024,
}
LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "hidden_size": 576,
    "vocab_size": 49152,
}


def make_directory(path: Path, config: dict | str = QWEN3, weights: tuple[str, ...] = ("model.safetensors",)) -> Path:
    """``path`` as a model's directory; a config that is text is written as it is."""
    path.mkdir(parents=True)
    text = config if isinstance(config, str) else json.dumps(config)
    (path / "config.json").write_text(text, encoding="utf-8")
    for name in weights:
        (path / name).write_bytes(b"weights")
    return path
