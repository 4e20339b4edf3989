# SPDX-License-Identifier: Apache-2.0
"""Whole verdicts of hand-made pairs, compared by value."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.compare import OUTCOME_OF
from harness.records import (
    Edge,
    Ending,
    Expectation,
    FindingKind,
    Outcome,
    Phase,
    Reference,
    Role,
    Rule,
)
from tests.unit.handmade import (
    ORACLE,
    PASSED,
    RECOMPUTES,
    RESTORED,
    SUBJECT,
    Case,
    clean,
    dead,
    digest_block,
    edit,
    edit_prompt,
    edit_step,
    make_hits,
    make_prompt,
    make_step,
    only,
    resolve,
    resolve_both,
    side,
    verdict_of,
)
from tests.unit.handmade_sharing import shared_case
from tests.unit.handmade_truth import moved, truth, with_truths

NAN = 0x7FC00000


@pytest.mark.parametrize("reference", Reference)
def test_a_clean_pair_passes_without_a_finding(reference):
    assert verdict_of(clean(reference=reference)) == PASSED


def test_counters_that_a_connector_does_not_have_are_no_finding():
    case = edit(clean(), SUBJECT, RESTORED, delivered_tokens=None, loaded_bytes=None, stored_bytes=None)
    assert verdict_of(case) == PASSED


def test_both_sides_may_stop_early_when_both_say_so():
    case = clean()
    for role, phases in ((ORACLE, RECOMPUTES), (SUBJECT, (Phase.POPULATE, *RESTORED))):
        case = edit_prompt(case, role, phases, 0, steps=(make_step(0, 0),), finish_reason="stop")
    verdict = verdict_of(case)
    assert verdict.findings == ()
    assert (verdict.compared.tokens, verdict.compared.tokens_equal) == (4, 4)


def _swap_prompts(case: Case) -> Case:
    for phase in RESTORED:
        first, second = case.subject.phase(phase).prompts
        case = edit(case, SUBJECT, phase, prompts=(replace(second, index=0), replace(first, index=1)))
    return case


#: Every finding kind -> a case that has it as its first finding.
TRIGGERS = {
    FindingKind.UNAVAILABLE: lambda: Case(
        clean().cell, clean().legs, None, dead(SUBJECT, Ending.UNAVAILABLE, "needs rocm, this is cpu")),
    FindingKind.REJECTED: lambda: Case(
        clean().cell, clean().legs, None, dead(SUBJECT, Ending.REFUSED, "layout not supported")),
    FindingKind.CRASHED: lambda: Case(clean().cell, clean().legs, clean().oracle, dead(SUBJECT, Ending.CRASHED)),
    FindingKind.HUNG: lambda: Case(clean().cell, clean().legs, dead(ORACLE, Ending.HUNG), clean().subject),
    FindingKind.OUT_OF_MEMORY: lambda: Case(
        clean().cell, clean().legs, clean().oracle, dead(SUBJECT, Ending.OUT_OF_MEMORY)),
    FindingKind.NO_OBSERVATION: lambda: Case(clean().cell, clean().legs, clean().oracle, None),
    FindingKind.LAYOUT_NOT_AS_ASKED: lambda: resolve_both(clean(), layout="LBNHC"),
    FindingKind.STRIDES_NOT_AS_LAYOUT: lambda: resolve_both(clean(), layout_by_strides=("LBNHC",)),
    FindingKind.BACKEND_NOT_AS_ASKED: lambda: resolve_both(clean(), backend="CPU_ATTN"),
    FindingKind.BATCH_INVARIANCE_NOT_AS_ASKED: lambda: resolve_both(clean(), batch_invariant=False),
    FindingKind.LEGS_RESOLVED_DIFFERENTLY: lambda: resolve(clean(), SUBJECT, threads=2),
    FindingKind.STALE_OBSERVATION: lambda: side(clean(), SUBJECT, leg="another-leg"),
    FindingKind.PHASE_MISSING: lambda: side(clean(), SUBJECT, phases=clean().subject.phases[:3]),
    FindingKind.POPULATE_NOT_COLD: lambda: edit(clean(), SUBJECT, Phase.POPULATE, external_tokens=8),
    FindingKind.RECOMPUTE_NOT_COLD: lambda: edit(clean(), ORACLE, Phase.RECOMPUTE_AGAIN, local_tokens=16),
    FindingKind.LOCAL_HITS: lambda: edit(clean(), ORACLE, Phase.LOCAL_HIT, local_tokens=15),
    FindingKind.EXTERNAL_HITS: lambda: edit(clean(), SUBJECT, Phase.RESTORE, external_tokens=15, delivered_tokens=15),
    FindingKind.RESET_FAILED: lambda: side(
        edit(clean(), SUBJECT, Phase.RESTORE, reset_ok=False, prompts=(), external_tokens=0, delivered_tokens=0),
        SUBJECT, phases=edit(clean(), SUBJECT, Phase.RESTORE, reset_ok=False, prompts=()).subject.phases[:3]),
    FindingKind.NOT_ZEROED: lambda: edit(clean(), SUBJECT, Phase.RESTORE, nonzero_after_zeroing=7),
    FindingKind.SAME_BLOCKS: lambda: edit_prompt(clean(), SUBJECT, Phase.RESTORE, 1, blocks=(14, 11)),
    FindingKind.NOTHING_DELIVERED: lambda: edit(clean(), SUBJECT, RESTORED, delivered_tokens=0),
    FindingKind.OVERRUN: lambda: edit(clean(), SUBJECT, Phase.RESTORE, loaded_bytes=1025),
    FindingKind.EDGE_NOT_REACHED: lambda: edit(clean(edge=Edge.CHUNKS), SUBJECT, Phase.RESTORE, seconds=1.0),
    FindingKind.DIFFERENCE_NOT_TAKEN: lambda: side(shared_case(Rule.MAY_HIT), SUBJECT, filled=None),
    FindingKind.ORACLE_UNSTABLE: lambda: edit_step(
        clean(), ORACLE, Phase.RECOMPUTE_AGAIN, 1, 2, bits=make_step(1, 2).bits + 1),
    FindingKind.SUBJECT_UNSTABLE: lambda: edit_step(clean(), SUBJECT, Phase.RESTORE_AGAIN, 0, 1, token=77),
    FindingKind.PROMPTS_DIFFER: lambda: _swap_prompts(clean()),
    FindingKind.NOTHING_COMPARED: lambda: edit_prompt(
        edit_prompt(clean(), ORACLE, RECOMPUTES, 0, steps=()), SUBJECT, RESTORED, 0, steps=()),
    FindingKind.LOGPROBS_MISSING: lambda: edit_step(clean(), SUBJECT, RESTORED, 0, 1, bits=None, top=()),
    FindingKind.DIGESTS_MISSING: lambda: edit_prompt(
        edit_prompt(clean(), SUBJECT, Phase.RESTORE, 0, kv=(None, None)), SUBJECT, Phase.RESTORE, 1, kv=()),
    FindingKind.FORBIDDEN_HITS: lambda: shared_case(Rule.MUST_NOT_HIT, hits=16),
    FindingKind.TOKENS: lambda: edit_step(clean(), SUBJECT, RESTORED, 1, 2, token=92),
    FindingKind.LOGPROBS: lambda: edit_step(clean(), SUBJECT, RESTORED, 1, 2, bits=make_step(1, 2).bits + 1),
    FindingKind.NAN: lambda: edit_step(
        edit_step(clean(), SUBJECT, RESTORED, 0, 0, bits=NAN), ORACLE, RECOMPUTES, 0, 0, bits=NAN),
    FindingKind.KV_DIGESTS: lambda: edit_prompt(
        clean(), SUBJECT, Phase.RESTORE, 1, kv=(digest_block(1, 0), digest_block(1, 1, ((1, 0, 0),)))),
    FindingKind.GROUND_TRUTH: lambda: with_truths(clean(), truth("float32", moved(1.0))),
    FindingKind.EXPECTATION_UNMET: lambda: clean(Expectation(when={}, outcome=Outcome.REJECTED)),
}


def test_every_finding_kind_has_a_case_and_an_outcome():
    assert set(TRIGGERS) == set(FindingKind)
    assert set(OUTCOME_OF) == set(FindingKind)


@pytest.mark.parametrize("kind", FindingKind)
def test_a_case_of_each_kind_leads_to_its_outcome(kind):
    verdict = verdict_of(TRIGGERS[kind]())
    first = verdict.findings[0]
    assert (first.kind, first.outcome) == (kind, OUTCOME_OF[kind])
    if kind is FindingKind.EXPECTATION_UNMET:
        assert (verdict.outcome, verdict.verdict) == (Outcome.PASS, Outcome.FAIL)
    elif kind is FindingKind.PROMPTS_DIFFER:
        # In another order nothing lies beside its counterpart: each of the three findings is one of that fact.
        assert {one.kind for one in verdict.findings} == {kind, FindingKind.NOTHING_COMPARED,
                                                          FindingKind.DIGESTS_MISSING}
    else:
        assert {one.kind for one in verdict.findings} == {kind}
        assert verdict.outcome is verdict.verdict is OUTCOME_OF[kind]


@pytest.mark.parametrize("side", [ORACLE, SUBJECT])
def test_one_block_without_digest_makes_a_cell_vacuous(side):
    phase = Phase.RECOMPUTE if side is ORACLE else Phase.RESTORE
    verdict = verdict_of(edit_prompt(clean(), side, phase, 1, kv=(digest_block(1, 0), None)))
    assert verdict.outcome is Outcome.VACUOUS
    assert [one.message for one in verdict.findings] == [
        "3 of 4 restored blocks have a KV digest in both oracle recompute and subject restore"
    ]
    assert (verdict.compared.blocks, verdict.compared.blocks_equal) == (3, 3)


# --- what must not pass for want of anything to compare ---------------------------------------------------------


def _drop(case: Case, role: Role, *phases: Phase) -> Case:
    return side(case, role, phases=tuple(one for one in getattr(case, role).phases if one.phase not in phases))


TRAPS = {
    "no steps on either side": lambda: edit_prompt(
        edit_prompt(clean(), ORACLE, RECOMPUTES, 0, steps=()), SUBJECT, RESTORED, 0, steps=()),
    "no phases at all": lambda: side(side(clean(), ORACLE, phases=()), SUBJECT, phases=()),
    "restore missing": lambda: _drop(clean(), SUBJECT, Phase.RESTORE),
    "control missing": lambda: _drop(clean(), ORACLE, Phase.RECOMPUTE_AGAIN),
    "phases twice": lambda: side(clean(), ORACLE, phases=clean().oracle.phases * 2),
    "None logprobs on both sides": lambda: edit_step(
        edit_step(clean(), ORACLE, RECOMPUTES, 0, 0, bits=None, top=()), SUBJECT, RESTORED, 0, 0, bits=None, top=()),
    "None logprobs where the store only stores": lambda: edit_step(
        clean(), SUBJECT, Phase.POPULATE, 0, 0, bits=None, top=()),
    "one candidate short in the subject's local hit": lambda: edit_step(
        clean(), SUBJECT, LOCAL_HIT, 0, 0, top=make_step(0, 0).top[:1]),
    "None logprobs in an oracle's local hit that is no reference": lambda: edit_step(
        clean(), ORACLE, LOCAL_HIT, 1, 2, bits=None, top=()),
    "local hits cut short on both sides": lambda: edit_prompt(
        edit_prompt(clean(), ORACLE, LOCAL_HIT, 1, steps=()), SUBJECT, LOCAL_HIT, 1, steps=()),
    "one candidate short on both sides": lambda: edit_step(
        edit_step(clean(), ORACLE, RECOMPUTES, 0, 0, top=make_step(0, 0).top[:1]),
        SUBJECT, RESTORED, 0, 0, top=make_step(0, 0).top[:1]),
    "answers cut short on both sides": lambda: edit_prompt(
        edit_prompt(clean(), ORACLE, RECOMPUTES, 1, steps=(make_step(1, 0),)),
        SUBJECT, RESTORED, 1, steps=(make_step(1, 0),)),
    "no prompts anywhere": lambda: edit(
        edit(clean(), ORACLE, tuple(Phase), prompts=()), SUBJECT, tuple(Phase), prompts=()),
    "last prompt missing in the restore": lambda: edit(
        clean(), SUBJECT, RESTORED, prompts=clean().subject.phase(Phase.RESTORE).prompts[:1]),
    "last prompt missing everywhere": lambda: edit(
        edit(clean(), ORACLE, tuple(Phase), prompts=(make_prompt(Phase.RECOMPUTE, 0),)),
        SUBJECT, tuple(Phase), prompts=(make_prompt(Phase.RESTORE, 0),)),
    "one prompt without hits, another with twice its share": lambda: edit_prompt(
        edit_prompt(clean(), SUBJECT, RESTORED, 0, cached_tokens=0), SUBJECT, RESTORED, 1, cached_tokens=16),
    "cached tokens unknown": lambda: edit_prompt(clean(), SUBJECT, RESTORED, 0, cached_tokens=None),
    "one token short": lambda: edit(clean(), SUBJECT, RESTORED, external_tokens=15, delivered_tokens=15),
    "served by the local cache": lambda: edit(
        clean(), SUBJECT, RESTORED, external_tokens=0, delivered_tokens=0, local_tokens=16),
    "local and external": lambda: edit(clean(), SUBJECT, RESTORED, local_tokens=4),
    "connector used in the local hit": lambda: edit(clean(), SUBJECT, Phase.LOCAL_HIT, external_tokens=16),
    "a cold prompt with cached tokens": lambda: edit_prompt(clean(), ORACLE, Phase.RECOMPUTE, 0, cached_tokens=8),
    "reset never called": lambda: edit(clean(), SUBJECT, RESTORED, reset_ok=None),
    "zeroing left out": lambda: edit(clean(), SUBJECT, RESTORED, zeroed_bytes=None, nonzero_after_zeroing=None),
    "zeroing of nothing": lambda: edit(clean(), SUBJECT, RESTORED, zeroed_bytes=0),
    "zeroing not verified": lambda: edit(clean(), SUBJECT, RESTORED, nonzero_after_zeroing=None),
    "nothing to restore": lambda: edit(
        edit(clean(hits=make_hits(0)), SUBJECT, RESTORED, external_tokens=0, loaded_bytes=0), ORACLE, LOCAL_HIT,
        local_tokens=0),
    "other prompts": lambda: edit_prompt(clean(), SUBJECT, RESTORED, 1, digest="px"),
}
LOCAL_HIT = (Phase.LOCAL_HIT,)


@pytest.mark.parametrize("trap", TRAPS)
def test_a_trap_is_vacuous(trap):
    verdict = verdict_of(TRAPS[trap]())
    assert verdict.outcome is Outcome.VACUOUS, verdict.findings


def test_a_failed_reset_is_one_finding_and_not_also_its_consequences():
    finding = only(TRIGGERS[FindingKind.RESET_FAILED]())
    assert finding.message == "subject restore: the prefix cache could not be reset before its deadline"
