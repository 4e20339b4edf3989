# SPDX-License-Identifier: Apache-2.0
"""A layers x blocks picture of a restore's KV per prompt: where it is equal, partly damaged, wholly damaged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby

from harness.compare.digests import digest_shape, restored_blocks, unequal_digests
from harness.compare.pair import Pair
from harness.records import Phase, Role

EQUAL, PARTLY, WHOLLY, UNKNOWN = ".", "x", "#", " "
LEGEND = f"{EQUAL} equal   {PARTLY} some digests of the layer's page differ   {WHOLLY} all differ"


def draw(pair: Pair, against: str) -> list[str]:
    """Lines of the picture for the prompts that have damage; none when digests are missing or all are equal.

    Consecutive layers that look alike share a line. ``against`` is the finding's left side, e.g. ``subject populate``.
    """
    role, phase = against.split()
    reference, restore = pair.record(Role(role), Phase(phase)), pair.record(Role.SUBJECT, Phase.RESTORE)
    if reference is None or restore is None:
        return []
    blocks = restored_blocks(pair, reference, restore)
    if not blocks:
        return []
    shape = digest_shape(pair, blocks)
    damage = {place: unequal_digests(*sides) for place, sides in blocks.items() if sides[0] != sides[1]}
    lines: list[str] = []
    for prompt in sorted({prompt for prompt, _ in damage}):
        known = {block: damage.get((prompt, block), frozenset()) for one, block in blocks if one == prompt}
        lines += [f"prompt {prompt}, blocks 0-{max(known)}", *_rows(known, shape.layers, shape.slots * shape.halves)]
    return [*lines, LEGEND] if lines else []


def _rows(known: Mapping[int, frozenset[int]], layers: int, per_layer: int) -> Iterator[str]:
    def mark(layer: int, block: int) -> str:
        if block not in known:
            return UNKNOWN
        count = sum(layer * per_layer <= position < (layer + 1) * per_layer for position in known[block])
        return EQUAL if count == 0 else WHOLLY if count == per_layer else PARTLY

    pictures = ["".join(mark(layer, block) for block in range(max(known) + 1)) for layer in range(layers)]
    for picture, same in groupby(range(layers), key=pictures.__getitem__):
        numbers = list(same)
        name = f"layer {numbers[0]}" if len(numbers) == 1 else f"layers {numbers[0]}-{numbers[-1]}"
        yield f"  {name:<13} {picture}"
