# SPDX-License-Identifier: Apache-2.0
"""A plan in parts for several machines, such that no leg runs in two of them.

Cells that share a leg stay together; these groups are dealt out by their number of legs, the largest first, to the part
that has the fewest. The same plan is always cut the same way, so that each machine can cut it for itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from harness import wire
from harness.errors import UsageError
from harness.plan import select
from harness.records import Cell, Plan

#: Name of the file in a run folder that says which part of which plan it is.
SHARD_FILE = "shard.json"

_SPEC = re.compile(r"([1-9]\d*)/([1-9]\d*)")


@dataclass(frozen=True, kw_only=True)
class Shard:
    """Part ``index`` of ``count``, from 1."""

    index: int
    count: int

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


@dataclass(frozen=True, kw_only=True)
class ShardFile:
    """What ``shard.json`` holds: the part, and the whole plan that it is a part of."""

    index: int
    count: int
    whole: Plan


def read_spec(text: str) -> Shard:
    """``2/5`` as a shard.

    Raises:
        UsageError: anything else.
    """
    match = _SPEC.fullmatch(text.strip())
    if match is None or int(match[1]) > int(match[2]):
        raise UsageError(f"SHARD={text}: not a shard; valid: I/N with I from 1 to N, e.g. 2/5")
    return Shard(index=int(match[1]), count=int(match[2]))


def legs_of(cell: Cell) -> tuple[str, ...]:
    """Digests of every leg that the cell needs."""
    return cell.oracle, cell.subject, *cell.further


def groups(plan: Plan) -> list[list[int]]:
    """Positions of the plan's cells, those that share a leg, directly or through others, together."""
    parent = list(range(len(plan.cells)))

    def root(place: int) -> int:
        while parent[place] != place:
            parent[place] = parent[parent[place]]
            place = parent[place]
        return place

    first: dict[str, int] = {}
    for place, cell in enumerate(plan.cells):
        for digest in legs_of(cell):
            low, high = sorted((root(first.setdefault(digest, place)), root(place)))
            parent[high] = low
    found: dict[int, list[int]] = {}
    for place in range(len(plan.cells)):
        found.setdefault(root(place), []).append(place)
    return list(found.values())


def part(plan: Plan, shard: Shard) -> Plan:
    """The cells and legs of ``plan`` that belong to ``shard``, in the plan's order; empty where groups are fewer."""
    sized = [(len(_legs(plan, group)), group) for group in groups(plan)]
    loads, chosen = [0] * shard.count, [[] for _ in range(shard.count)]
    for legs, group in sorted(sized, key=lambda one: (-one[0], one[1][0])):
        lightest = loads.index(min(loads))
        loads[lightest] += legs
        chosen[lightest] += group
    return select(plan, [plan.cells[place].name for place in chosen[shard.index - 1]])


def _legs(plan: Plan, group: list[int]) -> set[str]:
    return {digest for place in group for digest in legs_of(plan.cells[place])}


def question(plan: Plan) -> str:
    """Digest of what a plan asks, the same on every machine and for every version of the software.

    Leaves out where the model lies, and the identity of the installation, which a merge compares by itself.
    """
    bare = {
        leg.digest: wire.named(replace(leg, identity={}, model=replace(leg.model, path=""))).digest for leg in plan.legs
    }
    return wire.digest(_renamed([wire.to_plain(cell) for cell in plan.cells], bare))


def _renamed(plain: Any, names: Mapping[str, str]) -> Any:
    """A plain value with every leg's digest in it replaced, wherever a cell keeps it."""
    if isinstance(plain, dict):
        return {key: _renamed(value, names) for key, value in plain.items()}
    if isinstance(plain, list):
        return [_renamed(value, names) for value in plain]
    return names.get(plain, plain) if isinstance(plain, str) else plain
