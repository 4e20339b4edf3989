# SPDX-License-Identifier: Apache-2.0
"""Keys: a block's key names everything that changes its bytes.

vLLM's block hash carries tokens, LoRA, multimodal input and salt, but not the model, its weights, dtypes, layout,
ranks, backend or batch invariance. The identity adds those; a key is the digest of identity and block hash.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.kvstore.placement import Placement

if TYPE_CHECKING:
    from vllm.config import VllmConfig

#: Raised with every change of the object format.
FORMAT_VERSION = 1

_WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt")


def weights_of(model: str) -> list[list[Any]]:
    """Name, size and modification time (ns) of a model directory's weight files; empty for a hub name."""
    path = Path(model)
    files = sorted(path.iterdir()) if path.is_dir() else [path] if path.is_file() else []
    return [
        [file.name, file.stat().st_size, file.stat().st_mtime_ns]
        for file in files
        if file.suffix in _WEIGHTS or file.name == "config.json"
    ]


def identity_of(config: VllmConfig, places: Iterable[Placement], backends: Iterable[str]) -> dict[str, Any]:
    """Everything beside the tokens that changes a block's bytes, as JSON values.

    Args:
        config: the worker's configuration.
        places: the cache group's layers with layout, spec and strides.
        backends: module and class of the layers' attention backends.
    """
    model, parallel, cache = config.model_config, config.parallel_config, config.cache_config
    return {
        "format": FORMAT_VERSION,
        "model": model.model,
        "revision": model.revision,
        "code_revision": model.code_revision,
        "weights": weights_of(model.model),
        "load_format": str(config.load_config.load_format),
        "seed": model.seed,
        "quantization": str(model.quantization),
        "hf_overrides": str(model.hf_overrides),
        "dtype": str(model.dtype),
        "kv_dtype": str(cache.cache_dtype),
        "block_size": cache.block_size,
        "layout": cache.kv_cache_layout,
        "layers": [[list(place.layers), repr(place.spec), place.split, list(place.shape[2:])] for place in places],
        "ranks": [
            parallel.tensor_parallel_size,
            parallel.pipeline_parallel_size,
            parallel.decode_context_parallel_size,
            parallel.data_parallel_size,
        ],
        "batch_invariant": os.environ.get("VLLM_BATCH_INVARIANT", "0"),
        "backends": sorted(set(backends)),
    }


def digest_of(identity: dict[str, Any]) -> str:
    """Hex digest of an identity."""
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def key_of(identity_digest: str, block_hash: bytes) -> bytes:
    """A block's key, 16 bytes."""
    return hashlib.blake2b(block_hash, digest_size=16, key=bytes.fromhex(identity_digest)).digest()
