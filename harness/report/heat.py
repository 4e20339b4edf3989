# SPDX-License-Identifier: Apache-2.0
"""The matrix as a heat map: layouts x (batch invariance, backend) of one scenario, every cell a tile of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from harness.frame.pivots import layouts_first
from harness.report import RunView
from harness.report.content import NO_ENGINE
from harness.report.marks import MARKS, NOT_RUN, Mark


@dataclass(frozen=True, kw_only=True)
class Tile:
    """One cell in the map.

    Attributes:
        anchor: id of the cell's evidence in the page.
        mark: how its verdict is drawn.
        label: what a reader hears or sees on hovering: cell and outcome.
    """

    anchor: str
    mark: Mark
    label: str


@dataclass(frozen=True, kw_only=True)
class Heat:
    """The map of one scenario.

    Attributes:
        scenario: its name.
        note: what a pass in it does not say; empty as a rule.
        groups: (``batch invariance on`` or ``off``, number of backends under it).
        backends: headings, under their group.
        rows: (layout, per heading the tiles of that place; none where the scenario has no such cell).
    """

    scenario: str
    note: str
    groups: tuple[tuple[str, int], ...]
    backends: tuple[str, ...]
    rows: tuple[tuple[str, tuple[tuple[Tile, ...], ...]], ...]


def heat_maps(run: RunView, anchors: dict[str, str]) -> Iterator[Heat]:
    """A map per scenario in the plan's order; ``anchors`` are by cell name."""
    words = {verdict.name: verdict.verdict.value for verdict in run.verdicts}
    scenarios: dict[str, dict[tuple[str, bool, str], list[Tile]]] = {}
    for cell in run.plan.cells:
        word = words.get(cell.name, NOT_RUN)
        tile = Tile(anchor=anchors[cell.name], mark=MARKS[word], label=f"{cell.id}: {word}")
        places = scenarios.setdefault(cell.scenario, {})
        places.setdefault((cell.layout, cell.batch_invariant, cell.backend), []).append(tile)
    units = {cell.scenario for cell in run.plan.cells if run.legs[cell.oracle].level == "unit"}
    for scenario, places in scenarios.items():
        yield _heat(scenario, NO_ENGINE if scenario in units else "", places)


def _heat(scenario: str, note: str, places: dict[tuple[str, bool, str], list[Tile]]) -> Heat:
    backends = dict.fromkeys(backend for _, _, backend in places)
    pairs = {(flag, backend) for _, flag, backend in places}
    columns = [(flag, backend) for flag in (False, True) for backend in backends if (flag, backend) in pairs]
    flags = [flag for flag, _ in columns]
    return Heat(
        scenario=scenario,
        note=note,
        groups=tuple(
            (f"batch invariance {'on' if flag else 'off'}", flags.count(flag))
            for flag in (False, True) if flag in flags
        ),
        backends=tuple(backend for _, backend in columns),
        rows=tuple(
            (layout, tuple(tuple(places.get((layout, *column), ())) for column in columns))
            for layout in layouts_first(dict.fromkeys(layout for layout, _, _ in places))
        ),
    )
