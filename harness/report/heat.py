# SPDX-License-Identifier: Apache-2.0
"""The matrix as a heat map: layouts x (batch invariance, backend) of one scenario, every cell a tile of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from harness.axes import FURTHER_AXES
from harness.records import LAYOUTS
from harness.report import RunView
from harness.report.marks import MARKS, NOT_RUN, Mark


@dataclass(frozen=True, kw_only=True)
class Tile:
    """One cell in the map.

    Attributes:
        anchor: id of the cell's evidence in the page.
        mark: how its verdict is drawn.
        label: what a reader hears or sees on hovering: cell and outcome.
        note: its further axes, empty where it has none.
    """

    anchor: str
    mark: Mark
    label: str
    note: str


@dataclass(frozen=True, kw_only=True)
class Heat:
    """The map of one scenario.

    Attributes:
        scenario: its name.
        groups: (``batch invariance on`` or ``off``, number of backends under it).
        backends: headings, under their group.
        rows: (layout, per heading the tiles of that place; none where the scenario has no such cell).
    """

    scenario: str
    groups: tuple[tuple[str, int], ...]
    backends: tuple[str, ...]
    rows: tuple[tuple[str, tuple[tuple[Tile, ...], ...]], ...]


def heat_maps(run: RunView, anchors: dict[str, str]) -> Iterator[Heat]:
    """A map per scenario in the plan's order; ``anchors`` are by cell name."""
    words = {(verdict.scenario, verdict.cell): verdict.verdict.value for verdict in run.verdicts}
    for scenario in dict.fromkeys(cell.scenario for cell in run.plan.cells):
        places: dict[tuple[str, bool, str], list[Tile]] = {}
        for cell in run.plan.cells:
            if cell.scenario == scenario:
                word = words.get((scenario, cell.id), NOT_RUN)
                note = ", ".join(f"{name} {cell.axes[name]}" for name in FURTHER_AXES if name in cell.axes)
                tile = Tile(anchor=anchors[cell.name], mark=MARKS[word], label=f"{cell.id}: {word}", note=note)
                places.setdefault((cell.layout, cell.batch_invariant, cell.backend), []).append(tile)
        yield _heat(scenario, places)


def _heat(scenario: str, places: dict[tuple[str, bool, str], list[Tile]]) -> Heat:
    found = dict.fromkeys(layout for layout, _, _ in places)
    backends = dict.fromkeys(backend for _, _, backend in places)
    columns = [
        (flag, backend) for flag in (False, True) for backend in backends if (flag, backend) in _pairs(places)
    ]
    flags = [flag for flag, _ in columns]
    return Heat(
        scenario=scenario,
        groups=tuple(
            (f"batch invariance {'on' if flag else 'off'}", flags.count(flag))
            for flag in (False, True) if flag in flags
        ),
        backends=tuple(backend for _, backend in columns),
        rows=tuple(
            (layout, tuple(tuple(places.get((layout, *column), ())) for column in columns))
            for layout in (*(one for one in LAYOUTS if one in found), *(one for one in found if one not in LAYOUTS))
        ),
    )


def _pairs(places: Iterable[tuple[str, bool, str]]) -> set[tuple[bool, str]]:
    return {(flag, backend) for _, flag, backend in places}
