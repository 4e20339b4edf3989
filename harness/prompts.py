# SPDX-License-Identifier: Apache-2.0
"""Token-id prompts: seeded, and the same on every machine; ``harness.prompt_sets`` makes the named sets of them.

Prompts are token ids and never text, because text re-tokenises differently.
Ids come from SHAKE-128 and not from ``random``, of which Python keeps only ``random()`` itself stable.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from harness.errors import UsageError
from harness.records import PromptSpec

#: Ids below are special tokens in common vocabularies, and so are the last few hundred.
FIRST_ID = 10
RESERVED_AT_END = 300


def make_prompts(spec: PromptSpec, vocab_size: int) -> tuple[tuple[int, ...], ...]:
    """``spec.count`` prompts of ``prefix_tokens + tail_tokens`` ids each, different from the first token on.

    A larger ``count`` or length adds prompts or tokens and leaves the others as they are.

    Raises:
        UsageError: the vocabulary has fewer usable ids than ``count``.
    """
    length = spec.prefix_tokens + spec.tail_tokens
    prompts = []
    for index, start in enumerate(_first_ids(spec, vocab_size)):
        rest = _ids(f"prompt {spec.seed} {index}", vocab_size)
        prompts.append((start, *(next(rest) for _ in range(length - 1))))
    return tuple(prompts)


def filler_prompt(spec: PromptSpec, vocab_size: int, *, length: int, number: int) -> tuple[int, ...]:
    """A prompt that shares no block with any prompt of ``spec``; ``number`` tells several of them apart."""
    # One more first token than the prompts have: unlike all of theirs.
    start = _first_ids(spec, vocab_size, more=1)[-1]
    rest = _ids(f"filler {spec.seed} {number}", vocab_size)
    return (start, *(next(rest) for _ in range(length - 1)))


def prompt_digest(tokens: Sequence[int]) -> str:
    """16 hex digits that name a prompt's token ids."""
    return hashlib.blake2b(" ".join(map(str, tokens)).encode(), digest_size=8).hexdigest()


def _first_ids(spec: PromptSpec, vocab_size: int, more: int = 0) -> list[int]:
    """The first token of each prompt and of ``more`` others, all different, so that no two prompts share a block."""
    low, high = _usable(vocab_size)
    if spec.count + more > high - low:
        raise UsageError(
            f"prompts.count {spec.count} is more than the {max(high - low, 0)} token ids that a vocabulary of "
            f"{vocab_size} has for first tokens"
        )
    ids = _ids(f"first {spec.seed}", vocab_size)
    found: dict[int, None] = {}
    while len(found) < spec.count + more:
        found[next(ids)] = None
    return list(found)


def _ids(key: str, vocab_size: int) -> Iterator[int]:
    """Endless token ids in ``[FIRST_ID, vocab_size - RESERVED_AT_END)``."""
    low, high = _usable(vocab_size)
    piece = 0
    while True:
        stream = hashlib.shake_128(f"{key} {piece}".encode()).digest(4096)
        for at in range(0, len(stream), 8):
            yield low + int.from_bytes(stream[at : at + 8], "little") % (high - low)
        piece += 1


def _usable(vocab_size: int) -> tuple[int, int]:
    return FIRST_ID, vocab_size - RESERVED_AT_END
