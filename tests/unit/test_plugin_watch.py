# SPDX-License-Identifier: Apache-2.0
"""Block tables from scheduler outputs: growth, preemption, sharing, reuse; and the plugin's inertness."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.plugin.watch import BlockWatch

ROOT = Path(__file__).resolve().parents[2]


def new(name: str, prompt: list[int], blocks: list[int]) -> SimpleNamespace:
    return SimpleNamespace(req_id=name, prompt_token_ids=prompt, block_ids=(blocks,))


def step(
    *fresh: SimpleNamespace, grown: dict[str, Any] | None = None, resumed: tuple[str, ...] = (), computed: int = 99
) -> Any:
    grown = grown or {}
    cached = SimpleNamespace(
        req_ids=list(grown),
        num_computed_tokens=[computed] * len(grown),
        new_block_ids=[None if blocks is None else (blocks,) for blocks in grown.values()],
        resumed_req_ids=set(resumed),
    )
    return SimpleNamespace(scheduled_new_reqs=list(fresh), scheduled_cached_reqs=cached)


def taken(*steps: Any) -> list[tuple[list[int], list[int], bool]]:
    watch = BlockWatch(block_size=2)
    for output in steps:
        watch.see(output)
    return [(entry["prompt_token_ids"], entry["blocks"], entry["reused"]) for entry in watch.take()]


def test_tables_grow_in_order_of_first_appearance() -> None:
    steps = (
        step(new("b", [1, 2, 3], [7, 3]), new("a", [4, 5], [9])),
        step(grown={"b": None, "a": [1]}),
        step(grown={"a": [8]}),
    )
    assert taken(*steps) == [([1, 2, 3], [7, 3], False), ([4, 5], [9, 1, 8], False)]


def test_a_resumed_request_has_a_new_table() -> None:
    steps = (step(new("a", [1, 2, 3, 4], [5, 6])), step(grown={"a": [8, 9, 10]}, resumed=("a",)))
    assert taken(*steps) == [([1, 2, 3, 4], [8, 9, 10], False)]


def test_a_shared_prefix_is_no_reuse() -> None:
    steps = (step(new("a", [1, 2, 3, 4], [5, 6])), step(new("b", [1, 2, 9, 9], [5, 7])))
    assert [entry[2] for entry in taken(*steps)] == [False, False]


@pytest.mark.parametrize(("prompt", "blocks"), [([1, 9, 0], [5, 8]), ([1, 2, 3, 4], [6, 5]), ([8, 8, 8, 8], [0, 6])])
def test_a_block_given_away_for_other_content_is_reused(prompt: list[int], blocks: list[int]) -> None:
    steps = (step(new("a", [1, 2, 3, 4], [5, 6])), step(new("b", prompt, blocks)))
    assert [entry[2] for entry in taken(*steps)] == [True, False]


def test_only_full_prompt_blocks_count() -> None:
    steps = (step(new("a", [1, 2, 3], [5, 6])), step(new("b", [9, 9], [6])))
    assert [entry[2] for entry in taken(*steps)] == [False, False]


def test_steps_of_prefill_are_counted_until_the_prompt_is_computed() -> None:
    watch = BlockWatch(block_size=2)
    watch.see(step(new("a", [1, 2, 3, 4, 5], [5])))
    watch.see(step(grown={"a": [6]}, computed=2))
    watch.see(step(grown={"a": None}, computed=4))
    watch.see(step(grown={"a": [7]}, computed=5))
    assert [entry["prefill_steps"] for entry in watch.take()] == [3]


def test_taking_forgets() -> None:
    watch = BlockWatch(block_size=2)
    watch.see(step(new("a", [1, 2], [5])))
    assert len(watch.take()) == 1
    assert watch.take() == []
    watch.see(step(grown={"a": [6]}))
    assert watch.take() == []


def test_register_imports_nothing_without_the_variable() -> None:
    script = (
        "import sys; from harness.plugin import register; register();"
        "print(sorted(name for name in sys.modules if name.split('.')[0] in ('vllm', 'torch', 'harness')))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "['harness', 'harness.plugin']"
