# SPDX-License-Identifier: Apache-2.0
"""Which blocks hold which prompt, read from what the scheduler sends to the worker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput


@dataclass
class WatchedRequest:
    """A request's prompt, its blocks in order with the time at which each was given, and its steps of prefill."""

    prompt: list[int]
    blocks: list[int] = field(default_factory=list)
    given: list[int] = field(default_factory=list)
    prefill_steps: int = 0


class BlockWatch:
    """Follows the block tables of all requests of one KV cache group.

    Args:
        block_size: tokens of one manager block.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._clear()

    def _clear(self) -> None:
        self._requests: dict[str, WatchedRequest] = {}
        #: block -> (time, request, index in its table) of each time that it was given away.
        self._gifts: dict[int, list[tuple[int, str, int]]] = {}
        self._time = 0

    def see(self, output: SchedulerOutput) -> None:
        """Take note of one step: new requests, further blocks, resumed requests with a new table."""
        for new in output.scheduled_new_reqs:
            if new.prompt_token_ids is None:
                continue
            # A request that is streamed again under its name keeps its place.
            request = self._requests.setdefault(new.req_id, WatchedRequest([]))
            request.prompt = list(new.prompt_token_ids)
            request.prefill_steps += 1
            self._replace(new.req_id, new.block_ids[0])
        cached = output.scheduled_cached_reqs
        for name, computed, new_blocks in zip(
            cached.req_ids, cached.num_computed_tokens, cached.new_block_ids, strict=True
        ):
            if name not in self._requests:
                continue
            if computed < len(self._requests[name].prompt):
                self._requests[name].prefill_steps += 1
            if new_blocks is None:
                continue
            if name in cached.resumed_req_ids:
                self._replace(name, new_blocks[0])
            else:
                self._append(name, new_blocks[0])

    def take(self) -> list[dict[str, Any]]:
        """Per request, in order of first appearance: ``prompt_token_ids``, ``blocks``, ``reused``, ``prefill_steps``;
        forgets them.

        ``reused`` says that a full prompt block was later given to a request for other content. A block that a
        prefix hit shares (same place, same tokens up to its end) still holds what it held.
        """
        taken = [
            {
                "prompt_token_ids": list(request.prompt),
                "blocks": list(request.blocks),
                "reused": self._reused(name, request),
                "prefill_steps": request.prefill_steps,
            }
            for name, request in self._requests.items()
        ]
        self._clear()
        return taken

    def _replace(self, name: str, blocks: list[int]) -> None:
        self._requests[name].blocks, self._requests[name].given = [], []
        self._append(name, blocks)

    def _append(self, name: str, blocks: list[int]) -> None:
        request = self._requests[name]
        for block in blocks:
            self._time += 1
            self._gifts.setdefault(block, []).append((self._time, name, len(request.blocks)))
            request.blocks.append(block)
            request.given.append(self._time)

    def _reused(self, name: str, request: WatchedRequest) -> bool:
        full = len(request.prompt) // self._block_size
        for index, (block, given) in enumerate(zip(request.blocks[:full], request.given[:full], strict=True)):
            end = (index + 1) * self._block_size
            for time, other, place in self._gifts[block]:
                if time <= given or other == name:
                    continue
                if place != index or self._requests[other].prompt[:end] != request.prompt[:end]:
                    return True
        return False
