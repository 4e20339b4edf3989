# SPDX-License-Identifier: Apache-2.0
"""``python -m harness bench --history``: a year of runs made of the fake engine's records, and what reading it costs.

One pair of legs is run by the fake engine in this process; its verdict and its row, under other names and with other
outcomes, make every cell of every run. The history is then read by ``python -m harness history`` in a process of its
own, whose time and memory are measured.
"""

from __future__ import annotations

import datetime
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness import wire
from harness.compare import judge
from harness.frame import to_frame
from harness.plan import make_plan
from harness.records import Model, Observation, Outcome, Plan, Verdict
from harness.scenario import read_scenarios
from harness.worker import Stages, run_leg

#: What the history must not exceed, for this many runs and cells.
RUNS, CELLS, MOST_SECONDS, MOST_MIB = 365, 400, 10.0, 1024

#: How often a cell ends otherwise than the run before, and as what.
FLIP = 0.02
OTHERWISE = (Outcome.FAIL, Outcome.VACUOUS, Outcome.UNSTABLE, Outcome.CRASHED)

SCENARIO = """\
name: year
platforms: [cpu]
model: tiny
subject: {connector: embedded}
axes: {layout: [LBHNC], backend: [REFERENCE], batch_invariant: [true]}
prompts: {count: 2, prefix_tokens: 32, tail_tokens: 8}
decode: {max_tokens: 4, logprobs: 3}
engine: {block_size: 16}
"""

MODEL = Model(
    alias="tiny", path="none", source="stand-in", digest="0" * 16, num_layers=2, num_kv_heads=2, head_dim=8,
    vocab_size=1024,
)


def show(*, as_json: bool, runs: int = RUNS, cells: int = CELLS) -> Mapping[str, Any]:
    """Make the runs, read their history, print what it took beside what it may take."""
    with tempfile.TemporaryDirectory(prefix="kvparity-history-") as folder:
        make_runs(Path(folder), runs=runs, cells=cells)
        measured = measure(Path(folder))
    told = {"runs": runs, "cells": cells, **measured, "most_seconds": MOST_SECONDS, "most_mib": MOST_MIB}
    if as_json:
        print(json.dumps(told, indent=2))
    else:
        print(
            f"history of {runs} runs of {cells} cells: {told['seconds']:.1f} s (at most {MOST_SECONDS:.0f}), "
            f"{told['cpu_seconds']:.1f} s of a core, "
            f"{told['peak_mib']:.0f} MiB (at most {MOST_MIB}), {told['megabytes']:.0f} MB of run folders"
        )
    return told


def make_runs(root: Path, *, runs: int, cells: int, seed: int = 0) -> None:
    """Run folders with verdicts, frame and environment, a day apart; outcomes flip now and then, from ``seed``."""
    root.mkdir(parents=True, exist_ok=True)
    plan, verdict, observations = _pair(root)
    frame = to_frame(plan, [verdict], observations, platform="fake engine")
    rows = frame.loc[frame.index.repeat(cells)].reset_index(drop=True)
    rows["cell"] = [f"cell{number:03d}" for number in range(cells)]
    plain = wire.to_plain(verdict)
    chance = random.Random(seed)
    ends = [Outcome.PASS] * cells
    for day in range(runs):
        ends = [_next(end, chance) for end in ends]
        when = datetime.datetime(2026, 1, 1, 4, tzinfo=datetime.UTC) + datetime.timedelta(days=day)
        folder = root / f"{when:%Y%m%dT%H%M%SZ}-{day:08x}"
        folder.mkdir()
        words = [end.value for end in ends]
        (folder / "frame.csv").write_text(rows.assign(verdict=words, outcome=words).to_csv(index=False))
        (folder / "verdicts.jsonl").write_text("".join(
            json.dumps({**plain, "cell": cell, "verdict": word, "outcome": word}) + "\n"
            for cell, word in zip(rows["cell"], words, strict=True)
        ))
        facts = {"platform": "fake engine", "ended": f"{when:%Y-%m-%dT%H:%M:%SZ}"}
        (folder / "env.json").write_text(json.dumps(facts))


def _next(end: Outcome, chance: random.Random) -> Outcome:
    if chance.random() >= FLIP:
        return end
    return chance.choice(OTHERWISE) if end is Outcome.PASS else Outcome.PASS


def _pair(root: Path) -> tuple[Plan, Verdict, dict[str, Observation]]:
    """One cell, judged, from a scenario file that is written to ``root``."""
    path = root / "year.yaml"
    path.write_text(SCENARIO)
    plan = make_plan(
        read_scenarios([str(path)]), platform="cpu", find_model=lambda name: MODEL, identity={}, fake={}
    )
    descriptor = os.open(os.devnull, os.O_WRONLY)
    try:
        seen = {leg.digest: run_leg(leg, Stages(descriptor), Path(os.devnull)) for leg in plan.legs}
    finally:
        os.close(descriptor)
    (cell,) = plan.cells
    legs = {leg.digest: leg for leg in plan.legs}
    return plan, judge(cell, legs, seen[cell.oracle], seen[cell.subject]), seen


def measure(root: Path) -> dict[str, float]:
    """Seconds and peak memory of ``python -m harness history`` on ``root``, start of Python and imports included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "harness", "history", str(root), "--json"], check=True, stdout=subprocess.DEVNULL
    )
    seconds = time.monotonic() - started
    # ru_maxrss is in KiB on Linux, of the largest child there was.
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    peak = after.ru_maxrss / 1024
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
    return {"seconds": seconds, "cpu_seconds": cpu, "peak_mib": peak, "megabytes": size / 1e6}
