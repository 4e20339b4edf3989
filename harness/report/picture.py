# SPDX-License-Identifier: Apache-2.0
"""A layers x blocks picture of a restore's KV per prompt: where it is equal, partly damaged, wholly damaged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby

from harness.compare.digests import digest_shape, restored_blocks, unequal_digests
from harness.compare.pair import Pair
from harness.records import Phase, Role

EQUAL, PARTLY, WHOLLY, UNKNOWN = ".", "x", "#", " "
LEGEND = f"{EQUAL} equal   {PARTLY} some digests of the layer's page differ   {WHOLLY} all differ"


@dataclass(frozen=True, kw_only=True)
class Damage:
    """Where one prompt's restored KV differs.

    Attributes:
        prompt: its index.
        marks: per layer a mark for each block from 0.
    """

    prompt: int
    marks: tuple[str, ...]

    @property
    def blocks(self) -> int:
        return len(self.marks[0]) if self.marks else 0


def find_damage(pair: Pair, against: str, restored: str = "subject restore") -> list[Damage]:
    """The prompts that have damage; none when digests are missing or all are equal.

    ``against`` and ``restored`` are the finding's sides, e.g. ``subject populate`` and ``subject restore``.
    """
    role, phase = against.split()
    reference = pair.record(Role(role), Phase(phase))
    restore = pair.record(Role.SUBJECT, Phase(restored.split()[1]))
    if reference is None or restore is None:
        return []
    blocks = restored_blocks(pair, reference, restore)
    if not blocks:
        return []
    shape = digest_shape(pair, blocks)
    damage = {place: unequal_digests(*sides) for place, sides in blocks.items() if sides[0] != sides[1]}
    found = []
    for prompt in sorted({prompt for prompt, _ in damage}):
        known = {block: damage.get((prompt, block), frozenset()) for one, block in blocks if one == prompt}
        found.append(Damage(prompt=prompt, marks=tuple(_marks(known, shape.layers, shape.slots * shape.halves))))
    return found


def _marks(known: Mapping[int, frozenset[int]], layers: int, per_layer: int) -> Iterator[str]:
    def mark(layer: int, block: int) -> str:
        if block not in known:
            return UNKNOWN
        count = sum(layer * per_layer <= position < (layer + 1) * per_layer for position in known[block])
        return EQUAL if count == 0 else WHOLLY if count == per_layer else PARTLY

    for layer in range(layers):
        yield "".join(mark(layer, block) for block in range(max(known) + 1))


def draw(pair: Pair, against: str, restored: str = "subject restore") -> list[str]:
    """Lines of the picture in text; consecutive layers that look alike share a line."""
    lines: list[str] = []
    for one in find_damage(pair, against, restored):
        lines.append(f"prompt {one.prompt}, blocks 0-{one.blocks - 1}")
        for picture, same in groupby(range(len(one.marks)), key=one.marks.__getitem__):
            numbers = list(same)
            name = f"layer {numbers[0]}" if len(numbers) == 1 else f"layers {numbers[0]}-{numbers[-1]}"
            lines.append(f"  {name:<13} {picture}")
    return [*lines, LEGEND] if lines else []


def outline(damage: Damage, mark: str) -> str:
    """SVG path over the squares that have ``mark``, one unit each; runs along a layer are one rectangle."""
    parts = []
    for layer, marks in enumerate(damage.marks):
        start = 0
        for one, same in groupby(marks):
            length = len(list(same))
            if one == mark:
                parts.append(f"M{start} {layer}h{length}v1h-{length}z")
            start += length
    return "".join(parts)
