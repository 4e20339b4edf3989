# SPDX-License-Identifier: Apache-2.0
"""The progress line: what runs, what has ended, what remains, and what will never run."""

from __future__ import annotations

import pytest

from harness.archive import RunFolder
from harness.progress import Progress
from harness.records import (
    SCHEMA_VERSION,
    Cell,
    Edge,
    Ending,
    Observation,
    Plan,
    Reference,
    Role,
)


def cell(name: str, oracle: str, subject: str) -> Cell:
    return Cell(
        scenario="s", id=name, path="s.yaml", line=1,
        axes={"layout": "LBHNC", "backend": "REFERENCE", "batch_invariant": True},
        reference=Reference.RECOMPUTE, oracle=oracle, subject=subject, block_size=16, hits=(), edge=Edge.NONE,
        expectation=None,
    )


def observation(leg: str, ending: Ending) -> Observation:
    return Observation(
        schema=SCHEMA_VERSION, leg=leg, ending=ending, resolved=None, phases=(), failure=None, environment={},
        seconds={}, peak_bytes=0,
    )


@pytest.fixture
def progress(tmp_path, make_leg) -> Progress:
    folder = RunFolder(tmp_path)
    folder.prepare()
    roles = {"o1": Role.ORACLE, "s1": Role.SUBJECT, "o2": Role.ORACLE, "s2": Role.SUBJECT}
    legs = [make_leg(digest=digest, role=role) for digest, role in roles.items()]
    plan = Plan(schema=SCHEMA_VERSION, cells=(cell("A", "o1", "s1"), cell("B", "o2", "s2")), legs=tuple(legs))
    return Progress(folder, plan, say=print)


def test_nothing_yet(progress):
    assert progress.line({}) == "legs: 0 of 4 ended, 4 remain, running: none"


def test_running_legs_have_names_and_stages(progress):
    line = progress.line({"s1": "load", "o2": "recompute"})
    assert line == "legs: 0 of 4 ended, 2 remain, running: oracle B (recompute), subject A (load)"


def test_the_oracle_of_a_refused_subject_never_runs(progress, tmp_path):
    folder = RunFolder(tmp_path)
    folder.write_observation(observation("s1", Ending.REFUSED))
    assert progress.counts({}) == (1, 2)
    folder.write_observation(observation("s2", Ending.OK))
    folder.write_observation(observation("o2", Ending.OK))
    assert progress.line({}) == "legs: 3 of 4 ended, 0 remain, running: none"


def test_it_watches_and_stops(progress, tmp_path):
    said: list[str] = []
    progress._say = said.append
    RunFolder(tmp_path).stage_path("s1").write_text("load")
    progress._stop.wait = lambda seconds: progress._stop.is_set() or bool(said)  # type: ignore[method-assign]
    progress._watch()
    assert said == ["legs: 0 of 4 ended, 3 remain, running: subject A (load)"]
    assert progress.peak_bytes > 2**20
