# SPDX-License-Identifier: Apache-2.0
"""Outcome words of a frame's cells, spread over any of its columns."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from typing import Any

import pandas as pd

from harness.errors import UsageError
from harness.records import LAYOUTS, OUTCOME_ORDER, Outcome

#: Stands for a missing value in an index or a heading: the cell's scenario does not have that axis.
NONE = ""


def outcome_word(outcome: str, verdict: str) -> str:
    """A cell in a table: ``pass``, ``rejected (expected)``, ``fail (was pass)`` for an expectation unmet."""
    if verdict == Outcome.EXPECTED:
        return f"{outcome} (expected)"
    return outcome if outcome == verdict else f"{verdict} (was {outcome})"


def pivot(
    frame: pd.DataFrame,
    index: str | Sequence[str] = "layout",
    columns: str | Sequence[str] = ("batch_invariant", "backend"),
) -> pd.DataFrame:
    """Outcome words of a frame's cells: a row per value of ``index``, a column per value of ``columns``.

    Layouts come in ``LAYOUTS`` order, False before True, other values in the frame's order. Where several cells share a
    place (another axis, another scenario), the worst verdict's word stands, with the number of cells that end so when
    they do not all: ``fail 1/4``. A place without cells is an empty string.

    Args:
        frame: ``LoadedRun.cells``, ``frame.csv``, or rows of one.
        index, columns: a column of the frame or several, e.g. ``"layout"`` and ``["backend", "batch_invariant"]``.

    Raises:
        UsageError: the frame has no such column.
    """
    down, across = _names(index), _names(columns)
    unknown = [name for name in (*down, *across, "outcome", "verdict") if name not in frame.columns]
    if unknown:
        raise UsageError(f"pivot: no column {', '.join(unknown)} in this frame; it has {', '.join(frame.columns)}")
    keys = dict.fromkeys([*down, *across])
    order = {name: {value: place for place, value in enumerate(_ordered(frame[name]))} for name in keys}
    places: dict[tuple[tuple[Hashable, ...], tuple[Hashable, ...]], list[tuple[str, str]]] = {}
    values = {name: [_shown(value) for value in frame[name]] for name in keys}
    for number, pair in enumerate(zip(frame["outcome"], frame["verdict"], strict=True)):
        place = tuple(values[name][number] for name in down), tuple(values[name][number] for name in across)
        places.setdefault(place, []).append(pair)
    rows = _sorted({row for row, _ in places}, down, order)
    headings = _sorted({heading for _, heading in places}, across, order)
    return pd.DataFrame(
        [[_worst(places.get((row, heading), [])) for heading in headings] for row in rows],
        index=_labels(rows, down),
        columns=_labels(headings, across) if headings else None,
        dtype="object",
    )


def _worst(cells: Sequence[tuple[str, str]]) -> str:
    if not cells:
        return ""
    words = [outcome_word(*pair) for pair in cells]
    ranks = [OUTCOME_ORDER.index(Outcome(verdict)) for _, verdict in cells]
    word = words[ranks.index(max(ranks))]
    return word if len(set(words)) == 1 else f"{word} {words.count(word)}/{len(words)}"


def _names(given: str | Sequence[str]) -> list[str]:
    return [given] if isinstance(given, str) else list(given)


def _shown(value: Any) -> Hashable:
    # pandas gives numpy's scalars where users write Python's.
    return NONE if pd.isna(value) else value.item() if hasattr(value, "item") else value


def _ordered(column: pd.Series) -> list[Hashable]:
    found = list(dict.fromkeys(map(_shown, column)))
    if column.name == "layout":
        return layouts_first(found)
    return sorted(found) if all(isinstance(one, bool) for one in found) else found


def layouts_first(names: Collection[Hashable]) -> list[Hashable]:
    """vLLM's layouts in ``LAYOUTS`` order, what is none of them behind, in the order given."""
    return [one for one in LAYOUTS if one in names] + [one for one in names if one not in LAYOUTS]


def _sorted(
    found: set[tuple[Hashable, ...]], names: Sequence[str], order: dict[str, dict[Hashable, int]]
) -> list[tuple[Hashable, ...]]:
    return sorted(found, key=lambda values: [order[name][one] for name, one in zip(names, values, strict=True)])


def _labels(values: Sequence[tuple[Hashable, ...]], names: Sequence[str]) -> pd.Index:
    if len(names) == 1:
        return pd.Index([one for one, in values], name=names[0])
    return pd.MultiIndex.from_tuples(values, names=names)
