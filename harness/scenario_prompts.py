# SPDX-License-Identifier: Apache-2.0
"""Whether the prompt sets that a scenario names fit its lengths, its engine, its store and its reference.

Asked of every cell, because block size and pool may differ between them. A scenario that names no set has the plain
``partial`` one, of which nothing is asked here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from harness.axes import PATH_SETS, effective, points, prompts_of, subject_of
from harness.errors import UsageError
from harness.hits import Pass
from harness.prompt_sets import SETS, make_pass
from harness.records import Edge, PromptSpec, Scenario
from harness.subjects import loads_late
from harness.yaml_lines import Document, Path, Problem

#: Lengths do not depend on the vocabulary, as long as there are ids enough.
ANY_VOCABULARY = 1 << 20

#: Tokens of one step where the scenario does not say: vLLM's smallest default for offline use is above that.
STEP_TOKENS = 2048


def check_prompt_sets(scenario: Scenario, document: Document) -> list[Problem]:
    """Problems of the cells, each once."""
    ways: list[Path] = [("axes", "prompt_set"), ("prompts", "set")]
    if any(path in PATH_SETS for path in scenario.axes.get("restore", ())):
        ways.append(("axes", "restore"))
    named = next((path for path in ways if path in document.lines), None)
    if named is None:
        return []
    found: dict[Problem, None] = {}
    for axes in points(scenario.axes):
        if named == ("axes", "restore") and axes["restore"] not in PATH_SETS:
            continue
        for path, sentence in _cell(scenario, axes, named):
            found[Problem(document.line(path), sentence)] = None
    return list(found)


def _cell(scenario: Scenario, axes: Mapping[str, Any], named: Path) -> Iterator[tuple[Path, str]]:
    engine, _ = effective(scenario, axes)
    spec = prompts_of(scenario, axes)
    block_size = engine["block_size"]
    try:
        way = make_pass(spec, ANY_VOCABULARY, block_size)
    except UsageError as error:
        yield ("prompts",), f"{error}."
        return
    shortest, longest = min(map(len, way.prompts)), max(map(len, way.prompts))
    yield from _decode(scenario, spec, way, block_size)
    limit = engine.get("max_model_len")
    if limit is not None and longest + scenario.decode.max_tokens > limit:
        yield ("engine", "max_model_len"), (
            f"engine.max_model_len: {limit} tokens are too few for a prompt of {longest} tokens of the set `{spec.set}`"
            f" and {scenario.decode.max_tokens} new ones."
        )
    chosen = SETS[spec.set]
    if chosen.shares and scenario.decode.submit == "together":
        yield from _together(scenario, axes, spec, way, engine)
    if chosen.edge is Edge.CHUNKS:
        budget = engine.get("max_num_batched_tokens")
        if budget is None or budget >= shortest:
            yield named, (
                f"prompt set `chunked` needs `engine.max_num_batched_tokens` below its prompts of {shortest} tokens,"
                f" got {'none' if budget is None else budget}."
            )
    if chosen.edge is Edge.PREEMPTION:
        yield from _preemption(scenario, axes, way, engine, named)


def _decode(scenario: Scenario, spec: PromptSpec, way: Pass, block_size: int) -> Iterator[tuple[Path, str]]:
    """KV of new tokens must open a block of its own; that of the last one is never written."""
    needed = max((-len(prompt)) % block_size + 2 for prompt in way.prompts)
    if scenario.decode.max_tokens < needed:
        yield ("decode", "max_tokens"), (
            f"decode.max_tokens: {scenario.decode.max_tokens} new tokens do not take every prompt of the set"
            f" `{spec.set}` into another block of {block_size}; it needs {needed}."
        )


def _together(
    scenario: Scenario, axes: Mapping[str, Any], spec: PromptSpec, way: Pass, engine: Mapping[str, Any]
) -> Iterator[tuple[Path, str]]:
    """Whose blocks a prompt finds is known when all are admitted in one step, and when a load's end is known."""
    total, budget = sum(map(len, way.prompts)), engine.get("max_num_batched_tokens", STEP_TOKENS)
    if total > budget:
        yield ("decode", "submit"), (
            f"prompt set `{spec.set}`: its {total} tokens are more than the {budget} of one step, so nobody knows which"
            " prompt finds whose blocks; write `submit: alone`, or raise `engine.max_num_batched_tokens`."
        )
    if loads_late(subject_of(scenario, axes)) is None:
        yield ("decode", "submit"), (
            f"prompt set `{spec.set}`: whether this connector loads within a step or between steps is not known, and"
            " with it which prompt finds whose blocks; write `submit: alone`."
        )


def _preemption(
    scenario: Scenario, axes: Mapping[str, Any], way: Pass, engine: Mapping[str, Any], named: Path
) -> Iterator[tuple[Path, str]]:
    pool, block_size = engine.get("num_gpu_blocks_override"), engine["block_size"]
    if scenario.reference == "local_hit" or (scenario.reference == "auto" and not axes["batch_invariant"]):
        yield named, (
            "prompt set `many` needs the reference `recompute`, so with `reference: auto` only `batch_invariant: true`:"
            " a pool that is too small for the prompts has no local hit to compare with."
        )
    if scenario.decode.submit == "alone":
        yield ("decode", "submit"), "prompt set `many`: prompts that are submitted alone do not preempt each other."
    length = max(map(len, way.prompts))
    first, last = -(-length // block_size), -(-(length + scenario.decode.max_tokens - 1) // block_size)
    # One block of the pool is vLLM's null block.
    together = min(len(way.prompts), ((pool or 0) - 1) // first)
    if pool is None or last > pool - 1 or together * last <= pool - 1:
        yield ("engine", "num_gpu_blocks_override"), (
            f"prompt set `many`: {len(way.prompts)} prompts that grow from {first} to {last} blocks each preempt each"
            f" other in a pool of more than {last} blocks that is too small for all that it admits; got"
            f" {'no `engine.num_gpu_blocks_override`' if pool is None else pool}."
        )
