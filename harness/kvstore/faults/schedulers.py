# SPDX-License-Identifier: Apache-2.0
"""Scheduler halves with a fault."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from harness.kvstore.faults import shared
from harness.kvstore.messages import Hello
from harness.kvstore.scheduler import StoreScheduler

if TYPE_CHECKING:
    from vllm.v1.request import Request


class ClaimingScheduler(StoreScheduler):
    """Counts the tokens behind the last whole block as held, although no object has them."""

    def match(self, request: Request, num_computed_tokens: int) -> tuple[int, bool]:
        count, later = super().match(request, num_computed_tokens)
        whole = (request.num_tokens - 1) // self._block_size * self._block_size
        if count and num_computed_tokens + count == whole:
            count = request.num_tokens - 1 - num_computed_tokens
        return count, later


class SharingScheduler(StoreScheduler):
    """Knows the objects that another cell's engine left; see ``shared``."""

    def greet(self, hellos: Sequence[Hello]) -> None:
        super().greet(hellos)
        # Slots are given in order, so each key gets the slot that the worker put its object into.
        for slot, (key, _) in enumerate(shared.read()):
            if self.index.reserve(key) != slot:
                raise ValueError(f"The shared object in slot {slot} did not get that slot.")
            self.index.complete(key)


SCHEDULERS: Mapping[str, type[StoreScheduler]] = {
    "partial_block_claimed": ClaimingScheduler,
    **dict.fromkeys(shared.LACKING, SharingScheduler),
}
