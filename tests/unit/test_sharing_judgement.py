# SPDX-License-Identifier: Apache-2.0
"""Sharing: how what came back from another configuration's store is judged."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from harness.compare import judge
from harness.records import (
    Ending,
    Filling,
    FindingKind,
    Outcome,
    Phase,
    Reference,
    Role,
    Rule,
)
from harness.report.content import _rows
from harness.row import sharing_words
from tests.unit.handmade import (
    BLOCK,
    HIT,
    Case,
    clean,
    dead,
    digest_block,
    edit,
    edit_prompt,
    edit_step,
    make_step,
    side,
)
from tests.unit.handmade_sharing import FULL, given, shared_case


def judged(case: Case):
    verdict = judge(case.cell, case.legs, case.oracle, case.subject, case.further)
    return verdict.outcome, [one.kind for one in verdict.findings], verdict


@pytest.mark.parametrize(("rule", "hits", "words"), [
    (Rule.MUST_HIT, FULL, "must hit: 16 of 16 tokens shared"),
    (Rule.MUST_NOT_HIT, 0, "must not hit: nothing shared"),
    (Rule.MAY_HIT, 0, "may hit: nothing shared"),
    (Rule.MAY_HIT, HIT, "may hit: 8 of 16 tokens shared"),
    (Rule.MAY_HIT, FULL, "may hit: 16 of 16 tokens shared"),
])
def test_what_passes_says_what_was_shared(rule, hits, words):
    case = shared_case(rule, hits=hits)
    outcome, kinds, verdict = judged(case)
    assert (outcome, kinds) == (Outcome.PASS, [])
    # Given or computed, every full block is compared.
    assert (verdict.compared.blocks, verdict.compared.blocks_equal) == (4, 4)
    assert sharing_words(case.cell, case.subject) == words


def test_a_forbidden_hit_fails_although_its_kv_is_the_same():
    outcome, kinds, verdict = judged(shared_case(Rule.MUST_NOT_HIT, hits=FULL))
    assert (outcome, kinds) == (Outcome.FAIL, [FindingKind.FORBIDDEN_HITS])
    assert verdict.findings[0].message == (
        "subject restore: 16 of 16 tokens came from KV that was stored under another configuration (weights), none may"
    )


def test_what_the_scheduler_counts_and_what_the_prompts_were_promised_must_add_up():
    case = shared_case(Rule.MAY_HIT, hits=HIT)
    assert judged(case)[:2] == (Outcome.PASS, [])
    less = edit_prompt(case, Role.SUBJECT, Phase.RESTORE, 0, cached_tokens=0)
    assert judged(less)[:2] == (Outcome.VACUOUS, [FindingKind.EXTERNAL_HITS])
    local = edit(case, Role.SUBJECT, Phase.RESTORE, local_tokens=HIT)
    assert judged(local)[1] == [FindingKind.LOCAL_HITS, FindingKind.EXTERNAL_HITS]


def test_a_hit_that_changes_a_bit_fails_whatever_the_rule():
    for rule in (Rule.MUST_NOT_HIT, Rule.MAY_HIT):
        case = shared_case(rule, hits=FULL)
        for phase in (Phase.RESTORE, Phase.RESTORE_AGAIN):
            case = edit_step(case, Role.SUBJECT, phase, 1, 2, bits=make_step(1, 2).bits + 1)
            case = edit_prompt(case, Role.SUBJECT, phase, 1, kv=(digest_block(1, 0), digest_block(1, 1, ((1, 0, 0),))))
        outcome, kinds, _ = judged(case)
        assert outcome is Outcome.FAIL
        assert {FindingKind.LOGPROBS, FindingKind.KV_DIGESTS} <= set(kinds)
        assert (FindingKind.FORBIDDEN_HITS in kinds) is (rule is Rule.MUST_NOT_HIT)


def test_kv_that_nobody_claimed_to_give_is_compared_too():
    case = edit_prompt(
        shared_case(Rule.MUST_NOT_HIT), Role.SUBJECT, (Phase.RESTORE, Phase.RESTORE_AGAIN), 0,
        kv=(digest_block(0, 0), digest_block(0, 1, ((0, 0, 0),))),
    )
    assert judged(case)[:2] == (Outcome.FAIL, [FindingKind.KV_DIGESTS])


def test_where_nothing_else_may_hit_the_second_restore_must():
    outcome, kinds, _ = judged(shared_case(Rule.MUST_NOT_HIT, again=0))
    assert (outcome, kinds) == (Outcome.VACUOUS, [FindingKind.EXTERNAL_HITS])


def test_a_control_that_did_not_hit_all_makes_the_others_vacuous():
    case = shared_case(Rule.MUST_NOT_HIT)
    short = side(case, Role.SUBJECT, phases=case.subject.phases)
    control = given(clean(), Phase.RESTORE, HIT).subject
    for further in ({"control-leg": control}, {"control-leg": dead(Role.SUBJECT, Ending.CRASHED)}, {}):
        outcome, kinds, verdict = judged(replace(short, further=further))
        assert (outcome, kinds) == (Outcome.VACUOUS, [FindingKind.EXTERNAL_HITS])
        assert verdict.findings[0].place == "control restore"


def test_a_fill_that_did_not_come_back_to_its_own_engine_is_none():
    case = given(shared_case(Rule.MUST_NOT_HIT), Phase.OWN_RESTORE, 0)
    assert judged(case)[:2] == (Outcome.VACUOUS, [FindingKind.EXTERNAL_HITS])
    case = edit_prompt(
        shared_case(Rule.MUST_NOT_HIT), Role.SUBJECT, Phase.OWN_RESTORE, 1, kv=(digest_block(1, 1), digest_block(1, 1))
    )
    assert judged(case)[:2] == (Outcome.FAIL, [FindingKind.KV_DIGESTS])
    case = edit_prompt(shared_case(Rule.MUST_NOT_HIT), Role.SUBJECT, Phase.OWN_RESTORE, 1, kv=(None, None))
    assert judged(case)[:2] == (Outcome.VACUOUS, [FindingKind.DIGESTS_MISSING])


def test_a_folder_without_a_file_in_it_holds_nothing():
    case = shared_case(Rule.MUST_NOT_HIT)
    subject = replace(case.legs["subject-leg"], kv_transfer_config={"kv_connector_extra_config": {"path": "{folder}"}})
    case = replace(case, legs={**case.legs, "subject-leg": subject})
    assert judged(side(case, Role.SUBJECT, left_bytes=9))[:2] == (Outcome.PASS, [])
    assert judged(side(case, Role.SUBJECT, left_bytes=0))[:2] == (Outcome.VACUOUS, [FindingKind.NOTHING_DELIVERED])


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
    for phase in (Phase.POPULATE, Phase.LOCAL_HIT):
        case = edit_step(case, Role.SUBJECT, phase, 0, 1, token=77)
    assert judged(case)[:2] == (Outcome.PASS, [])


def test_where_kernels_are_not_batch_invariant_each_restore_has_a_reference_of_its_own():
    case = shared_case(Rule.MUST_NOT_HIT)
    case = replace(case, cell=replace(
        case.cell, axes={**case.cell.axes, "batch_invariant": False}, reference=Reference.LOCAL_HIT))
    for role in Role:
        resolved = getattr(case, role.value).resolved
        case = side(case, role, resolved=replace(resolved, batch_invariant=False))
    case = side(case, Role.SUBJECT, filled=replace(case.subject.filled, batch_invariant=False))
    case = replace(case, legs={name: replace(leg, batch_invariant=False) for name, leg in case.legs.items()})
    other = make_step(1, 2).bits + 1
    # A hit rounds otherwise than a recompute: in the oracle, and in the restore that hits what the first one stored.
    case = edit_step(case, Role.ORACLE, Phase.LOCAL_HIT, 1, 2, bits=other)
    assert judged(case)[:2] == (Outcome.FAIL, [FindingKind.LOGPROBS])
    assert judged(edit_step(case, Role.SUBJECT, Phase.RESTORE_AGAIN, 1, 2, bits=other))[:2] == (Outcome.PASS, [])


def test_a_report_has_a_row_for_each_difference_of_one_layout():
    part = pd.DataFrame({"differs": ["nothing", "weights"], "layout": ["LBHNC", "LBHNC"]})
    assert _rows(part) == "differs"
    assert _rows(part.assign(layout=["LBHNC", "BHLNC"])) == _rows(part.assign(differs=pd.NA)) == "layout"
