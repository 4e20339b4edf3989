# SPDX-License-Identifier: Apache-2.0
"""Verdicts of pairs whose tokens or logprobs differ: place, both sides, size; and what is not compared."""

from __future__ import annotations

import pytest

from harness.bits import to_bits
from harness.records import (
    Compared,
    Finding,
    FindingKind,
    Outcome,
    Phase,
    Reference,
)
from tests.unit.handmade import (
    ORACLE,
    PASSED,
    RESTORED,
    SUBJECT,
    clean,
    digest_block,
    edit,
    edit_prompt,
    edit_step,
    kinds,
    make_step,
    only,
    other_token,
    verdict_of,
)


def test_a_token_difference_names_both_sides_the_rank_and_the_size():
    verdict = verdict_of(other_token())
    size = "2 tokens equal before; logprobs bitwise equal in 2/3 steps, max abs diff 1.2e+00 nat"
    assert verdict.findings == (
        Finding(
            kind=FindingKind.TOKENS, outcome=Outcome.FAIL, place="subject restore, prompt 1, token 2",
            message="prompt 1, token 2: 22 (-0.7500) vs 92 (-1.0000);"
                    " the subject's token is rank 2 in the oracle's top 2",
            left="22 (-0.7500)", right="92 (-1.0000)", size=size, limit="0",
        ),
        Finding(
            kind=FindingKind.LOGPROBS, outcome=Outcome.FAIL, place="subject restore, prompt 1, token 2",
            message="prompt 1, token 2: 22 (-0.7500) vs 92 (-1.0000); logprobs bitwise equal in 2/3 steps",
            left="22 (-0.7500)", right="92 (-1.0000)", size=size, limit="0",
        ),
    )
    assert verdict.compared == Compared(
        prompts=2, tokens=6, tokens_equal=5, logprobs=17, logprobs_equal=15, blocks=4, blocks_equal=4,
        max_logprob_difference=1.25,
    )


def test_one_bit_of_one_logprob_is_a_failure():
    bits = make_step(0, 1).bits + 1
    finding = only(edit_step(clean(), SUBJECT, RESTORED, 0, 1, bits=bits))
    assert finding.message == (
        "prompt 0, token 1: 11 (-0.6250) on both sides to 4 digits, other bits or candidates;"
        " logprobs bitwise equal in 2/3 steps"
    )
    assert finding.size == "all 3 tokens equal; logprobs bitwise equal in 2/3 steps, max abs diff 6.0e-08 nat"


def test_other_candidates_with_equal_selected_tokens_are_a_failure():
    step = make_step(0, 0)
    assert only(edit_step(clean(), SUBJECT, RESTORED, 0, 0, top=(step.top[0], (5, step.top[1][1])))).kind is (
        FindingKind.LOGPROBS
    )


def test_an_answer_that_ends_early_on_one_side_is_a_token_difference():
    case = edit_prompt(clean(), SUBJECT, RESTORED, 0, steps=(make_step(0, 0),), finish_reason="stop")
    assert only(case).message == "prompt 0, token 1: 11 (-0.6250) vs nothing (finished: stop)"
    assert verdict_of(case).compared.tokens == 6


@pytest.mark.parametrize("phase", [Phase.POPULATE, Phase.LOCAL_HIT])
def test_a_store_that_changes_what_does_not_come_from_it_is_a_failure(phase):
    case = edit_step(clean(), SUBJECT, phase, 1, 2, token=77)
    found = only(case)
    assert (found.kind, found.outcome) == (FindingKind.TOKENS, Outcome.FAIL)
    assert found.place == f"subject {phase}, prompt 1, token 2"
    assert found.message.startswith(f"subject {phase}, prompt 1, token 2: 22 (-0.7500) vs 77 (-0.7500)")
    bits = edit_step(clean(), SUBJECT, phase, 0, 1, bits=to_bits(-0.5))
    assert only(bits).kind is FindingKind.LOGPROBS
    # What is wrong with the restore itself is said alone.
    both = edit_step(case, SUBJECT, RESTORED, 0, 0, token=78)
    assert [finding.place for finding in verdict_of(both).findings] == ["subject restore, prompt 0, token 0"]


def test_other_hits_make_other_batches_and_are_not_compared():
    case = edit_step(clean(), SUBJECT, Phase.LOCAL_HIT, 1, 2, token=77)
    case = edit(case, SUBJECT, Phase.LOCAL_HIT, local_tokens=8)
    assert kinds(case) == [FindingKind.LOCAL_HITS]


def test_the_reference_is_the_one_that_the_cell_names():
    case = edit_step(clean(), ORACLE, Phase.LOCAL_HIT, 0, 0, token=77)
    assert verdict_of(edit_step(case, SUBJECT, Phase.LOCAL_HIT, 0, 0, token=77)) == PASSED
    hit = edit_step(clean(reference=Reference.LOCAL_HIT), ORACLE, Phase.LOCAL_HIT, 0, 0, token=77)
    assert kinds(hit) == [FindingKind.TOKENS]


def test_every_differing_prompt_is_reported():
    case = edit_step(edit_step(clean(), SUBJECT, RESTORED, 0, 0, token=77), SUBJECT, RESTORED, 1, 1, token=78)
    assert [one.place for one in verdict_of(case).findings if one.kind is FindingKind.TOKENS] == [
        "subject restore, prompt 0, token 0", "subject restore, prompt 1, token 1",
    ]


def test_vacuous_evidence_does_not_hide_differing_values():
    case = edit_step(clean(), SUBJECT, RESTORED, 1, 0, token=77)
    case = edit(case, SUBJECT, RESTORED, loaded_bytes=0)
    assert kinds(case) == [FindingKind.NOTHING_DELIVERED, FindingKind.NOTHING_DELIVERED, FindingKind.TOKENS]
    assert verdict_of(case).outcome is Outcome.FAIL


def test_an_unstable_pair_makes_no_claim_about_tokens():
    case = edit_step(clean(), SUBJECT, Phase.RESTORE, 0, 1, token=77)
    verdict = verdict_of(case)
    assert [one.kind for one in verdict.findings] == [FindingKind.SUBJECT_UNSTABLE]
    assert verdict.findings[0].message == (
        "the subject does not repeat itself: restore_again differs from restore in 1 of 2 prompts,"
        " first at prompt 0, token 1: 77 (-0.6250) vs 11 (-0.6250)"
    )
    assert verdict.compared == Compared(blocks=4, blocks_equal=4)


def test_an_unstable_store_that_changed_bytes_still_fails():
    case = edit_step(clean(), SUBJECT, Phase.RESTORE, 0, 1, token=77)
    case = edit_prompt(case, SUBJECT, Phase.RESTORE, 0, kv=(digest_block(7, 7), digest_block(0, 1)))
    assert kinds(case) == [FindingKind.SUBJECT_UNSTABLE, FindingKind.KV_DIGESTS]
