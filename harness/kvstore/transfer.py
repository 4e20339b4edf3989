# SPDX-License-Identifier: Apache-2.0
"""Two ways to move blocks between the KV storage and the pool; both write the same object format.

`BulkPath` copies strided views with torch, one copy per region for every stretch of consecutive blocks and slots.
`RangesPath` issues one copy per block and run from lists of pointers, sizes and offsets, as a store with a ranges
interface does.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from math import gcd
from typing import Protocol

import torch

from harness.kvstore.runs import BlockPlan, Region

_WIDTHS = ((8, torch.int64), (4, torch.int32), (2, torch.int16), (1, torch.uint8))


class TransferPath(Protocol):
    """Moves blocks; ``blocks`` and ``slots`` have the same length and no duplicates on the written side."""

    def store(self, blocks: Sequence[int], slots: Sequence[int]) -> None:
        """KV storage -> pool."""

    def load(self, blocks: Sequence[int], slots: Sequence[int]) -> None:
        """Pool -> KV storage; no byte outside the blocks' runs changes."""


class BulkPath:
    """Strided torch copies, in the widest integer type that all offsets and strides are multiples of."""

    def __init__(self, plan: BlockPlan, storage: torch.Tensor, pool: torch.Tensor) -> None:
        """
        Args:
            plan: runs of one block.
            storage: uint8, 1-D, the KV storage.
            pool: uint8 ``[slots, object_bytes]``.
        """
        self._views: list[tuple[torch.Tensor, torch.Tensor]] = []
        start = 0
        for region in plan.regions:
            self._views.append(_views(region, plan, storage, pool, start))
            start += region.block_bytes

    def store(self, blocks: Sequence[int], slots: Sequence[int]) -> None:
        for block, slot, count in stretches(blocks, slots):
            for kv, pool in self._views:
                pool[slot : slot + count].copy_(kv[block : block + count])

    def load(self, blocks: Sequence[int], slots: Sequence[int]) -> None:
        for block, slot, count in stretches(blocks, slots):
            for kv, pool in self._views:
                kv[block : block + count].copy_(pool[slot : slot + count])


def _views(
    region: Region, plan: BlockPlan, storage: torch.Tensor, pool: torch.Tensor, start: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The region as ``[blocks, *axes, run]`` in the storage and as ``[slots, *axes, run]`` in the pool."""
    extents = [extent for extent, _ in region.axes]
    strides = [stride for _, stride in region.axes]
    figures = [region.offset, region.block_stride, region.run, start, plan.object_bytes, *strides]
    common = gcd(*figures, storage.data_ptr(), pool.data_ptr(), storage.numel(), pool.numel())
    width, dtype = next((width, dtype) for width, dtype in _WIDTHS if common % width == 0)
    kv = storage.view(dtype).as_strided(
        (plan.num_blocks, *extents, region.run // width),
        (region.block_stride // width, *(stride // width for stride in strides), 1),
        region.offset // width,
    )
    rows = pool.view(dtype)[:, start // width : (start + region.block_bytes) // width]
    return kv, rows.unflatten(1, (*extents, region.run // width))


def stretches(blocks: Sequence[int], slots: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """(first block, first slot, count) of every longest stretch in which both sides count up by one."""
    at = 0
    while at < len(blocks):
        end = at + 1
        while end < len(blocks) and blocks[end] == blocks[end - 1] + 1 and slots[end] == slots[end - 1] + 1:
            end += 1
        yield blocks[at], slots[at], end - at
        at = end


class RangesPath:
    """Per block lists of (pointer, size, object offset); memmove on the CPU, sliced copies on an accelerator."""

    def __init__(self, plan: BlockPlan, storage: torch.Tensor, pool: torch.Tensor) -> None:
        self._storage, self._pool = storage, pool
        self._object_bytes = plan.object_bytes
        self._runs: list[tuple[int, int, int, int]] = []
        offset = 0
        for run in plan.runs:
            self._runs.append((run.offset, run.block_stride, run.size, offset))
            offset += run.size

    def ranges(self, block: int) -> tuple[list[int], list[int], list[int]]:
        """One block's positions in the storage, sizes, and offsets in the object."""
        return (
            [offset + block * stride for offset, stride, _, _ in self._runs],
            [size for _, _, size, _ in self._runs],
            [at for _, _, _, at in self._runs],
        )

    def store(self, blocks: Sequence[int], slots: Sequence[int]) -> None:
        self._move(blocks, slots, to_pool=True)

    def load(self, blocks: Sequence[int], slots: Sequence[int]) -> None:
        self._move(blocks, slots, to_pool=False)

    def _move(self, blocks: Sequence[int], slots: Sequence[int], to_pool: bool) -> None:
        if self._storage.device.type != "cpu":
            self._copy(blocks, slots, to_pool)
            return
        move = ctypes.memmove
        storage, pool = self._storage.data_ptr(), self._pool.data_ptr()
        for block, slot in zip(blocks, slots, strict=True):
            row = pool + slot * self._object_bytes
            if to_pool:
                for offset, stride, size, at in self._runs:
                    move(row + at, storage + offset + block * stride, size)
            else:
                for offset, stride, size, at in self._runs:
                    move(storage + offset + block * stride, row + at, size)

    def _copy(self, blocks: Sequence[int], slots: Sequence[int], to_pool: bool) -> None:
        for block, slot in zip(blocks, slots, strict=True):
            row = self._pool[slot]
            for position, size, at in zip(*self.ranges(block), strict=True):
                kv, mine = self._storage[position : position + size], row[at : at + size]
                mine.copy_(kv) if to_pool else kv.copy_(mine)


#: Names that ``kv_connector_extra_config["transfer"]`` may have.
PATHS: dict[str, type[BulkPath] | type[RangesPath]] = {"bulk": BulkPath, "ranges": RangesPath}
