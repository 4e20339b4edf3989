# SPDX-License-Identifier: Apache-2.0
"""How the harness's own work grows with the number of cells: planning, archiving, judging, reporting.

The legs are the fake engine's, which answers at once; a few of them are run and stand for all, because what an engine
costs is not the harness's. Times are CPU seconds of this process, so that other work on the machine does not count.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from rich.box import SIMPLE_HEAD
from rich.table import Table

from harness import wire
from harness.archive import RunFolder
from harness.compare import judge
from harness.garbage import collector_at_rest
from harness.plan import make_plan
from harness.records import DecodeSpec, Model, Observation, Plan, PromptSpec, Scenario, SubjectSpec, Verdict
from harness.report import RunView
from harness.report.markdown import render_markdown
from harness.report.text import render_text
from harness.worker import Stages, run_leg

Row = Mapping[str, Any]
Answer = TypeVar("Answer")

SIZES = (10, 100, 1_000, 10_000)
STEPS = ("plan", "archive", "judge", "report")

#: Cells of one made-up scenario at most, and values of its ``seed`` axis.
CELLS_PER_SCENARIO = 100

#: What a cell may cost in each step at the largest size, milliseconds of CPU time.
LIMIT_MS = 1.0
#: How many times dearer a cell may be among ten times as many before growth is not called linear.
LINEAR = 2.0


def run(sizes: Sequence[int] = SIZES) -> list[dict[str, Any]]:
    """One row per size: ``cells`` and, for each of ``STEPS``, ``<step>_ms`` a cell."""
    return [measure(size) for size in sizes]


def measure(cells: int) -> dict[str, Any]:
    """One row; in a temporary folder."""
    seconds: dict[str, float] = {}

    def timed(step: str, call: Callable[[], Answer]) -> Answer:
        started = time.process_time()
        answer = call()
        seconds[step] = time.process_time() - started
        return answer

    with tempfile.TemporaryDirectory(prefix="kvparity-growth-") as name:
        folder = RunFolder(Path(name) / "run")
        folder.prepare()
        plan = timed("plan", lambda: plan_of(cells))
        observed = _observations(plan, Path(name))
        stored = timed("archive", lambda: _archive(folder, plan, observed))
        verdicts = timed("judge", lambda: _judge(plan, stored))
        view = RunView(
            plan=plan, verdicts=tuple(verdicts), observations=stored, folder="growth", platform="fake engine",
            versions={}, seconds=0.0,
        )
        timed("report", lambda: _report(folder, view))
    return {"cells": cells, **{f"{step}_ms": 1000 * seconds[step] / cells for step in STEPS}}


def plan_of(cells: int) -> Plan:
    """A plan of that many cells of the fake engine, no leg shared."""
    model = Model(
        alias="tiny", path="tiny", source="stand-in", digest="d" * 8, num_layers=2, num_kv_heads=2, head_dim=16,
        vocab_size=512,
    )
    whole, rest = divmod(cells, CELLS_PER_SCENARIO)
    counts = [CELLS_PER_SCENARIO] * whole + [rest] * (rest > 0)
    scenarios = [_scenario(f"growth{number}", model, count) for number, count in enumerate(counts)]
    return make_plan(scenarios, platform="cpu", find_model=lambda _: model, identity={}, fake={})


def _scenario(name: str, model: Model, cells: int) -> Scenario:
    return Scenario(
        name=name, path=f"scenarios/{name}.yaml", platforms=("cpu",), model=model.alias,
        subject=SubjectSpec(connector="embedded"),
        axes={
            "layout": ("LBHNC",), "backend": ("REFERENCE",), "batch_invariant": (True,),
            "seed": tuple(range(cells)),
        },
        axis_lines={}, reference="auto", prompts=PromptSpec(prefix_tokens=32),
        decode=DecodeSpec(max_tokens=4, logprobs=2),
        # A variable of its own gives each scenario legs of its own that answer alike.
        engine={}, env={"KVPARITY_GROWTH": name}, overrides=(), expect=(), digest=name,
    )


def _observations(plan: Plan, folder: Path) -> list[Observation]:
    """An observation of every leg; those of the first scenario are run, the others' are theirs under other names."""
    answers: dict[tuple[str, int], Observation] = {}
    found = []
    with (folder / "stages").open("wb") as stages:
        for leg in plan.legs:
            key = (leg.role.value, leg.prompts.seed)
            if key not in answers:
                answers[key] = run_leg(leg, Stages(stages.fileno()), folder / "log")
            found.append(replace(answers[key], leg=leg.digest))
    return found


def _archive(folder: RunFolder, plan: Plan, observed: Sequence[Observation]) -> dict[str, Observation]:
    folder.write_plan(plan)
    for observation in observed:
        folder.write_observation(observation)
    return folder.read_observations(folder.read_plan())


def _judge(plan: Plan, observations: Mapping[str, Observation]) -> list[Verdict]:
    """As ``Run.judge_stored`` does."""
    legs = {leg.digest: leg for leg in plan.legs}
    with collector_at_rest():
        return [judge(cell, legs, observations[cell.oracle], observations[cell.subject]) for cell in plan.cells]


def _report(folder: RunFolder, view: RunView) -> None:
    folder.write_verdicts(view.verdicts)
    wire.write_text(folder.path / "frame.csv", view.frame.to_csv(index=False))
    wire.write_text(folder.path / "report.md", render_markdown(view))
    render_text(view, width=120, color=False)


def short(rows: Sequence[Row]) -> list[str]:
    """One sentence for each step that is too dear at the largest size, or grows faster than the number of cells."""
    said = []
    last = rows[-1]
    for step in STEPS:
        if last[f"{step}_ms"] > LIMIT_MS:
            said.append(f"{step}: {last[f'{step}_ms']:.2f} ms a cell at {last['cells']} cells, limit {LIMIT_MS:.2f}")
    for before, after in zip(rows, rows[1:], strict=False):
        for step in STEPS:
            ratio = after[f"{step}_ms"] / max(before[f"{step}_ms"], 1e-9)
            if before["cells"] >= 100 and ratio > LINEAR:
                said.append(f"{step}: {ratio:.1f} times as dear a cell at {after['cells']} cells, limit {LINEAR:.1f}")
    return said


def table(rows: Sequence[Row]) -> Table:
    """The rows for a terminal."""
    shown = Table(title="Growth, fake engine: milliseconds of CPU time a cell", box=SIMPLE_HEAD)
    for name in ("cells", *STEPS):
        shown.add_column(name, justify="right")
    for row in rows:
        shown.add_row(f"{row['cells']:,}", *(f"{row[f'{step}_ms']:.2f}" for step in STEPS))
    return shown
