# SPDX-License-Identifier: Apache-2.0
"""A real engine in several processes (front end, engine core, worker) that loses one of them, or has one stopped."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from harness import host
from harness.models import find_model
from harness.plan import make_plan
from harness.records import DEADLINES_S, Ending, Leg
from harness.scenario import read_scenario
from harness.watch import Watch

# A minute and a half on idle cores, and a hang of each case would cost its whole deadline.
pytestmark = [pytest.mark.engine, pytest.mark.slow]

ROOT = Path(__file__).parents[2]

#: How the processes that ``multiprocessing`` spawns are called, and how vLLM calls them once they run.
ENGINES_OWN = ("multiprocessing.spawn", "VLLM::")

CORE, WORKER = 1, 2


@pytest.fixture(scope="module")
def leg() -> Leg:
    """A subject of the tiny model, with a process each for front end, engine core and worker.

    It decodes for long enough to be struck in the middle of a phase.
    """
    scenario = read_scenario(ROOT / "scenarios" / "smoke.yaml")
    plan = make_plan([scenario], platform="cpu", find_model=find_model, identity=host.identity())
    cell = next(cell for cell in plan.cells if cell.id == "LBHNC-REFERENCE-bi0")
    made = plan.leg(cell.subject)
    return replace(
        made,
        env={**made.env, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"},
        engine={**made.engine, "distributed_executor_backend": "mp"},
        decode=replace(made.decode, max_tokens=100),
    )


@pytest.fixture
def when(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int, int], None]:
    """Sends a signal to one of the leg's processes once the leg is in a stage and that process is there."""

    def prepare(stage: str, depth: int, number: int) -> None:
        real = Watch._enter

        def entered(self: Watch, name: str) -> None:
            real(self, name)
            if name == stage:
                threading.Thread(target=_strike, args=(self._process.pid, depth, number), daemon=True).start()

        monkeypatch.setattr(Watch, "_enter", entered)

    return prepare


def _strike(pid: int, depth: int, number: int) -> None:
    tick = threading.Event()
    while psutil.pid_exists(pid):
        with contextlib.suppress(psutil.Error):
            chain = [psutil.Process(pid)]
            for _ in range(depth):
                chain += [one for one in chain[-1].children() if _is_engines(one)][:1]
            if len(chain) > depth:
                os.kill(chain[depth].pid, number)
                return
        tick.wait(0.02)


def _is_engines(process: psutil.Process) -> bool:
    """No resource tracker, and no fork that is about to become one."""
    command = " ".join(process.cmdline())
    return any(words in command for words in ENGINES_OWN)


def test_a_killed_engine_core_while_it_loads_is_a_crash_and_no_refusal(runner, leg, when):
    when("load", CORE, signal.SIGKILL)
    observation = runner.ensure(replace(leg, digest="1" * 16))
    assert (observation.ending, observation.failure.stage) == (Ending.CRASHED, "load")
    assert (observation.failure.kind, observation.attempts) == ("SIGKILL", 1)


def test_a_killed_worker_while_it_restores_is_a_crash(runner, leg, when):
    when("restore", WORKER, signal.SIGKILL)
    observation = runner.ensure(replace(leg, digest="2" * 16))
    assert (observation.ending, observation.failure.stage) == (Ending.CRASHED, "restore")
    assert (observation.failure.kind, observation.attempts) == ("EngineDeadError", 1)
    assert [record.phase.value for record in observation.phases] == ["populate", "local_hit"]


@pytest.mark.parametrize("depth", [CORE, WORKER], ids=["core", "worker"])
def test_a_stopped_process_is_a_hang_with_the_stacks_of_all(runner, runs, leg, when, depth):
    when("local_hit", depth, signal.SIGSTOP)
    asked = replace(leg, digest=f"{depth + 2}" * 16, deadlines={**DEADLINES_S, "local_hit": 5.0})
    observation = runner.ensure(asked)
    assert (observation.ending, observation.failure.stage) == (Ending.HUNG, "local_hit")
    log = runs.log_path(asked.digest).read_text(errors="replace")
    sections = {section.split("\n", 1)[0]: section for section in log.split("--- stacks of ")[1:]}
    for function in ("harness/leg.py", "run_busy_loop", "worker_busy_loop"):
        assert [name for name, section in sections.items() if function in section], sections
    stopped = [section for name, section in sections.items() if "(stopped)" in name]
    assert len(stopped) == 1 and ("run_busy_loop", "worker_busy_loop")[depth - 1] in stopped[0]
