# SPDX-License-Identifier: Apache-2.0
"""The scheduler half: promises hits, gives slots, orders loads and stores step by step."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.kvstore import keys
from harness.kvstore.index import ObjectIndex
from harness.kvstore.messages import Hello, Move, Orders, Report

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

#: Requests whose promised tokens are remembered.
_REMEMBERED = 4096


@dataclass
class Tracked:
    """What the scheduler half knows of one live request.

    Attributes:
        request: vLLM's own record.
        keys: of its known full blocks, grows with the request.
        matched: (first block, keys) of the last promise, until its blocks are allocated.
        stored: blocks whose store was ordered or not needed.
    """

    request: Request
    keys: list[bytes] = field(default_factory=list)
    matched: tuple[int, tuple[bytes, ...]] = (0, ())
    stored: int = 0


class StoreScheduler:
    """Decides what is promised, stored, loaded and evicted; the workers only carry it out, in order."""

    def __init__(self, block_size: int, asynchronous: bool, file: str | None = None) -> None:
        self._block_size = block_size
        self._async = asynchronous
        self._file = file
        self._tracked: dict[str, Tracked] = {}
        self._loads: list[Move] = []
        self._pinned: dict[int, Move] = {}
        self._numbers = itertools.count()
        self._epoch = 0
        self._identity = ""
        self.index = ObjectIndex(0)
        self.promised_tokens = 0
        self.promised_by_request: OrderedDict[str, int] = OrderedDict()

    def greet(self, hellos: Sequence[Hello]) -> None:
        """Take the workers' pools; the smallest decides.

        Raises:
            ValueError: the workers' blocks differ in what makes their bytes.
        """
        identities = {hello.identity for hello in hellos}
        if len(identities) != 1:
            raise ValueError(f"The store's workers hold different kinds of blocks: identities {sorted(identities)}.")
        self._identity = identities.pop()
        self.index = ObjectIndex(min(hello.slots for hello in hellos))

    def track(self, request: Request) -> None:
        self._tracked[request.request_id] = Tracked(request)

    def forget(self, request_id: str) -> None:
        """The request ended; loads that still run keep their pins until they end."""
        self._tracked.pop(request_id, None)

    def match(self, request: Request, num_computed_tokens: int) -> tuple[int, bool]:
        """Tokens beyond the local hit that the store holds, whole blocks only, at least one token left to compute."""
        tracked = self._tracked_of(request)
        tracked.matched = (0, ())
        if request.skip_reading_prefix_cache:
            return 0, False
        first = num_computed_tokens // self._block_size
        last = (request.num_tokens - 1) // self._block_size
        found = tuple(itertools.takewhile(self.index.visible, self._keys_of(tracked)[first:last]))
        tracked.matched = (first, found)
        return len(found) * self._block_size, self._async and bool(found)

    def allocated(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        """Order the load of a promise that the scheduler took."""
        tracked = self._tracked_of(request)
        (first, found), tracked.matched = tracked.matched, (0, ())
        if num_external_tokens <= 0:
            return
        count = num_external_tokens // self._block_size
        assert 0 < count <= len(found), "the scheduler took more external tokens than were promised"
        wanted = found[:count]
        (block_ids,) = blocks.get_block_ids()
        move = Move(
            next(self._numbers),
            request.request_id,
            tuple(block_ids[first : first + count]),
            tuple(self.index.pin(key) for key in wanted),
            wanted,
        )
        self.index.touch(self._keys_of(tracked)[: first + count])
        self._pinned[move.id] = move
        self._loads.append(move)
        self.promised_tokens += num_external_tokens
        self.promised_by_request[request.request_id] = (
            self.promised_by_request.pop(request.request_id, 0) + num_external_tokens
        )
        while len(self.promised_by_request) > _REMEMBERED:
            self.promised_by_request.popitem(last=False)

    def orders(self, output: SchedulerOutput) -> Orders:
        """This step's loads, and stores of every block that is full after it."""
        loads, self._loads = tuple(self._loads), []
        stores = []
        state = output.kv_connector_block_state
        for request_id, scheduled in output.num_scheduled_tokens.items():
            tracked = self._tracked.get(request_id)
            if tracked is None or state is None:
                continue
            # The count still excludes this step's tokens here.
            full = (tracked.request.num_computed_tokens + scheduled) // self._block_size
            known = self._keys_of(tracked)
            if min(full, len(known)) <= tracked.stored:
                continue
            block_ids = state.get_block_ids(request_id)
            if block_ids is not None and (move := self._store(tracked, known[:full], block_ids[0])):
                stores.append(move)
        return Orders(self._epoch, loads, tuple(stores))

    def reported(self, output: KVConnectorOutput) -> None:
        """Make completed keys visible, release pins, forget what is missing."""
        report = output.kv_connector_worker_meta
        finished = output.finished_recving or set()
        loaded = report.loaded if isinstance(report, Report) and not self._async else set()
        for move in list(self._pinned.values()):
            if move.id in loaded or (self._async and move.request in finished):
                del self._pinned[move.id]
                for key in move.keys:
                    self.index.unpin(key)
        if not isinstance(report, Report):
            return
        for key in report.stored:
            self.index.complete(key)
        for key in report.dropped | report.missing:
            self.index.discard(key)
        if report.dropped or report.missing:
            for tracked in self._tracked.values():
                tracked.stored = 0
        if report.failed and report.epoch >= self._epoch:
            self._epoch = report.epoch + 1

    def reset(self) -> bool:
        """Drop all objects; False while some are being read or written."""
        return self.index.clear()

    def evidence(self) -> Mapping[str, int]:
        """Cumulative and current counts."""
        return {
            "promised_tokens": self.promised_tokens,
            "objects": len(self.index),
            "slots": self.index.slots,
            "evicted_objects": self.index.evicted,
            "running_loads": len(self._pinned),
        }

    def _store(self, tracked: Tracked, chain: list[bytes], block_ids: Sequence[int]) -> Move | None:
        keep = set(chain)
        wanted: list[tuple[int, int, bytes]] = []
        for index in range(tracked.stored, len(chain)):
            key = chain[index]
            if key in self.index:
                continue
            slot = self.index.reserve(key, keep)
            if slot is not None:
                wanted.append((block_ids[index], slot, key))
        tracked.stored = len(chain)
        self.index.touch(chain)
        if not wanted:
            return None
        blocks, slots, names = zip(*wanted, strict=True)
        return Move(next(self._numbers), tracked.request.request_id, blocks, slots, names)

    def _tracked_of(self, request: Request) -> Tracked:
        tracked = self._tracked.get(request.request_id)
        if tracked is None or tracked.request is not request:
            tracked = self._tracked[request.request_id] = Tracked(request)
        return tracked

    def _keys_of(self, tracked: Tracked) -> list[bytes]:
        for block_hash in tracked.request.block_hashes[len(tracked.keys) :]:
            tracked.keys.append(keys.key_of(self._identity, block_hash))
        return tracked.keys
