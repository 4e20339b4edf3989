# SPDX-License-Identifier: Apache-2.0
"""Scheduler halves with a fault."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from harness.kvstore.faults import shared
from harness.kvstore.objectfile import FileScheduler
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


SCHEDULERS: Mapping[str, type[StoreScheduler]] = {
    "partial_block_claimed": ClaimingScheduler,
    **dict.fromkeys(shared.LACKING, FileScheduler),
}
