# SPDX-License-Identifier: Apache-2.0
"""An engine's place without an engine: what a store's planner and worker do to KV tensors, and nothing else.

Behind the ``Engine`` protocol, so that the phases, the evidence and the judgement are those of any other leg: prompts
take blocks of a pool, hit a local cache or the store, are "computed" where they hit neither (bytes that their tokens
decide), and are stored. No token is generated; the answer is the KV blocks themselves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from harness.engines import Answer, Counters, Placement
from harness.hits import full_hit
from harness.records import DecodeSpec, Leg, Resolved

if TYPE_CHECKING:
    from harness.unit.pages import Pages
    from harness.unit.stores import Store


def open_engine(leg: Leg, stage: Callable[[str], None]) -> UnitEngine:
    """Import vLLM's allocator, place the KV tensors, open the store; refusals in vLLM's and the store's own words."""
    stage("import")
    from harness.unit.pages import Pages
    from harness.unit.stores import open_store

    stage("load")
    pages = Pages(leg)
    return UnitEngine(leg, pages, open_store(leg.kv_transfer_config, pages))


class UnitEngine:
    """Blocks, a local prefix cache, a store, exact counts."""

    def __init__(self, leg: Leg, pages: Pages, store: Store | None) -> None:
        self._leg, self._pages, self._store = leg, pages, store
        self._local: dict[str, int] = {}
        self._placements: list[Placement] = []
        self._next = 0
        self._totals = dict.fromkeys(("local", "external", "delivered", "loaded", "stored"), 0)

    def resolved(self) -> Resolved:
        return self._pages.resolved(self._store.name if self._store else None, batch_invariant=True)

    def generate(self, prompts: Sequence[Sequence[int]], decode: DecodeSpec) -> list[Answer]:
        return [self._answer(tuple(prompt)) for prompt in prompts]

    def _answer(self, prompt: tuple[int, ...]) -> Answer:
        size = self._pages.block_size
        keys = [_key(prompt[: end]) for end in range(size, len(prompt) + 1, size)]
        # vLLM computes at least the last token, and with it its block.
        most = full_hit(len(prompt), size) // size
        local = _leading(keys[:most], self._local.__contains__)
        external = _leading(keys[local:most], self._store.has) if self._store else 0
        blocks = [self._local[key] for key in keys[:local]]
        blocks += self._take(-(-len(prompt) // size) - local, blocks)
        if external:
            self._load(keys[local : local + external], blocks[local : local + external])
        for number in range(local + external, len(blocks)):
            self._pages.compute(blocks[number], prompt[: (number + 1) * size])
        self._local.update(zip(keys, blocks, strict=False))
        if self._store:
            self._save(self._store, [(key, block) for key, block in zip(keys, blocks, strict=False)
                                     if not self._store.has(key)])
        self._totals["local"] += local * size
        self._totals["external"] += external * size
        self._placements.append(Placement(tokens=prompt, blocks=tuple(blocks), reused=False))
        return Answer(steps=(), cached_tokens=(local + external) * size, finish_reason=None, local_tokens=local * size,
                      external_tokens=external * size)

    def _take(self, count: int, held: Sequence[int]) -> list[int]:
        """Blocks in turn, those left out that the local cache holds.

        Raises:
            RuntimeError: the pool is too small.
        """
        taken: list[int] = []
        busy = {*self._local.values(), *held}
        for _ in range(self._pages.num_blocks):
            if len(taken) == count:
                break
            if self._next not in busy:
                taken.append(self._next)
            self._next = (self._next + 1) % self._pages.num_blocks
        if len(taken) < count:
            raise RuntimeError(f"the pool of {self._pages.num_blocks} blocks is too small; raise "
                               "num_gpu_blocks_override")
        return taken

    def _load(self, keys: Sequence[str], blocks: Sequence[int]) -> None:
        assert self._store is not None
        with self._pages.only(blocks, "load"):
            moved = self._store.load(keys, blocks)
        self._totals["loaded"] += moved
        self._totals["delivered"] += moved // self._pages.block_bytes * self._pages.block_size

    def _save(self, store: Store, missing: Sequence[tuple[str, int]]) -> None:
        if not missing:
            return
        keys, blocks = zip(*missing, strict=True)
        with self._pages.only((), "store"):
            self._totals["stored"] += store.store(keys, blocks)

    def abort_load(self, prompt: Sequence[int]) -> bool:
        # A load is over when the store's handle returns.
        return False

    def counters(self) -> Counters:
        store = self._store is not None
        return Counters(
            local_tokens=self._totals["local"], external_tokens=self._totals["external"],
            delivered_tokens=self._totals["delivered"] if store else None,
            loaded_bytes=self._totals["loaded"] if store else None,
            stored_bytes=self._totals["stored"] if store else None,
        )

    def placements(self) -> list[Placement]:
        taken, self._placements = self._placements, []
        return taken

    def digests(self, blocks: Sequence[int]) -> list[str]:
        return self._pages.digests(blocks)

    def reset(self, deadline_s: float) -> bool:
        self._local.clear()
        return True

    def zero(self) -> tuple[int, int]:
        return self._pages.zero()

    def close(self) -> None:
        """Nothing runs."""


def _key(tokens: Sequence[int]) -> str:
    return hashlib.blake2b(" ".join(map(str, tokens)).encode(), digest_size=16).hexdigest()


def _leading(keys: Sequence[str], there: Callable[[str], bool]) -> int:
    """How many of the first keys are there without a gap."""
    return next((place for place, key in enumerate(keys) if not there(key)), len(keys))
