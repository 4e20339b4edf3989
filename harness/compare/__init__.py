# SPDX-License-Identifier: Apache-2.0
"""Pure judgement: the observations of a cell's legs in, one verdict out.

Order: ending -> resolved as asked -> evidence -> A/A control -> prompt sets -> tokens and logprobs -> KV digests
-> ground truth, where the scenario has one.
Each check collects all of its findings; a later check is left out where an earlier one makes it meaningless: after a
dead or stale leg nothing is judged, after a configuration that is not the cell's no values are, and after an A/A
control that differs no A/B claim is made. Missing evidence does not hide differing values: such a cell reports both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from harness.compare.control import check_control
from harness.compare.digests import compare_digests
from harness.compare.ending import check_ending
from harness.compare.evidence import check_evidence
from harness.compare.pair import OUTCOME_OF, Pair
from harness.compare.prompts import check_prompts
from harness.compare.resolved import check_resolved
from harness.compare.sharing import check_sharing
from harness.compare.truth import check_truth
from harness.compare.values import check_nan, compare_phases, compare_values, no_block_compared, nothing_compared
from harness.expect import judge_expectation
from harness.records import (
    OUTCOME_ORDER,
    Agreement,
    Cell,
    Compared,
    Finding,
    FindingKind,
    Leg,
    Observation,
    Outcome,
    Phase,
    Role,
    Verdict,
)

__all__ = ["OUTCOME_OF", "judge", "worst"]


def judge(
    cell: Cell,
    legs: Mapping[str, Leg],
    oracle: Observation | None,
    subject: Observation | None,
    further: Mapping[str, Observation] | None = None,
) -> Verdict:
    """Judge one cell.

    Args:
        cell: the cell.
        legs: digest -> leg, with at least the cell's two and its further ones.
        oracle, subject: what its legs saw. The oracle may be None where the subject did not come up, because that alone
            settles the cell.
        further: digest -> what the cell's further legs saw, in any larger mapping.
    """
    pair = Pair(cell=cell, legs=legs, oracle=oracle, subject=subject, further=further or {})
    findings, compared, agreements = _examine(pair)
    outcome = worst(finding.outcome for finding in findings)
    expected = cell.expectation.outcome if cell.expectation is not None else Outcome.PASS
    unmet = judge_expectation(cell.expectation, outcome, tuple(findings))
    if unmet is not None:
        findings.append(unmet)
        verdict = Outcome.FAIL
    elif cell.expectation is not None and outcome is expected is not Outcome.PASS:
        verdict = Outcome.EXPECTED
    else:
        verdict = outcome
    return Verdict(
        scenario=cell.scenario, cell=cell.id, outcome=outcome, verdict=verdict, expected_outcome=expected,
        findings=tuple(findings), compared=compared, agreements=agreements,
    )


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """The worst of the outcomes; pass for none."""
    return max(outcomes, key=OUTCOME_ORDER.index, default=Outcome.PASS)


def _examine(pair: Pair) -> tuple[list[Finding], Compared, tuple[Agreement, ...]]:
    findings = list(check_ending(pair))
    if findings or pair.oracle is None or pair.subject is None:
        return findings, Compared(), ()
    resolved = list(check_resolved(pair))
    findings += [*resolved, *check_evidence(pair), *check_sharing(pair)]
    if resolved:
        return findings, Compared(), ()
    control = list(check_control(pair))
    findings += [*control, *check_prompts(pair), *check_nan(pair)]
    compared = Compared()
    if not control:
        values, compared = compare_values(pair)
        findings += [*values, *compare_phases(pair, Phase.OWN_RESTORE)]
        if not findings:
            # What is wrong with the restore, or with its evidence, comes first; this is for what would pass.
            findings += compare_phases(pair, Phase.POPULATE, Phase.LOCAL_HIT)
        if pair.subject_leg.decode.max_tokens and _both_answered(pair) and not _names_missing(findings):
            findings += nothing_compared(compared)
    digests, compared = compare_digests(pair, compared, stable=not control)
    if not (pair.subject_leg.decode.max_tokens or compared.blocks or digests):
        digests = list(no_block_compared())
    # What does not repeat itself cannot be held against anything else either.
    stable = all(one.kind is not FindingKind.ORACLE_UNSTABLE for one in control)
    truth, agreements = check_truth(pair) if stable else ([], ())
    return [*findings, *digests, *truth], compared, agreements


def _both_answered(pair: Pair) -> bool:
    """A missing phase has its own finding; that nothing was compared then follows from it."""
    sides = pair.record(Role.ORACLE, pair.reference_phase), pair.record(Role.SUBJECT, Phase.RESTORE)
    return None not in sides


def _names_missing(findings: list[Finding]) -> bool:
    return any(one.kind in (FindingKind.NOTHING_COMPARED, FindingKind.LOGPROBS_MISSING) for one in findings)
