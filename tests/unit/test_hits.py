# SPDX-License-Identifier: Apache-2.0
"""Hits by rule: what each prompt of each named set finds in the local cache and in the store, phase by phase."""

from __future__ import annotations

import pytest

from harness.hits import Caches, expected_hits, full_hit
from harness.prompt_sets import SETS, make_pass
from harness.records import Certainty, Phase, PromptSpec, Role

BLOCK = 16
P, T = (Role.SUBJECT, Phase.POPULATE), (Role.ORACLE, Phase.RECOMPUTE)
LOCAL, RESTORE, AGAIN = (Phase.LOCAL_HIT, Phase.RESTORE, Phase.RESTORE_AGAIN)


def hits(name: str, **rule: int) -> dict:
    """(role, phase) -> (local, external) of each prompt."""
    way = make_pass(PromptSpec(set=name, count=3, prefix_tokens=64, tail_tokens=8), 1024, BLOCK)
    return {
        (one.role, one.phase): (one.local, one.external) for one in expected_hits(way, BLOCK, **rule)
    }


@pytest.mark.parametrize(
    ("length", "block_size", "tokens"),
    [(200, 16, 192), (192, 64, 128), (192, 16, 176), (193, 16, 192), (16, 16, 0), (17, 16, 16), (1, 16, 0), (0, 16, 0)],
)
def test_a_full_hit_leaves_at_least_one_token_to_compute(length, block_size, tokens):
    assert full_hit(length, block_size) == tokens


#: Set -> what its prompts hit when the whole set is served: by the local cache, and by the store in a restore as
#: (local, external).
FULL = {
    "partial": ((64, 64, 64), (0, 0, 0)),
    "aligned": ((48, 48, 48), (0, 0, 0)),
    "block_edges": ((0, 0, 16, 48, 48, 64), (0,) * 6),
    "shorter_than_block": ((0, 0, 0), (0, 0, 0)),
    # The first prompt loads the common blocks, the others find them where it put them.
    "shared_prefix": ((80, 80, 80), (0, 64, 64)),
    # 72, 56 and 33 tokens, the shortest first: 32 from the store; then 32 local and 16; then 48 local and 16.
    "rolled_back": ((64, 48, 32), (48, 32, 0)),
    "local_then_external": ((64, 64, 64), (16, 16, 16)),
    "chunked": ((64, 64, 64), (0, 0, 0)),
    "many": ((64, 64, 64), (0, 0, 0)),
    "aborted_load": ((64, 64, 64), (0, 0, 0)),
    "same_four": ((64, 64, 64, 64), (0, 64, 64, 64)),
}


def test_every_set_has_its_numbers_here():
    assert set(FULL) == set(SETS)


@pytest.mark.parametrize("name", FULL)
def test_local_hits_and_restores(name):
    full, local = FULL[name]
    found, none = hits(name), (0,) * len(full)
    assert found[Role.ORACLE, LOCAL] == found[Role.SUBJECT, LOCAL] == (full, none)
    external = tuple(whole - part for whole, part in zip(full, local, strict=True))
    assert found[Role.SUBJECT, RESTORE] == found[Role.SUBJECT, AGAIN] == (local, external)


@pytest.mark.parametrize(
    ("name", "own"), [("shared_prefix", (0, 64, 64)), ("rolled_back", (0, 48, 32)), ("same_four", (0, 64, 64, 64))]
)
def test_what_is_computed_first_serves_the_later_prompts_of_the_same_pass(name, own):
    found, none = hits(name), (0,) * len(own)
    assert {found[key] for key in (P, T, (Role.ORACLE, Phase.RECOMPUTE_AGAIN))} == {(own, none)}


@pytest.mark.parametrize("name", sorted(set(SETS) - {"shared_prefix", "rolled_back", "same_four"}))
def test_unlike_prompts_are_computed_whole(name):
    found = hits(name)
    assert {sum(map(sum, found[key])) for key in (P, T, (Role.ORACLE, Phase.RECOMPUTE_AGAIN))} == {0}


def test_prompts_that_load_between_steps_do_not_see_each_others_blocks():
    found = hits("same_four", late_loads=True)
    assert found[Role.SUBJECT, RESTORE] == ((0,) * 4, (64,) * 4)
    assert found[Role.SUBJECT, Phase.POPULATE] == ((0, 64, 64, 64), (0,) * 4)
    assert hits("rolled_back", late_loads=True)[Role.SUBJECT, AGAIN] == ((0, 0, 0), (64, 48, 32))


@pytest.mark.parametrize("leaves", [0, 1])
def test_a_store_that_gives_the_last_block_too_leaves_a_token_or_none(leaves):
    """Prompts of 15, 16, 17, 63, 64 and 65 tokens; also behind a local hit."""
    found = hits("block_edges", leaves=leaves)
    most = 16 - leaves, 64 - leaves
    assert found[Role.SUBJECT, RESTORE] == found[Role.SUBJECT, AGAIN] == ((0,) * 6, (0, most[0], 16, 48, most[1], 64))
    assert found[Role.SUBJECT, LOCAL] == ((0, 0, 16, 48, 48, 64), (0, most[0], 0, 0, most[1] - 48, 0))
    assert found[Role.ORACLE, LOCAL] == ((0, 0, 16, 48, 48, 64), (0,) * 6)
    for name in sorted(set(SETS) - {"block_edges", "aligned"}):
        assert hits(name, leaves=leaves) == hits(name)


def test_what_a_small_pool_still_has_is_not_certain():
    way = make_pass(PromptSpec(set="many", count=8, prefix_tokens=64, tail_tokens=8), 1024, BLOCK)
    certain = {(one.role, one.phase): one.certain for one in expected_hits(way, BLOCK, small_pool=True)}
    assert certain.pop((Role.ORACLE, LOCAL)) is Certainty.LIMIT
    assert certain.pop((Role.SUBJECT, LOCAL)) is Certainty.SUM
    assert set(certain.values()) == {Certainty.SPLIT}


def test_the_store_is_asked_for_what_follows_the_local_hit():
    caches = Caches(block_size=2, store=True)
    caches.keep((1, 2, 3, 4, 5, 6, 7))
    caches.reset()
    caches.keep((1, 2, 9, 9, 9))
    assert caches.find((1, 2, 3, 4, 5, 6, 7)) == (2, 4)
    assert caches.find((1, 2, 3, 4, 5, 6)) == (2, 2)
    assert caches.find((3, 4, 5, 6, 7)) == (0, 0)


def test_an_engine_without_a_store_finds_nothing_after_a_reset():
    caches = Caches(block_size=2, store=False)
    caches.keep((1, 2, 3, 4, 5))
    assert caches.find((1, 2, 3, 4, 5)) == (4, 0)
    caches.reset()
    assert caches.find((1, 2, 3, 4, 5)) == (0, 0)
