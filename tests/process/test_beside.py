# SPDX-License-Identifier: Apache-2.0
"""An oracle beside its subject: both at once where there is room, called off when the subject is refused."""

from __future__ import annotations

import threading

import pytest

from harness import device, footprint
from harness.records import Ending, Role
from harness.runner import Runner

ORACLE, SUBJECT = "0" * 16, "1" * 16


@pytest.fixture
def pair(make_leg):
    """Makes the two legs of a cell; what to plant in each."""

    def made(oracle=None, subject=None):
        return (
            make_leg(digest=ORACLE, role=Role.ORACLE, fake=oracle or {}),
            make_leg(digest=SUBJECT, fake=subject or {}),
        )

    return made


@pytest.fixture
def paired(folder):
    runner = Runner(folder, retry_after_s=0.0, pairs=True)
    yield runner
    runner.close()


def test_both_legs_run_at_the_same_time(paired, pair, monkeypatch):
    both = threading.Barrier(2)
    real = Runner._run_served

    def met(self, leg, lease):
        # Each waits here for the other one; alone it would break the barrier.
        both.wait(timeout=60)
        return real(self, leg, lease)

    monkeypatch.setattr(Runner, "_run_served", met)
    oracle, subject = paired.ensure_pair(*pair())
    assert (oracle.leg, oracle.ending) == (ORACLE, Ending.OK)
    assert (subject.leg, subject.ending) == (SUBJECT, Ending.OK)


def test_side_by_side_they_see_what_they_see_one_after_the_other(paired, folder, pair, tmp_path):
    beside = paired.ensure_pair(*pair())
    for digest in (ORACLE, SUBJECT):
        folder.observation_path(digest).unlink()
    after = Runner(folder).ensure_pair(*pair())
    for one, other in zip(beside, after, strict=True):
        assert [(phase.phase, phase.prompts) for phase in one.phases] == [
            (phase.phase, phase.prompts) for phase in other.phases
        ]


@pytest.mark.parametrize("planted", ["refuse", "raise", "sigkill"])
def test_an_oracle_is_called_off_when_its_subject_does_not_come_up(paired, folder, pair, traces, planted):
    oracle, subject = paired.ensure_pair(*pair(
        oracle={"stages": {"recompute": "hang"}}, subject={"stages": {"load": planted}},
    ))
    assert oracle is None and subject.ending in (Ending.REFUSED, Ending.CRASHED)
    assert folder.read_observation(ORACLE) is None
    assert not footprint.ACTIVE and len(traces) == 2
    # Whoever needs it later runs it.
    healthy, _ = pair()
    assert Runner(folder).ensure(healthy).ending is Ending.OK


def test_a_subject_that_is_not_likely_to_come_up_runs_alone(paired, folder, pair, traces):
    oracle, subject = paired.ensure_pair(*pair(subject={"stages": {"load": "refuse"}}), likely=False)
    assert (oracle, subject.ending) == (None, Ending.REFUSED)
    assert len(traces) == 1


def test_an_interrupt_of_the_subject_ends_the_oracle(paired, folder, pair, monkeypatch):
    started = threading.Event()
    real = Runner._run_part

    def part(self, leg, *rest):
        if leg.digest == SUBJECT:
            assert started.wait(timeout=60)
            raise KeyboardInterrupt
        started.set()
        return real(self, leg, *rest)

    monkeypatch.setattr(Runner, "_run_part", part)
    with pytest.raises(KeyboardInterrupt):
        paired.ensure_pair(*pair(oracle={"stages": {"recompute": "hang"}}))
    assert not footprint.ACTIVE
    assert folder.read_observation(ORACLE) is None


def test_an_interrupt_while_only_the_oracle_is_waited_for_ends_it(paired, folder, pair, monkeypatch):
    """The subject is done, and the main thread waits in ``join``."""
    real = threading.Thread.join
    waits = iter([True])

    def join(self, timeout=None):
        if self.name == "beside" and next(waits, False):
            raise KeyboardInterrupt
        real(self, timeout)

    monkeypatch.setattr(threading.Thread, "join", join)
    with pytest.raises(KeyboardInterrupt):
        paired.ensure_pair(*pair(oracle={"stages": {"recompute": "hang"}}))
    assert not footprint.ACTIVE
    assert folder.read_observation(ORACLE) is None
    assert folder.read_observation(SUBJECT).ending is Ending.OK


def test_an_oracle_that_another_run_has_is_not_waited_for_once_it_is_called_off(paired, folder, pair, monkeypatch):
    waits = threading.Event()
    real_claim, real_served = type(folder).claim, Runner._run_served

    def claim(self, leg, *given_up):
        if leg.digest == ORACLE:
            waits.set()
        return real_claim(self, leg, *given_up)

    def served(self, leg, lease):
        assert leg.digest == SUBJECT and waits.wait(timeout=60)
        return real_served(self, leg, lease)

    monkeypatch.setattr(type(folder), "claim", claim)
    monkeypatch.setattr(Runner, "_run_served", served)
    oracle, subject = pair(subject={"stages": {"load": "refuse"}})
    with folder.claim_free(oracle) as held:
        assert held
        answers = paired.ensure_pair(oracle, subject)
    assert (answers[0], answers[1].ending) == (None, Ending.REFUSED)
    assert folder.read_observation(ORACLE) is None


@pytest.mark.parametrize(
    ("slots", "workers", "room"), [(1, None, False), (2, None, True), (2, "2", False), (4, "2", True)]
)
def test_room_is_for_two_legs_in_each_process_that_runs_cells(monkeypatch, slots, workers, room):
    monkeypatch.setattr(device, "slots", lambda: slots)
    monkeypatch.delenv("PYTEST_XDIST_WORKER_COUNT", raising=False)
    if workers is not None:
        monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", workers)
    assert device.room_for_pairs() is room
