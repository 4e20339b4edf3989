# SPDX-License-Identifier: Apache-2.0
"""Names the smallest region that covers damaged KV: ``all 28 layers, head slots 1-7 of every block``.

A region is a box: layers x head slots x {K, V} x blocks. Damage of up to ``MOST_BOXES`` boxes is named exactly; beyond
that one covering box is named, with the share of it that is damaged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from harness.compare.pair import ranges

MOST_BOXES = 3

#: (prompt index, block position in the prompt).
BlockPlace = tuple[int, int]


class DigestShape(NamedTuple):
    """How many digests a block has: layers x head slots x halves (2: K and V apart, 1: together)."""

    layers: int
    slots: int
    halves: int

    @property
    def count(self) -> int:
        return self.layers * self.slots * self.halves

    def place(self, position: int) -> tuple[int, int, int]:
        """(layer, head slot, half) of a position in [layer][head slot][K, V] order."""
        rest, half = divmod(position, self.halves)
        return (*divmod(rest, self.slots), half)


class Box(NamedTuple):
    """Layers x head slots x halves, each a set of indices."""

    layers: frozenset[int]
    slots: frozenset[int]
    halves: frozenset[int]


def describe(
    unequal: Mapping[BlockPlace, frozenset[int]], compared: Collection[BlockPlace], shape: DigestShape
) -> str:
    """Words for the damage.

    Args:
        unequal: damaged blocks -> positions of their unequal digests, [layer][head slot][K, V] order.
        compared: all blocks that were compared, the damaged ones among them.
        shape: of one block's digests.
    """
    groups: dict[frozenset[int], set[BlockPlace]] = defaultdict(set)
    for place, positions in unequal.items():
        groups[positions].add(place)
    named = [(box, places) for positions, places in groups.items() for box in _boxes(positions, shape)]
    if len(named) <= MOST_BOXES:
        return "; ".join(_box_words(box, places, compared, shape) for box, places in named)
    cover = _cover(shape.place(position) for positions in unequal.values() for position in positions)
    inside = len(unequal) * len(cover.layers) * len(cover.slots) * len(cover.halves)
    damaged = sum(len(positions) for positions in unequal.values())
    return f"within {_box_words(cover, set(unequal), compared, shape)} ({damaged} of {inside} digests there)"


def _boxes(positions: frozenset[int], shape: DigestShape) -> list[Box]:
    """One block's damage as disjoint boxes: layers with the same damaged digests go together."""
    by_layer: dict[int, set[tuple[int, int]]] = defaultdict(set)
    for position in positions:
        layer, slot, half = shape.place(position)
        by_layer[layer].add((slot, half))
    layers_of: dict[frozenset[tuple[int, int]], set[int]] = defaultdict(set)
    for layer in sorted(by_layer):
        layers_of[frozenset(by_layer[layer])].add(layer)
    boxes = []
    for pattern, layers in layers_of.items():
        halves_of: dict[frozenset[int], set[int]] = defaultdict(set)
        for slot in sorted({slot for slot, _ in pattern}):
            halves_of[frozenset(half for one, half in pattern if one == slot)].add(slot)
        boxes += [Box(frozenset(layers), frozenset(slots), halves) for halves, slots in halves_of.items()]
    return boxes


def _cover(places: Iterable[tuple[int, int, int]]) -> Box:
    layers, slots, halves = zip(*places, strict=True)
    return Box(frozenset(layers), frozenset(slots), frozenset(halves))


def _box_words(
    box: Box, places: Collection[BlockPlace], compared: Collection[BlockPlace], shape: DigestShape
) -> str:
    every_layer, every_block = len(box.layers) == shape.layers, set(places) == set(compared)
    parts = []
    if not every_layer:
        parts.append(_count_words("layer", box.layers))
    if len(box.slots) != shape.slots:
        parts.append(_count_words("head slot", box.slots))
    if len(box.halves) != shape.halves:
        parts.append("K only" if box.halves == {0} else "V only")
    if every_layer and shape.layers > 1 and (parts or every_block):
        parts.insert(0, f"all {shape.layers} layers")
    if not every_block:
        return ", ".join([*parts, _block_words(places, compared)])
    if not parts:
        return "every block"
    return ", ".join(parts) + (" of every block" if every_layer else "")


def _block_words(places: Collection[BlockPlace], compared: Collection[BlockPlace]) -> str:
    """``block 3 of prompt 1``, ``block 3 of every prompt``, ``every block of prompt 2``, joined by ``and``."""
    damaged, whole = _by_prompt(places), _by_prompt(compared)
    sets = {frozenset(blocks) for blocks in damaged.values()}
    if len(sets) == 1 and len(damaged) == len(whole) > 1:
        return f"{_count_words('block', next(iter(sets)))} of every prompt"
    return " and ".join(
        f"{'every block' if blocks == whole[prompt] else _count_words('block', blocks)} of prompt {prompt}"
        for prompt, blocks in sorted(damaged.items())
    )


def _by_prompt(places: Collection[BlockPlace]) -> dict[int, set[int]]:
    blocks: dict[int, set[int]] = defaultdict(set)
    for prompt, block in places:
        blocks[prompt].add(block)
    return blocks


def _count_words(noun: str, numbers: Collection[int]) -> str:
    return f"{noun}{'s' if len(numbers) > 1 else ''} {ranges(numbers)}"
