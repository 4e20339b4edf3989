# SPDX-License-Identifier: Apache-2.0
"""Sharing: how what came back from another configuration's store is judged."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from harness.hits import shared_hits
from harness.prompt_sets import make_pass
from harness.records import (
    Ending,
    Filling,
    FindingKind,
    Outcome,
    Phase,
    PromptSpec,
    Role,
    Rule,
)
from harness.report.content import _rows
from harness.row import sharing_words
from tests.unit.handmade import (
    BLOCK,
    HIT,
    PROMPTS,
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
from tests.unit.handmade_sharing import FULL, given, judged, not_invariant, shared_case


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


@pytest.mark.parametrize("rule", Rule)
@pytest.mark.parametrize("digests", [True, False])
def test_a_fill_that_its_own_engine_answers_otherwise_from_is_a_failure(rule, digests):
    case = shared_case(rule, hits=FULL if rule is Rule.MUST_HIT else 0)
    case = replace(case, legs={name: replace(leg, digests=digests) for name, leg in case.legs.items()})
    assert judged(case)[:2] == (Outcome.PASS, [])
    other = edit_step(case, Role.SUBJECT, Phase.OWN_RESTORE, 1, 2, bits=make_step(1, 2).bits + 1)
    outcome, kinds, verdict = judged(other)
    assert (outcome, kinds) == (Outcome.FAIL, [FindingKind.LOGPROBS])
    assert verdict.findings[0].place == "subject own_restore, prompt 1, token 2"
    other = edit_step(case, Role.SUBJECT, Phase.OWN_RESTORE, 0, 1, token=77)
    outcome, kinds, verdict = judged(other)
    assert (outcome, kinds) == (Outcome.FAIL, [FindingKind.TOKENS])
    assert verdict.findings[0].message == "subject own_restore, prompt 0, token 1: 11 (-0.6250) vs 77 (-0.6250)"
    for step in ({"bits": None, "top": ()}, {"top": ()}):
        lacking = edit_step(case, Role.SUBJECT, Phase.OWN_RESTORE, 0, 1, **step)
        assert judged(lacking)[:2] == (Outcome.VACUOUS, [FindingKind.LOGPROBS_MISSING])


def test_a_filling_engine_that_is_not_batch_invariant_is_held_against_its_own_local_hit():
    case = shared_case(Rule.MAY_HIT, ("batch_invariant",))
    leg = replace(case.legs["subject-leg"], filling=Filling(batch_invariant=False))
    case = replace(case, legs={**case.legs, "subject-leg": leg})
    case = side(case, Role.SUBJECT, filled=replace(case.subject.resolved, batch_invariant=False))
    other = make_step(1, 2).bits + 1
    # A hit rounds otherwise than a cold pass.
    case = edit_step(case, Role.SUBJECT, Phase.POPULATE, 1, 2, bits=other)
    assert judged(case)[:2] == (Outcome.PASS, [])
    wrong = edit_step(case, Role.SUBJECT, Phase.OWN_RESTORE, 1, 2, bits=other)
    assert judged(wrong)[:2] == (Outcome.FAIL, [FindingKind.LOGPROBS])
    # Fewer hits make other batches.
    fewer = edit_prompt(wrong, Role.SUBJECT, Phase.OWN_RESTORE, 1, cached_tokens=BLOCK)
    assert judged(fewer)[:2] == (Outcome.VACUOUS, [FindingKind.EXTERNAL_HITS])


def test_the_filling_engine_must_get_its_own_kv_back_into_other_blocks():
    case = shared_case(Rule.MUST_NOT_HIT)
    stored = case.subject.phase(Phase.POPULATE).prompts[1].blocks
    outcome, kinds, verdict = judged(edit_prompt(case, Role.SUBJECT, Phase.OWN_RESTORE, 1, blocks=stored))
    assert (outcome, kinds) == (Outcome.VACUOUS, [FindingKind.SAME_BLOCKS])
    assert verdict.findings[0].place == "subject own_restore, prompt 1"
    # The reading engine has blocks of its own, with the same numbers.
    for rule, hits in ((Rule.MUST_NOT_HIT, 0), (Rule.MAY_HIT, FULL), (Rule.MUST_HIT, FULL)):
        other = shared_case(rule, hits=hits)
        assert judged(edit_prompt(other, Role.SUBJECT, Phase.RESTORE, 1, blocks=stored))[:2] == (Outcome.PASS, [])
    unknown = judged(edit_prompt(case, Role.SUBJECT, Phase.POPULATE, 1, blocks=()))
    assert unknown[:2] == (Outcome.VACUOUS, [FindingKind.SAME_BLOCKS])


@pytest.mark.parametrize("hits", [0, HIT])
def test_bytes_beyond_what_the_reading_engine_was_promised_fail_whatever_the_rule_allows(hits):
    """A token has 64 bytes: 2 layers, 2 head slots, 8 elements of 2 bytes."""
    case = shared_case(Rule.MAY_HIT, hits=hits)
    assert judged(edit(case, Role.SUBJECT, Phase.RESTORE, loaded_bytes=64 * hits or 0))[:2] == (Outcome.PASS, [])
    outcome, kinds, verdict = judged(edit(case, Role.SUBJECT, Phase.RESTORE, loaded_bytes=64 * hits + 1))
    assert (outcome, kinds) == (Outcome.FAIL, [FindingKind.OVERRUN])
    assert (verdict.findings[0].left, verdict.findings[0].size) == (f"{64 * hits} bytes", "+1 bytes")
    forbidden = edit(shared_case(Rule.MUST_NOT_HIT), Role.SUBJECT, Phase.RESTORE, loaded_bytes=1)
    assert judged(forbidden)[:2] == (Outcome.FAIL, [FindingKind.OVERRUN])


def test_a_prompt_that_the_filling_engine_did_not_get_back_lacks_external_hits():
    case = edit_prompt(shared_case(Rule.MAY_HIT), Role.SUBJECT, Phase.OWN_RESTORE, 0, cached_tokens=BLOCK)
    assert judged(case)[:2] == (Outcome.VACUOUS, [FindingKind.EXTERNAL_HITS])


@pytest.mark.parametrize("empty", ["", "AAAAAAAAAAA="])
def test_blocks_of_a_fill_that_nobody_looked_at_are_missing(empty):
    case = shared_case(Rule.MAY_HIT)
    for phase in (Phase.POPULATE, Phase.OWN_RESTORE):
        case = edit_prompt(case, Role.SUBJECT, phase, 1, kv=(digest_block(1, 0), empty))
    assert judged(case)[:2] == (Outcome.VACUOUS, [FindingKind.DIGESTS_MISSING])


def test_a_folder_without_a_file_in_it_holds_nothing():
    case = shared_case(Rule.MUST_NOT_HIT)
    subject = replace(case.legs["subject-leg"], kv_transfer_config={"kv_connector_extra_config": {"path": "{folder}"}})
    case = replace(case, legs={**case.legs, "subject-leg": subject})
    assert judged(side(case, Role.SUBJECT, left_bytes=9))[:2] == (Outcome.PASS, [])
    assert judged(side(case, Role.SUBJECT, left_bytes=0))[:2] == (Outcome.VACUOUS, [FindingKind.NOTHING_DELIVERED])


@pytest.mark.parametrize("leaves", [0, 1])
@pytest.mark.parametrize("rule", Rule)
@pytest.mark.parametrize("invariant", [True, False])
def test_a_store_that_gives_the_last_block_too_is_held_to_that(leaves, rule, invariant):
    """Prompts of two blocks: the local cache has the first of each, the store both, all but ``leaves`` tokens."""
    way = make_pass(PromptSpec(count=PROMPTS, prefix_tokens=HIT, tail_tokens=0), 1024, BLOCK)
    most, local = PROMPTS * (HIT - leaves), PROMPTS * BLOCK

    def whole(first: int, kept: int = most) -> Case:
        case = shared_case(rule, hits=first, again=most)
        case = replace(case, cell=replace(case.cell, hits=shared_hits(way, BLOCK, BLOCK, rule, leaves=leaves)))
        case = given(case, Phase.OWN_RESTORE, most)
        case = edit(case, Role.ORACLE, Phase.LOCAL_HIT, local_tokens=local)
        case = edit(case, Role.SUBJECT, Phase.LOCAL_HIT, local_tokens=local, external_tokens=most - local)
        for index in range(PROMPTS):
            case = edit_prompt(case, Role.ORACLE, Phase.LOCAL_HIT, index, cached_tokens=BLOCK)
            case = edit_prompt(case, Role.SUBJECT, Phase.LOCAL_HIT, index, cached_tokens=HIT - leaves)
        case = replace(case, further={"control-leg": given(clean(), Phase.RESTORE, kept).subject})
        return case if invariant else not_invariant(case)

    given_all = judged(whole(most))
    if rule is Rule.MUST_NOT_HIT:
        assert given_all[1] == [FindingKind.FORBIDDEN_HITS]
        assert f"{most} of {most} tokens came from KV" in given_all[2].findings[0].message
    else:
        assert given_all[:2] == (Outcome.PASS, [])
        assert given_all[2].compared.blocks == PROMPTS * (2 - leaves)
    assert judged(whole(0))[0] is (Outcome.VACUOUS if rule is Rule.MUST_HIT else Outcome.PASS)
    # A control that lacks what the rule without the last block would ask of it has not hit all.
    assert FindingKind.EXTERNAL_HITS in judged(whole(0, kept=local))[1]


def test_where_kernels_are_not_batch_invariant_each_restore_has_a_reference_of_its_own():
    case = not_invariant(shared_case(Rule.MUST_NOT_HIT))
    other = make_step(1, 2).bits + 1
    # A hit rounds otherwise than a recompute: in the oracle, and in the restore that hits what the first one stored.
    case = edit_step(case, Role.ORACLE, Phase.LOCAL_HIT, 1, 2, bits=other)
    assert judged(case)[:2] == (Outcome.FAIL, [FindingKind.LOGPROBS])
    assert judged(edit_step(case, Role.SUBJECT, Phase.RESTORE_AGAIN, 1, 2, bits=other))[:2] == (Outcome.PASS, [])


def test_a_report_has_a_row_for_each_difference_of_one_layout():
    part = pd.DataFrame({"differs": ["nothing", "weights"], "layout": ["LBHNC", "LBHNC"]})
    assert _rows(part) == "differs"
    assert _rows(part.assign(layout=["LBHNC", "BHLNC"])) == _rows(part.assign(differs=pd.NA)) == "layout"
