# SPDX-License-Identifier: Apache-2.0
"""A leg that goes on in a new process: its parts, what bridges them, and one observation of both."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.archive import RunFolder
from harness.errors import LegError
from harness.parts import joined, parts
from harness.plan import make_plan
from harness.records import Ending, Phase, Role
from harness.runner import Runner
from harness.scenario import read_scenario
from tests.unit.handmade import dead, make_observation, make_resolved

SUBJECT = (Phase.POPULATE, Phase.LOCAL_HIT, Phase.RESTORE, Phase.RESTORE_AGAIN)


def test_a_leg_is_cut_before_the_phase_that_it_names(make_leg):
    whole = make_leg()
    assert parts(whole) == (whole,)
    first, second = parts(replace(whole, restarts_before=Phase.RESTORE))
    assert (first.phases, second.phases) == (SUBJECT[:2], SUBJECT[2:])
    assert first.digest == second.digest == whole.digest


@pytest.mark.parametrize("before", [Phase.POPULATE, Phase.RECOMPUTE])
def test_a_restart_with_nothing_before_it_is_none(make_leg, before):
    with pytest.raises(LegError, match=f"cannot restart before {before} after an earlier phase: populate, "):
        parts(make_leg(restarts_before=before))


def test_both_processes_leave_one_observation_and_memory_does_not_bridge_them(tmp_path, make_leg):
    """The fake engine's store is in its process: nothing to restore, until the second process itself has stored."""
    folder = RunFolder(tmp_path / "run")
    folder.prepare()
    observation = Runner(folder).ensure(make_leg(restarts_before=Phase.RESTORE))
    assert observation.ending is Ending.OK
    assert tuple(record.phase for record in observation.phases) == SUBJECT
    assert [record.external_tokens for record in observation.phases] == [0, 0, 0, 64]
    assert "drain" in observation.seconds
    assert not folder.store_path("ab" * 8).exists()


def test_a_first_process_that_dies_is_the_end(tmp_path, make_leg):
    folder = RunFolder(tmp_path / "run")
    folder.prepare()
    leg = make_leg(restarts_before=Phase.RESTORE, fake={"stages": {"local_hit": "raise"}})
    observation = Runner(folder).ensure(leg)
    assert (observation.ending, observation.failure.stage) == (Ending.CRASHED, "local_hit")
    assert [record.phase for record in observation.phases] == [Phase.POPULATE]


def test_a_second_process_that_dies_keeps_what_the_first_saw():
    first = make_observation(Role.SUBJECT)
    first = replace(first, phases=first.phases[:2], seconds={"load": 2.0, "populate": 1.0}, peak_bytes=900)
    second = dead(Role.SUBJECT, Ending.CRASHED, "no store", stage="load")
    whole = joined(first, replace(second, seconds={"load": 3.0}, peak_bytes=100))
    assert (whole.ending, whole.failure.message) == (Ending.CRASHED, "no store")
    assert (whole.phases, whole.seconds, whole.peak_bytes) == (first.phases, {"load": 5.0, "populate": 1.0}, 900)


def test_engines_that_resolve_differently_are_no_restart():
    first = make_observation(Role.SUBJECT)
    second = replace(first, resolved=make_resolved(Role.SUBJECT, threads=2))
    whole = joined(first, second)
    assert (whole.ending, whole.failure.kind) == (Ending.CRASHED, "ResolvedDifferently")
    assert joined(first, first).ending is Ending.OK


@pytest.mark.parametrize(("axis", "before", "server"), [
    ("restore: [new_engine]", Phase.RESTORE, None), ("restore: [restarted_server]", None, Phase.RESTORE),
    ("seed: [0]", None, None),
])
def test_the_axis_reaches_the_subject_alone(tmp_path, model, axis, before, server):
    path = tmp_path / "x.yaml"
    path.write_text("name: x\nmodel: tiny\nsubject: mooncake_store\n"
                    f"axes: {{layout: [LBHNC], backend: [REFERENCE], batch_invariant: [false], {axis}}}\n")
    plan = make_plan([read_scenario(path)], platform="cpu", find_model=lambda name: model, identity={})
    (cell,) = plan.cells
    assert (plan.leg(cell.subject).restarts_before, plan.leg(cell.oracle).restarts_before) == (before, None)
    servers = [plan.leg(digest).server_restarts_before for digest in (cell.subject, cell.oracle)]
    assert servers == [server, None]
