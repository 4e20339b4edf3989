# SPDX-License-Identifier: Apache-2.0
"""A comparison of two runs as text, as Markdown and as plain values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.baseline import Comparison, Row
from harness.records import Change
from harness.report.content import clip
from harness.report.markdown import markdown_table, plain

#: Changes whose cells are listed; of the others the number is enough.
LISTED = tuple(change for change in Change if change is not Change.SAME)
#: Characters of a reason in a line.
REASON_CHARACTERS = 300
#: Cells that one change lists in Markdown; a whole lost platform must not flood a job's summary.
ROWS_SHOWN = 200


def counts(comparison: Comparison) -> str:
    """``12 cells: 1 newly failing, 11 same``."""
    words = [f"{found} {change}" for change in Change if (found := comparison.count(change))]
    number = len(comparison.rows)
    return f"{number} {'cell' if number == 1 else 'cells'}: {', '.join(words) or 'none'}"


def render_text(comparison: Comparison) -> str:
    """For a terminal: what is compared, a line per cell that is not the same, counts."""
    lines = [f"base: {comparison.base}", f"run: {comparison.run}", *comparison.versions]
    lines += [f"note: {note}" for note in comparison.notes]
    for change in LISTED:
        rows = [row for row in comparison.rows if row.change is change]
        if rows:
            lines += ["", f"{change}:", *(line for row in rows for line in _lines(row))]
    return "\n".join([*lines, "", counts(comparison)]) + "\n"


def render_short(comparison: Comparison) -> str:
    """Under a run's report: counts, notes, and the cells that are not the same."""
    lines = [f"compared with {comparison.base}: {counts(comparison)}", *comparison.versions, *comparison.notes]
    for change in LISTED:
        for row in (row for row in comparison.rows if row.change is change):
            lines += [f"{change}:{line[1:]}" if place == 0 else line for place, line in enumerate(_lines(row))]
    return "\n".join(lines) + "\n"


def _lines(row: Row) -> Iterator[str]:
    yield f"  {row.cell}: {row.base or 'none'} -> {row.run or 'none'}"
    if row.reason:
        yield f"    {clip(row.reason, REASON_CHARACTERS)}"


def render_markdown(comparison: Comparison) -> str:
    """For a CI job's summary."""
    parts = [f"## Compared with {plain(comparison.base)}", f"**{counts(comparison)}**"]
    parts += [f"- {plain(line)}" for line in (*comparison.versions, *comparison.notes)]
    for change in LISTED:
        rows = [row for row in comparison.rows if row.change is change]
        if rows:
            table = markdown_table(["cell", "base", "run", "why"], [
                (row.cell, row.base or "none", row.run or "none", clip(row.reason, REASON_CHARACTERS))
                for row in rows[:ROWS_SHOWN]
            ])
            more = f"\n{len(rows) - ROWS_SHOWN} more cells" if len(rows) > ROWS_SHOWN else ""
            parts.append(f"### {change[0].upper()}{change[1:]}\n\n{table}{more}".rstrip("\n"))
    return "\n\n".join(parts) + "\n"


def as_plain(comparison: Comparison) -> dict[str, Any]:
    """For ``--json``."""
    return {
        "base": comparison.base,
        "run": comparison.run,
        "versions": list(comparison.versions),
        "notes": list(comparison.notes),
        "counts": {change.value: comparison.count(change) for change in Change},
        "exit": int(comparison.exit_code),
        "cells": [
            {"cell": row.cell, "base": row.base, "run": row.run, "change": row.change.value, "reason": row.reason}
            for row in comparison.rows
        ],
    }
