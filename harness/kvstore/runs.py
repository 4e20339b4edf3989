# SPDX-License-Identifier: Apache-2.0
"""The byte runs of one KV block: where its bytes lie in the storage, by layout, and nothing guessed.

A layer's KV tensor is the logical view ``[B, H, N, C]`` (blocks, head slots, states, content) of one storage that
holds all layers; only its strides differ between layouts (vllm ``v1/kv_cache_layout.py``). A block's *page* in one
layer is ``[H, N, C]``. The plan takes vLLM's own strides, orders a block's axes by them and joins what touches, so
the object's order follows the layout: one run per block where the blocks are outermost (BLHNC, BLNHC, BHLNC), one per
layer for LBHNC and LBNHC, one per layer and head slot for LHBNC. Whatever it cannot state exactly it refuses with a
``ValueError`` that names layer, layout and figures.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.kv_cache_layout import KVCacheLayout

from harness.kvstore.placement import Placement, placements


class Run(NamedTuple):
    """Bytes ``[offset + b * block_stride, + size)`` of the storage belong to block ``b``."""

    offset: int
    size: int
    block_stride: int


@dataclass(frozen=True)
class Region:
    """Runs of equal size on a regular grid.

    Attributes:
        layers: layers whose bytes these are.
        offset: byte offset of block 0's first run in the storage.
        block_stride: bytes from a block to the next one.
        axes: (extent, stride in bytes) of the grid inside one block, outermost first; empty for a single run.
        run: bytes of one run.
    """

    layers: tuple[str, ...]
    offset: int
    block_stride: int
    axes: tuple[tuple[int, int], ...]
    run: int

    @property
    def block_bytes(self) -> int:
        """Bytes of one block in this region."""
        return self.run * prod(extent for extent, _ in self.axes)

    @property
    def reach(self) -> int:
        """Bytes from the block's first run's start to its last run's end."""
        return self.run + sum((extent - 1) * stride for extent, stride in self.axes)

    def runs(self) -> tuple[Run, ...]:
        """The region's runs of one block, in object order."""
        steps = [[index * stride for index in range(extent)] for extent, stride in self.axes]
        return tuple(Run(self.offset + sum(at), self.run, self.block_stride) for at in itertools.product(*steps))


@dataclass(frozen=True)
class BlockPlan:
    """The bytes of one block of a cache group, in the order in which an object holds them.

    Attributes:
        group: index of the KV cache group.
        layout: name of the layout, None when it is not resolved and no page is split.
        num_blocks: manager blocks in the storage.
        regions: disjoint, in object order.
    """

    group: int
    layout: str | None
    num_blocks: int
    regions: tuple[Region, ...]

    @property
    def object_bytes(self) -> int:
        """Bytes of one stored block."""
        return sum(region.block_bytes for region in self.regions)

    @property
    def runs(self) -> tuple[Run, ...]:
        """All runs of one block, in object order."""
        return tuple(run for region in self.regions for run in region.runs())

    @property
    def span(self) -> int:
        """Bytes of storage that the plan needs, from the storage's start."""
        return max(
            region.offset + (self.num_blocks - 1) * region.block_stride + region.reach for region in self.regions
        )


def coalesce(axes: Sequence[tuple[int, int]], content: int, label: str) -> tuple[tuple[tuple[int, int], ...], int]:
    """Order axes by stride and join those that touch.

    Args:
        axes: (extent, stride in bytes), any order.
        content: contiguous bytes inside the innermost axis.
        label: layer and layout, for the error text.

    Returns:
        The axes that remain, outermost first, and the bytes of one run.

    Raises:
        ValueError: an axis steps by less than what it steps over, so bytes would overlap.
    """
    outer: list[tuple[int, int]] = []
    run = content
    for extent, stride in sorted((axis for axis in axes if axis[0] > 1), key=lambda axis: axis[1]):
        inner, step = outer[0] if outer else (run, 1)
        if stride < inner * step:
            raise ValueError(f"Layer {label}: KV region bytes ({inner * step}) exceed its stride ({stride}).")
        if stride == inner * step:
            if outer:
                outer[0] = (extent * inner, step)
            else:
                run *= extent
        else:
            outer.insert(0, (extent, stride))
    return tuple(outer), run


def region_of(place: Placement) -> Region:
    """One placement's runs of one block.

    Raises:
        ValueError: runs overlap each other or the next block.
    """
    layers, blocks, *page = place.shape
    steps = (place.strides[0], place.strides[1], *place.strides[2:4])
    inside = [(layers, steps[0]), (place.split, steps[1]), (page[0], steps[2]), (page[1], steps[3])]
    if place.strides[4] != 1:
        raise ValueError(f"Layer {place.label}: content bytes lie {place.strides[4]} bytes apart instead of 1.")
    axes, run = coalesce(inside, page[2], place.label)
    # All blocks together must nest as well, otherwise two blocks share bytes.
    coalesce([*axes, (blocks // place.split, place.block_stride)], run, place.label)
    return Region(place.layers, place.offset, place.block_stride, axes, run)


def plan_of(config: KVCacheConfig, group: int, layout: str | None, regions: Sequence[Region]) -> BlockPlan:
    """Put regions in storage order, join neighbours that touch in every block, refuse overlaps."""
    merged: list[Region] = []
    for region in sorted(regions, key=lambda region: region.offset):
        last = merged[-1] if merged else None
        if last and not last.axes and not region.axes and last.block_stride == region.block_stride:
            end = last.offset + last.run
            if region.offset < end:
                raise ValueError(
                    f"Layer {region.layers[0]} ({layout}): KV region at byte {region.offset} starts inside that of "
                    f"layer {last.layers[-1]}, which ends at byte {end}."
                )
            if region.offset == end and last.run + region.run <= region.block_stride:
                merged[-1] = replace(last, layers=last.layers + region.layers, run=last.run + region.run)
                continue
        merged.append(region)
    return BlockPlan(group, layout, config.num_blocks, tuple(merged))


def plan_group(
    config: KVCacheConfig, group: int, layout: KVCacheLayout | None, kernel_block_size: int | None = None
) -> BlockPlan:
    """Plan one cache group; see `placements` for arguments and refusals."""
    places = placements(config, group, layout, kernel_block_size)
    return plan_of(config, group, layout.name if layout else None, [region_of(place) for place in places])
