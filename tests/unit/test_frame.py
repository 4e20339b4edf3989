# SPDX-License-Identifier: Apache-2.0
"""The frame's rows and the pivot, by value."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pandas as pd
import pytest

from harness.axes import FURTHER_AXES
from harness.bits import to_bits
from harness.compare import judge
from harness.errors import UsageError
from harness.frame import COLUMNS, STEP_COLUMNS, outcome_word, pivot, to_frame, to_steps
from harness.records import (
    SCHEMA_VERSION,
    Compared,
    Ending,
    Expectation,
    Finding,
    FindingKind,
    Outcome,
    Phase,
    Plan,
    Reference,
    Role,
    Rule,
    Verdict,
)
from tests.unit.handmade import RESTORED, clean, dead, edit_step, make_step, verdict_of
from tests.unit.handmade_sharing import FULL, given, not_invariant, shared_case

REJECTED = Expectation(when={}, outcome=Outcome.REJECTED)


def frame_of(*cases):
    plan = Plan(
        schema=SCHEMA_VERSION, cells=tuple(case.cell for case in cases), legs=tuple(cases[0].legs.values())
    )
    verdicts = [verdict_of(case) for case in cases]
    seen = {"oracle-leg": cases[0].oracle, "subject-leg": cases[0].subject}
    seen = {digest: one for digest, one in seen.items() if one is not None}
    return to_frame(plan, verdicts, seen, platform="cpu")


def test_a_row_has_every_column_by_value():
    row = frame_of(clean()).iloc[0].to_dict()
    assert list(row) == list(COLUMNS)
    # Columns of another scenario: UMBP's, a ground truth's, axes that this one does not have.
    assert set(FURTHER_AXES) < {name for name, value in row.items() if pd.isna(value)}
    row = {name: value for name, value in row.items() if not pd.isna(value)}
    assert row == {
        "scenario": "matrix", "cell": "LBHNC-REFERENCE-bi1", "layout": "LBHNC", "backend": "REFERENCE",
        "batch_invariant": True, "restores": True, "level": "engine", "reference": "recompute",
        "held_against": "recompute",
        "outcome": "pass", "verdict": "pass", "expected_outcome": "pass",
        "findings": "", "message": "", "external_tokens": 16, "expected_external_tokens": 16, "local_tokens": 0,
        "prompts_compared": 2, "tokens_compared": 6,
        "tokens_equal": 6, "logprobs_compared": 18, "logprobs_equal": 18, "max_logprob_difference": 0.0,
        "blocks_compared": 4, "blocks_equal": 4, "expected_blocks": 4, "resolved_layout": "LBHNC",
        "resolved_backend": "REFERENCE", "resolved_batch_invariant": True, "resolved_dtype": "bfloat16",
        "resolved_connector": "harness.kvstore.connector.EmbeddedStore", "block_size": 4, "reset_ok": True,
        "zeroed_bytes": 4096, "loaded_bytes": 1024, "stored_bytes": 1024, "delivered_tokens": 16, "model": "tiny",
        "model_source": "stand-in", "model_digest": "m0", "digests": True,
        "prompts": "2 of 8+1 tokens, seed 0",
        "decode": "3 tokens, top 2, together", "store": "EmbeddedStore", "platform": "cpu",
        "oracle_leg": "oracle-leg", "subject_leg": "subject-leg", "duration_s": 9.0,
        "oracle_s": 4.5, "subject_s": 4.5, "peak_mib": 512.0, "attempts": 1,
        "threads": 1, "vllm": "0.32.0", "torch": "2.13.0+cpu",
    }


def test_a_row_of_umbp_says_which_source_and_which_runtime():
    case = clean()
    subject = replace(case.subject, environment={"env:KVPARITY_UMBP_RUNTIME": "adapter"})
    leg = case.legs["subject-leg"]
    identity = {"overlay": "wheel:vllm==0.33.0", "overlay_files": "ab" * 8}
    legs = {**case.legs, "subject-leg": replace(leg, identity=identity)}
    row = frame_of(replace(case, subject=subject, legs=legs)).iloc[0]
    assert row[["overlay", "overlay_files", "store_runtime"]].tolist() == ["wheel:vllm==0.33.0", "ab" * 8, "adapter"]


def test_what_a_dead_leg_never_measured_is_missing_not_zero():
    case = replace(clean(REJECTED), oracle=None, subject=dead(Role.SUBJECT, Ending.REFUSED, "no such layout"))
    row = frame_of(case).iloc[0]
    assert (row["outcome"], row["verdict"], row["findings"]) == ("rejected", "expected", "rejected")
    assert row["message"] == "subject: the engine refused the configuration at init: ValueError: no such layout"
    missing = ["external_tokens", "local_tokens", "reset_ok", "resolved_layout", "loaded_bytes", "oracle_s", "threads"]
    assert row[missing].isna().all()
    assert row["tokens_compared"] == 0


def test_integers_stay_integers_in_csv_beside_missing_ones():
    dead_case = replace(clean(REJECTED), subject=None)
    text = to_frame(
        Plan(schema=SCHEMA_VERSION, cells=(clean().cell,), legs=tuple(clean().legs.values())),
        [judge(clean().cell, clean().legs, clean().oracle, dead_case.subject)], {"oracle-leg": clean().oracle},
    ).to_csv(index=False)
    back = pd.read_csv(StringIO(text), dtype=COLUMNS)
    assert back["external_tokens"].isna().all()
    assert back["expected_external_tokens"].tolist() == [16]
    assert "16.0" not in text


def test_no_verdicts_give_an_empty_frame_with_all_columns():
    frame = to_frame(Plan(schema=SCHEMA_VERSION, cells=(), legs=()), [], {})
    assert list(frame.columns) == list(COLUMNS) and len(frame) == 0
    assert pivot(frame).shape == (0, 0)


def test_outcome_words():
    assert outcome_word("pass", "pass") == "pass"
    assert outcome_word("rejected", "expected") == "rejected (expected)"
    assert outcome_word("pass", "fail") == "fail (was pass)"


def verdict_for(cell, outcome, verdict=None):
    finding = Finding(kind=FindingKind.TOKENS, outcome=outcome, message="m")
    return Verdict(
        scenario=cell.scenario, cell=cell.id, outcome=outcome, verdict=verdict or outcome, findings=(finding,),
        expected_outcome=Outcome.PASS, compared=Compared(),
    )


def test_pivot_orders_layouts_and_takes_the_worst_of_several_cells():
    table = [
        ("BHLNC", "CPU_ATTN", False, Outcome.REJECTED, Outcome.EXPECTED),
        ("LBHNC", "CPU_ATTN", False, Outcome.PASS, None),
        ("BHLNC", "REFERENCE", True, Outcome.PASS, None),
        ("BHLNC", "REFERENCE", True, Outcome.VACUOUS, None),
    ]
    cells = [
        clean(id=str(place), layout=layout, backend=backend, batch_invariant=flag).cell
        for place, (layout, backend, flag, _, _) in enumerate(table)
    ]
    verdicts = [verdict_for(cell, *row[3:]) for cell, row in zip(cells, table, strict=True)]
    plan = Plan(schema=SCHEMA_VERSION, cells=tuple(cells), legs=tuple(clean().legs.values()))
    got = pivot(to_frame(plan, verdicts, {}))
    assert got.index.tolist() == ["LBHNC", "BHLNC"]
    assert got.columns.tolist() == [(False, "CPU_ATTN"), (True, "REFERENCE")]
    assert got.values.tolist() == [["pass", ""], ["rejected (expected)", "vacuous 1/2"]]


def test_pivot_over_any_columns():
    cells = [
        clean(id="a", layout="BHLNC", batch_invariant=True).cell, clean(id="b", batch_invariant=False).cell,
        clean(id="c", batch_invariant=True).cell,
    ]
    cells = [replace(cell, axes={**cell.axes, "fault": "swap"} if cell.id == "c" else cell.axes) for cell in cells]
    verdicts = [verdict_for(cell, Outcome(word)) for cell, word in zip(cells, ("fail", "pass", "vacuous"), strict=True)]
    frame = to_frame(Plan(schema=SCHEMA_VERSION, cells=tuple(cells), legs=tuple(clean().legs.values())), verdicts, {})
    table = pivot(frame, index=["layout", "batch_invariant"], columns="fault")
    assert table.columns.tolist() == ["", "swap"] and table.columns.name == "fault"
    assert table.index.tolist() == [("LBHNC", False), ("LBHNC", True), ("BHLNC", True)]
    assert table.values.tolist() == [["pass", ""], ["", "vacuous"], ["fail", ""]]
    with pytest.raises(UsageError, match="no column sheep in this frame; it has scenario, cell,"):
        pivot(frame, index="sheep")


def steps_of(case):
    plan = Plan(schema=SCHEMA_VERSION, cells=(case.cell,), legs=tuple(case.legs.values()))
    seen = {"oracle-leg": case.oracle, "subject-leg": case.subject}
    return to_steps(plan, {digest: one for digest, one in seen.items() if one is not None})


def rows_of(frame, phase, prompt):
    return frame[(frame["phase"] == phase) & (frame["prompt"] == prompt)].astype(object).to_dict("records")


def test_steps_are_a_row_per_token_of_every_phase_beside_its_reference():
    frame = steps_of(clean())
    assert len(frame) == 7 * 2 * 3
    first = rows_of(frame, "restore", 1)[0]
    assert first == {
        "scenario": "matrix", "cell": "LBHNC-REFERENCE-bi1", "role": "subject", "phase": "restore", "prompt": 1,
        "step": 0, "token": 20, "logprob": -0.5, "reference": "oracle recompute", "reference_token": 20,
        "reference_logprob": -0.5, "difference": 0.0, "largest_difference": 0.0, "bitwise_equal": True,
        "same_context": True,
    }
    assert list(first) == list(STEP_COLUMNS)
    against = frame.groupby("phase", sort=False)["reference"].agg(lambda column: column.dropna().unique().tolist())
    assert frame.groupby("phase")["reference"].nunique(dropna=False).max() == 2  # local_hit: oracle's and subject's
    assert against.to_dict() == {
        "recompute": [], "recompute_again": ["oracle recompute"], "local_hit": ["oracle local_hit"],
        "populate": ["oracle recompute"], "restore": ["oracle recompute"], "restore_again": ["subject restore"],
    }
    assert rows_of(steps_of(clean(reference=Reference.LOCAL_HIT)), "restore", 0)[0]["reference"] == "oracle local_hit"


def test_steps_and_row_of_a_shared_store_name_what_the_judge_compared():
    case = not_invariant(shared_case(Rule.MUST_NOT_HIT))
    # A hit rounds otherwise than a recompute, and the filling engine's answers are another configuration's.
    other = make_step(1, 2).bits + 1
    for role, phase in ((Role.ORACLE, Phase.LOCAL_HIT), (Role.SUBJECT, Phase.RESTORE_AGAIN)):
        case = edit_step(case, role, phase, 1, 2, bits=other)
    for phase in (Phase.POPULATE, Phase.LOCAL_HIT, Phase.OWN_RESTORE):
        case = edit_step(case, Role.SUBJECT, phase, 0, 1, token=77)
    assert verdict_of(case).outcome is Outcome.PASS
    frame = steps_of(case)
    assert len(frame) == 8 * 2 * 3
    against = frame.groupby(["role", "phase"], sort=False)["reference"].unique().explode().dropna()
    assert against.to_dict() == {
        ("oracle", "recompute_again"): "oracle recompute", ("subject", "restore"): "oracle recompute",
        ("subject", "own_restore"): "subject local_hit", ("subject", "restore_again"): "oracle local_hit",
    }
    assert set(frame["bitwise_equal"].dropna()) == {True}
    assert len(rows_of(frame, "own_restore", 0)) == 3
    row = frame_of(case).iloc[0]
    assert row[["reference", "held_against"]].tolist() == ["local_hit", "recompute"]
    assert frame_of(given(case, Phase.RESTORE, FULL)).iloc[0]["held_against"] == "local_hit"


def test_steps_behind_the_first_other_token_are_compared_with_nothing():
    case = edit_step(clean(), Role.SUBJECT, RESTORED, 1, 1, token=7, bits=to_bits(-0.75))
    rows = rows_of(steps_of(case), "restore", 1)
    assert [row["bitwise_equal"] for row in rows] == [True, False, None]
    assert [row["same_context"] for row in rows] == [True, True, False]
    assert [row["reference_token"] for row in rows] == [20, 21, 22]
    assert pd.isna(rows[1]["difference"]) and pd.isna(rows[2]["largest_difference"])


def test_a_steps_difference_has_a_sign_and_the_largest_counts_candidates():
    top = ((20, to_bits(-0.25)), (90, to_bits(-3.0)))
    case = edit_step(clean(), Role.SUBJECT, RESTORED, 1, 0, bits=to_bits(-0.25), top=top)
    row = rows_of(steps_of(case), "restore", 1)[0]
    assert (row["difference"], row["largest_difference"], row["bitwise_equal"]) == (0.25, 1.0, False)


def test_steps_of_a_dead_leg_are_not_there():
    frame = steps_of(replace(clean(), subject=dead(Role.SUBJECT, Ending.CRASHED)))
    assert set(frame["role"]) == {"oracle"} and Phase.RESTORE.value not in set(frame["phase"])
