# SPDX-License-Identifier: Apache-2.0
"""A leg of two real engines that loses the one that prefills, or has it stopped: in words, in time, nothing left."""

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
from harness.connectors import ADAPTERS
from harness.models import find_model
from harness.plan import make_plan
from harness.records import DEADLINES_S, Ending, Leg, Phase
from harness.scenario import read_scenario
from harness.watch import Watch

pytestmark = [
    pytest.mark.engine, pytest.mark.slow,
    pytest.mark.skipif(ADAPTERS["nixl"].missing() is not None, reason=f"{ADAPTERS['nixl'].missing()}"),
]

ROOT = Path(__file__).parents[2]

#: How the process of the engine that prefills is called.
PREFILL = "harness.engines.apart"


@pytest.fixture(scope="module")
def leg() -> Leg:
    """A subject that decodes for long enough to be struck in the middle of a restore."""
    scenario = read_scenario(ROOT / "scenarios" / "connectors_pairs.yaml")
    plan = make_plan([scenario], platform="cpu", find_model=find_model, identity=host.identity())
    made = plan.leg(plan.cells[0].subject)
    return replace(made, decode=replace(made.decode, max_tokens=100))


@pytest.fixture
def when(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], None]:
    """Sends a signal to the engine that prefills once the leg is in a stage and that process is there."""

    def prepare(stage: str, number: int) -> None:
        real = Watch._enter

        def entered(self: Watch, name: str) -> None:
            real(self, name)
            if name == stage:
                threading.Thread(target=_strike, args=(self._process.pid, number), daemon=True).start()

        monkeypatch.setattr(Watch, "_enter", entered)

    return prepare


def _strike(pid: int, number: int) -> None:
    tick = threading.Event()
    while psutil.pid_exists(pid):
        with contextlib.suppress(psutil.Error):
            parent = psutil.Process(pid)
            for process in parent.children():
                # A fork is called as its parent is.
                if PREFILL in process.cmdline() or process.cmdline() == parent.cmdline():
                    os.kill(process.pid, number)
                    return
        tick.wait(0.02)


@pytest.mark.parametrize(("stage", "digest", "phases"), [
    ("load", "a" * 16, []), ("populate", "b" * 16, []), ("restore", "c" * 16, [Phase.POPULATE, Phase.LOCAL_HIT]),
])
def test_a_killed_prefill_engine_is_a_crash_that_names_it(runner, leg, when, stage, digest, phases):
    when(stage, signal.SIGKILL)
    observation = runner.ensure(replace(leg, digest=digest))
    assert (observation.ending, observation.failure.stage) == (Ending.CRASHED, stage)
    assert observation.failure.message == "the prefill engine died of SIGKILL"
    assert [record.phase for record in observation.phases] == phases
    assert observation.attempts == 1


@pytest.mark.parametrize(("stage", "digest"), [("load", "d" * 16), ("restore", "e" * 16)])
def test_a_stopped_prefill_engine_is_a_hang_with_the_stacks_of_both(runner, runs, leg, when, stage, digest):
    when(stage, signal.SIGSTOP)
    asked = replace(leg, digest=digest, deadlines={**DEADLINES_S, stage: 20.0})
    observation = runner.ensure(asked)
    assert (observation.ending, observation.failure.stage) == (Ending.HUNG, stage)
    log = runs.log_path(asked.digest).read_text(errors="replace")
    sections = {section.split("\n", 1)[0]: section for section in log.split("--- stacks of ")[1:]}
    stopped = [section for name, section in sections.items() if "(stopped)" in name]
    # Woken to write them, it goes on meanwhile: how far down its main thread's stack is seen is chance.
    assert len(stopped) == 1 and "most recent call first" in stopped[0]
    assert [name for name, section in sections.items() if "harness/engines/prefill_decode.py" in section]
