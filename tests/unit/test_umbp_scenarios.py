# SPDX-License-Identifier: Apache-2.0
"""The UMBP scenarios among themselves and beside the matrix: same refusals, figures that follow from the model's shape,
shared oracles, and what a run makes of a source that is not there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.axes import cell_id, points
from harness.compare import judge
from harness.expect import expectation_for
from harness.overlay import Overlay, OverlayError
from harness.plan import make_plan
from harness.records import AMBER, GREEN, SCHEMA_VERSION, Ending, Failure, Observation, Outcome
from harness.scenario import read_scenario, read_scenarios
from harness.subjects import OVERLAY_CHOICE
from harness.verbs.matrix import MATRIX

ROOT = Path(__file__).parents[2]
SCENARIOS = ROOT / "scenarios"
HERE = Overlay(origin="wheel:vllm==0.33.0", digest="ab" * 8, path=Path("/cache/overlays/abab"), has_runtime=False)
#: Scenario -> (KV heads, head size): in bf16 and blocks of 16 tokens, K and V.
SHAPES = {"umbp": (8, 128), "umbp_smoke": (4, 32), "umbp_unit": (8, 128)}


def expectations(name: str) -> dict[str, object]:
    scenario = read_scenario(SCENARIOS / f"{name}.yaml")
    return {cell_id(axes): expectation_for(axes, scenario.expect) for axes in points(scenario.axes)}


@pytest.fixture
def plan_of(model, monkeypatch):
    monkeypatch.delenv(OVERLAY_CHOICE, raising=False)

    def plan(files, find):
        monkeypatch.setattr("harness.plan.find_overlay", find)
        scenarios = read_scenarios([ROOT / name for name in files])
        return make_plan(scenarios, platform="cpu", find_model=lambda name: model, identity={})

    return plan


def test_both_sizes_expect_the_same_of_all_48_cells():
    full, tiny = ({cell: one and (one.outcome, one.finding) for cell, one in expectations(name).items()}
                  for name in ("umbp", "umbp_smoke"))
    assert full == tiny
    counts = {outcome: sum(bool(one) and one[0] is outcome for one in full.values()) for outcome in Outcome}
    assert {name: count for name, count in counts.items() if count} == {
        Outcome.CRASHED: 6, Outcome.FAIL: 4, Outcome.REJECTED: 20}
    assert len(full) == 48 and sum(one is None for one in full.values()) == 18


@pytest.mark.parametrize("name", SHAPES)
def test_figures_follow_from_the_models_shape(name):
    heads, size = SHAPES[name]
    page = heads * size * 2 * 2 * 16
    for cell, one in expectations(name).items():
        if one is not None and one.outcome is Outcome.CRASHED:
            slots = 2 if "SHUFFLE" in cell else heads
            assert one.match == f"KV region bytes ({page}) exceed its stride ({page // slots})", cell


@pytest.mark.parametrize("name", SHAPES)
def test_what_is_known_to_be_wrong_names_where_it_is_tracked(name):
    known = [one for one in expectations(name).values() if one and one.outcome in (Outcome.CRASHED, Outcome.FAIL)]
    assert known and all(re.search(r"vllm-project/vllm#\d+", one.issue or "") for one in known)


def test_refusals_are_those_of_the_matrix_whatever_the_store():
    matrix = expectations("matrix")
    for cell, one in expectations("umbp").items():
        beside = matrix[cell.rpartition("-")[0]]
        refused = one is not None and one.outcome is Outcome.REJECTED
        assert refused == (beside is not None), cell
        assert not refused or one.match == beside.match, cell


def test_make_matrix_runs_umbp_beside_the_embedded_store_with_its_oracles(plan_of):
    plan = plan_of(MATRIX["cpu"], lambda spec: HERE)
    oracles = {}
    for cell in plan.cells:
        oracles.setdefault(cell.scenario, set()).add(cell.oracle)
    assert {name: len(found) for name, found in oracles.items()} == {"matrix": 36, "umbp": 24, "umbp_unit": 6}
    assert oracles["umbp"] <= oracles["matrix"]


def test_without_the_source_its_cells_are_unavailable_and_the_run_amber(plan_of):
    sentence = "overlay wheel:vllm==0.33.0: pip cannot download it (no network)"

    def refuse(spec):
        raise OverlayError(sentence)

    plan = plan_of(MATRIX["cpu"], refuse)
    legs = {leg.digest: leg for leg in plan.legs}
    verdicts = {}
    for cell in plan.cells:
        leg = legs[cell.subject]
        if leg.engine_name == "unavailable":
            failure = Failure(stage="load", kind="UnavailableError", message=leg.identity["unavailable"])
            seen = Observation(schema=SCHEMA_VERSION, leg=leg.digest, ending=Ending.UNAVAILABLE, resolved=None,
                               phases=(), failure=failure, environment={}, seconds={}, peak_bytes=0)
            verdicts[cell.name] = judge(cell, legs, None, seen)
    assert len(verdicts) == 60 and all(name.startswith("umbp") for name in verdicts)
    # Neither green nor red, also where the scenario expects a crash or a failure.
    assert {verdict.verdict for verdict in verdicts.values()} == {Outcome.UNAVAILABLE}
    assert Outcome.UNAVAILABLE in AMBER and Outcome.UNAVAILABLE not in GREEN
    assert all(sentence in verdict.findings[0].message for verdict in verdicts.values())
