# SPDX-License-Identifier: Apache-2.0
"""Reading scenario files: what becomes of a good one."""

from __future__ import annotations

import hashlib

import pytest

from harness.axes import cell_id, effective, points, prompts_of, subject_of
from harness.backends import BACKENDS, choosable
from harness.records import DEADLINES_S
from harness.scenario_model import Option
from tests.unit.scenario_text import GOOD


def test_defaults_are_those_of_the_records(scenario, tmp_path):
    read = scenario(GOOD)
    assert read.name == "good"
    assert read.path == str(tmp_path / "s.yaml")
    assert read.axes == {"layout": ("LBHNC", "LHBNC"), "backend": ("REFERENCE", "CPU_ATTN"),
                         "batch_invariant": (False, True)}
    assert read.axis_lines == {"layout": 6, "backend": 7, "batch_invariant": 8}
    assert (read.reference, read.prompts.count, read.prompts.prefix_tokens, read.prompts.tail_tokens,
            read.prompts.seed) == ("auto", 3, 192, 8, 0)
    assert (read.decode.max_tokens, read.decode.logprobs, read.decode.submit) == (16, 5, "together")
    assert (read.engine, read.env, read.overrides, read.expect) == ({}, {}, (), ())
    assert read.digest == hashlib.blake2b(GOOD.encode(), digest_size=16).hexdigest()


def test_deadlines_are_whole_and_default_to_those_of_the_records(scenario):
    assert scenario(GOOD).deadlines == DEADLINES_S
    read = scenario(GOOD + "deadlines: {import: 30, reset: 2.5}\n")
    assert read.deadlines == {**DEADLINES_S, "import": 30, "reset": 2.5}


def test_platforms_default_to_all(scenario):
    assert scenario(GOOD.replace("platforms: [cpu]\n", "")).platforms == ("cpu", "rocm", "cuda")


def test_overrides_apply_in_file_order_and_replace_whole_values(scenario):
    read = scenario(GOOD + """\
engine: {block_size: 16, hf_overrides: {a: [1, 2]}}
env: {A: "1", B: "1"}
overrides:
  - {when: {backend: CPU_ATTN}, engine: {block_size: 32}, env: {A: "2"}}
  - {when: {backend: CPU_ATTN, layout: [LHBNC]}, engine: {block_size: 64, hf_overrides: {}}, env: {A: "3"}}
""")
    first, second, third = ({"layout": layout, "backend": backend, "batch_invariant": False}
                            for layout, backend in (("LBHNC", "REFERENCE"), ("LBHNC", "CPU_ATTN"),
                                                    ("LHBNC", "CPU_ATTN")))
    assert effective(read, first) == ({"block_size": 16, "hf_overrides": {"a": (1, 2)}}, {"A": "1", "B": "1"})
    assert effective(read, second) == ({"block_size": 32, "hf_overrides": {"a": (1, 2)}}, {"A": "2", "B": "1"})
    assert effective(read, third) == ({"block_size": 64, "hf_overrides": {}}, {"A": "3", "B": "1"})
    assert [override.line for override in read.overrides] == [12, 13]


def test_a_backend_brings_its_environment_and_a_missing_block_size_is_16(scenario):
    read = scenario(GOOD.replace("[cpu]", "[rocm]").replace("[REFERENCE, CPU_ATTN]", "[ROCM_AITER_FA_SHUFFLE]"))
    axes = next(points(read.axes))
    assert effective(read, axes) == (
        {"block_size": 16}, {"VLLM_ROCM_USE_AITER": "1", "VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT": "1"})
    assert BACKENDS["ROCM_AITER_FA_SHUFFLE"].vllm_name == "ROCM_AITER_FA"


@pytest.mark.parametrize(("subject", "connector", "fault", "options", "whole"), [
    ("embedded", "embedded", None, {}, None),
    ("{connector: embedded}", "embedded", None, {}, None),
    ("{connector: embedded, fault: single_span, capacity_mib: 64, transfer: ranges, load: async}", "embedded",
     "single_span", {"capacity_mib": 64, "transfer": "ranges", "load": "async"}, None),
    ("{connector: embedded, fault: null}", "embedded", None, {}, None),
    ("{kv_transfer_config: {kv_connector: X, kv_role: kv_both, kv_connector_extra_config: {a: [b]}}}", "custom", None,
     {}, {"kv_connector": "X", "kv_role": "kv_both", "kv_connector_extra_config": {"a": ("b",)}}),
    ("{connector: {kv_connector: X}}", "custom", None, {}, {"kv_connector": "X"}),
])
def test_subject_forms(scenario, subject, connector, fault, options, whole):
    read = scenario(GOOD.replace("{connector: embedded}", subject)).subject
    assert (read.connector, read.fault, read.options, read.kv_transfer_config) == (connector, fault, options, whole)


def test_further_axes_change_prompts_and_subject(scenario):
    read = scenario(GOOD.replace("[REFERENCE, CPU_ATTN]", "[REFERENCE]").replace("[off, on]", "[on]") + """\
  fault: [null, single_span]
  load: [async]
  transfer: [bulk, ranges]
  seed: [3, 4]
""")
    cells = list(points(read.axes))
    assert len(cells) == 2 * 2 * 2 * 2
    assert [cell_id(cell) for cell in cells][:3] == [
        "LBHNC-REFERENCE-bi1-seed3-bulk-async-fault=none",
        "LBHNC-REFERENCE-bi1-seed4-bulk-async-fault=none",
        "LBHNC-REFERENCE-bi1-seed3-ranges-async-fault=none",
    ]
    assert cell_id(cells[-1]) == "LHBNC-REFERENCE-bi1-seed4-ranges-async-fault=single_span"
    assert len({cell_id(cell) for cell in cells}) == len(cells)
    assert prompts_of(read, cells[-1]).seed == 4
    last = subject_of(read, cells[-1])
    assert (last.fault, last.options) == ("single_span", {"transfer": "ranges", "load": "async"})
    assert subject_of(read, cells[0]).fault is None


def test_other_connectors_and_models_can_be_passed_in(scenario):
    text = GOOD.replace("{connector: embedded}", "{connector: umbp, mode: b}").replace("tiny", "other")
    read = scenario(text, connectors={"umbp": {"mode": Option(values=("a", "b"))}}, models=("other",))
    assert (read.subject.connector, read.subject.options, read.model) == ("umbp", {"mode": "b"}, "other")


def test_a_directory_is_a_model(scenario):
    assert scenario(GOOD.replace("tiny", "./weights")).model == "./weights"


def test_a_cpu_scenario_may_name_a_backend_that_must_be_refused_there(scenario):
    read = scenario(GOOD.replace("CPU_ATTN", "TRITON_ATTN"))
    assert read.axes["backend"] == ("REFERENCE", "TRITON_ATTN")


def test_choosable_backends():
    assert choosable(["cuda"]) == ("TRITON_ATTN", "FLASH_ATTN", "FLASHINFER", "FLEX_ATTENTION")
    assert choosable(["rocm"]) == ("TRITON_ATTN", "ROCM_AITER_FA", "ROCM_AITER_FA_SHUFFLE", "ROCM_AITER_UNIFIED_ATTN",
                                   "ROCM_ATTN")
    assert choosable(["cpu", "rocm"]) == tuple(BACKENDS)
