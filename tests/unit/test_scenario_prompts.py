# SPDX-License-Identifier: Apache-2.0
"""Prompt sets in scenario files: misfits are named with their line; the repository's own files reach the edges."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.axes import effective, points, prompts_of
from harness.errors import ScenarioError
from harness.prompt_sets import SETS, make_pass
from harness.scenario import read_scenario

ROOT = Path(__file__).resolve().parents[2]
FILE = """\
name: x
model: tiny
subject: {subject}
axes:
  layout: [LHBNC]
  backend: [REFERENCE]
  batch_invariant: [{invariant}]
prompts: {{set: {name}, prefix_tokens: {prefix}}}
decode: {{max_tokens: {tokens}, submit: {submit}}}
engine: {{{engine}}}
"""
GOOD = {
    "name": "partial", "prefix": 64, "tokens": 18, "submit": "together", "subject": "embedded", "invariant": "true",
    "engine": "block_size: 16",
}
OWN = "{kv_transfer_config: {kv_connector: X}}"


def problems(tmp_path: Path, **changes: object) -> list[str]:
    path = tmp_path / "x.yaml"
    path.write_text(FILE.format(**{**GOOD, **changes}))
    return problems_of(path)


def problems_of(path: Path) -> list[str]:
    try:
        read_scenario(path)
    except ScenarioError as error:
        return [line.removeprefix(f"{path}:") for line in error.problems]
    return []


@pytest.mark.parametrize("name", [name for name in SETS if name not in ("chunked", "many")])
def test_a_set_that_fits_has_no_problem(tmp_path, name):
    assert problems(tmp_path, name=name) == []
    assert problems(tmp_path, name=name, submit="alone", subject=OWN) == []


CASES = {
    "too short": (
        {"name": "aligned", "prefix": 20},
        "8: prompt set `aligned`: a prefix of 20 tokens has 1 full blocks of 16; it needs 2, because a hit leaves the"
        " last block to compute."),
    "decode stays in the block": (
        {"tokens": 9},
        "9: decode.max_tokens: 9 new tokens do not take every prompt of the set `partial` into another block of 16; it"
        " needs 10."),
    "longer than the model takes": (
        {"name": "shared_prefix", "engine": "max_model_len: 100"},
        "10: engine.max_model_len: 100 tokens are too few for a prompt of 88 tokens of the set `shared_prefix` and"
        " 18 new ones."),
    "chunked without a budget": (
        {"name": "chunked"},
        "8: prompt set `chunked` needs `engine.max_num_batched_tokens` below its prompts of 72 tokens, got none."),
    "chunked with too large a budget": (
        {"name": "chunked", "engine": "max_num_batched_tokens: 72"},
        "8: prompt set `chunked` needs `engine.max_num_batched_tokens` below its prompts of 72 tokens, got 72."),
    "shared in several steps": (
        {"name": "same_four", "engine": "max_num_batched_tokens: 100"},
        "9: prompt set `same_four`: its 288 tokens are more than the 100 of one step"),
    "shared with a connector that nobody knows": (
        {"name": "same_four", "subject": OWN},
        "9: prompt set `same_four`: whether this connector loads within a step or between steps is not known"),
    "many without a pool": (
        {"name": "many"},
        "10: prompt set `many`: 3 prompts that grow from 5 to 6 blocks each preempt each other in a pool of more than 6"
        " blocks that is too small for all that it admits; got no `engine.num_gpu_blocks_override`."),
    "many in a pool for all": (
        {"name": "many", "engine": "num_gpu_blocks_override: 19"}, "10: prompt set `many`: 3 prompts that grow"),
    "many in a pool that is too small for one": (
        {"name": "many", "engine": "num_gpu_blocks_override: 6"}, "10: prompt set `many`: 3 prompts that grow"),
    "many against a local hit": (
        {"name": "many", "invariant": "false", "engine": "num_gpu_blocks_override: 16"},
        "8: prompt set `many` needs the reference `recompute`, so with `reference: auto` only `batch_invariant: true`"),
    "many one by one": (
        {"name": "many", "submit": "alone", "engine": "num_gpu_blocks_override: 16"},
        "9: prompt set `many`: prompts that are submitted alone do not preempt each other."),
    "no such set": ({"name": "partail"}, "8: prompts.set cannot be the text `partail`; did you mean `partial`? Valid"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_does_not_fit_is_named(tmp_path, case):
    changes, words = CASES[case]
    (found,) = problems(tmp_path, **changes)
    assert found[: len(words)] == words


def test_many_in_a_pool_that_preempts(tmp_path):
    assert problems(tmp_path, name="many", engine="num_gpu_blocks_override: 16") == []


def test_a_scenario_that_names_no_set_is_asked_nothing(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text(FILE.format(**{**GOOD, "tokens": 2}).replace("set: partial, ", ""))
    assert read_scenario(path).prompts.set == "partial"


def test_the_axis_and_the_key_cannot_both_choose(tmp_path):
    path = tmp_path / "x.yaml"
    text = FILE.format(**GOOD).replace("[true]\n", "[true]\n  prompt_set: [aligned, alinged]\n")
    path.write_text(text)
    with pytest.raises(ScenarioError) as error:
        read_scenario(path)
    unknown, both = (line.removeprefix(f"{path}:") for line in error.value.problems)
    assert both == "8: axes.prompt_set: given as an axis and as `prompts.set` on line 9; keep one."
    assert unknown == ("8: axes.prompt_set[1]: `alinged` is no prompt set; did you mean `aligned`? Valid choices: "
                       f"{', '.join(SETS)}.")


def test_the_repositorys_scenarios_run_every_set_and_decode_across_a_block():
    found = set()
    for name in ("prompts", "preemption", "clean", "clean_backends", "connectors_edges"):
        scenario = read_scenario(ROOT / "scenarios" / f"{name}.yaml")
        for axes in points(scenario.axes):
            engine, _ = effective(scenario, axes)
            spec = prompts_of(scenario, axes)
            found.add(spec.set)
            for prompt in make_pass(spec, 1024, engine["block_size"]).prompts:
                # The last token's KV is never written.
                written = range(len(prompt), len(prompt) + scenario.decode.max_tokens - 1)
                assert any(place % engine["block_size"] == 0 for place in written), (name, spec.set, len(prompt))
    assert found == set(SETS)


def test_at_least_a_hundred_clean_cells():
    files = (read_scenario(ROOT / "scenarios" / f"{name}.yaml") for name in ("clean", "clean_backends"))
    assert sum(len(list(points(scenario.axes))) for scenario in files) == 112


def test_a_restore_path_that_has_prompts_of_its_own_takes_no_set_and_is_checked_like_one(tmp_path):
    """Blocks of 16: 36 tokens leave 2 blocks to hit, one too few for a local part and a longer external one."""
    path = tmp_path / "x.yaml"
    head = "name: x\nmodel: tiny\nsubject: embedded\n"
    axes = ("axes: {{layout: [LBHNC], backend: [REFERENCE], batch_invariant: [true],"
            " restore: [same_engine, partial]{}}}\n")
    path.write_text(f"{head}{axes.format(', prompt_set: [aligned]')}")
    (both,) = problems_of(path)
    assert both == ("4: axes.restore[1]: `partial` runs with the prompt set `local_then_external`, so"
                    " `axes.prompt_set` cannot be given beside it.")
    path.write_text(f"{head}{axes.format('')}prompts: {{prefix_tokens: 32, tail_tokens: 4}}\n")
    (short,) = problems_of(path)
    assert short.startswith("5: prompt set `local_then_external`: 36 tokens are 2 blocks of 16 that can be hit")
    path.write_text(f"{head}{axes.format('')}prompts: {{prefix_tokens: 48}}\n")
    alone, split = (prompts_of(read_scenario(path), point) for point in points(read_scenario(path).axes))
    assert (alone.set, split.set) == ("partial", "local_then_external")


def test_only_a_connector_with_a_server_can_have_it_restarted(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("name: x\nmodel: tiny\nsubject: mooncake_store\naxes:\n  layout: [LBHNC]\n  backend: [REFERENCE]\n"
                    "  batch_invariant: [true]\n  connector: [mooncake_store, example]\n"
                    "  restore: [same_engine, restarted_server]\n")
    assert problems_of(path) == ["9: axes.restore[1]: example: no server to restart."]
