# SPDX-License-Identifier: Apache-2.0
"""Every way in which a leg's child can end leaves an observation, and leaves no process behind.

The fake engine goes through the same child process, the same files and the same runner as a real one.
"""

from __future__ import annotations

import os
import tracemalloc

import pytest

from harness import endings
from harness import runner as runner_module
from harness import watch as watch_module
from harness.device import Lease
from harness.records import Ending, Phase, Role
from harness.runner import Runner, child_environment

STAGES = ["import", "load", "populate", "restore.reset", "restore"]


def test_a_whole_leg_leaves_its_own_observation(folder, make_leg):
    observation = Runner(folder).ensure(make_leg())
    assert observation.ending is Ending.OK
    assert [record.phase for record in observation.phases] == [
        Phase.POPULATE, Phase.LOCAL_HIT, Phase.RESTORE, Phase.RESTORE_AGAIN,
    ]
    populate, local, restore, again = observation.phases
    assert (populate.local_tokens, populate.external_tokens) == (0, 0)
    assert (local.local_tokens, local.external_tokens) == (64, 0)
    assert (restore.local_tokens, restore.external_tokens, restore.delivered_tokens) == (0, 64, 64)
    assert restore.reset_ok is True and restore.zeroed_bytes > 0 and restore.nonzero_after_zeroing == 0
    assert [prompt.steps for prompt in restore.prompts] == [prompt.steps for prompt in populate.prompts]
    assert {prompt.blocks for prompt in restore.prompts}.isdisjoint(prompt.blocks for prompt in populate.prompts)
    assert again.prompts[0].steps == restore.prompts[0].steps
    assert set(observation.seconds) >= {"spawn", "import", "load", "populate", "restore", "close"}
    assert observation.peak_bytes > 2**20


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(
    ("planted", "ending", "kind"),
    [
        ("raise", Ending.CRASHED, "RuntimeError"),
        ("memory", Ending.OUT_OF_MEMORY, "MemoryError"),
        ("sigkill", Ending.CRASHED, "SIGKILL"),
        ("sigsegv", Ending.CRASHED, "SIGSEGV"),
        ("exit0", Ending.NO_OBSERVATION, "exit 0"),
        ("sysexit", Ending.CRASHED, "SystemExit"),
    ],
)
def test_each_ending_at_each_stage(folder, make_leg, stage, planted, ending, kind):
    observation = Runner(folder, retry_after_s=0.0).ensure(make_leg(fake={"stages": {stage: planted}}))
    assert (observation.ending, observation.failure.kind, observation.failure.stage) == (ending, kind, stage)
    assert observation.leg == "ab" * 8


def test_a_refusal_is_told_from_a_crash_by_when_it_comes(folder, make_leg):
    early = Runner(folder).ensure(make_leg(digest="1" * 16, fake={"stages": {"load": "refuse"}}))
    late = Runner(folder).ensure(make_leg(digest="2" * 16, fake={"stages": {"restore": "refuse"}}))
    assert (early.ending, late.ending) == (Ending.REFUSED, Ending.CRASHED)
    assert "does not satisfy every supported set" in early.failure.message


def test_finished_phases_of_a_leg_that_dies_later_are_kept(folder, make_leg):
    observation = Runner(folder).ensure(make_leg(fake={"stages": {"restore": "raise"}}))
    assert [record.phase for record in observation.phases] == [Phase.POPULATE, Phase.LOCAL_HIT]
    assert "planted crash" in observation.failure.message
    assert any("planted crash" in line for line in [*observation.log_tail, observation.failure.trace])


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("planted", ["hang", "sigstop"])
def test_a_hang_is_ended_at_its_deadline_with_its_stacks(folder, make_leg, stage, planted):
    """Also of a child that is stopped: it is woken to write them."""
    deadlines = dict.fromkeys(["import", "load", "prefill", "restore", "reset"], 0.2)
    leg = make_leg(deadlines=deadlines, fake={"stages": {stage: planted}})
    # A slow machine must not make another stage late.
    patient = {name: 60.0 for name in ("import", "load", "populate", "local_hit", "restore") if name != stage}
    observation = Runner(folder, deadlines={**patient, "spawn": 60.0}).ensure(leg)
    assert (observation.ending, observation.failure.stage) == (Ending.HUNG, stage)
    text = "\n".join(observation.log_tail)
    assert "--- stacks of" in text and "end_if_planted" in text and "harness/worker.py" in text
    assert f"stage {stage} outlived its deadline of {'0.4' if 'reset' in stage else '0.2'} s" in (
        observation.failure.message
    )


def test_a_failed_reset_ends_the_phases_and_is_written_down(folder, make_leg):
    observation = Runner(folder).ensure(make_leg(fake={"phases": {"restore": {"reset_ok": False}}}))
    assert observation.ending is Ending.OK
    assert [record.phase for record in observation.phases][-1] is Phase.RESTORE
    assert observation.phases[-1].reset_ok is False and observation.phases[-1].prompts == ()


def test_a_leg_runs_once_and_is_read_afterwards(folder, make_leg, monkeypatch):
    first = Runner(folder).ensure(make_leg())

    def refuse(*_, **__):
        raise AssertionError("spawned again")

    monkeypatch.setattr(runner_module, "_spawn", refuse)
    assert Runner(folder).ensure(make_leg()) == first


def test_half_an_observation_makes_the_leg_run_again(folder, make_leg):
    whole = Runner(folder).ensure(make_leg())
    path = folder.observation_path(whole.leg)
    path.write_text(path.read_text()[:100])
    assert Runner(folder).ensure(make_leg()).ending is Ending.OK


def test_an_observation_of_another_leg_is_not_believed(folder, make_leg, monkeypatch):
    real = runner_module.wire.read

    def swapped(kind, path):
        record = real(kind, path)
        return type(record)(**{**vars(record), "leg": "ff" * 8}) if path.name.endswith(".child.json") else record

    monkeypatch.setattr(runner_module.wire, "read", swapped)
    observation = Runner(folder).ensure(make_leg())
    assert observation.ending is Ending.NO_OBSERVATION
    assert "ffffffffffffffff" in observation.failure.message


def test_the_log_is_read_from_its_end_only(folder, tmp_path):
    log = tmp_path / "long.log"
    with log.open("wb") as stream:
        stream.write(b"x" * 10_000_000 + b"\n" + b"\n".join(b"line %d" % n for n in range(100)))
    tail = endings.tail(log)
    assert tail == tuple(f"line {n}" for n in range(60, 100))


def test_a_whole_observation_counts_whatever_the_exit_code_says(folder, make_leg):
    observation = Runner(folder).ensure(make_leg(fake={"stages": {"close": "lie"}}))
    assert observation.ending is Ending.OK and len(observation.phases) == 4


HALF = {"nothing": "", "half": '{"schema": 1, "leg": "abab', "not an observation": '{"a": 1}', "binary": "\x00\x01"}


@pytest.mark.parametrize("text", HALF.values(), ids=HALF)
def test_a_broken_result_file_is_no_observation(folder, make_leg, monkeypatch, text):
    """The child dies in its last stage, and something else lies where its result should be."""
    real = runner_module.Watch.until_end

    def broken(self) -> None:
        real(self)
        self._result.write_text(text)

    monkeypatch.setattr(runner_module.Watch, "until_end", broken)
    observation = Runner(folder).ensure(make_leg(fake={"stages": {"close": "exit0"}}))
    assert (observation.ending, observation.failure.stage) == (Ending.NO_OBSERVATION, "close")
    assert "left no observation in stage close" in observation.failure.message


def test_a_child_that_only_does_not_end_is_believed(folder, make_leg, monkeypatch):
    """Its last act is done: the deadline of ``close`` ends the process, not the answer."""
    real = runner_module.Watch.until_end

    def late(self) -> None:
        real(self)
        self._give_up()

    monkeypatch.setattr(runner_module.Watch, "until_end", late)
    assert Runner(folder).ensure(make_leg()).ending is Ending.OK


def test_a_log_of_100_megabytes_is_read_from_its_end_and_cut(folder, make_leg):
    tracemalloc.start()
    observation = Runner(folder).ensure(make_leg(fake={"stages": {"restore": "flood"}}))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (observation.ending, observation.failure.message) == (Ending.CRASHED, "planted crash after a flood")
    assert len(observation.log_tail) == endings.LOG_TAIL_LINES
    assert peak < 16 * 2**20
    log = folder.log_path(observation.leg)
    assert log.stat().st_size < 2 * endings.LOG_KEPT_BYTES + 100
    assert b"bytes cut here" in log.read_bytes()


def test_memory_that_a_limit_ends_is_out_of_memory(folder, make_leg):
    observation = Runner(folder).ensure(make_leg(fake={"stages": {"restore": "exhaust"}}))
    assert (observation.ending, observation.failure.kind) == (Ending.OUT_OF_MEMORY, "MemoryError")
    assert observation.attempts == 1, "it had started: a second attempt could hide something"


def test_a_child_that_the_kernel_killed_for_memory_is_out_of_memory(folder, make_leg, monkeypatch):
    kills = iter([7, 8])
    monkeypatch.setattr(watch_module, "memory_kills", lambda: next(kills))
    observation = Runner(folder).ensure(make_leg(fake={"stages": {"restore": "sigkill"}}))
    assert (observation.ending, observation.failure.kind) == (Ending.OUT_OF_MEMORY, "SIGKILL")


@pytest.mark.parametrize("planted", ["busy", "memory"])
@pytest.mark.parametrize("stage", ["import", "load"])
def test_what_the_machine_failed_at_the_start_is_tried_once_more(folder, make_leg, tmp_path, planted, stage):
    fake = {"stages": {stage: planted}, "once": str(tmp_path / "mark")}
    observation = Runner(folder, retry_after_s=0.0).ensure(make_leg(fake=fake))
    assert (observation.ending, observation.attempts) == (Ending.OK, 2)
    assert [failure.stage for failure in observation.earlier] == [stage]
    assert folder.read_observation(observation.leg) == observation
    again = Runner(folder, retry_after_s=0.0).ensure(make_leg(digest="cd" * 8, fake={"stages": {stage: planted}}))
    assert (again.attempts, len(again.earlier)) == (2, 1) and again.ending is not Ending.OK


@pytest.mark.parametrize(
    ("stage", "planted"),
    [("load", "raise"), ("load", "refuse"), ("load", "sigkill"), ("load", "exit0"), ("restore", "busy"),
     ("restore", "memory")],
)
def test_no_other_ending_is_tried_again(folder, make_leg, tmp_path, stage, planted):
    fake = {"stages": {stage: planted}, "once": str(tmp_path / "mark")}
    observation = Runner(folder, retry_after_s=0.0).ensure(make_leg(fake=fake))
    assert observation.ending is not Ending.OK
    assert (observation.attempts, observation.earlier) == (1, ())


def test_nothing_but_the_observation_and_the_log_stays(folder, make_leg):
    Runner(folder).ensure(make_leg())
    kept = sorted(path.name for path in folder.legs.iterdir() if not path.name.endswith(".lock"))
    assert kept == [f"{'ab' * 8}.json", f"{'ab' * 8}.log"]


def test_the_childs_environment_is_the_legs(make_leg):
    outside = {
        "PATH": "/bin", "HOME": "/h", "VLLM_KV_CACHE_LAYOUT": "BHLNC", "VLLM_USE_X": "1",
        "OMP_NUM_THREADS": "9", "KVPARITY_NATIVE_GEMM": "1", "KVPARITY_SHARED_STORE": "/s", "KVPARITY_LEG": "token",
        "VLLM_CACHE_ROOT": "/c", "AITER_JIT_DIR": "/a", "SECRET_TOKEN": "kept for the child, not for the results",
    }
    leg = make_leg(env={"VLLM_KV_CACHE_LAYOUT": "LBHNC", "OMP_NUM_THREADS": "1"})
    got = child_environment(leg, Lease(device="3", environment={"HIP_VISIBLE_DEVICES": "3"}), outside)
    assert got == {
        "PATH": "/bin", "HOME": "/h", "VLLM_CACHE_ROOT": "/c", "SECRET_TOKEN": outside["SECRET_TOKEN"],
        "KVPARITY_LEG": "token", "VLLM_KV_CACHE_LAYOUT": "LBHNC", "OMP_NUM_THREADS": "1", "HIP_VISIBLE_DEVICES": "3",
    }


def test_secrets_of_the_environment_are_not_written_into_results(folder, make_leg, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "hunter2-very-secret")
    monkeypatch.setenv("VLLM_API_KEY", "hunter2-very-secret")
    monkeypatch.setenv("AWS_SECRET", "hunter2-very-secret")
    leg = make_leg(env={"VLLM_KV_CACHE_LAYOUT": "LBHNC"})
    observation = Runner(folder).ensure(leg)
    assert observation.environment["env:VLLM_KV_CACHE_LAYOUT"] == "LBHNC"
    for path in folder.path.rglob("*"):
        if path.is_file():
            assert b"hunter2" not in path.read_bytes(), path


def test_role_of_the_oracle(folder, make_leg):
    observation = Runner(folder).ensure(make_leg(role=Role.ORACLE))
    cold, again, local = observation.phases
    assert (cold.external_tokens, cold.local_tokens, cold.delivered_tokens) == (0, 0, None)
    assert (again.local_tokens, again.reset_ok) == (0, True)
    assert local.local_tokens == 64
    assert os.path.exists(folder.log_path(observation.leg))
