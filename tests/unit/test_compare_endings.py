# SPDX-License-Identifier: Apache-2.0
"""Verdicts of pairs of which a leg died, or whose workers resolved something else than was asked for."""

from __future__ import annotations

import pytest

from harness.records import (
    SCHEMA_VERSION,
    Compared,
    Ending,
    Expectation,
    Finding,
    FindingKind,
    Outcome,
    Verdict,
)
from tests.unit.handmade import (
    ORACLE,
    PASSED,
    RESTORED,
    SUBJECT,
    Case,
    clean,
    dead,
    edit_step,
    kinds,
    only,
    resolve,
    side,
    verdict_of,
)


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
