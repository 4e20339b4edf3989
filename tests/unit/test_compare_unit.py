# SPDX-License-Identifier: Apache-2.0
"""Judging legs that generate no token: the KV blocks are the whole answer, and there have to be some."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.records import ROLE_PHASES, FindingKind, Outcome, Phase, Role
from tests.unit.handmade import Case, clean, digest_block, edit_prompt, unit, verdict_of

BLOCKS = 2


def found(case: Case):
    verdict = verdict_of(case)
    return verdict.outcome, [finding.kind for finding in verdict.findings], verdict


def damaged(index: int) -> tuple[str, str]:
    return digest_block(index, 0, ((0, 1, 0), (0, 1, 1), (1, 1, 0))), digest_block(index, 1)


def test_equal_blocks_are_a_pass_that_says_how_many():
    outcome, kinds, verdict = found(unit())
    assert (outcome, kinds) == (Outcome.PASS, [])
    compared = verdict.compared
    assert (compared.tokens, compared.logprobs, compared.blocks, compared.blocks_equal) == (0, 0, 4, 4)


def test_a_damaged_block_fails_and_its_pages_are_counted():
    case = edit_prompt(unit(), Role.SUBJECT, (Phase.RESTORE, Phase.RESTORE_AGAIN), 1, kv=damaged(1))
    outcome, kinds, verdict = found(case)
    assert (outcome, kinds) == (Outcome.FAIL, [FindingKind.KV_DIGESTS])
    assert verdict.findings[0].size == "3 of 32 digests in 2 of 8 pages, 1 of 4 blocks"


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("kv", [damaged(0), (None, None), (), ("", "")])
def test_blocks_that_do_not_repeat_are_unstable(role, kv):
    again = Phase.RECOMPUTE_AGAIN if role is Role.ORACLE else Phase.RESTORE_AGAIN
    outcome, kinds, verdict = found(edit_prompt(unit(), role, again, 0, kv=kv))
    if role is Role.SUBJECT and kv == damaged(0):
        # What came back the second time is not what was stored either.
        assert (outcome, kinds.pop()) == (Outcome.FAIL, FindingKind.KV_DIGESTS)
    else:
        assert outcome is Outcome.UNSTABLE
    assert kinds == [FindingKind(f"{role}_unstable")]
    assert "KV block 0 of prompt 0 differs" in verdict.findings[0].message


def test_no_digest_anywhere_is_never_a_pass():
    case = unit()
    for role in Role:
        for phase in ROLE_PHASES[role]:
            for index in range(2):
                case = edit_prompt(case, role, phase, index, kv=(None,) * BLOCKS)
    assert found(case)[0] in (Outcome.UNSTABLE, Outcome.VACUOUS)
    # Not even where both controls have nothing to look at.
    for kv in ((), ("", ""), ("AAAAAAAAAAA=", "AAAAAAAAAAA=")):
        for role in Role:
            for phase in ROLE_PHASES[role]:
                for index in range(2):
                    case = edit_prompt(case, role, phase, index, kv=kv)
        outcome, kinds, verdict = found(case)
        assert (outcome, verdict.compared.blocks) == (Outcome.VACUOUS, 0)
        # What is there and was not looked at does not repeat itself either.
        assert (FindingKind.ORACLE_UNSTABLE in kinds) is (FindingKind.SUBJECT_UNSTABLE in kinds) is bool(kv)


def test_digests_that_were_switched_off_leave_nothing_to_compare():
    case = unit()
    case = replace(case, legs={name: replace(leg, digests=False) for name, leg in case.legs.items()})
    assert found(case)[:2] == (Outcome.VACUOUS, [FindingKind.NOTHING_COMPARED])


def test_the_evidence_is_asked_for_as_everywhere():
    case = edit_prompt(unit(), Role.SUBJECT, Phase.RESTORE, 0, blocks=(0, 1))
    assert found(case)[:2] == (Outcome.VACUOUS, [FindingKind.SAME_BLOCKS])
    # Tokens that nobody asked for are no better than missing ones.
    steps = clean().subject.phase(Phase.RESTORE).prompts[0].steps
    case = edit_prompt(unit(), Role.SUBJECT, Phase.RESTORE, 0, steps=steps)
    assert found(case)[0] is Outcome.FAIL
