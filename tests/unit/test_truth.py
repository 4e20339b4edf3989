# SPDX-License-Identifier: Apache-2.0
"""The ground truth's share of a plan, and the fault that only it can see."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from harness import coverage
from harness.engines.faulty import FORGOTTEN, _forgetful
from harness.plan import make_plan, select
from harness.plugin import rowwise
from harness.records import Limits, Phase
from harness.scenario import read_scenario
from harness.session import leg_names

ROOT = Path(__file__).parents[2]


@pytest.fixture
def scenario():
    return read_scenario(ROOT / "scenarios" / "ground_truth.yaml")


@pytest.fixture
def plan_of(model):
    def plan(*scenarios, **arguments):
        return make_plan(scenarios, platform="cpu", find_model=lambda name: model, identity={"vllm": "0"}, **arguments)

    return plan


def test_all_cells_share_two_legs_that_know_nothing_of_layout_and_backend(plan_of, scenario):
    plan = plan_of(scenario)
    assert (len(plan.cells), len(plan.legs)) == (36, 74)
    (truths,) = {cell.ground_truth.truths for cell in plan.cells}
    legs = [plan.leg(digest) for digest in truths]
    assert [leg.engine for leg in legs] == [{"dtype": "auto"}, {"dtype": "float32"}]
    for leg in legs:
        assert (leg.engine_name, leg.backend, leg.layout, leg.batch_invariant) == (
            "transformers", "TRANSFORMERS", "none", False)
        assert leg.phases == (Phase.RECOMPUTE, Phase.RECOMPUTE_AGAIN)
        assert (leg.decode.logprobs, leg.decode.max_tokens, leg.decode.submit) == (20, 8, "alone")
        assert leg.env["OMP_NUM_THREADS"] == "1" and not any(name.startswith("VLLM") for name in leg.env)
        assert leg.prompts == scenario.prompts
    assert [leg_names(plan)[digest] for digest in truths] == ["transformers auto", "transformers float32"]


def test_an_engine_in_float32_has_one_truth(plan_of, scenario):
    plan = plan_of(replace(scenario, engine={**scenario.engine, "dtype": "float32"}))
    assert {len(cell.ground_truth.truths) for cell in plan.cells} == {1}


def test_peers_are_the_first_backend_and_the_first_layout_where_those_must_pass(plan_of, scenario):
    plan = plan_of(scenario)
    names = {cell.id: cell for cell in plan.cells}
    peers = {name: list(cell.ground_truth.peers) for name, cell in names.items()}
    assert peers["LBHNC-REFERENCE-bi0"] == []
    assert peers["BHLNC-REFERENCE-bi1"] == ["LBHNC-REFERENCE-bi1"]
    assert peers["LBHNC-CPU_ATTN-bi0"] == ["LBHNC-REFERENCE-bi0"]
    assert peers["LHBNC-REFERENCE_SHUFFLE-bi0"] == ["LHBNC-REFERENCE-bi0", "LBHNC-REFERENCE_SHUFFLE-bi0"]
    assert peers["BHLNC-CPU_ATTN-bi0"] == []  # it is expected to be refused
    cell = names["LBHNC-CPU_ATTN-bi0"]
    assert cell.ground_truth.peers == {"LBHNC-REFERENCE-bi0": names["LBHNC-REFERENCE-bi0"].oracle}


def test_a_selected_cell_brings_all_the_legs_it_needs(plan_of, scenario):
    plan = plan_of(scenario)
    cell = next(cell for cell in plan.cells if cell.id == "LBHNC-CPU_ATTN-bi0")
    one = select(plan, [cell.name])
    assert {leg.digest for leg in one.legs} == {cell.oracle, cell.subject, *cell.further}
    assert (len(one.legs), one.shared, plan.shared) == (5, 0, 36 * 4 + 14 - 74)


def test_without_the_key_nothing_is_added(plan_of, scenario):
    plan = plan_of(replace(scenario, ground_truth=None))
    assert {cell.ground_truth for cell in plan.cells} == {None}
    assert len(plan.legs) == 72


def test_the_fake_engine_plants_under_the_role_truth(plan_of, scenario):
    planted = {"phases": {"recompute": {"bits": [[0, 0]]}}}
    plan = plan_of(scenario, fake={"LBHNC-REFERENCE-bi0": {"truth": planted}})
    cells = {cell.id: cell for cell in plan.cells}
    assert {plan.leg(one).engine_name for one in cells["LBHNC-REFERENCE-bi0"].further} == {"fake"}
    assert plan.leg(cells["LBHNC-REFERENCE-bi0"].ground_truth.truths[0]).fake == planted
    assert plan.leg(cells["BHLNC-REFERENCE-bi0"].ground_truth.truths[0]).fake == {}


def test_vllm_is_asked_nothing_about_a_truth(plan_of, scenario, monkeypatch):
    asked = []

    def ask(question):
        asked.extend(question["legs"])
        answer = {"prediction": "runs", "reason": "", "would_run": "", "would_run_layout": "", "covers": ""}
        return {"vllm": "0", "assumed": [], "answers": [answer] * len(question["legs"])}

    monkeypatch.setattr(coverage, "ask", ask)
    predictions = coverage.predict(plan_of(scenario), "cpu", "cpu").predictions
    assert (len(asked), len(predictions)) == (72, 36)
    assert {leg["backend"] for leg in asked} == {"REFERENCE", "REFERENCE_SHUFFLE", "CPU_ATTN"}


@pytest.mark.parametrize(("text", "limits"), [
    ("{}", Limits()), ("{largest: 1, median: 0.5}", Limits(largest=1.0, median=0.5)),
])
def test_limits_in_a_scenario(tmp_path, text, limits):
    path = tmp_path / "one.yaml"
    path.write_text("name: one\nmodel: tiny\nsubject: embedded\n"
                    "axes: {layout: [LBHNC], backend: [REFERENCE], batch_invariant: [true]}\n"
                    f"ground_truth: {text}\n")
    assert read_scenario(path).ground_truth == limits


@pytest.mark.parametrize(("rows", "length"), [(20, 20), (3, 30), (1, FORGOTTEN + 1), (1, FORGOTTEN + 2), (5, 9)])
def test_the_forgetful_attention_is_attention_without_one_token(rows, length):
    torch.manual_seed(0)
    keys, values = (torch.randn(2, rowwise.padded(length), 8) for _ in range(2))
    query = torch.randn(rows, 4, 8)
    got = _forgetful(rowwise.attend)(query, keys, values, length, 0.5)
    for row in range(rows):
        position = length - rows + row
        seen = [place for place in range(position + 1) if place != FORGOTTEN or position <= FORGOTTEN]
        for head in range(4):
            scores = keys[head // 2, seen] @ query[row, head] * 0.5
            expected = torch.softmax(scores, 0) @ values[head // 2, seen]
            torch.testing.assert_close(got[row, head], expected, atol=1e-5, rtol=1e-5)


def test_the_forgetful_attention_does_not_depend_on_how_many_rows_are_asked_for():
    torch.manual_seed(1)
    keys, values = (torch.randn(2, rowwise.padded(30), 8) for _ in range(2))
    query = torch.randn(30, 4, 8)
    forget = _forgetful(rowwise.attend)
    whole, part = forget(query, keys, values, 30, 0.5), forget(query[-7:], keys, values, 30, 0.5)
    assert torch.equal(whole[-7:], part)
