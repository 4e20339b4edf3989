# SPDX-License-Identifier: Apache-2.0
"""``bench --matrix`` on the fake engine: both ways are really run, and the figures follow from what they left."""

from __future__ import annotations

import json

import pytest

from harness import wire
from harness.benches import matrix, naive
from harness.records import ROLE_PHASES, Ending, Observation, Phase

KEYS = [
    "cells", "legs", "workers", "exit", "seconds", "harness_share", "idle_share", "digest_share", "filler_share",
    "peak_gib", "sample", "sample_seconds", "naive_seconds", "naive_interpreters", "speedup_vs_naive", "growth",
]


@pytest.fixture
def measured(alone, monkeypatch):
    """The report of two cells, one of which is refused, and the folder of both runs."""
    monkeypatch.chdir(alone.root)
    plants = alone.root / "fake.json"
    plants.write_text(json.dumps({"LBHNC-REFERENCE-bi1": {"subject": {"stages": {"load": "refuse"}}}}))
    folder = alone.root / "bench"
    report = matrix.measure(
        ["scenarios/small.yaml"], expression=None, model=str(alone.root / "model"), workers=1, sample=0, folder=folder,
        rest=["--kvparity-fake", str(plants)], sizes=(10,),
    )
    return report, folder


def test_both_ways_are_run_on_the_same_cells(measured):
    report, folder = measured
    assert list(report) == KEYS
    assert (report["cells"], report["workers"]) == (2, 1)
    # The oracle of the refused subject is called off, or has ended by then.
    assert report["legs"] in (3, 4)
    assert report["sample"] == ["small::LBHNC-REFERENCE-bi0", "small::LBHNC-REFERENCE-bi1"]
    # Four groups of phases of the cell that passes, and the one subject that is refused.
    assert report["naive_interpreters"] == 5
    assert report["speedup_vs_naive"] == pytest.approx(report["naive_seconds"] / report["sample_seconds"])
    # Every cell was in the sample, so its part of the run is the run.
    assert report["sample_seconds"] == pytest.approx(report["seconds"])
    assert 0 < report["harness_share"] < 1 and 0 <= report["idle_share"] < 1 and 0 < report["digest_share"] < 1
    assert report["peak_gib"] > 0 and [row["cells"] for row in report["growth"]] == [10]
    seen = sorted(
        tuple(record.phase for record in wire.read(Observation, path).phases)
        for path in (folder / "naive" / "0" / "legs").glob("*.json")
    )
    assert seen == sorted(phases for groups in naive.GROUPS.values() for phases in groups)
    [refused] = [wire.read(Observation, path) for path in (folder / "naive" / "1" / "legs").glob("*.json")]
    assert refused.ending is Ending.REFUSED


def test_a_run_without_results_is_an_error(alone, monkeypatch):
    monkeypatch.chdir(alone.root)
    with pytest.raises(matrix.BenchError, match="exit code 4 and wrote no results"):
        matrix.measure(
            ["scenarios/small.yaml"], expression=None, model="no-such-model", workers=1, sample=0,
            folder=alone.root / "bench", sizes=(10,),
        )


def test_the_groups_cover_every_phase_of_a_leg():
    asked = {phase for groups in naive.GROUPS.values() for phases in groups for phase in phases}
    # The oracle's second pass is its A/A control in an interpreter of its own.
    assert asked == {phase for phases in ROLE_PHASES.values() for phase in phases} - {Phase.RECOMPUTE_AGAIN}


@pytest.mark.parametrize(
    ("count", "wanted"),
    [(0, [0, 1, 2, 3, 4, 5, 6]), (1, [0]), (3, [0, 3, 6]), (4, [0, 2, 4, 6]), (9, [0, 1, 2, 3, 4, 5, 6])],
)
def test_a_sample_reaches_from_the_first_to_the_last_cell(count, wanted):
    assert naive.spread(list(range(7)), count) == wanted


def test_each_missed_target_is_said_with_both_figures():
    report = {
        "harness_share": 0.061, "speedup_vs_naive": 2.41, "peak_gib": 10.5, "digest_share": 0.12,
        "growth": [{"cells": 10, **{f"{step}_ms": 0.5 for step in ("plan", "archive", "judge", "report")}}],
    }
    assert matrix.short(report) == [
        "harness's own share: 6.1%, target 5%",
        "speed-up over the naive way: 2.41, target 2.5",
        "peak memory: 10.50 GiB, target 10 GiB",
        "digests' share of the legs: 12.0%, target 10%",
    ]
    assert matrix.short({**report, "harness_share": 0.05, "speedup_vs_naive": 2.5, "peak_gib": 10.0,
                         "digest_share": 0.1}) == []
