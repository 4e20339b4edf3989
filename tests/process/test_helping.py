# SPDX-License-Identifier: Apache-2.0
"""A process without cells helps with legs that nobody has got to, and nobody waits while there is something to do."""

from __future__ import annotations

import threading

import pytest

from harness.records import Ending, Expectation, Outcome, Role
from harness.runner import Runner
from tests.unit.handmade import make_cell

ORACLE, SUBJECT = "0" * 16, "1" * 16


@pytest.fixture
def legs(make_leg):
    """Makes a cell's two legs, by digest; what to plant in the subject."""

    def made(subject=None):
        return {
            ORACLE: make_leg(digest=ORACLE, role=Role.ORACLE),
            SUBJECT: make_leg(digest=SUBJECT, fake=subject or {}),
        }

    return made


def cell(outcome: Outcome | None = None):
    expectation = None if outcome is None else Expectation(when={}, outcome=outcome)
    return make_cell(oracle=ORACLE, subject=SUBJECT, expectation=expectation)


def test_a_helper_runs_both_legs_and_nobody_runs_them_again(folder, legs, traces):
    Runner(folder).help(cell(), legs())
    assert [folder.read_observation(digest).ending for digest in (ORACLE, SUBJECT)] == [Ending.OK, Ending.OK]
    assert len(traces) == 2
    oracle, subject, _ = Runner(folder).ensure_cell(cell(), legs())
    assert (oracle.leg, subject.leg, len(traces)) == (ORACLE, SUBJECT, 2)


@pytest.mark.parametrize(
    ("outcome", "ran"), [(None, True), (Outcome.FAIL, True), (Outcome.REJECTED, False), (Outcome.CRASHED, False)]
)
def test_beside_a_subject_that_runs_elsewhere_only_an_oracle_that_will_be_needed(folder, legs, outcome, ran):
    known = legs()
    with folder.claim(known[SUBJECT]):
        Runner(folder).help(cell(outcome), known)
    assert (folder.read_observation(ORACLE) is not None) is ran
    assert folder.read_observation(SUBJECT) is None


def test_a_refused_subject_needs_no_oracle(folder, legs):
    Runner(folder).help(cell(), legs({"stages": {"load": "refuse"}}))
    assert folder.read_observation(SUBJECT).ending is Ending.REFUSED
    assert folder.read_observation(ORACLE) is None


def test_a_subject_that_lives_although_a_refusal_was_expected_gets_its_oracle(folder, legs):
    Runner(folder).help(cell(Outcome.REJECTED), legs())
    assert folder.read_observation(ORACLE).ending is Ending.OK


def test_whoever_finds_its_subject_taken_runs_the_oracle_meanwhile(folder, legs, monkeypatch):
    known, held, oracle_runs = legs(), threading.Event(), threading.Event()
    real = Runner._attempts

    def attempts(self, leg):
        if leg.digest == ORACLE:
            oracle_runs.set()
        return real(self, leg)

    def helper():
        with folder.claim(known[SUBJECT]):
            held.set()
            # Without the oracle under way this would never be let go.
            assert oracle_runs.wait(timeout=60)
            folder.write_observation(real(Runner(folder), known[SUBJECT]))

    monkeypatch.setattr(Runner, "_attempts", attempts)
    thread = threading.Thread(target=helper)
    thread.start()
    assert held.wait(timeout=60)
    oracle, subject, _ = Runner(folder).ensure_cell(cell(), known)
    thread.join()
    assert (oracle.ending, subject.ending) == (Ending.OK, Ending.OK)
