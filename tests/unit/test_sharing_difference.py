# SPDX-License-Identifier: Apache-2.0
"""Sharing: whether the two engines differ in what the cell says, and in nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.records import (
    Filling,
    FindingKind,
    Outcome,
    Phase,
    Role,
    Rule,
)
from tests.unit.handmade import (
    BLOCK,
    Case,
    clean,
    edit,
    edit_step,
    resolve,
    side,
)
from tests.unit.handmade_sharing import judged, shared_case


def test_a_difference_that_was_not_taken_is_vacuous():
    def vacuous(case: Case, words: str) -> None:
        outcome, kinds, verdict = judged(case)
        assert outcome is Outcome.VACUOUS
        assert set(kinds) == {FindingKind.DIFFERENCE_NOT_TAKEN}
        assert words in verdict.findings[0].message

    case = shared_case(Rule.MUST_NOT_HIT)
    vacuous(side(case, Role.SUBJECT, filled=None), "nothing says what the engine that filled the store resolved")
    vacuous(side(case, Role.SUBJECT, filled=case.subject.resolved), "weights is w0 in both engines")
    also = {**case.subject.filled.settings, "hash seed": "h1"}
    vacuous(side(case, Role.SUBJECT, filled=replace(case.subject.filled, settings=also)),
            "hash seed was h1 and then h0")
    vacuous(side(case, Role.SUBJECT, filled=replace(case.subject.filled, threads=2)), "but threads was 2 and then 1")
    vacuous(side(case, Role.SUBJECT, filled=replace(case.subject.filled, connector=None)), "had no KV connector")
    fillings = {
        "to be filled with layout BHLNC": Filling(layout="BHLNC"),
        "to be filled with block size 8": Filling(engine={"block_size": 8}),
        "to be filled with dtype float32, the worker used None": Filling(
            engine={"block_size": BLOCK, "dtype": "float32"}),
        "to be filled with threads 2, the worker used 1": Filling(env={"OMP_NUM_THREADS": "2"}),
        "with what requests carry {'lora': 'x'}, the worker used {}": Filling(request={"lora": "x"}),
    }
    for words, filling in fillings.items():
        leg = replace(case.legs["subject-leg"], filling=filling)
        outcome, kinds, verdict = judged(replace(case, legs={**case.legs, "subject-leg": leg}))
        assert outcome is Outcome.VACUOUS and FindingKind.DIFFERENCE_NOT_TAKEN in kinds
        assert any(words in one.message for one in verdict.findings)


def test_oracle_and_reading_engine_must_have_loaded_the_same():
    case = shared_case(Rule.MUST_NOT_HIT)
    same = side(case, Role.ORACLE, resolved=replace(case.oracle.resolved, settings=case.subject.resolved.settings))
    assert judged(same)[:2] == (Outcome.PASS, [])
    other = replace(case.oracle.resolved, settings={**case.subject.resolved.settings, "weights": "w9"})
    outcome, kinds, verdict = judged(side(case, Role.ORACLE, resolved=other))
    assert (outcome, kinds) == (Outcome.VACUOUS, [FindingKind.LEGS_RESOLVED_DIFFERENTLY])
    assert verdict.findings[0].message == "weights is w9 in the oracle and w0 in the subject"


@pytest.mark.parametrize("settings", [{}, {"weights": ""}])
def test_a_setting_that_an_engine_does_not_tell_is_no_difference_taken(settings):
    case = shared_case(Rule.MUST_NOT_HIT)
    silent = side(case, Role.SUBJECT, filled=replace(case.subject.filled, settings={**case.subject.resolved.settings}))
    silent.subject.filled.settings.pop("weights")
    silent.subject.filled.settings.update(settings)
    outcome, kinds, verdict = judged(silent)
    assert (outcome, kinds) == (Outcome.VACUOUS, [FindingKind.DIFFERENCE_NOT_TAKEN])
    assert verdict.findings[0].message == (
        "weights was to differ, but weights was unknown in the engine that filled the store and is w0 in the one that"
        " reads it"
    )
    # The same of the reading engine, whose oracle is as silent.
    kept = silent.subject.filled.settings
    for role in Role:
        case = resolve(case, role, settings=kept)
    outcome, kinds, verdict = judged(case)
    assert (outcome, kinds) == (Outcome.VACUOUS, [FindingKind.DIFFERENCE_NOT_TAKEN])
    assert (verdict.findings[0].left, verdict.findings[0].right) == ("another", "unknown")


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("name", ["weights", "model dtype", "kv cache dtype"])
def test_what_only_one_of_oracle_and_reading_engine_tells_is_not_the_same(role, name):
    assert judged(clean())[0] is Outcome.PASS
    outcome, kinds, verdict = judged(resolve(clean(), role, settings={name: "x"}))
    assert (outcome, kinds) == (Outcome.VACUOUS, [FindingKind.LEGS_RESOLVED_DIFFERENTLY])
    left, right = ("x", "unknown") if role is Role.ORACLE else ("unknown", "x")
    assert verdict.findings[0].message == f"{name} is {left} in the oracle and {right} in the subject"


@pytest.mark.parametrize("dtype", ["auto", "half", "bfloat16"])
def test_what_both_engines_are_told_alike_needs_no_name_of_the_workers(dtype):
    """vLLM takes several names of one dtype; its worker reports what came of them."""
    case = shared_case(Rule.MAY_HIT, ("revision",))
    leg = case.legs["subject-leg"]
    leg = replace(leg, engine={**leg.engine, "dtype": dtype})
    leg = replace(leg, filling=Filling(engine={**leg.engine, "revision": "another"}))
    case = replace(case, legs={**case.legs, "subject-leg": leg})
    assert judged(case)[:2] == (Outcome.PASS, [])
    leg = replace(leg, filling=Filling(engine={**leg.engine, "revision": "filled"}))
    outcome, kinds, verdict = judged(replace(case, legs={**case.legs, "subject-leg": leg}))
    assert (outcome, kinds) == (Outcome.VACUOUS, [FindingKind.DIFFERENCE_NOT_TAKEN])
    assert verdict.findings[0].message == "the store was to be filled with revision filled, the worker used another"


def test_strides_of_a_dimension_of_size_one_are_no_difference():
    """One head slot: H and L may swap places, and nothing lies elsewhere."""
    case = edit(shared_case(Rule.MAY_HIT), Role.SUBJECT, Phase.OWN_RESTORE, loaded_bytes=512)
    shape = (50, 1, BLOCK, 8)
    outer, inner = (1600, 32, 1600, 8, 1), (1600, 32, 8, 8, 1)
    for role in Role:
        case = resolve(case, role, shape=shape, strides=outer)
    filled = replace(case.subject.filled, shape=shape, strides=inner)
    assert judged(side(case, Role.SUBJECT, filled=filled))[:2] == (Outcome.PASS, [])
    moved = replace(filled, strides=(32, 64, 8, 8, 1))
    outcome, kinds, verdict = judged(side(case, Role.SUBJECT, filled=moved))
    assert (outcome, kinds) == (Outcome.VACUOUS, [FindingKind.DIFFERENCE_NOT_TAKEN])
    assert "strides was BLNC and then LBNC" in verdict.findings[0].message


def test_what_requests_carry_is_a_setting_of_their_engine():
    case = shared_case(Rule.MUST_NOT_HIT, shows=("request cache_salt",))
    assert judged(case)[:2] == (Outcome.VACUOUS, [FindingKind.DIFFERENCE_NOT_TAKEN])
    leg = replace(case.legs["subject-leg"], filling=Filling(request={"cache_salt": "filled"}))
    case = replace(case, legs={**case.legs, "subject-leg": leg})
    salted = edit(case, Role.SUBJECT, Phase.POPULATE, carried={"cache_salt": "filled"})
    assert judged(salted)[:2] == (Outcome.PASS, [])


def test_kv_that_must_be_another_one_must_give_other_answers():
    case = shared_case(Rule.MUST_NOT_HIT)
    case = replace(case, cell=replace(case.cell, sharing=replace(case.cell.sharing, alters=True)))
    outcome, kinds, verdict = judged(case)
    assert (outcome, kinds) == (Outcome.VACUOUS, [FindingKind.DIFFERENCE_NOT_TAKEN])
    assert "answered bitwise as the reading one recomputes" in verdict.findings[0].message
    for phase in (Phase.POPULATE, Phase.LOCAL_HIT, Phase.OWN_RESTORE):
        case = edit_step(case, Role.SUBJECT, phase, 0, 1, token=77)
    assert judged(case)[:2] == (Outcome.PASS, [])
