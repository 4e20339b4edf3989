# SPDX-License-Identifier: Apache-2.0
"""What each phase's answers are held against: by value, and in step with what the judge finds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.compare.pair import Pair
from harness.records import FindingKind, Phase, Reference, Role, Rule
from tests.unit.handmade import (
    BLOCK,
    HIT,
    ORACLE,
    PROMPTS,
    SUBJECT,
    Case,
    clean,
    edit,
    edit_prompt,
    edit_step,
    make_hits,
    make_step,
    verdict_of,
)
from tests.unit.handmade_sharing import FULL, not_invariant, shared_case

COLD, AGAIN, LOCAL = Phase.RECOMPUTE, Phase.RECOMPUTE_AGAIN, Phase.LOCAL_HIT
POPULATE, RESTORE, SECOND = Phase.POPULATE, Phase.RESTORE, Phase.RESTORE_AGAIN

#: What holds in every cell.
REPEATED = {(ORACLE, AGAIN): (ORACLE, COLD)}
SAME = {(SUBJECT, SECOND): (SUBJECT, RESTORE)}
BESIDE = {(SUBJECT, POPULATE): (ORACLE, COLD), (SUBJECT, LOCAL): (ORACLE, LOCAL)}
#: What a filling engine gets back, by its batch invariance.
FILLED = {flag: {(SUBJECT, Phase.OWN_RESTORE): (SUBJECT, phase)} for flag, phase in ((True, POPULATE), (False, LOCAL))}


def against(phase: Phase) -> dict:
    return {(SUBJECT, RESTORE): (ORACLE, phase)}


def more_local_hits() -> Case:
    """The subject's local hit has a block more of each prompt than the oracle's, as with a store that gives the last
    block too, so that it was computed in other batches."""
    hits = tuple(
        replace(one, local=(HIT - BLOCK,) * PROMPTS) if (one.role, one.phase) == (ORACLE, LOCAL) else one
        for one in make_hits()
    )
    case = edit(clean(hits=hits), ORACLE, LOCAL, local_tokens=PROMPTS * (HIT - BLOCK))
    for index in range(PROMPTS):
        case = edit_prompt(case, ORACLE, LOCAL, index, cached_tokens=HIT - BLOCK)
    return case


CASES = {
    "recompute": (clean(), REPEATED | against(COLD) | SAME | BESIDE),
    "local hit": (clean(reference=Reference.LOCAL_HIT), REPEATED | against(LOCAL) | SAME | BESIDE),
    "other local hits": (more_local_hits(), REPEATED | against(COLD) | SAME | {(SUBJECT, POPULATE): (ORACLE, COLD)}),
    "must hit": (shared_case(Rule.MUST_HIT, hits=FULL), REPEATED | against(COLD) | SAME | BESIDE | FILLED[True]),
    "must not hit": (shared_case(Rule.MUST_NOT_HIT), REPEATED | against(COLD) | SAME | FILLED[True]),
    "may hit, and did": (
        not_invariant(shared_case(Rule.MAY_HIT, hits=FULL)), REPEATED | against(LOCAL) | SAME | FILLED[False],
    ),
    "may hit, and did not": (
        not_invariant(shared_case(Rule.MAY_HIT)),
        REPEATED | against(COLD) | {(SUBJECT, SECOND): (ORACLE, LOCAL)} | FILLED[False],
    ),
    "may hit, invariant": (shared_case(Rule.MAY_HIT), REPEATED | against(COLD) | SAME | FILLED[True]),
}


def flipped(case: Case, *sides: tuple[Role, Phase]) -> Case:
    """One bit of one logprob is another one in these phases."""
    for role, phase in sides:
        case = edit_step(case, role, phase, 1, 2, bits=make_step(1, 2).bits + 1)
    return case


def differs(case: Case) -> bool:
    values = (FindingKind.TOKENS, FindingKind.LOGPROBS, FindingKind.ORACLE_UNSTABLE, FindingKind.SUBJECT_UNSTABLE)
    return any(one.kind in values for one in verdict_of(case).findings)


@pytest.mark.parametrize("name", CASES)
def test_what_the_phases_are_held_against_and_what_the_judge_compares(name):
    case, wanted = CASES[name]
    held = Pair(cell=case.cell, legs=case.legs, oracle=case.oracle, subject=case.subject).references()
    assert held == wanted
    assert verdict_of(case).findings == ()
    for side in [(role, phase) for role in Role for phase in case.cell.phases_of(role)]:
        assert differs(flipped(case, side)) is (side in held or side in held.values()), side
    for root in set(held.values()) - set(held):
        followers = [root]
        while more := [side for side, other in held.items() if other in followers and side not in followers]:
            followers += more
        assert not differs(flipped(case, *followers)), root
