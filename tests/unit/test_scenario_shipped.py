# SPDX-License-Identifier: Apache-2.0
"""What the repository's own scenario files expect of their cells."""

from __future__ import annotations

from pathlib import Path

from harness.axes import cell_id, effective, points
from harness.expect import expectation_for
from harness.records import FindingKind, Outcome
from harness.scenario import read_scenario

ROOT = Path(__file__).parents[2]


def test_matrix_expects_every_unsupported_combination_to_be_rejected():
    matrix = read_scenario(ROOT / "scenarios/matrix.yaml")
    cells = list(points(matrix.axes))
    expected = {cell_id(cell): expectation_for(cell, matrix.expect) for cell in cells}
    assert len(expected) == len(cells) == 36
    passing = [name for name, expectation in expected.items() if expectation is None]
    assert passing == [
        "LBHNC-REFERENCE-bi0", "LBHNC-REFERENCE-bi1", "LBHNC-REFERENCE_SHUFFLE-bi0", "LBHNC-CPU_ATTN-bi0",
        "LBNHC-REFERENCE-bi0", "LBNHC-REFERENCE-bi1", "LHBNC-REFERENCE-bi0", "LHBNC-REFERENCE-bi1",
        "LHBNC-REFERENCE_SHUFFLE-bi0", "BLHNC-REFERENCE-bi0", "BLHNC-REFERENCE-bi1", "BLNHC-REFERENCE-bi0",
        "BLNHC-REFERENCE-bi1", "BHLNC-REFERENCE-bi0", "BHLNC-REFERENCE-bi1"]
    rejected = [expectation for expectation in expected.values() if expectation is not None]
    assert {expectation.outcome for expectation in rejected} == {Outcome.REJECTED}
    assert all(expectation.match for expectation in rejected)
    assert effective(matrix, cells[0]) == (
        {"block_size": 16, "max_model_len": 1024, "num_gpu_blocks_override": 128}, {})
    assert {effective(matrix, cell)[0]["block_size"] for cell in cells if cell["backend"] == "CPU_ATTN"} == {32}


def test_smoke_has_18_cells_of_the_tiny_model():
    smoke = read_scenario(ROOT / "scenarios/smoke.yaml")
    assert (smoke.model, len(list(points(smoke.axes)))) == ("tiny", 18)
    assert (smoke.prompts.prefix_tokens, smoke.prompts.tail_tokens, smoke.decode.max_tokens) == (48, 8, 8)
    assert sum(expectation_for(cell, smoke.expect) is None for cell in points(smoke.axes)) == 9


def test_controls_expect_the_reported_figures():
    controls = read_scenario(ROOT / "scenarios/controls.yaml")
    assert controls.subject.fault == "single_span"
    expected = {cell_id(cell): expectation_for(cell, controls.expect) for cell in points(controls.axes)}
    assert expected["LHBNC-REFERENCE-bi0"].match == "KV region bytes (65536) exceed its stride (8192)"
    assert expected["LHBNC-REFERENCE_SHUFFLE-bi0"].match == "KV region bytes (65536) exceed its stride (32768)"
    assert (expected["BHLNC-REFERENCE-bi0"].outcome, expected["BHLNC-REFERENCE-bi0"].finding) == (
        Outcome.FAIL, FindingKind.LOGPROBS)
    assert [name for name, expectation in expected.items() if expectation is None] == [
        "LBHNC-REFERENCE-bi0", "LBHNC-REFERENCE_SHUFFLE-bi0", "LBNHC-REFERENCE-bi0", "BLHNC-REFERENCE-bi0",
        "BLNHC-REFERENCE-bi0"]
