# SPDX-License-Identifier: Apache-2.0
"""Expectations: matching, sets that make no sense, and strict judgement."""

from __future__ import annotations

import pytest

from harness.axes import cell_id, matches, points, same
from harness.expect import check_expectations, expectation_for, judge_expectation, overlaps
from harness.records import DecodeSpec, Expectation, Finding, FindingKind, Outcome, PromptSpec, Scenario, SubjectSpec

AXES = {"layout": ("LBHNC", "BHLNC"), "backend": ("REFERENCE",), "batch_invariant": (False, True)}
CELL = {"layout": "LBHNC", "backend": "REFERENCE", "batch_invariant": True, "seed": 1}


def rejected(line: int = 0, **when) -> Expectation:
    return Expectation(when=when, outcome=Outcome.REJECTED, line=line)


def finding(kind: FindingKind, outcome: Outcome, message: str, **fields) -> Finding:
    return Finding(kind=kind, outcome=outcome, message=message, **fields)


REFUSED = finding(FindingKind.REJECTED, Outcome.REJECTED, "the engine refused: batch invariance not supported")


# --- matching -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("when", "answer"), [
    ({}, True),
    ({"layout": ("LBHNC",)}, True),
    ({"layout": ("BHLNC", "LBHNC")}, True),
    ({"layout": ("BHLNC",)}, False),
    ({"layout": ("LBHNC",), "backend": ("CPU_ATTN",)}, False),
    ({"layout": ()}, False),
    ({"fault": (None,)}, False),
    ({"batch_invariant": (True,)}, True),
    ({"batch_invariant": (1,)}, False),
    ({"seed": (True,)}, False),
    ({"seed": (1,)}, True),
])
def test_matches(when, answer):
    assert matches(when, CELL) is answer


def test_same_tells_numbers_from_booleans():
    assert (same(1, True), same(0, False), same(1, 1), same("a", "a"), same(None, None)) == (
        False, False, True, True, True)


def test_points_change_the_last_axis_fastest():
    assert [cell_id(point) for point in points(AXES)] == [
        "LBHNC-REFERENCE-bi0", "LBHNC-REFERENCE-bi1", "BHLNC-REFERENCE-bi0", "BHLNC-REFERENCE-bi1"]


def test_expectation_for():
    layout, invariant = rejected(layout=("BHLNC",)), rejected(batch_invariant=(False,))
    assert expectation_for(CELL, [layout, invariant]) is None
    assert expectation_for({**CELL, "layout": "BHLNC"}, [invariant, layout]) is layout
    assert expectation_for(CELL, []) is None


# --- sets of expectations -----------------------------------------------------------------------------------------


def test_each_cell_has_at_most_one_expectation():
    assert overlaps(AXES, [rejected(1, layout=("BHLNC",), batch_invariant=(True,)),
                           rejected(2, batch_invariant=(False,))]) == []
    assert overlaps(AXES, [rejected(1, layout=("BHLNC",)), rejected(2, layout=("BHLNC",), batch_invariant=(True,)),
                           rejected(3, batch_invariant=(True,))]) == [
        (2, "expect: this expectation matches BHLNC-REFERENCE-bi1, and so does the one on line 1; a cell can have one "
            "only."),
        (3, "expect: this expectation matches BHLNC-REFERENCE-bi1, and so does the one on line 1; a cell can have one "
            "only."),
        (3, "expect: this expectation matches BHLNC-REFERENCE-bi1, and so does the one on line 2; a cell can have one "
            "only."),
    ]
    (line, sentence), = overlaps(AXES, [rejected(1), rejected(2)])
    assert line == 2
    assert "matches LBHNC-REFERENCE-bi0 and 3 more" in sentence


def test_check_expectations_names_file_and_line():
    scenario = Scenario(
        name="s", path="dir/s.yaml", platforms=("cpu",), model="tiny", subject=SubjectSpec(connector="embedded"),
        axes=AXES, axis_lines={}, reference="auto", prompts=PromptSpec(), decode=DecodeSpec(), engine={}, env={},
        overrides=(), expect=(rejected(7, layout=("LHBNC",)), rejected(8)), digest="")
    assert check_expectations(scenario) == [
        "dir/s.yaml:7: expect: this expectation matched no cell of the scenario."]


# --- judgement ----------------------------------------------------------------------------------------------------


def expectation(outcome: Outcome, **fields) -> Expectation:
    return Expectation(when={}, outcome=outcome, line=12, **fields)


def test_nothing_expected_nothing_judged():
    assert judge_expectation(None, Outcome.FAIL, [REFUSED]) is None


@pytest.mark.parametrize("expected", [
    expectation(Outcome.REJECTED),
    expectation(Outcome.REJECTED, match="batch invariance not supported"),
    expectation(Outcome.REJECTED, finding=FindingKind.REJECTED),
    expectation(Outcome.REJECTED, finding=FindingKind.REJECTED, match="refused"),
])
def test_met(expected):
    assert judge_expectation(expected, Outcome.REJECTED, [REFUSED]) is None


def test_the_text_may_stand_in_any_part_of_a_finding():
    found = finding(FindingKind.CRASHED, Outcome.CRASHED, "died", right="KV region bytes (65536) exceed (8192)")
    assert judge_expectation(expectation(Outcome.CRASHED, match="(8192)"), Outcome.CRASHED, [found]) is None


def test_passing_against_the_expectation():
    unmet = judge_expectation(
        expectation(Outcome.REJECTED, match="not supported", issue="vllm#1"), Outcome.PASS, [])
    assert (unmet.kind, unmet.outcome) == (FindingKind.EXPECTATION_UNMET, Outcome.FAIL)
    assert unmet.message == ("The scenario's expectation was not met: the outcome is pass, not rejected; nothing that "
                             "any finding says contains the expected text.")
    assert unmet.place == "scenario line 12"
    assert unmet.left == "expected rejected, text `not supported` (vllm#1)"
    assert unmet.right == "got pass, no findings"


def test_right_outcome_other_words():
    unmet = judge_expectation(expectation(Outcome.REJECTED, match="layout"), Outcome.REJECTED, [REFUSED])
    assert unmet.message == ("The scenario's expectation was not met: nothing that any finding says contains the "
                             "expected text.")
    assert unmet.right == "got rejected, rejected: the engine refused: batch invariance not supported"


def test_right_words_other_outcome():
    unmet = judge_expectation(expectation(Outcome.CRASHED, match="batch"), Outcome.REJECTED, [REFUSED])
    assert unmet.message == "The scenario's expectation was not met: the outcome is rejected, not crashed."


def test_another_finding():
    tokens = finding(FindingKind.TOKENS, Outcome.FAIL, "tokens differ")
    unmet = judge_expectation(expectation(Outcome.FAIL, finding=FindingKind.KV_DIGESTS), Outcome.FAIL, [tokens])
    assert unmet.message == "The scenario's expectation was not met: there is no finding kv_digests."
    assert unmet.left == "expected fail, finding kv_digests"


def test_kind_and_text_must_be_in_one_finding():
    found = [finding(FindingKind.TOKENS, Outcome.FAIL, "token 3"), finding(FindingKind.LOGPROBS, Outcome.FAIL, "0.8")]
    expected = expectation(Outcome.FAIL, finding=FindingKind.LOGPROBS, match="token 3")
    assert "nothing that the finding logprobs says" in judge_expectation(expected, Outcome.FAIL, found).message


def test_an_expected_pass_that_fails():
    assert judge_expectation(expectation(Outcome.PASS), Outcome.PASS, []) is None
    assert judge_expectation(expectation(Outcome.PASS), Outcome.REJECTED, [REFUSED]).outcome is Outcome.FAIL


def test_unavailable_neither_meets_nor_breaks_another_expectation():
    absent = finding(FindingKind.UNAVAILABLE, Outcome.UNAVAILABLE, "needs ROCm")
    assert judge_expectation(expectation(Outcome.CRASHED), Outcome.UNAVAILABLE, [absent]) is None
    assert judge_expectation(expectation(Outcome.UNAVAILABLE), Outcome.PASS, []).outcome is Outcome.FAIL
