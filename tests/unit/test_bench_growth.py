# SPDX-License-Identifier: Apache-2.0
"""The harness's own work on many cells: what is measured is a whole run's, and it grows with the cells."""

from __future__ import annotations

from harness.benches import growth
from harness.records import Outcome


def row(cells: int, **ms: float) -> dict:
    return {"cells": cells, **{f"{step}_ms": ms.get(step, 0.1) for step in growth.STEPS}}


def test_the_cells_of_the_table_are_cells_that_pass(tmp_path):
    plan = growth.plan_of(20)
    assert len(plan.cells) == 20 and len(plan.legs) == 40
    observed = {one.leg: one for one in growth._observations(plan, tmp_path)}
    verdicts = growth._judge(plan, observed)
    assert {verdict.verdict for verdict in verdicts} == {Outcome.PASS}
    assert all(verdict.compared.tokens == 12 for verdict in verdicts)


def test_a_row_has_a_figure_for_each_step():
    measured = growth.measure(10)
    assert list(measured) == ["cells", "plan_ms", "archive_ms", "judge_ms", "report_ms"]
    assert measured["cells"] == 10 and all(measured[f"{step}_ms"] > 0 for step in growth.STEPS)


def test_a_cell_among_many_costs_no_more_than_among_few():
    """Eight times as many cells; the factor leaves room for caches and noise, a quadratic step would have 8."""
    few, many = growth.measure(100), growth.measure(800)
    dearer = {step: many[f"{step}_ms"] / few[f"{step}_ms"] for step in growth.STEPS}
    assert all(ratio < 4 for ratio in dearer.values()), dearer


def test_what_is_too_dear_or_grows_too_fast_is_said():
    rows = [row(100), row(1000, judge=0.15), row(10_000, judge=0.4, archive=1.2)]
    assert growth.short(rows) == [
        "archive: 1.20 ms a cell at 10000 cells, limit 1.00",
        "archive: 12.0 times as dear a cell at 10000 cells, limit 2.0",
        "judge: 2.7 times as dear a cell at 10000 cells, limit 2.0",
    ]
    assert growth.short([row(10, plan=0.01), row(100, plan=0.1)]) == []
