# SPDX-License-Identifier: Apache-2.0
"""Named prompt sets, each for one edge of prefix caching: what it makes of a ``PromptSpec``, and what it needs.

Every set is a ``Pass``: its prompts, the order of submission, and what is put into the local cache before a restore.
``prefix_tokens`` and ``tail_tokens`` keep their meaning where a set does not say otherwise.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from harness.errors import UsageError
from harness.hits import Pass, full_hit
from harness.prompts import make_prompts
from harness.records import Edge, PromptSpec

#: Prompts of ``same_four``.
SAME = 4


@dataclass(frozen=True, kw_only=True)
class PromptSet:
    """One named set.

    Attributes:
        sentence: what its prompts are.
        build: (spec, vocabulary, block size) -> the pass.
        by_blocks: whether the prompts depend on the block size.
        shares: whether prompts share blocks, so that hits depend on what is admitted with what.
        edge: what must be seen to have happened.
    """

    sentence: str
    build: Callable[[PromptSpec, int, int], Pass]
    by_blocks: bool = False
    shares: bool = False
    edge: Edge = Edge.NONE


@functools.lru_cache(maxsize=64)
def make_pass(spec: PromptSpec, vocab_size: int, block_size: int) -> Pass:
    """The prompts of ``spec`` for an engine with blocks of ``block_size`` tokens.

    Raises:
        UsageError: no such set, or lengths that it cannot be made of.
    """
    if spec.set not in SETS:
        raise UsageError(f"unknown prompt set {spec.set!r}; valid: {', '.join(SETS)}")
    return SETS[spec.set].build(spec, vocab_size, block_size)


def _in_order(prompts: tuple[tuple[int, ...], ...], primers: tuple[tuple[int, ...], ...] = ()) -> Pass:
    order = tuple(range(len(prompts)))
    return Pass(prompts=prompts, order=order, hit_order=order, primers=primers)


def _partial(spec: PromptSpec, vocab_size: int, block_size: int) -> Pass:
    return _in_order(make_prompts(spec, vocab_size))


def _cut(spec: PromptSpec, vocab_size: int, lengths: list[int]) -> Pass:
    """Unlike prompts of these lengths."""
    longest = replace(spec, count=len(lengths), prefix_tokens=max(lengths), tail_tokens=0)
    prompts = make_prompts(longest, vocab_size)
    return _in_order(tuple(prompt[:length] for prompt, length in zip(prompts, lengths, strict=True)))


def _aligned(spec: PromptSpec, vocab_size: int, block_size: int) -> Pass:
    blocks = _blocks(spec, block_size, at_least=2, why="a hit leaves the last block to compute")
    return _cut(spec, vocab_size, [blocks * block_size] * spec.count)


def _block_edges(spec: PromptSpec, vocab_size: int, block_size: int) -> Pass:
    blocks = _blocks(spec, block_size, at_least=2, why="it has prompts around one block and around all blocks")
    return _cut(spec, vocab_size, [count * block_size + by for count in (1, blocks) for by in (-1, 0, 1)])


def _shorter_than_block(spec: PromptSpec, vocab_size: int, block_size: int) -> Pass:
    if block_size < 2:
        raise UsageError("prompt set `shorter_than_block`: no prompt is shorter than a block of 1 token")
    return _cut(spec, vocab_size, [max(1, block_size - 1 - index) for index in range(spec.count)])


def _shared_prefix(spec: PromptSpec, vocab_size: int, block_size: int) -> Pass:
    _blocks(spec, block_size, at_least=1, why="the prompts share it")
    longer = replace(spec, tail_tokens=block_size + spec.tail_tokens)
    prompts = make_prompts(longer, vocab_size)
    prefix = prompts[0][: spec.prefix_tokens]
    # The tails differ from their first token on: that is each prompt's own first id.
    tails = [(prompt[0], *prompt[spec.prefix_tokens + 1 :]) for prompt in prompts]
    return _in_order(tuple(prefix + tail for tail in tails))


def _rolled_back(spec: PromptSpec, vocab_size: int, block_size: int) -> Pass:
    if block_size < 2:
        raise UsageError("prompt set `rolled_back`: every cut ends with a block of 1 token; it needs blocks of 2")
    if spec.count < 2 or spec.prefix_tokens <= spec.count * block_size:
        raise UsageError(
            f"prompt set `rolled_back`: a prefix of {spec.prefix_tokens} tokens cannot be rolled back by a block of"
            f" {block_size} for each of {spec.count} prompts; it needs 2 prompts or more, and a prefix longer than"
            f" {max(spec.count, 2) * block_size} tokens"
        )
    whole = make_prompts(replace(spec, count=1), vocab_size)[0]
    # Cuts lie inside a block that was stored whole, or one token behind a block. None ends with a block: the shorter
    # prompt would compute that block again, and the longer one would find the computed one instead of the stored one.
    behind = (1, max(block_size // 2, 1))
    blocks = spec.prefix_tokens // block_size
    cuts = [(blocks - index) * block_size + behind[index % 2] for index in range(1, spec.count)]
    prompts = (whole, *(whole[:length] for length in cuts))
    order = tuple(range(len(prompts)))
    # Stored by the longest; asked for by the shortest first, which would otherwise only hit what the longest loaded.
    return Pass(prompts=prompts, order=order, hit_order=order[::-1])


def _local_then_external(spec: PromptSpec, vocab_size: int, block_size: int) -> Pass:
    prompts = make_prompts(spec, vocab_size)
    blocks = full_hit(len(prompts[0]), block_size) // block_size
    if blocks < 3:
        raise UsageError(
            f"prompt set `local_then_external`: {len(prompts[0])} tokens are {blocks} blocks of {block_size} that can"
            " be hit; a local part and a longer external one need 3"
        )
    local = (blocks - 1) // 2 * block_size
    # One token more than the part that is to be in the local cache: the last token is always computed.
    return _in_order(prompts, primers=tuple(prompt[: local + 1] for prompt in prompts))


def _aborted_load(spec: PromptSpec, vocab_size: int, block_size: int) -> Pass:
    _blocks(spec, block_size, at_least=1, why="a load of nothing cannot be aborted")
    way = _partial(spec, vocab_size, block_size)
    return replace(way, aborted=way.prompts[:1])


def _same_four(spec: PromptSpec, vocab_size: int, block_size: int) -> Pass:
    return _in_order(make_prompts(replace(spec, count=1), vocab_size) * SAME)


def _blocks(spec: PromptSpec, block_size: int, *, at_least: int, why: str) -> int:
    blocks = spec.prefix_tokens // block_size
    if blocks < at_least:
        raise UsageError(
            f"prompt set `{spec.set}`: a prefix of {spec.prefix_tokens} tokens has {blocks} full blocks of"
            f" {block_size}; it needs {at_least}, because {why}"
        )
    return blocks


#: Name -> set.
SETS: Mapping[str, PromptSet] = {
    "partial": PromptSet(sentence="unlike prompts of prefix + tail, whose last block is partial", build=_partial),
    "aligned": PromptSet(
        sentence="unlike prompts of the prefix's full blocks and no more: a full hit still computes the last block",
        build=_aligned, by_blocks=True,
    ),
    "block_edges": PromptSet(
        sentence="six unlike prompts, of one block and of the prefix's full blocks, each less 1, as it is, and plus 1",
        build=_block_edges, by_blocks=True,
    ),
    "shorter_than_block": PromptSet(
        sentence="unlike prompts of less than one block: nothing can be restored, so such a cell is vacuous",
        build=_shorter_than_block, by_blocks=True,
    ),
    "shared_prefix": PromptSet(
        sentence="one prefix for all prompts, then a tail of a block + tail tokens for each",
        build=_shared_prefix, by_blocks=True, shares=True,
    ),
    "rolled_back": PromptSet(
        sentence="one prompt of prefix + tail, and its beginnings, each about a block shorter, cut inside a block or"
        " one token behind it; the longest is stored first and comes back last",
        build=_rolled_back, by_blocks=True, shares=True,
    ),
    "local_then_external": PromptSet(
        sentence="unlike prompts of prefix + tail; before a restore the first blocks of each are put into the local"
        " cache, and a longer part is left to the store",
        build=_local_then_external, by_blocks=True,
    ),
    "chunked": PromptSet(
        sentence="as partial, with a step's token budget (`max_num_batched_tokens`) below the length of each prompt",
        build=_partial, edge=Edge.CHUNKS,
    ),
    "many": PromptSet(
        sentence="as partial, in a pool (`num_gpu_blocks_override`) too small for all prompts at once",
        build=_partial, edge=Edge.PREEMPTION,
    ),
    "aborted_load": PromptSet(
        sentence="as partial; before a restore the first prompt is submitted and aborted while its load is under way",
        build=_aborted_load, by_blocks=True, edge=Edge.ABORT,
    ),
    "same_four": PromptSet(sentence="one prompt of prefix + tail, four times", build=_same_four, shares=True),
}
