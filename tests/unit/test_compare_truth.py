# SPDX-License-Identifier: Apache-2.0
"""The ground truth's check: what is near enough, what is not, and which truth may be trusted."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from harness.bits import to_bits
from harness.compare import judge
from harness.compare.nearness import nearness
from harness.records import Agreement, Ending, FindingKind, Outcome, Phase, Reference, Role, Step
from tests.unit.handmade import (
    Case,
    clean,
    dead,
    edit_prompt,
    make_prompt,
    make_step,
)
from tests.unit.handmade_truth import PEER, PHASES, moved, parted, peer, truth, with_truths


def verdict_of(*truths, case: Case | None = None, peers=None):
    case = with_truths(case or clean(), *truths, peers=peers)
    return judge(case.cell, case.legs, case.oracle, case.subject, case.further)


def both(**changes):
    return truth("bfloat16", **changes), truth("float32", **changes)


def test_a_truth_with_the_same_bits():
    verdict = verdict_of(*both())
    same = dict(prompts=2, tokens=6, tokens_equal=6, near_ties=0, logprobs=12, logprobs_equal=12, largest=0.0,
                median=0.0, gap=0.0, within=True)
    assert verdict.outcome is Outcome.PASS
    assert verdict.agreements == (
        Agreement(left="recompute", right="transformers bfloat16", **same),
        Agreement(left="recompute", right="transformers float32", **same),
        Agreement(left="transformers bfloat16", right="transformers float32", **same),
    )


def test_without_a_ground_truth_there_is_none():
    case = clean()
    assert judge(case.cell, case.legs, case.oracle, case.subject).agreements == ()


@pytest.mark.parametrize(("by", "only", "outcome"), [
    (0.09, None, Outcome.PASS),
    (0.39, (1, 2), Outcome.PASS),
    (0.41, (1, 2), Outcome.FAIL),
    (0.11, None, Outcome.FAIL),
    (math.nan, (0, 0), Outcome.FAIL),
])
def test_limits_of_the_largest_and_of_the_median_difference(by, only, outcome):
    verdict = verdict_of(truth("bfloat16"), truth("float32", moved(by, only=only)))
    assert verdict.outcome is outcome
    near, far = verdict.agreements[:2]
    assert near.within and far.within is (outcome is Outcome.PASS)
    assert far.largest == (math.inf if math.isnan(by) else pytest.approx(by, abs=1e-6))
    assert far.median == (0.0 if only else pytest.approx(by, abs=1e-6))
    assert [finding.kind for finding in verdict.findings] == ([] if far.within else [FindingKind.GROUND_TRUTH])


def test_what_the_finding_says():
    finding, = verdict_of(truth("float32", moved(0.5, only=(1, 2)))).findings
    assert finding.message == ("oracle recompute is not what transformers float32 computes: a logprob of prompt 1,"
                               " token 2 differs by 0.5 nat (limit 0.4)")
    assert (finding.place, finding.left, finding.right) == (
        "oracle recompute, prompt 1, token 2", "22 (-1.2500)", "22 (-0.7500)")
    assert finding.size == "max 0.5 nat, median 0 nat, 0 tokens that are no near tie"
    assert finding.limit == "max 0.4 nat, median 0.1 nat, near ties of 0.2 nat"


def test_tokens_may_part_at_a_near_tie_and_nothing_is_compared_behind():
    verdict = verdict_of(truth("float32", parted(0.15)))
    agreement, = verdict.agreements
    assert verdict.outcome is Outcome.PASS
    assert (agreement.tokens, agreement.tokens_equal, agreement.near_ties) == (5, 4, 1)
    assert (agreement.gap, agreement.largest, agreement.logprobs) == (
        pytest.approx(0.15), pytest.approx(0.15), 10)


def test_tokens_may_not_part_where_the_truth_is_sure():
    finding, = verdict_of(truth("float32", parted(0.25))).findings
    assert finding.kind is FindingKind.GROUND_TRUTH
    assert finding.message.endswith("1 of 2 prompts part where there is no near tie, first at prompt 1, token 1: 55"
                                    " (-0.6250) vs 21 (-0.6250), 0.25 nat behind (limit 0.2)")
    assert finding.place == "oracle recompute, prompt 1, token 1"


def test_a_token_that_the_truth_does_not_list_is_no_near_tie():
    finding, = verdict_of(truth("float32", parted(0.1, listed=False))).findings
    assert "at least 1.5 nat behind" in finding.message


def test_a_candidate_that_the_truth_does_not_list_has_at_most_its_last_logprob_there():
    ours = replace(make_prompt(Phase.RECOMPUTE, 0), steps=(Step(token=1, bits=to_bits(-1.0), top=(
        (1, to_bits(-1.0)), (2, to_bits(-2.0)), (3, to_bits(-6.0)))),))
    other = replace(ours, steps=(Step(token=1, bits=to_bits(-1.0), top=((1, to_bits(-1.0)), (9, to_bits(-5.0)))),))
    near = nearness([(ours, other)])
    assert [nat for nat, _, _ in near.differences] == [0.0, 3.0, 0.0]
    assert near.largest == (3.0, 0, 0)


def test_near_ties_everywhere_at_the_first_token_show_nothing():
    def first(index: int, place: int) -> Step:
        right = make_step(index, place)
        return Step(token=55, bits=right.bits, top=((55, right.bits), (right.token, right.bits)))

    verdict = verdict_of(truth("float32", first))
    finding, = verdict.findings
    assert (verdict.outcome, finding.kind) == (Outcome.VACUOUS, FindingKind.NOTHING_COMPARED)
    assert finding.message == "not one token of recompute equals that of transformers float32"


def changed_phase(one, phase: Phase, **changes):
    leg, observation = one
    return leg, replace(observation, phases=tuple(
        replace(record, **changes) if record.phase is phase else record for record in observation.phases))


def broken_truths():
    good = truth("float32")
    leg, seen = good
    other = replace(seen.phases[0].prompts[1], digest="other")
    short = replace(seen.phases[0].prompts[1], steps=seen.phases[0].prompts[1].steps[:2])
    blind = replace(seen.phases[0].prompts[1], steps=(Step(token=20, bits=None, top=()),) * 3)
    first = seen.phases[0].prompts[0]
    unsteady = truth("float32", moved(0.1))[1].phases[1].prompts
    return {
        "never run": ((leg, None), FindingKind.NO_OBSERVATION, Outcome.CRASHED),
        "died": ((leg, replace(dead(Role.ORACLE, Ending.CRASHED, "no"), leg=leg.digest)), FindingKind.CRASHED,
                 Outcome.CRASHED),
        "no transformers": ((leg, replace(dead(Role.ORACLE, Ending.UNAVAILABLE, "no"), leg=leg.digest)),
                            FindingKind.UNAVAILABLE, Outcome.UNAVAILABLE),
        "another leg's": ((leg, replace(seen, leg="x")), FindingKind.STALE_OBSERVATION, Outcome.VACUOUS),
        "other dtype": ((leg, replace(seen, resolved=replace(seen.resolved, dtype="bfloat16"))),
                        FindingKind.LEGS_RESOLVED_DIFFERENTLY, Outcome.VACUOUS),
        "other code": ((leg, replace(seen, resolved=replace(seen.resolved, backend="CPU_ATTN"))),
                       FindingKind.BACKEND_NOT_AS_ASKED, Outcome.VACUOUS),
        "hits": (changed_phase(good, Phase.RECOMPUTE, local_tokens=8), FindingKind.RECOMPUTE_NOT_COLD,
                 Outcome.VACUOUS),
        "one pass": ((leg, replace(seen, phases=seen.phases[:1])), FindingKind.PHASE_MISSING, Outcome.VACUOUS),
        "unsteady": (changed_phase(good, Phase.RECOMPUTE_AGAIN, prompts=unsteady), FindingKind.ORACLE_UNSTABLE,
                     Outcome.UNSTABLE),
        "other prompts": (changed_phase(good, Phase.RECOMPUTE, prompts=(first, other)), FindingKind.PROMPTS_DIFFER,
                          Outcome.VACUOUS),
        "short": (changed_phase(good, Phase.RECOMPUTE, prompts=(first, short)), FindingKind.NOTHING_COMPARED,
                  Outcome.VACUOUS),
        "no logprobs": (changed_phase(good, Phase.RECOMPUTE, prompts=(first, blind)), FindingKind.LOGPROBS_MISSING,
                        Outcome.VACUOUS),
    }


@pytest.mark.parametrize("name", broken_truths())
def test_a_truth_that_is_not_sound_is_no_truth_and_its_cell_no_pass(name):
    one, kind, outcome = broken_truths()[name]
    verdict = verdict_of(one)
    assert kind in {finding.kind for finding in verdict.findings}
    assert FindingKind.GROUND_TRUTH not in {finding.kind for finding in verdict.findings}
    assert (verdict.outcome, verdict.agreements) == (outcome, ())
    assert all(finding.place.startswith("ground truth float32") for finding in verdict.findings)


def test_the_truth_in_the_engines_dtype_has_the_dtype_that_the_engine_resolved():
    leg, seen = truth("float16")
    leg = replace(leg, engine={"dtype": "auto"})
    finding, = verdict_of((leg, seen)).findings
    assert finding.message == "ground truth auto: it computes in float16, bfloat16 was asked for"


def test_an_engine_that_does_not_repeat_itself_is_held_against_nothing():
    steps = tuple(moved(0.01)(0, place) for place in range(3))
    case = edit_prompt(clean(), Role.ORACLE, Phase.RECOMPUTE_AGAIN, 0, steps=steps)
    verdict = verdict_of(*both(steps=moved(1.0)), case=case)
    assert (verdict.outcome, verdict.agreements) == (Outcome.UNSTABLE, ())


def test_a_refused_cell_needs_no_truth():
    case = replace(clean(), oracle=None, subject=dead(Role.SUBJECT, Ending.REFUSED))
    verdict = verdict_of((truth("float32")[0], None), case=case)
    assert [finding.kind for finding in verdict.findings] == [FindingKind.REJECTED]


def test_another_backend_is_held_against_too():
    verdict = verdict_of(truth("float32"), peers={PEER: peer(moved(0.05))})
    agreement = verdict.agreements[1]
    assert verdict.outcome is Outcome.PASS
    assert (agreement.right, agreement.within, agreement.largest) == (PEER, True, pytest.approx(0.05))
    # It is at -0.35 from the truth, this cell at +0.2 in places: each near the truth, but not each other.
    steps = tuple(moved(-0.2, only=(0, 0))(0, place) for place in range(3))
    case = edit_prompt(clean(reference=Reference.LOCAL_HIT), Role.ORACLE, PHASES, 0, steps=steps)
    case = edit_prompt(case, Role.SUBJECT, Phase.POPULATE, 0, steps=steps)
    finding, = verdict_of(truth("float32"), case=case, peers={PEER: peer(moved(0.35, only=(0, 0)))}).findings
    assert finding.kind is FindingKind.GROUND_TRUTH
    assert f"is not what {PEER} computes: a logprob of prompt 0, token 0 differs by 0.55 nat" in finding.message


def test_a_peer_that_is_far_from_the_truth_is_its_own_cells_finding():
    verdict = verdict_of(truth("float32"), peers={PEER: peer(moved(1.0))})
    assert (verdict.outcome, verdict.agreements[1].within) == (Outcome.PASS, False)


def test_a_peer_that_did_not_come_up_is_left_out():
    refused = replace(dead(Role.ORACLE, Ending.REFUSED), leg="peer")
    verdict = verdict_of(truth("float32"), peers={PEER: (peer()[0], refused)})
    assert (verdict.outcome, [one.right for one in verdict.agreements]) == (Outcome.PASS, ["transformers float32"])
