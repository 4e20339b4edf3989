# SPDX-License-Identifier: Apache-2.0
"""The report's table of the ground truth: how near each cell's recompute is to what it was held against."""

from __future__ import annotations

from collections.abc import Iterator

from harness.records import Agreement
from harness.report import RunView

#: Headings of the table.
TRUTH = (
    "cell", "compared", "with", "tokens equal", "near ties", "gap nat", "logprobs bitwise", "max nat", "median nat",
    "within",
)

#: Name of the left side of an agreement that is about a cell's own recompute.
OURS = "recompute"


def truth_rows(run: RunView, alone: bool) -> Iterator[tuple[str, ...]]:
    """One row of ``TRUTH`` per agreement; what the truth's own dtype does is the same for many cells and told once.

    Args:
        alone: whether the run has one scenario, so that cells go by their id.
    """
    noise: dict[tuple[str, ...], None] = {}
    for verdict in run.verdicts:
        name = verdict.cell if alone else verdict.name
        for one in verdict.agreements:
            if one.left == OURS:
                yield name, *agreement_row(one)
            else:
                noise[("" if alone else verdict.scenario, *agreement_row(one))] = None
    yield from noise


def truth_limits(run: RunView) -> str:
    """``limits: max 0.4 nat, median 0.1 nat, near ties of 0.2 nat``; empty where no cell has a ground truth."""
    asked = dict.fromkeys(cell.ground_truth.limits for cell in run.plan.cells if cell.ground_truth is not None)
    words = (
        f"max {one.largest:g} nat, median {one.median:g} nat, near ties of {one.near_tie:g} nat" for one in asked
    )
    return f"limits: {'; '.join(words)}" if asked else ""


def agreement_row(one: Agreement) -> tuple[str, ...]:
    """``TRUTH`` without the cell."""
    return (
        one.left, one.right, f"{one.tokens_equal}/{one.tokens}", str(one.near_ties),
        f"{one.gap:.3f}" if one.tokens != one.tokens_equal else "", f"{one.logprobs_equal}/{one.logprobs}",
        f"{one.largest:.3f}", f"{one.median:.4f}", "yes" if one.within else "NO",
    )
