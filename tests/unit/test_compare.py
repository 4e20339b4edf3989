# SPDX-License-Identifier: Apache-2.0
"""Whole verdicts of hand-made pairs, compared by value."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.bits import to_bits
from harness.compare import OUTCOME_OF, judge
from harness.records import (
    SCHEMA_VERSION,
    Compared,
    Edge,
    Ending,
    Expectation,
    Finding,
    FindingKind,
    Outcome,
    Phase,
    Reference,
    Role,
    Verdict,
)
from tests.unit.handmade import (
    RESTORED,
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
    resolve,
    side,
)
from tests.unit.test_compare_truth import moved, truth, with_truths

NAN = 0x7FC00000
ORACLE, SUBJECT = Role.ORACLE, Role.SUBJECT
#: 2 prompts x 3 tokens; the selected token's and two candidates' logprobs each; 2 blocks a prompt.
ALL = Compared(prompts=2, tokens=6, tokens_equal=6, logprobs=18, logprobs_equal=18, blocks=4, blocks_equal=4)
RECOMPUTES = (Phase.RECOMPUTE, Phase.RECOMPUTE_AGAIN)


def verdict_of(case: Case) -> Verdict:
    return judge(case.cell, case.legs, case.oracle, case.subject, case.further)


def kinds(case: Case) -> list[FindingKind]:
    return [finding.kind for finding in verdict_of(case).findings]


def only(case: Case) -> Finding:
    findings = verdict_of(case).findings
    assert len(findings) == 1, findings
    return findings[0]


PASSED = Verdict(
    scenario="matrix", cell="LBHNC-REFERENCE-bi1", outcome=Outcome.PASS, verdict=Outcome.PASS,
    expected_outcome=Outcome.PASS, findings=(), compared=ALL,
)


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
    FindingKind.LAYOUT_NOT_AS_ASKED: lambda: resolve(resolve(clean(), ORACLE, layout="LBNHC"), SUBJECT, layout="LBNHC"),
    FindingKind.STRIDES_NOT_AS_LAYOUT: lambda: resolve(
        resolve(clean(), ORACLE, layout_by_strides=("LBNHC",)), SUBJECT, layout_by_strides=("LBNHC",)),
    FindingKind.BACKEND_NOT_AS_ASKED: lambda: resolve(
        resolve(clean(), ORACLE, backend="CPU_ATTN"), SUBJECT, backend="CPU_ATTN"),
    FindingKind.BATCH_INVARIANCE_NOT_AS_ASKED: lambda: resolve(
        resolve(clean(), ORACLE, batch_invariant=False), SUBJECT, batch_invariant=False),
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
    FindingKind.EDGE_NOT_REACHED: lambda: edit(clean(edge=Edge.CHUNKS), SUBJECT, Phase.RESTORE, seconds=1.0),
    FindingKind.ORACLE_UNSTABLE: lambda: edit_step(
        clean(), ORACLE, Phase.RECOMPUTE_AGAIN, 1, 2, bits=make_step(1, 2).bits + 1),
    FindingKind.SUBJECT_UNSTABLE: lambda: edit_step(clean(), SUBJECT, Phase.RESTORE_AGAIN, 0, 1, token=77),
    FindingKind.PROMPTS_DIFFER: lambda: _swap_prompts(clean()),
    FindingKind.NOTHING_COMPARED: lambda: edit_prompt(
        edit_prompt(clean(), ORACLE, RECOMPUTES, 0, steps=()), SUBJECT, RESTORED, 0, steps=()),
    FindingKind.LOGPROBS_MISSING: lambda: edit_step(clean(), SUBJECT, RESTORED, 0, 1, bits=None, top=()),
    FindingKind.DIGESTS_MISSING: lambda: edit_prompt(
        edit_prompt(clean(), SUBJECT, Phase.RESTORE, 0, kv=(None, None)), SUBJECT, Phase.RESTORE, 1, kv=()),
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


# --- endings ----------------------------------------------------------------------------------------------------


def test_a_refusal_keeps_the_engines_words_and_needs_no_oracle():
    words = "VLLM_KV_CACHE_LAYOUT=LBNHC does not satisfy\n every supported set; valid layouts: ['LBHNC']."
    case = Case(clean().cell, clean().legs, None, dead(SUBJECT, Ending.REFUSED, words))
    assert verdict_of(case) == Verdict(
        scenario="matrix", cell="LBHNC-REFERENCE-bi1", outcome=Outcome.REJECTED, verdict=Outcome.REJECTED,
        expected_outcome=Outcome.PASS, compared=Compared(),
        findings=(Finding(
            kind=FindingKind.REJECTED, outcome=Outcome.REJECTED, place="subject at init",
            message="subject: the engine refused the configuration at init: ValueError: VLLM_KV_CACHE_LAYOUT=LBNHC"
                    " does not satisfy every supported set; valid layouts: ['LBHNC'].",
            left="asked: LBHNC, REFERENCE, batch_invariant True", right=words,
        ),),
    )


@pytest.mark.parametrize(
    ("match", "verdict", "found"),
    [("valid layouts", Outcome.EXPECTED, [FindingKind.REJECTED]),
     ("other words", Outcome.FAIL, [FindingKind.REJECTED, FindingKind.EXPECTATION_UNMET])],
)
def test_an_expected_refusal_must_use_the_expected_words(match, verdict, found):
    expectation = Expectation(when={}, outcome=Outcome.REJECTED, match=match)
    case = Case(clean(expectation).cell, clean().legs, None, dead(SUBJECT, Ending.REFUSED, "valid layouts: x"))
    got = verdict_of(case)
    assert (got.outcome, got.verdict, got.expected_outcome) == (Outcome.REJECTED, verdict, Outcome.REJECTED)
    assert [one.kind for one in got.findings] == found


def test_an_unavailable_cell_is_neither_expected_nor_failed():
    expectation = Expectation(when={}, outcome=Outcome.REJECTED)
    case = Case(clean(expectation).cell, clean().legs, None, dead(SUBJECT, Ending.UNAVAILABLE))
    assert verdict_of(case).verdict is Outcome.UNAVAILABLE


def test_the_worse_ending_of_two_dead_legs_decides():
    case = Case(clean().cell, clean().legs, dead(ORACLE, Ending.CRASHED), dead(SUBJECT, Ending.REFUSED))
    assert kinds(case) == [FindingKind.CRASHED, FindingKind.REJECTED]
    assert verdict_of(case).outcome is Outcome.CRASHED


def test_a_living_subject_without_an_oracle_is_no_pass():
    assert only(Case(clean().cell, clean().legs, None, clean().subject)).message == (
        "the oracle leg oracle-leg left no observation at all"
    )


def test_a_stale_observation_is_not_asked_how_it_ended():
    stale = side(clean(), SUBJECT, schema=SCHEMA_VERSION + 1, ending=Ending.CRASHED)
    assert kinds(stale) == [FindingKind.STALE_OBSERVATION]


# --- resolved ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_size": 16}, "subject: block size 4 was asked for, the worker uses 16"),
        ({"backend_class": ()}, "subject: backend REFERENCE was asked for, the worker uses REFERENCE (none)"),
        ({"connector": None}, "subject: the worker must have a KV connector, it has none"),
        ({"dtype": "float32"}, "dtype is bfloat16 in the oracle and float32 in the subject"),
        ({"strides": (1600, 64, 8, 16, 1)}, "stride order is LBHNC in the oracle and LBNHC in the subject"),
    ],
)
def test_what_the_worker_resolved_is_named(changes, message):
    findings = verdict_of(resolve(clean(), SUBJECT, **changes)).findings
    assert message in [one.message for one in findings]
    assert verdict_of(resolve(clean(), SUBJECT, **changes)).outcome is Outcome.VACUOUS


def test_an_oracle_with_a_connector_is_no_oracle():
    assert only(resolve(clean(), ORACLE, connector="x.Y")).message == (
        "oracle: the worker must have no KV connector, it has x.Y"
    )


def test_a_pool_of_another_size_is_no_difference():
    case = resolve(clean(), SUBJECT, num_blocks=60, shape=(60, 2, 4, 8), strides=(3840, 64, 32, 8, 1))
    assert verdict_of(case) == PASSED


def test_a_worker_that_reports_nothing_is_vacuous():
    finding = only(side(clean(), ORACLE, resolved=None))
    assert (finding.kind, finding.right) == (FindingKind.LAYOUT_NOT_AS_ASKED, "unknown")


def test_values_are_not_judged_under_another_configuration():
    case = edit_step(resolve(clean(), SUBJECT, threads=2), SUBJECT, RESTORED, 0, 0, token=77)
    assert kinds(case) == [FindingKind.LEGS_RESOLVED_DIFFERENTLY]
    assert verdict_of(case).compared == Compared()


# --- values -----------------------------------------------------------------------------------------------------


def test_a_token_difference_names_both_sides_the_rank_and_the_size():
    third = make_step(1, 2)
    case = edit_step(
        clean(), SUBJECT, RESTORED, 1, 2, token=92, bits=to_bits(-1.0),
        top=((92, to_bits(-1.0)), (22, third.bits)),
    )
    verdict = verdict_of(case)
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
        edit(clean(hits=make_hits(0)), SUBJECT, RESTORED, external_tokens=0), ORACLE, LOCAL_HIT,
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
