# SPDX-License-Identifier: Apache-2.0
"""The KV cache tensors of a worker: which layout they have, their bytes in logical order, zeroing.

Everything is read from the tensors that attention uses; the configuration only says which layers share a tensor.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

import torch
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec, UniformTypeKVCacheSpecs, compute_layout_strides
from vllm.v1.kv_cache_layout import KVCacheLayout

#: Bytes of the digest of one layer's, head slot's and half's share of a block.
DIGEST_BYTES = 8


@dataclass(frozen=True)
class LayerSet:
    """Layers of one shape that share an allocation.

    Attributes:
        tensors: logical [B, H, N, C] views in L order, B in kernel blocks.
        spec: their KV cache spec.
        num_blocks: manager blocks.
    """

    tensors: tuple[torch.Tensor, ...]
    spec: KVCacheSpec
    num_blocks: int

    @property
    def split(self) -> int:
        """Kernel blocks of one manager block."""
        return self.tensors[0].shape[0] // self.num_blocks

    @property
    def strides(self) -> tuple[int, ...]:
        """[L, B, H, N, C] in elements; L is 0 for a single layer.

        Raises:
            ValueError: the layers are not evenly spaced or differ in strides, so that no layout describes them.
        """
        first, *others = self.tensors
        step = others[0].data_ptr() - first.data_ptr() if others else 0
        for index, tensor in enumerate(others, start=1):
            if tensor.stride() != first.stride() or tensor.data_ptr() - first.data_ptr() != index * step:
                raise ValueError(f"Layer {index} of {len(self.tensors)} does not continue the strides of layer 0.")
        return (step // first.element_size(), *first.stride())

    def layouts(self) -> tuple[str, ...]:
        """Names of all layouts with which vLLM would give these strides; axes of length 1 have no say."""
        first = self.tensors[0]
        lengths = (len(self.tensors), *first.shape)
        try:
            actual = [stride * first.element_size() for stride in self.strides]
        except ValueError:
            return ()
        # vLLM counts C in bytes, where its stride is always 1.
        compared = [axis for axis in range(4) if lengths[axis] > 1]
        if first.shape[3] > 1 and first.stride(3) != 1:
            return ()
        names = []
        for layout in KVCacheLayout:
            try:
                strides = compute_layout_strides(
                    self.spec, self.num_blocks, len(self.tensors), layout, self.spec.block_size // self.split
                )
            except AssertionError:  # padded pages that this layout cannot have
                continue
            if all(strides[axis] == actual[axis] for axis in compared):
                names.append(layout.name)
        return tuple(names)

    def digests(self, block_ids: Sequence[int]) -> list[bytes]:
        """Per block the digests of all layers, ordered [layer][head slot][first half, second half of the content].

        The bytes digested are [tokens of the manager block, half of the content] in that order, whatever the layout.
        """
        tensor = self.tensors[0]
        kernel_blocks = torch.tensor(
            [block * self.split + part for block in block_ids for part in range(self.split)],
            dtype=torch.long,
            device=tensor.device,
        )
        parts: list[list[bytes]] = [[] for _ in block_ids]
        for tensor in self.tensors:
            # A copy a block, where indexing with a tensor looks up every element.
            pages = tensor.index_select(0, kernel_blocks).view(torch.uint8).cpu()
            _, slots, states, content = pages.shape
            halves = pages.view(len(block_ids), self.split, slots, states, 2, content // 2)
            rows = halves.permute(0, 2, 4, 1, 3, 5).contiguous()
            size = self.split * states * (content // 2)
            data = memoryview(rows.view(-1).numpy())
            per_block = slots * 2
            digests = [
                # CPUs have instructions for it; of pieces this small it takes half the time of BLAKE2b.
                sha256(data[start : start + size]).digest()[:DIGEST_BYTES]
                for start in range(0, len(data), size)
            ]
            for index, digested in enumerate(parts):
                digested.extend(digests[index * per_block : (index + 1) * per_block])
        return [b"".join(digested) for digested in parts]


def layer_sets(config: KVCacheConfig, tensors: Mapping[str, torch.Tensor]) -> tuple[LayerSet, ...]:
    """The worker's layers as vLLM groups them in allocations.

    Args:
        config: the worker's KV cache configuration.
        tensors: layer name -> its [B, H, N, C] tensor.
    """
    spec_of = {name: group.kv_cache_spec for group in config.kv_cache_groups for name in group.layer_names}
    sets = []
    for tensor in config.kv_cache_tensors:
        names = [name for name in tensor.layers if name in tensors]
        if not names:
            continue
        spec = spec_of[names[0]]
        if isinstance(spec, UniformTypeKVCacheSpecs):
            spec = spec.kv_cache_specs[names[0]]
        sets.append(LayerSet(tuple(tensors[name] for name in names), spec, config.num_blocks_of(tensor)))
    return tuple(sets)


def block_digests(sets: Sequence[LayerSet], block_ids: Sequence[int]) -> list[str]:
    """Per manager block one base64 string; see ``LayerSet.digests`` for what is digested.

    Raises:
        ValueError: a block id outside the pool.
    """
    if not block_ids:
        return []
    limit = min(layers.num_blocks for layers in sets)
    outside = [block for block in block_ids if not 0 <= block < limit]
    if outside:
        raise ValueError(f"Blocks {outside} are not in the pool of {limit} blocks; valid ids: 0 to {limit - 1}.")
    columns = [layers.digests(block_ids) for layers in sets]
    return [base64.b64encode(b"".join(row)).decode("ascii") for row in zip(*columns, strict=True)]


def zero(sets: Sequence[LayerSet]) -> tuple[int, int]:
    """Zero the whole storage behind the tensors; returns (bytes zeroed, bytes that are not zero afterwards)."""
    storages = {}
    for layers in sets:
        for tensor in layers.tensors:
            storage = tensor.untyped_storage()
            storages[storage.data_ptr()] = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
    nonzero = 0
    for data in storages.values():
        data.zero_()
        # The maximum is a fraction of the cost of a count, which is only needed when something is left.
        nonzero += int(torch.count_nonzero(data)) if int(data.max()) else 0
    return sum(data.numel() for data in storages.values()), nonzero
