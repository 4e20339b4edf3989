# SPDX-License-Identifier: Apache-2.0
"""Where vLLM puts the layers of a cache group, with vLLM's own strides; what cannot be stated exactly is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import torch
from vllm.v1.kv_cache_interface import (
    AttentionSpec,
    KVCacheConfig,
    KVCacheSpec,
    KVCacheTensor,
    UniformTypeKVCacheSpecs,
    compute_layer_kv_cache_shape_bytes,
    compute_layout_strides,
)
from vllm.v1.kv_cache_layout import KVCacheLayout

#: Names of all layouts, in vLLM's order.
LAYOUTS: tuple[str, ...] = tuple(layout.name for layout in KVCacheLayout)


@dataclass(frozen=True)
class Placement:
    """Where vLLM puts a set of same-shaped layers, and with which strides.

    Attributes:
        layers: names in L order.
        spec: their KV cache spec.
        offset: byte offset of block 0 of the first layer.
        shape: ``[L, B, H, N, C]``, B in kernel blocks and C in bytes.
        strides: bytes, same order.
        split: kernel blocks of one manager block.
        layout: name of the layout, None when it is not resolved.
    """

    layers: tuple[str, ...]
    spec: KVCacheSpec
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    split: int
    layout: str | None

    @property
    def block_stride(self) -> int:
        """Bytes from a manager block to the next one."""
        return self.strides[1] * self.split

    @property
    def page_bytes(self) -> int:
        """Bytes of one manager block in one layer, without padding."""
        return self.split * prod(self.shape[2:])

    @property
    def label(self) -> str:
        return f"{self.layers[0]} ({self.layout or 'layout unset'})"


def layer_spec(config: KVCacheConfig, group: int, layer: str) -> KVCacheSpec:
    """The spec of one layer; a uniform-type group keeps one per layer."""
    spec = config.kv_cache_groups[group].kv_cache_spec
    return spec.kv_cache_specs[layer] if isinstance(spec, UniformTypeKVCacheSpecs) else spec


def placements(
    config: KVCacheConfig, group: int, layout: KVCacheLayout | None, kernel_block_size: int | None = None
) -> tuple[Placement, ...]:
    """Every set of layers of a cache group with vLLM's own strides.

    Args:
        config: the worker's KV cache configuration.
        group: index of the group.
        layout: the resolved layout; None is accepted only where no page is split.
        kernel_block_size: tokens of the attention kernel's block when it is smaller than the manager's.

    Raises:
        ValueError: a spec without ``[B, H, N, C]`` views, an unset layout with a split page, kernel blocks in pages
            that are not dense, padding that the layout cannot express.
    """
    names = set(config.kv_cache_groups[group].layer_names)
    tensors = [tensor for tensor in config.kv_cache_tensors if not names.isdisjoint(tensor.layers)]
    if not tensors:
        raise ValueError(
            f"KV cache group {group} has no tensors in the KV cache configuration, so it cannot be stored."
        )
    return tuple(_placement(config, group, tensor, layout, kernel_block_size) for tensor in tensors)


def _placement(
    config: KVCacheConfig, group: int, tensor: KVCacheTensor, layout: KVCacheLayout | None, kernel: int | None
) -> Placement:
    layer = tensor.layers[0]
    spec = layer_spec(config, group, layer)
    name = layout.name if layout else None
    if not isinstance(spec, AttentionSpec) or not spec.has_layer_views or tensor.host_resident:
        raise ValueError(
            f"Layer {layer} ({name}): {type(spec).__name__} has no [B, H, N, C] view in the shared storage; "
            "the store takes attention specs only."
        )
    kernel = kernel or spec.block_size
    if kernel <= 0 or spec.block_size % kernel:
        raise ValueError(
            f"Layer {layer} ({name}): kernel blocks of {kernel} tokens do not divide blocks of "
            f"{spec.block_size} tokens."
        )
    split = spec.block_size // kernel
    blocks = config.num_blocks_of(tensor)
    page = prod(compute_layer_kv_cache_shape_bytes(spec, 1)[1:])
    shape = (len(tensor.layers), *compute_layer_kv_cache_shape_bytes(spec, blocks, kernel))
    if layout is None:
        distances = [tensor.block_stride] * (blocks > 1) + [tensor.layer_stride] * (len(tensor.layers) > 1)
        if any(distance < page for distance in distances):
            raise ValueError(
                f"Layer {layer}: its page of {page} bytes is split (block stride {tensor.block_stride}, layer stride "
                f"{tensor.layer_stride}), but the KV cache layout is unset; set VLLM_KV_CACHE_LAYOUT to one of "
                f"{', '.join(LAYOUTS)}."
            )
    if split > 1 and tensor.block_stride != page:
        raise ValueError(
            f"Layer {layer} ({name}): a block cannot be split into {split} kernel blocks of {kernel} tokens, because "
            f"its page of {page} bytes is not dense (block stride {tensor.block_stride})."
        )
    fixed = (tensor.layer_stride, tensor.block_stride // split, None, None, None)
    try:
        strides = compute_layout_strides(
            spec, blocks, len(tensor.layers), layout or KVCacheLayout.LBHNC, kernel if split > 1 else None, fixed
        )
    except AssertionError as error:
        raise ValueError(f"Layer {layer} ({name}): vLLM cannot express this page in the layout: {error}") from error
    return Placement(tuple(tensor.layers), spec, tensor.offset, shape, tuple(strides), split, name)


def kernel_block_size_of(config: KVCacheConfig, group: int, kv_caches: Mapping[str, torch.Tensor]) -> int:
    """Tokens of one kernel block, from the tensors' first dimension.

    Raises:
        ValueError: the number of kernel blocks is no multiple of the number of manager blocks.
    """
    layer = config.kv_cache_groups[group].layer_names[0]
    spec = layer_spec(config, group, layer)
    kernel_blocks = kv_caches[layer].shape[0]
    split, rest = divmod(kernel_blocks, config.num_blocks)
    if rest or not split or spec.block_size % split:
        raise ValueError(
            f"Layer {layer}: its tensor has {kernel_blocks} blocks for {config.num_blocks} blocks of "
            f"{spec.block_size} tokens."
        )
    return spec.block_size // split
