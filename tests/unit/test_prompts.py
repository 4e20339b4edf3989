# SPDX-License-Identifier: Apache-2.0
"""Prompt sets are the same everywhere, share no block, and the n-1 rule counts what a store can serve."""

from __future__ import annotations

import dataclasses

import pytest

from harness import prompts
from harness.errors import UsageError
from harness.records import PromptSpec

SPEC = PromptSpec(count=3, prefix_tokens=192, tail_tokens=8, seed=0)
#: Digests of that set for Qwen3's vocabulary.
PINNED = ["7b245505b4e28375", "6c79f227c4c5f07a", "f88bd2fa88a669f5"]


def test_prompts_have_the_asked_count_and_length():
    assert [len(prompt) for prompt in prompts.make_prompts(SPEC, 1024)] == [200, 200, 200]


def test_prompts_are_the_same_on_every_machine():
    made = prompts.make_prompts(SPEC, 151936)
    assert [prompts.prompt_digest(prompt) for prompt in made] == PINNED
    assert made == prompts.make_prompts(SPEC, 151936)


def test_another_seed_gives_other_tokens():
    other = prompts.make_prompts(dataclasses.replace(SPEC, seed=1), 1024)
    for one, two in zip(prompts.make_prompts(SPEC, 1024), other, strict=True):
        assert sum(a == b for a, b in zip(one, two, strict=True)) < 10


@pytest.mark.parametrize("seed", range(20))
def test_prompts_differ_from_the_first_token_on(seed):
    made = prompts.make_prompts(PromptSpec(count=500, prefix_tokens=4, tail_tokens=0, seed=seed), 1024)
    assert len({prompt[0] for prompt in made}) == 500


def test_tokens_avoid_special_ids_and_use_the_whole_range():
    made = prompts.make_prompts(PromptSpec(count=50, prefix_tokens=1000, tail_tokens=0), 1024)
    tokens = {token for prompt in made for token in prompt}
    assert tokens == set(range(10, 724))


def test_a_longer_or_larger_set_keeps_what_a_smaller_one_has():
    small = prompts.make_prompts(SPEC, 1024)
    large = prompts.make_prompts(PromptSpec(count=5, prefix_tokens=300, tail_tokens=50, seed=0), 1024)
    assert [prompt[:200] for prompt in large[:3]] == list(small)


def test_more_prompts_than_first_tokens_are_refused():
    with pytest.raises(UsageError, match="prompts.count 715 is more than the 714 token ids that a vocabulary of 1024"):
        prompts.make_prompts(dataclasses.replace(SPEC, count=715), 1024)


def test_a_vocabulary_of_special_ids_alone_is_refused():
    with pytest.raises(UsageError, match="more than the 0 token ids"):
        prompts.make_prompts(SPEC, 300)


def test_fillers_share_no_first_token_with_the_prompts_and_differ_among_themselves():
    firsts = {prompt[0] for prompt in prompts.make_prompts(SPEC, 1024)}
    fillers = [prompts.filler_prompt(SPEC, 1024, length=49, number=number) for number in range(5)]
    assert {len(filler) for filler in fillers} == {49}
    assert not firsts & {filler[0] for filler in fillers}
    assert len(set(fillers)) == 5


def test_digest_tells_token_boundaries_apart():
    assert prompts.prompt_digest([1, 23]) != prompts.prompt_digest([12, 3])
    assert len(prompts.prompt_digest([1])) == 16
