# SPDX-License-Identifier: Apache-2.0
"""Bad scenario files: all of their problems at once, each with its line, and what each kind of problem is told."""

from __future__ import annotations

import pytest

from harness.errors import ScenarioError
from harness.records import LAYOUTS
from harness.scenario import read_scenario, read_scenarios
from tests.unit.scenario_cases import CASES
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
