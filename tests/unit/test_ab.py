# SPDX-License-Identifier: Apache-2.0
"""A/B of two sources: what each pair of outcomes means, the table, exit codes, and overlays that cannot be had."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness import ab, wire
from harness.ab import Row, change_of, compare, exit_code, render
from harness.archive import RunFolder
from harness.errors import ExitCode, UsageError
from harness.overlay import Overlay
from harness.plan import make_plan
from harness.records import SCHEMA_VERSION, Change, Ending, Failure, Observation, Outcome, Role
from harness.scenario import read_scenario

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("base", "candidate", "change"), [
    ("pass", "pass", "same"),
    ("rejected", "rejected", "same"),
    ("fail", "pass", "fixed"),
    ("crashed", "pass", "fixed"),
    ("rejected", "pass", "fixed"),
    ("pass", "fail", "newly failing"),
    ("pass", "vacuous", "newly failing"),
    ("pass", "rejected", "newly failing"),
    ("rejected", "crashed", "newly failing"),
    ("fail", "fail", "still failing"),
    ("crashed", "fail", "still failing"),
    ("crashed", "rejected", "still failing"),
    ("unavailable", "pass", "not comparable"),
    ("pass", "unavailable", "not comparable"),
    (None, "pass", "not comparable"),
])
def test_change_of(base, candidate, change):
    one, two = (Outcome(word) if word else None for word in (base, candidate))
    assert change_of(one, two) is Change(change)


def row(cell: str, change: Change, **fields) -> Row:
    return Row(cell=cell, base=Outcome.PASS, candidate=Outcome.FAIL, change=change, **fields)


@pytest.mark.parametrize(("changes", "code"), [
    ([Change.FIXED, Change.SAME, Change.STILL_FAILING], ExitCode.OK),
    ([Change.NOT_COMPARABLE, Change.NEWLY_FAILING], ExitCode.FAILED),
    ([Change.NOT_COMPARABLE, Change.SAME], ExitCode.AMBER),
    ([], ExitCode.NOTHING_SELECTED),
])
def test_exit_codes(changes, code):
    assert exit_code([row(str(number), change) for number, change in enumerate(changes)]) is code


def test_the_table():
    rows = [row("umbp::A", Change.NEWLY_FAILING, resolved=("runtime: adapter -> stand-in",)),
            Row(cell="umbp::LONGER", base=None, candidate=Outcome.PASS, change=Change.NOT_COMPARABLE)]
    assert render(rows, {"base": "one", "candidate": "two"}).splitlines() == [
        "base: one",
        "candidate: two",
        "",
        "cell          base        candidate   change",
        "umbp::A       pass        fail        newly failing",
        "              runtime: adapter -> stand-in",
        "umbp::LONGER  not run     pass        not comparable",
        "",
        "2 cells: 1 newly failing, 1 not comparable",
    ]


def stored(path: Path, plan, endings: dict[str, Ending]) -> Path:
    """A run folder whose subjects ended as ``endings`` says, by layout."""
    folder = RunFolder(path)
    folder.prepare()
    folder.write_plan(plan)
    for leg in plan.legs:
        if leg.role is Role.SUBJECT:
            folder.write_observation(Observation(
                schema=SCHEMA_VERSION, leg=leg.digest, ending=endings[leg.layout], resolved=None, phases=(),
                failure=Failure(stage="load", kind="ValueError", message="no"), environment={}, seconds={},
                peak_bytes=0))
    return path


@pytest.fixture
def plan(model, monkeypatch):
    here = Overlay(origin="o", digest="d", path=Path("/o"), has_runtime=False)
    monkeypatch.setattr("harness.plan.find_overlay", lambda spec: here)
    scenario = read_scenario(ROOT / "scenarios" / "umbp_smoke.yaml")
    axes = {"layout": ("LBHNC", "BHLNC"), "backend": ("REFERENCE",), "batch_invariant": (False,), "transfer": ("bulk",)}
    scenario = replace(scenario, axes={**scenario.axes, **axes}, expect=())
    return make_plan([scenario], platform="cpu", find_model=lambda name: model, identity={})


def test_two_run_folders_are_compared_cell_by_cell_before_expectations(plan, tmp_path):
    base = stored(tmp_path / "a", plan, {"LBHNC": Ending.REFUSED, "BHLNC": Ending.REFUSED})
    candidate = stored(tmp_path / "b", plan, {"LBHNC": Ending.REFUSED, "BHLNC": Ending.CRASHED})
    assert [(one.cell, str(one.base), str(one.candidate), str(one.change)) for one in compare(base, candidate)] == [
        ("umbp_smoke::LBHNC-REFERENCE-bi0-bulk", "rejected", "rejected", "same"),
        ("umbp_smoke::BHLNC-REFERENCE-bi0-bulk", "rejected", "crashed", "newly failing"),
    ]


def test_only_oracles_that_ended_well_are_taken_over(plan, tmp_path):
    base = stored(tmp_path / "a", plan, {"LBHNC": Ending.REFUSED, "BHLNC": Ending.REFUSED})
    good, bad = [leg for leg in plan.legs if leg.role is Role.ORACLE]
    folder = RunFolder(base)
    for leg, ending in ((good, Ending.OK), (bad, Ending.CRASHED)):
        folder.write_observation(Observation(
            schema=SCHEMA_VERSION, leg=leg.digest, ending=ending, resolved=None, phases=(), failure=None,
            environment={}, seconds={}, peak_bytes=0))
        folder.log_path(leg.digest).write_text("log")
    ab._take_oracles(base, tmp_path / "b")
    assert {path.name for path in (tmp_path / "b" / "legs").iterdir()} == {f"{good.digest}.json", f"{good.digest}.log"}
    assert wire.read(Observation, tmp_path / "b" / "legs" / f"{good.digest}.json").ending is Ending.OK


def test_an_overlay_that_cannot_be_had_ends_it_before_anything_runs(tmp_path):
    smoke = str(ROOT / "scenarios" / "umbp_smoke.yaml")
    with pytest.raises(UsageError, match="^overlay /nowhere: no such directory"):
        ab.run("/nowhere", "/nowhere", [smoke], folder=tmp_path / "ab")
    assert not (tmp_path / "ab").exists()


def test_scenarios_without_umbp_have_nothing_to_compare(tmp_path):
    with pytest.raises(UsageError, match="no scenario with the subject umbp"):
        ab.run("a", "b", [str(ROOT / "scenarios" / "smoke.yaml")], folder=tmp_path / "ab")
