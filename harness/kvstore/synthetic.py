# SPDX-License-Identifier: Apache-2.0
"""KV caches without an engine: vLLM's own placement and allocator, on made-up cache groups, for the bench and the
tests."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from vllm.v1.core.kv_cache_utils import get_kv_cache_config_from_groups
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, UniformTypeKVCacheSpecs
from vllm.v1.kv_cache_layout import KVCacheLayout
from vllm.v1.worker.utils import allocate_kv_cache

#: Qwen3-0.6B: a page is 65,536 bytes per layer, one head's part of it 8,192.
QWEN3_0_6B: dict[str, Any] = {
    "layers": 28,
    "heads": 8,
    "head_size": 128,
    "block_size": 16,
    "dtype": torch.bfloat16,
}


def attention_spec(
    heads: int, head_size: int, block_size: int, dtype: torch.dtype, two_slots: bool = False, padding: int = 0
) -> FullAttentionSpec:
    """A full-attention spec.

    Args:
        two_slots: publish K and V as two head slots, as AITER's shuffled cache does.
        padding: bytes added to every page.
    """
    spec = FullAttentionSpec(block_size=block_size, num_kv_heads=heads, head_size=head_size, dtype=dtype)
    content = heads * head_size * dtype.itemsize if two_slots else None
    padded = spec.page_size_bytes + padding if padding else None
    return FullAttentionSpec(
        block_size=block_size,
        num_kv_heads=heads,
        head_size=head_size,
        dtype=dtype,
        num_head_slots=2 if two_slots else None,
        state_content_bytes=content,
        page_size_padded=padded,
    )


def group_of(specs: Sequence[FullAttentionSpec], name: str = "g0") -> KVCacheGroupSpec:
    """A cache group with one layer per spec; layers of different specs make it a uniform-type group, as in vLLM."""
    layers = [f"{name}.layer.{index}" for index in range(len(specs))]
    if len(set(specs)) == 1:
        return KVCacheGroupSpec(layers, specs[0])
    per_layer = dict(zip(layers, specs, strict=True))
    return KVCacheGroupSpec(layers, UniformTypeKVCacheSpecs(block_size=specs[0].block_size, kv_cache_specs=per_layer))


def cache_config(groups: Sequence[KVCacheGroupSpec], layout: KVCacheLayout, num_blocks: int) -> KVCacheConfig:
    """vLLM's placement of the groups' layers.

    Raises:
        ValueError, AssertionError: vLLM cannot express the groups in the layout.
    """
    engine = SimpleNamespace(
        attention_config=SimpleNamespace(hisparse_config=None),
        cache_config=SimpleNamespace(
            get_resolved_kv_cache_layout=lambda: layout,
            num_gpu_blocks_override=num_blocks,
            prefix_cache_retention_interval=None,
        ),
    )
    return get_kv_cache_config_from_groups(engine, list(groups), 1 << 40)


def qwen3(layout: str, num_blocks: int, two_slots: bool = False) -> tuple[KVCacheConfig, dict[str, torch.Tensor]]:
    """Configuration and zeroed CPU tensors ``[B, H, N, C]`` of Qwen3-0.6B's dimensions."""
    shape = dict(QWEN3_0_6B)
    spec = attention_spec(
        **{key: shape[key] for key in ("heads", "head_size", "block_size", "dtype")}, two_slots=two_slots
    )
    config = cache_config([group_of([spec] * shape["layers"])], KVCacheLayout[layout], num_blocks)
    return config, allocate_kv_cache(config, torch.device("cpu"), KVCacheLayout[layout])
