# SPDX-License-Identifier: Apache-2.0
"""What the named sets are made of, and the lengths that they refuse."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.errors import UsageError
from harness.prompt_sets import SETS, make_pass
from harness.prompts import make_prompts
from harness.records import PromptSpec

SPEC = PromptSpec(count=3, prefix_tokens=64, tail_tokens=8)


def made(name: str, **changes):
    return make_pass(replace(SPEC, set=name, **changes), 1024, 16)


@pytest.mark.parametrize(
    ("name", "lengths"),
    [
        ("partial", [72, 72, 72]), ("aligned", [64, 64, 64]), ("block_edges", [15, 16, 17, 63, 64, 65]),
        ("shorter_than_block", [15, 14, 13]), ("shared_prefix", [88, 88, 88]), ("rolled_back", [72, 56, 33]),
        ("local_then_external", [72, 72, 72]), ("chunked", [72, 72, 72]), ("many", [72, 72, 72]),
        ("same_four", [72, 72, 72, 72]), ("aborted_load", [72, 72, 72]),
    ],
)
def test_lengths(name, lengths):
    assert [len(prompt) for prompt in made(name).prompts] == lengths


@pytest.mark.parametrize("name", SETS)
def test_every_set_depends_on_the_seed_and_submits_each_prompt_once(name):
    way = made(name)
    assert way.prompts != made(name, seed=1).prompts
    assert way == made(name)
    assert sorted(way.order) == sorted(way.hit_order) == list(range(len(way.prompts)))


@pytest.mark.parametrize("name", ["partial", "aligned", "block_edges", "local_then_external", "chunked", "many"])
def test_unlike_prompts_differ_from_the_first_token_on(name):
    prompts = made(name).prompts
    assert len({prompt[0] for prompt in prompts}) == len(prompts)


def test_the_plain_set_is_what_it_was():
    assert made("partial").prompts == make_prompts(SPEC, 1024)


def test_a_shared_prefix_ends_where_it_should():
    prompts = made("shared_prefix").prompts
    assert len({prompt[:64] for prompt in prompts}) == 1
    assert len({prompt[64] for prompt in prompts}) == 3


def test_rollbacks_are_beginnings_and_come_back_shortest_first():
    way = made("rolled_back")
    assert [prompt == way.prompts[0][: len(prompt)] for prompt in way.prompts] == [True] * 3
    assert (way.order, way.hit_order) == ((0, 1, 2), (2, 1, 0))


def test_primers_leave_more_to_the_store_than_they_put_into_the_local_cache():
    way = made("local_then_external", prefix_tokens=100)
    assert [len(primer) for primer in way.primers] == [33, 33, 33]  # 2 blocks local, 4 external of 108 tokens
    assert [prompt[:33] for prompt in way.prompts] == list(way.primers)


def test_the_first_prompt_is_the_one_that_is_aborted():
    way = made("aborted_load")
    assert way.aborted == way.prompts[:1] == made("partial").prompts[:1]
    assert {name for name in SETS if made(name).aborted} == {"aborted_load"}


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("aligned", {"prefix_tokens": 31}, "`aligned`: a prefix of 31 tokens has 1 full blocks of 16; it needs 2"),
        ("block_edges", {"prefix_tokens": 16}, "`block_edges`: a prefix of 16 tokens has 1 full blocks"),
        ("aborted_load", {"prefix_tokens": 15}, "`aborted_load`: a prefix of 15 tokens has 0 full blocks"),
        ("shared_prefix", {"prefix_tokens": 15}, "`shared_prefix`: a prefix of 15 tokens has 0 full blocks"),
        ("rolled_back", {"prefix_tokens": 48}, "a prefix of 48 tokens cannot be rolled back by a block of 16 for each"
         " of 3 prompts; it needs 2 prompts or more, and a prefix longer than 48 tokens"),
        ("rolled_back", {"count": 1}, "a prefix longer than 32 tokens"),
        ("local_then_external", {"prefix_tokens": 40}, "48 tokens are 2 blocks of 16 that can be hit"),
        ("no_such", {}, "unknown prompt set 'no_such'; valid: partial, aligned"),
    ],
)
def test_lengths_that_a_set_cannot_be_made_of(name, changes, words):
    with pytest.raises(UsageError, match=words.replace("(", r"\(")):
        made(name, **changes)


def test_no_prompt_is_shorter_than_a_block_of_one_token():
    with pytest.raises(UsageError, match="no prompt is shorter than a block of 1 token"):
        make_pass(PromptSpec(set="shorter_than_block"), 1024, 1)


def test_no_cut_lies_inside_a_block_of_one_token():
    with pytest.raises(UsageError, match="every cut ends with a block of 1 token"):
        make_pass(PromptSpec(set="rolled_back"), 1024, 1)
