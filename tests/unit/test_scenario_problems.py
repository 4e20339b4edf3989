# SPDX-License-Identifier: Apache-2.0
"""Bad scenario files: all of their problems at once, each with its line, and what each kind of problem is told."""

from __future__ import annotations

import pytest

from harness.errors import ScenarioError
from harness.records import LAYOUTS
from harness.scenario import read_scenario, read_scenarios
from tests.unit.scenario_text import GOOD

# --- the whole list at once -------------------------------------------------------------------------------------------


def test_all_problems_come_at_once_in_line_order(problems):
    found = problems("""\
name: two words
platform: [cpu]
model: tinny
subject: {connector: embeded}
axes:
  layout: [LBHNC, LBHCN]
  backend: [REFERENSE]
  batch_invariant: []
prompts: {count: -3}
decode: {logprobs: "5"}
expect:
  - {when: {layot: LBHNC}, outcome: rejectd}
""")
    assert [line for line, _ in found] == [1, 2, 3, 4, 6, 7, 8, 9, 10, 12, 12]
    text = dict(found)
    assert text[2] == ("unknown key `platform` in a scenario; did you mean `platforms`? Valid keys: name, "
                       "platforms, model, subject, axes, reference, prompts, decode, ground_truth, "
                       "evidence, engine, env, deadlines, overrides, expect.")
    assert "did you mean `tiny`?" in text[3]
    assert "did you mean `embedded`?" in text[4]
    assert text[6] == ("axes.layout[1]: `LBHCN` is no KV cache layout; did you mean `LBNHC`? Valid choices: "
                       f"{', '.join(LAYOUTS)}.")
    assert "did you mean `REFERENCE`?" in text[7]
    assert text[8] == "axes.batch_invariant: the axis is empty; it needs at least one value."
    assert text[9] == "prompts.count must be at least 1, got -3."
    assert text[10] == "decode.logprobs must be a whole number, got the text `5`."
    assert "did you mean `layout`?" in found[-2][1] + found[-1][1]
    assert "did you mean `rejected`?" in found[-2][1] + found[-1][1]


def test_missing_keys_and_axes(problems):
    assert problems("model: tiny\naxes: {layout: [LBHNC]}\n") == [
        (1, "missing key `name`."),
        (1, "missing key `subject`."),
        (2, "axes: missing axis `backend`."),
        (2, "axes: missing axis `batch_invariant`."),
    ]


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n"])
def test_empty_file(problems, text):
    assert problems(text) == [(1, "the file is empty; a scenario needs name, model, subject and axes.")]


def test_a_list_is_no_scenario(problems):
    assert problems("- name: x\n") == [(1, "the file must be a mapping of keys to values, got a list.")]


def test_broken_yaml_names_the_scanners_line(problems):
    (line, sentence), = problems("name: x\nmodel: tiny\naxes: [LBHNC\nsubject: embedded\n")
    assert line == 4
    assert sentence.startswith("broken YAML: ")
    assert "line 3" in sentence
    (line, sentence), = problems("name: x\n\tmodel: tiny\n")
    assert (line, "\\t" in sentence) == (2, True)


def test_unreadable_files(problems, tmp_path):
    assert problems(b"name: x\nmodel: \xff\n") == [(2, "the file is not UTF-8 text.")]
    assert problems("name: x\nmodel: \x01\n") == [(2, "broken YAML: special characters are not allowed (character "
                                                       "0x0001)")]
    with pytest.raises(ScenarioError, match="nowhere.yaml:1: the scenario file cannot be read"):
        read_scenario(tmp_path / "nowhere.yaml")


def test_duplicate_keys_at_every_level(problems):
    found = problems(GOOD + "  layout: [LBHNC]\nmodel: tiny\nprompts: {seed: 1, seed: 2}\n")
    assert found == [
        (9, "axes.layout: duplicate key, first given on line 6."),
        (10, "model: duplicate key, first given on line 3."),
        (11, "prompts.seed: duplicate key, first given on line 11."),
    ]


def test_an_alias_that_contains_itself(problems):
    assert (9, "engine.a: the alias contains itself.") in problems(GOOD + "engine: &e {a: *e}\n")


def test_deep_nesting_is_a_problem_and_no_crash(problems):
    assert problems("a: " + "[" * 600)[0][1].startswith("broken YAML")


# --- one problem each -------------------------------------------------------------------------------------------------

#: (text replaced in GOOD or "" to append, replacement, line, sentence or its beginning)
CASES = {
    "layout no": (
        "LHBNC]", "no]", 6,
        "axes.layout[1]: must be text, got `no`, which YAML 1.1 reads as false; quote it"),
    "layout twice": (
        "LHBNC]", "LBHNC]", 6,
        "axes.layout[1]: `LBHNC` is given twice."),
    "scalar axis": (
        "[off, on]", "on", 8,
        "axes.batch_invariant: must be a list, got `on`, which YAML 1.1 reads as true; for one value write "
        "`[on]`."),
    "quoted boolean": (
        "[off, on]", "['off']", 8,
        "axes.batch_invariant[0]: must be true or false without quotes, got the text `off`."),
    "number for boolean": (
        "[off, on]", "[0]", 8,
        "axes.batch_invariant[0]: must be true or false without quotes"),
    "same boolean twice": (
        "[off, on]", "[on, yes]", 8,
        "axes.batch_invariant[1]: `true` is given twice."),
    "unknown axis": (
        "", "  sed: [1]\n", 9,
        "axes.sed: unknown axis; did you mean `seed`? Valid axes: layout, backend, batch_invariant, connector, "
        "restore, differs, prompt_set, seed, transfer, load, fault."),
    "negative seed": (
        "", "  seed: [-1]\n", 9,
        "axes.seed[0]: must be a whole number of at least 0, got the number -1."),
    "unknown fault": (
        "", "  fault: [none]\n", 9,
        "axes.fault[0]: `none` is no fault; valid choices: null, single_span,"),
    "unknown transfer": (
        "", "  transfer: [range]\n", 9,
        "axes.transfer[0]: `range` is no transfer; did you mean `ranges`? Valid choices: bulk, ranges."),
    "platform": (
        "[cpu]", "[cpu, rocmm]", 2,
        "platforms[1] cannot be the text `rocmm`; did you mean `rocm`? Valid choices: cpu, rocm, cuda."),
    "no platforms": (
        "[cpu]", "[]", 2,
        "platforms must not be empty."),
    "platform twice": (
        "[cpu]", "[cpu, cpu]", 2,
        "platforms[1]: `cpu` is given twice."),
    "name number": (
        "name: good", "name: 5", 1,
        "name must be text, got the number 5; quote it."),
    "name colons": (
        "name: good", "name: a::b", 1,
        "name must be letters, digits"),
    "reference": (
        "", "reference: recomputed\n", 9,
        "reference cannot be the text `recomputed`; did you mean `recompute`? Valid choices: auto, recompute, "
        "local_hit."),
    "no value": (
        "", "prompts:\n", 9,
        "prompts must be a mapping of keys to values, got nothing."),
    "unknown prompt key": (
        "", "prompts: {tail: 8}\n", 9,
        "unknown key `tail` in prompts; did you mean `tail_tokens`?"),
    "no time": (
        "", "deadlines: {load: 0}\n", 9,
        "deadlines.load must be more than 0, got 0."),
    "time in words": (
        "", "deadlines: {load: soon}\n", 9,
        "deadlines.load must be a number, got the text `soon`."),
    "unknown deadline": (
        "", "deadlines: {prefil: 3}\n", 9,
        "unknown key `prefil` in deadlines; did you mean `prefill`? Valid keys: import, load, "
        "prefill, restore, reset."),
    "fraction": (
        "", "decode: {max_tokens: 1.5}\n", 9,
        "decode.max_tokens must be a whole number, got the number 1.5."),
    "boolean for number": (
        "", "decode: {max_tokens: yes}\n", 9,
        "decode.max_tokens must be a whole number, got `yes`, which YAML 1.1 reads as true."),
    "submit": (
        "", "decode: {submit: alon}\n", 9,
        "decode.submit cannot be the text `alon`; did you mean `alone`? Valid choices: together, alone."),
    "too many logprobs": (
        "", "decode: {logprobs: 21}\n", 9,
        "decode.logprobs: vLLM gives at most 20, got 21"),
    "too short model length": (
        "", "engine: {max_model_len: 215}\n", 9,
        "engine.max_model_len: 215 tokens are too few for a prompt of 192 + 8 and 16 new tokens."),
    "engine model": (
        "", "engine: {model: x}\n", 9,
        "engine.model: cannot be set here: `model` at the top"),
    "engine connector": (
        "", "engine: {kv_transfer_config: {}}\n", 9,
        "engine.kv_transfer_config: cannot be set here"),
    "engine backend": (
        "", "engine: {attention_backend: X}\n", 9,
        "engine.attention_backend: cannot be set here: the axis `backend` makes it."),
    "engine backend, hidden": (
        "", "engine: {attention_config: {backend: X}}\n", 9,
        "engine.attention_config.backend: cannot be set here"),
    "engine worker": (
        "", "engine: {worker_extension_cls: a.B}\n", 9,
        "engine.worker_extension_cls: cannot be set here"),
    "engine statistics": (
        "", "engine: {disable_log_stats: true}\n", 9,
        "engine.disable_log_stats: cannot be set here"),
    "block size": (
        "", "engine: {block_size: '16'}\n", 9,
        "engine.block_size: must be a whole number of at least 1, got the text `16`."),
    "engine date": (
        "", "engine: {revision: 2026-11-30}\n", 9,
        "engine.revision: `2026-11-30` reads as date in YAML 1.1"),
    "engine infinity": (
        "", "engine: {x: .inf}\n", 9,
        "engine.x: `.inf` reads as float"),
    "engine tag": (
        "", "engine: {x: !mine 3}\n", 9,
        "engine.x: `3` cannot be read"),
    "engine key": (
        "", "engine: {on: 1}\n", 9,
        "engine.on: the key reads as bool in YAML 1.1; quote it."),
    "env number": (
        "", "env: {A: 1}\n", 9,
        "env.A: must be text, got the number 1; quote it: \"1\"."),
    "env boolean": (
        "", "env: {A: off}\n", 9,
        "env.A: must be text, got `off`, which YAML 1.1 reads as false; quote it: \"off\"."),
    "env nothing": (
        "", "env: {A: }\n", 9,
        "env.A: must be text, got nothing."),
    "env layout": (
        "", "env: {VLLM_KV_CACHE_LAYOUT: LBHNC}\n", 9,
        "env.VLLM_KV_CACHE_LAYOUT: cannot be set here: the axis `layout` makes it."),
    "env of an alias": (
        "", "env: {VLLM_ROCM_USE_AITER: '1'}\n", 9,
        "env.VLLM_ROCM_USE_AITER: cannot be set here: it is part of a backend's alias"),
    "subject nothing": (
        "{connector: embedded}", "", 4,
        "subject must be a connector's alias or a mapping, got nothing."),
    "subject alias": (
        "{connector: embedded}", "embeded", 4,
        "subject: `embeded` is no known connector; did you mean `embedded`? Valid aliases: embedded, "
        "embedded_file, umbp,"),
    "subject without connector": (
        "{connector: embedded}", "{fault: single_span}", 4,
        "subject: missing key `connector`"),
    "subject key": (
        "embedded}", "embedded, faultt: x}", 4,
        "subject.faultt: unknown key; did you mean `fault`? Valid keys: connector, capacity_mib, transfer, load, "
        "level, fault."),
    "subject fault": (
        "embedded}", "embedded, fault: double_span}", 4,
        "subject.fault: cannot be the text `double_span`; did you mean `single_span`?"),
    "subject capacity": (
        "embedded}", "embedded, capacity_mib: 0}", 4,
        "subject.capacity_mib: must be a whole number of at least 1, got the number 0."),
    "subject connector type": (
        "connector: embedded", "connector: 5", 4,
        "subject.connector: must be an alias or a mapping, got the number 5."),
    "whole config": (
        "{connector: embedded}", "{kv_transfer_config: {kv_role: kv_both}}", 4,
        "subject.kv_transfer_config: needs `kv_connector`"),
    "whole config and alias": (
        "{connector: embedded}", "{kv_transfer_config: {kv_connector: X}, fault: y}", 4,
        "subject.fault: cannot stand beside `kv_transfer_config`"),
    "when unknown axis": (
        "", "overrides: [{when: {seed: 1}, engine: {a: 1}}]\n", 9,
        "overrides[0].when.seed: the scenario has no axis `seed`, so it matched no cell; valid axes: layout, "
        "backend, batch_invariant."),
    "when value": (
        "", "expect: [{when: {layout: BHLNC}, outcome: fail}]\n", 9,
        "expect[0].when.layout: the text `BHLNC` is no value of the axis `layout`, so it matched no cell; did you"
        " mean `LBHNC`?"),
    "when value in list": (
        "", "expect: [{when: {layout: [LBHNC, BHLNC]}, outcome: fail}]\n", 9,
        "expect[0].when.layout[1]: the text `BHLNC` is no value"),
    "when number for boolean": (
        "", "expect: [{when: {batch_invariant: 1}, outcome: fail}]\n", 9,
        "expect[0].when.batch_invariant: the number 1 is no value of the axis"),
    "when empty list": (
        "", "expect: [{when: {layout: []}, outcome: fail}]\n", 9,
        "expect[0].when.layout: the list is empty, so it matched no cell."),
    "when missing": (
        "", "expect: [{outcome: fail}]\n", 9,
        "missing key `when` in expect[0]; `when: {}` means every cell."),
    "override without change": (
        "", "overrides: [{when: {}}]\n", 9,
        "overrides[0]: changes nothing; give `engine` or"),
    "override env": (
        "", "overrides: [{when: {}, env: {A: 1}}]\n", 9,
        "overrides[0].env.A: must be text"),
    "override key": (
        "", "overrides: [{when: {}, env: {A: b}, engin: {}}]\n", 9,
        "unknown key `engin` in overrides[0]; did you mean `engine`? Valid keys: when, engine, env."),
    "outcome missing": (
        "", "expect: [{when: {}}]\n", 9,
        "missing key `outcome` in expect[0]."),
    "outcome expected": (
        "", "expect: [{when: {}, outcome: expected}]\n", 9,
        "expect[0].outcome cannot be the text `expected`; did you mean `rejected`? Valid choices: pass, "
        "unavailable, rejected, unstable, vacuous, crashed, fail."),
    "finding": (
        "", "expect: [{when: {}, outcome: fail, finding: kv_digest}]\n", 9,
        "expect[0].finding cannot be the text `kv_digest`; did you mean `kv_digests`?"),
    "match number": (
        "", "expect: [{when: {}, outcome: fail, match: 8192}]\n", 9,
        "expect[0].match must be text, got the number 8192; quote it."),
    "match empty": (
        "", "expect: [{when: {}, outcome: fail, match: ''}]\n", 9,
        "expect[0].match must not be empty."),
    "pass with text": (
        "", "expect: [{when: {}, outcome: pass, match: x}]\n", 9,
        "expect[0]: a pass has no findings"),
}


@pytest.mark.parametrize("case", CASES)
def test_one_problem(problems, case):
    old, new, line, sentence = CASES[case]
    (found_line, found), = problems(GOOD.replace(old, new) if old else GOOD + new)
    assert (found_line, found[:len(sentence)]) == (line, sentence)
    assert "\n" not in found


def test_a_foreign_backend_is_an_error_off_the_cpu(problems):
    (line, sentence), = problems(GOOD.replace("[cpu]", "[rocm]").replace("[REFERENCE, CPU_ATTN]", "[FLASHINFER]"))
    assert (line, sentence) == (7, "axes.backend[0]: `FLASHINFER` is no backend for rocm; valid choices: TRITON_ATTN, "
                                "ROCM_AITER_FA, ROCM_AITER_FA_SHUFFLE, ROCM_AITER_UNIFIED_ATTN, ROCM_ATTN.")


def test_an_embedded_option_as_axis_wants_the_embedded_store_and_one_place(problems):
    text = GOOD + "  transfer: [bulk]\n"
    assert problems(text.replace("{connector: embedded}", "{connector: {kv_connector: X}}")) == [
        (9, "axes.transfer: the axis needs a subject that has this option: embedded, umbp.")]
    assert problems(text.replace("embedded}", "embedded, transfer: bulk}")) == [
        (9, "axes.transfer: given as an axis and as `subject.transfer` on line 4; keep one.")]


def test_overlapping_expectations_come_with_the_rest(problems):
    found = problems(GOOD.replace("tiny", "tinny") + """\
expect:
  - {when: {layout: LHBNC}, outcome: rejected}
  - {when: {backend: CPU_ATTN}, outcome: rejected}
""")
    assert [line for line, _ in found] == [3, 11]
    assert found[1][1] == ("expect: this expectation matches LHBNC-CPU_ATTN-bi0 and 1 more, and so does the one on "
                           "line 10; a cell can have one only.")


def test_names_must_differ_and_all_files_are_heard(tmp_path):
    for name, text in {"a": GOOD, "b": GOOD, "c": GOOD.replace("tiny", "tinny"), "d": ""}.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    paths = [tmp_path / f"{name}.yaml" for name in "abcd"]
    with pytest.raises(ScenarioError) as caught:
        read_scenarios(paths)
    assert [problem.split(": ")[0] for problem in caught.value.problems] == [
        f"{paths[1]}:1", f"{paths[2]}:3", f"{paths[3]}:1"]
    assert f"name `good` is already the name of {paths[0]}" in caught.value.problems[0]
    assert [scenario.name for scenario in read_scenarios(paths[:1])] == ["good"]
