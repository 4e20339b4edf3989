# SPDX-License-Identifier: Apache-2.0
"""The ground truth's table in both reports and its columns in the frame."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.compare import judge
from harness.frame import to_frame
from harness.records import SCHEMA_VERSION, Plan
from harness.report import RunView
from harness.report.markdown import render_markdown
from harness.report.text import render_text
from harness.report.truth import TRUTH, truth_limits
from harness.stored import answered
from tests.unit.handmade import clean, verdict_of
from tests.unit.handmade_truth import PEER, moved, parted, peer, truth, with_truths


@pytest.fixture
def run() -> RunView:
    """Two cells: one near the truth in everything but a near tie, one far from it; both against the same two legs."""
    truths = truth("bfloat16", parted(0.15)), truth("float32", moved(0.05))
    far = truth("bfloat16", parted(0.15)), truth("float32", moved(0.5, only=(1, 2)))
    views, verdicts, legs, seen = [], [], {}, {}
    for name, chosen in (("LBHNC-REFERENCE-bi1", truths), ("LBHNC-CPU_ATTN-bi1", far)):
        case = with_truths(clean(), *chosen, peers={PEER: peer(moved(0.02))})
        cell = replace(case.cell, id=name, scenario="ground_truth")
        views.append(cell)
        verdicts.append(judge(cell, case.legs, case.oracle, case.subject, case.further))
        legs |= case.legs
        seen |= {one.leg: one for one in (case.oracle, case.subject)} | case.further
    return RunView(
        plan=Plan(schema=SCHEMA_VERSION, cells=tuple(views), legs=tuple(legs.values())), verdicts=tuple(verdicts),
        observations=seen, folder="results/x", platform="cpu", versions={}, seconds=1.0,
    )


def rows_of(text: str) -> list[list[str]]:
    section = text.split("## Ground truth\n\n")[1].split("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split(" |")] for line in section.splitlines()]


def test_the_markdown_table(run):
    text = render_markdown(run)
    heading, _, *rows = rows_of(text)
    assert heading == list(TRUTH)
    near, far = "LBHNC-REFERENCE-bi1", "LBHNC-CPU_ATTN-bi1"
    assert rows == [
        [near, "recompute", "transformers bfloat16", "4/5", "1", "0.150", "9/10", "0.150", "0.0000", "yes"],
        [near, "recompute", "transformers float32", "6/6", "0", "", "0/12", "0.050", "0.0500", "yes"],
        [near, "recompute", PEER, "6/6", "0", "", "0/12", "0.020", "0.0200", "yes"],
        [far, "recompute", "transformers bfloat16", "4/5", "1", "0.150", "9/10", "0.150", "0.0000", "yes"],
        [far, "recompute", "transformers float32", "6/6", "0", "", "10/12", "0.500", "0.0000", "NO"],
        [far, "recompute", PEER, "6/6", "0", "", "0/12", "0.020", "0.0200", "yes"],
        *(row for row in rows[6:] if row[:3] == ["", "transformers bfloat16", "transformers float32"]),
    ]
    assert len(rows) == 8
    assert "limits: max 0.4 nat, median 0.1 nat, near ties of 0.2 nat" in text


def test_the_text_report_says_the_same(run):
    text = render_text(run, width=200, color=False)
    assert "Ground truth\ncell " in text
    line, = (line for line in text.splitlines() if line.startswith("LBHNC-CPU_ATTN-bi1 ") and "float32" in line)
    assert line.split()[-3:] == ["0.500", "0.0000", "NO"]
    assert "the engine repeats itself, but does not compute what other code computes" in text
    assert "(allowed max 0.4 nat, median 0.1 nat, near ties of 0.2 nat)" in text


def test_the_frame(run):
    row = to_frame(run.plan, run.verdicts, run.observations).iloc[1]
    columns = ["truth_tokens", "truth_tokens_equal", "truth_near_ties", "truth_logprobs", "truth_limit",
               "truth_median_limit"]
    assert row[columns].tolist() == [6, 6, 0, 12, 0.4, 0.1]
    assert [row["truth_largest"], row["same_dtype_truth_largest"]] == pytest.approx([0.5, 0.15])


def test_a_run_without_a_ground_truth_has_no_table():
    case = clean()
    plain = RunView(
        plan=Plan(schema=SCHEMA_VERSION, cells=(case.cell,), legs=tuple(case.legs.values())),
        verdicts=(verdict_of(case),),
        observations={one.leg: one for one in (case.oracle, case.subject)}, folder="results/x", platform="cpu",
        versions={}, seconds=1.0,
    )
    assert "Ground truth" not in render_markdown(plain) and truth_limits(plain) == ""


def test_a_stored_cell_is_answered_when_its_truths_are_there(run):
    cell = run.plan.cells[0]
    seen = dict(run.observations)
    assert answered(cell, seen)
    del seen[cell.ground_truth.truths[1]]
    assert not answered(cell, seen)
