# SPDX-License-Identifier: Apache-2.0
"""A real engine in several processes (front end, engine core, worker) that loses one of them, or has one stopped."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness import host
from harness.models import find_model
from harness.plan import make_plan
from harness.records import DEADLINES_S, Ending, Leg
from harness.scenario import read_scenario

# Two minutes on idle cores, and a hang of each case would cost its whole deadline.
pytestmark = [pytest.mark.engine, pytest.mark.slow]

ROOT = Path(__file__).parents[2]

#: What strikes, from inside the leg.
STRIKING = str(Path(__file__).parent / "striking")

#: Depth below the leg's own process, which is the front end.
CORE, WORKER = 1, 2

#: Steps of the engine: none yet, and in the middle of decoding.
AT_ONCE, BEGIN, MIDWAY = -1, 0, 20


@pytest.fixture(scope="module")
def leg(tmp_path_factory: pytest.TempPathFactory) -> Leg:
    """A subject of the tiny model, with a process each for front end, engine core and worker, that can be struck."""
    scenario = read_scenario(ROOT / "scenarios" / "smoke.yaml")
    plan = make_plan([scenario], platform="cpu", find_model=find_model, identity=host.identity())
    cell = next(cell for cell in plan.cells if cell.id == "LBHNC-REFERENCE-bi0")
    made = plan.leg(cell.subject)
    return replace(
        made,
        env={
            **made.env, "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, (STRIKING, os.environ.get("PYTHONPATH")))),
            "KVPARITY_STRIKE": str(tmp_path_factory.mktemp("strike") / "order.json"),
        },
        engine={**made.engine, "distributed_executor_backend": "mp"},
        decode=replace(made.decode, max_tokens=100),
    )


@pytest.fixture
def when(leg: Leg) -> Callable[[str, int, int, int], None]:
    """Orders the next leg to send a signal to one of its processes: stage, depth, number, step within the stage."""

    def prepare(stage: str, depth: int, number: int, step: int) -> None:
        Path(leg.env["KVPARITY_STRIKE"]).write_text(json.dumps([stage, depth, int(number), step]))

    return prepare


def test_a_killed_engine_core_while_it_loads_is_a_crash_and_no_refusal(runner, leg, when):
    when("load", CORE, signal.SIGKILL, AT_ONCE)
    observation = runner.ensure(replace(leg, digest="1" * 16))
    assert (observation.ending, observation.failure.stage) == (Ending.CRASHED, "load")
    assert (observation.failure.kind, observation.attempts) == ("SIGKILL", 1)
    assert observation.failure.message == "engine core died of SIGKILL"


@pytest.mark.parametrize("step", [BEGIN, MIDWAY], ids=["begin", "midway"])
def test_a_killed_worker_while_it_restores_is_a_crash(runner, leg, when, step):
    when("restore", WORKER, signal.SIGKILL, step)
    observation = runner.ensure(replace(leg, digest=f"{step:016}"))
    assert (observation.ending, observation.failure.stage) == (Ending.CRASHED, "restore")
    assert (observation.failure.kind, observation.attempts) == ("EngineDeadError", 1)
    # Whether vLLM has seen an exit code when it says so is a matter of microseconds.
    assert observation.failure.message in ("worker VllmWorker-0 died", "worker VllmWorker-0 died of SIGKILL")
    assert [record.phase.value for record in observation.phases] == ["populate", "local_hit"]


@pytest.mark.parametrize("depth", [CORE, WORKER], ids=["core", "worker"])
def test_a_stopped_process_is_a_hang_with_the_stacks_of_all(runner, runs, leg, when, depth):
    when("local_hit", depth, signal.SIGSTOP, MIDWAY)
    asked = replace(leg, digest=f"{depth + 2}" * 16, deadlines={**DEADLINES_S, "local_hit": 5.0})
    observation = runner.ensure(asked)
    assert (observation.ending, observation.failure.stage) == (Ending.HUNG, "local_hit")
    log = runs.log_path(asked.digest).read_text(errors="replace")
    sections = {section.split("\n", 1)[0]: section for section in log.split("--- stacks of ")[1:]}
    for function in ("harness/leg.py", "run_busy_loop", "worker_busy_loop"):
        assert [name for name, section in sections.items() if function in section], sections
    stopped = [section for name, section in sections.items() if "(stopped)" in name]
    assert len(stopped) == 1 and ("run_busy_loop", "worker_busy_loop")[depth - 1] in stopped[0]
