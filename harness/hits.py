# SPDX-License-Identifier: Apache-2.0
"""The rule that says how many tokens of each prompt come from the local prefix cache and from the store.

What vLLM does (``vllm/v1/core/kv_cache_manager.py``: get_computed_blocks, allocate_slots; ``core/sched/scheduler.py``:
schedule), for one cache group:

- Only full blocks hit, from the first token on without a gap, and at least one token is computed: of n tokens the full
  blocks of the first n-1 count.
- The local cache is asked first; the store is asked for what follows the local hit.
- Requests are admitted in the order of submission. A request's full prompt blocks enter the local cache when its slots
  are allocated, before they are computed, so a later prompt of the same batch already hits them.
- With loads between steps (``async``) a request's blocks enter the local cache only when its load has ended, so prompts
  of one batch do not see each other's.
- Some stores give back the full block of the last token too (``Adapter.leaves``); its KV is computed all the same.
- A store has every full block of every prompt that was computed, and keeps it over a reset of the local cache.
- An engine that prefills for another one hands whole prompts over, a last partial block and the last token included
  (``kv_connector/v1/nixl/pull_scheduler.py: get_num_new_matched_tokens``); the other one computes that token again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from harness.records import RESTORES, ROLE_PHASES, SHARING_PHASES, Certainty, Phase, PhaseHits, Role, Rule

#: Phases that start with an empty local cache: reset, shifted, zeroed.
CLEARED = (Phase.RECOMPUTE_AGAIN, Phase.OWN_RESTORE, Phase.RESTORE, Phase.RESTORE_AGAIN)

Tokens = Sequence[int]


def full_hit(length: int, block_size: int) -> int:
    """Most tokens of a prompt that can be hit: whole blocks, and at least one token is computed (n-1 rule)."""
    return max(length - 1, 0) // block_size * block_size


@dataclass
class Caches:
    """Which prefixes the local cache and the store of one engine hold."""

    block_size: int
    store: bool
    leaves: int | None = None
    local_prefixes: set[tuple[int, ...]] = field(default_factory=set)
    stored_prefixes: set[tuple[int, ...]] = field(default_factory=set)

    def find(self, prompt: Tokens) -> tuple[int, int]:
        """(local, external) hit tokens of a prompt that is admitted now."""
        last = full_hit(len(prompt), self.block_size)
        local = self._run(self.local_prefixes, prompt, 0, last)
        if self.leaves is not None:
            last = len(prompt) // self.block_size * self.block_size
        found = self._run(self.stored_prefixes, prompt, local, last)
        return local, min(found, max(len(prompt) - (self.leaves or 0), local)) - local

    def keep(self, prompt: Tokens, *, local: bool = True) -> None:
        """Its full blocks are in the store, and in the local cache too."""
        for end in range(self.block_size, len(prompt) + 1, self.block_size):
            prefix = tuple(prompt[:end])
            if local:
                self.local_prefixes.add(prefix)
            if self.store:
                self.stored_prefixes.add(prefix)

    def reset(self) -> None:
        """Empty the local cache."""
        self.local_prefixes.clear()

    def _run(self, prefixes: set[tuple[int, ...]], prompt: Tokens, start: int, last: int) -> int:
        end = start
        while end < last and tuple(prompt[: end + self.block_size]) in prefixes:
            end += self.block_size
        return end


@dataclass(frozen=True, kw_only=True)
class Pass:
    """How the prompts of a set go through the phases.

    Attributes:
        prompts: token ids by position.
        order: positions in the order of submission where everything is computed.
        hit_order: the same where there are hits.
        primers: submitted one by one before each restore, so that a part of a prompt is in the local cache.
        aborted: submitted one by one before each restore, and aborted while their loads are under way; what they had
            loaded is in no cache.
    """

    prompts: tuple[tuple[int, ...], ...]
    order: tuple[int, ...]
    hit_order: tuple[int, ...]
    primers: tuple[tuple[int, ...], ...] = ()
    aborted: tuple[tuple[int, ...], ...] = ()

    def order_of(self, phase: Phase) -> tuple[int, ...]:
        """Positions in the order in which ``phase`` submits them."""
        hits = (Phase.LOCAL_HIT, Phase.OWN_RESTORE, *RESTORES)
        return self.hit_order if phase in hits else self.order


def expected_hits(
    way: Pass,
    block_size: int,
    *,
    gives: bool = True,
    late_loads: bool = False,
    small_pool: bool = False,
    hands_over: bool = False,
    leaves: int | None = None,
) -> tuple[PhaseHits, ...]:
    """What every phase of both roles must hit.

    Args:
        way: the prompts and how they are submitted.
        block_size: tokens.
        gives: whether anything comes back from the subject's connector.
        late_loads: prompts are submitted together to a store that loads between steps.
        small_pool: the local cache cannot keep the prompts (they share no block): after them, what it still has is not
            determined.
        hands_over: the subject's restores run in another engine than the phases before them, which hands the prompts
            over and keeps its own cache.
        leaves: tokens that the store leaves to compute of a prompt of whole blocks, whose last block it gives back too;
            None where it does not.
    """
    found = []
    for role, phases in ROLE_PHASES.items():
        pair = hands_over and role is Role.SUBJECT
        caches = Caches(block_size, store=gives and role is Role.SUBJECT and not pair, leaves=leaves)
        for phase in phases:
            if pair and phase in RESTORES:
                found.append(_handed(phase, way, caches, late_loads))
            else:
                found.append(_phase(role, phase, way, caches, late_loads, small_pool))
    return tuple(found)


def _handed(phase: Phase, way: Pass, prefill: Caches, late_loads: bool) -> PhaseHits:
    decode = Caches(prefill.block_size, store=False)
    for primer in way.primers:
        decode.keep(primer)
    local, external, found = ([0] * len(way.prompts) for _ in range(3))
    for index in way.order_of(phase):
        prompt = way.prompts[index]
        found[index], _ = prefill.find(prompt)
        prefill.keep(prompt)
        local[index], _ = decode.find(prompt)
        external[index] = len(prompt) - local[index]
        if not late_loads:
            decode.keep(prompt)
    return PhaseHits(
        role=Role.SUBJECT, phase=phase, local=tuple(local), external=tuple(external), prefill=tuple(found),
    )


def shared_hits(
    way: Pass, block_size: int, filled_block_size: int, rule: Rule, *, leaves: int | None = None
) -> tuple[PhaseHits, ...]:
    """What every phase must hit where a store is filled under one configuration and read under another.

    Args:
        way: unlike prompts.
        block_size, filled_block_size: tokens, of the reading engine and of the filling one.
        rule: what may come back. Whatever does not, the first restore computes and stores, so the second one hits all.
        leaves: as for ``expected_hits``.
    """
    found = [one for one in expected_hits(way, block_size) if one.role is Role.ORACLE]
    caches = Caches(filled_block_size, store=True, leaves=leaves)
    for phase in SHARING_PHASES:
        if phase is Phase.RESTORE:
            caches = Caches(block_size, store=True, leaves=leaves)
            for prompt in () if rule is Rule.MUST_NOT_HIT else way.prompts:
                caches.keep(prompt)
        hits = _phase(Role.SUBJECT, phase, way, caches, late_loads=False, small_pool=False)
        limit = phase is Phase.RESTORE and rule is Rule.MAY_HIT
        found.append(replace(hits, certain=Certainty.LIMIT) if limit else hits)
    return tuple(found)


def _phase(role: Role, phase: Phase, way: Pass, caches: Caches, late_loads: bool, small_pool: bool) -> PhaseHits:
    if phase in CLEARED:
        caches.reset()
    if phase in RESTORES:
        for primer in way.primers:
            caches.keep(primer)
    local, external = [0] * len(way.prompts), [0] * len(way.prompts)
    loading = []
    for index in way.order_of(phase):
        prompt = way.prompts[index]
        local[index], external[index] = caches.find(prompt)
        if late_loads and external[index]:
            loading.append(prompt)
        else:
            caches.keep(prompt)
    for prompt in loading:
        caches.keep(prompt)
    certain = Certainty.SPLIT
    if small_pool and phase is Phase.LOCAL_HIT:
        certain = Certainty.SUM if role is Role.SUBJECT else Certainty.LIMIT
    return PhaseHits(role=role, phase=phase, local=tuple(local), external=tuple(external), certain=certain)
