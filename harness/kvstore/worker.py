# SPDX-License-Identifier: Apache-2.0
"""The worker half: owns the pool, checks the KV tensors, carries out loads and stores, counts what it did."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import torch
from vllm.logger import init_logger
from vllm.v1.kv_cache_interface import KVCacheConfig

from harness.kvstore import keys
from harness.kvstore.faults.span import single_span
from harness.kvstore.messages import Hello, Move, Orders, Report
from harness.kvstore.placement import kernel_block_size_of, placements
from harness.kvstore.pool import Pool
from harness.kvstore.runs import plan_group
from harness.kvstore.settings import Settings
from harness.kvstore.transfer import PATHS
from harness.kvstore.verify import verify

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = init_logger(__name__)

#: The only cache group of an engine with this connector.
GROUP = 0


class StoreWorker:
    """Loads and stores of one rank."""

    def __init__(self, config: VllmConfig, kv_cache_config: KVCacheConfig, settings: Settings) -> None:
        self._config = config
        self._kv_cache_config = kv_cache_config
        self._settings = settings
        self._block_size = kv_cache_config.kv_cache_groups[GROUP].kv_cache_spec.block_size
        self._void_epoch = -1
        self._report = Report(0)
        self._failed_blocks: set[int] = set()
        self._running: dict[Future[tuple[set[int], set[bytes]]], Move] = {}
        self._thread = ThreadPoolExecutor(1, "kvstore-load") if settings.load == "async" else None
        self._counts = dict.fromkeys(
            ("delivered_tokens", "loaded_bytes", "stored_bytes", "loaded_blocks", "stored_blocks", "failed_loads"), 0
        )

    def register(self, kv_caches: Mapping[str, torch.Tensor]) -> None:
        """Plan, verify, allocate the pool.

        Raises:
            ValueError: any refusal of the planner, the verification or the pool.
        """
        config, cache = self._kv_cache_config, self._config.cache_config
        layout = cache.get_resolved_kv_cache_layout() if cache.kv_cache_layout is not None else None
        kernel = kernel_block_size_of(config, GROUP, kv_caches)
        places = placements(config, GROUP, layout, kernel)
        self.plan = plan_group(config, GROUP, layout, kernel)
        storage = verify(places, self.plan, kv_caches)
        if self._settings.fault == "single_span":
            self.plan = single_span(config, self.plan, places, kv_caches)
        capacity = int(self._settings.capacity_mib * 2**20)
        self.pool = Pool(capacity, self.plan.object_bytes, pinned=storage.device.type != "cpu")
        self.path = PATHS[self._settings.transfer](self.plan, storage, self.pool.data)
        layers = self._config.compilation_config.static_forward_context
        backends = [_backend_name(layers.get(layer)) for place in places for layer in place.layers]
        self.identity = keys.identity_of(self._config, places, backends)
        logger.info(
            "Embedded KV store: layout %s, %d runs of one block in %d regions, %d slots of %d bytes, %s path.",
            self.plan.layout, len(self.plan.runs), len(self.plan.regions), self.pool.slots, self.plan.object_bytes,
            self._settings.transfer,
        )  # fmt: skip

    def hello(self) -> Hello:
        return Hello(self.pool.slots, self.plan.object_bytes, keys.digest_of(self.identity))

    def start_loads(self, orders: Orders) -> None:
        """Sync loads are complete on return; async ones have begun."""
        self._report = Report(orders.epoch)
        for move in orders.loads:
            if self._thread is not None:
                self._running[self._thread.submit(self._load, move)] = move
            else:
                self._ended(move, *self._load(move))
                self._report.loaded.add(move.id)

    def store(self, orders: Orders) -> None:
        """Complete on return, so that the blocks may be reused at once."""
        report = self._report
        for move in orders.stores:
            if orders.epoch <= self._void_epoch:
                report.dropped.update(move.keys)
                continue
            for slot, key in zip(move.slots, move.keys, strict=True):
                self.pool.begin(slot, key)
            self.path.store(move.blocks, move.slots)
            for slot, key in zip(move.slots, move.keys, strict=True):
                self.pool.complete(slot, key)
            report.stored.update(move.keys)
            self._counts["stored_blocks"] += len(move.blocks)
            self._counts["stored_bytes"] += len(move.blocks) * self.plan.object_bytes

    def finished_loads(self) -> set[str]:
        """Requests whose async load ended since the last call, well or not."""
        done = [future for future in self._running if future.done()]
        finished = set()
        for future in done:
            move = self._running.pop(future)
            self._ended(move, *future.result())
            self._report.loaded.add(move.id)
            finished.add(move.request)
        return finished

    def take_failed_blocks(self) -> set[int]:
        """Blocks whose load failed since the last call; they hold whatever they held before."""
        failed, self._failed_blocks = self._failed_blocks, set()
        return failed

    def take_report(self) -> Report:
        self._report.failed = self._void_epoch >= self._report.epoch
        return self._report

    def evidence(self) -> dict[str, int]:
        """Cumulative counts since start."""
        return {**self._counts, "evicted_blocks": self.pool.evicted}

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=True)

    def _load(self, move: Move) -> tuple[set[int], set[bytes]]:
        """Copy what the pool holds; returns the blocks and keys that it does not."""
        held = [self.pool.holds(slot, key) for slot, key in zip(move.slots, move.keys, strict=True)]
        pairs = [(block, slot) for block, slot, here in zip(move.blocks, move.slots, held, strict=True) if here]
        if pairs:
            blocks, slots = zip(*pairs, strict=True)
            self.path.load(blocks, slots)
        missing = [index for index, here in enumerate(held) if not here]
        return {move.blocks[index] for index in missing}, {move.keys[index] for index in missing}

    def _ended(self, move: Move, failed: set[int], missing: set[bytes]) -> None:
        loaded = len(move.blocks) - len(failed)
        self._counts["loaded_blocks"] += loaded
        self._counts["loaded_bytes"] += loaded * self.plan.object_bytes
        self._counts["delivered_tokens"] += loaded * self._block_size
        if failed:
            logger.warning(
                "The store misses %d of %d blocks promised to %s.", len(failed), len(move.blocks), move.request
            )
            self._counts["failed_loads"] += len(failed)
            self._failed_blocks |= failed
            self._report.missing |= missing
            # Whatever is computed before the scheduler knows of this may rest on missing KV.
            self._void_epoch = max(self._void_epoch, self._report.epoch)


def _backend_name(layer: object) -> str:
    """Module and class of a layer's attention backend, as the layer itself says."""
    backend = getattr(layer, "attn_backend", None)
    return f"{backend.__module__}.{backend.__qualname__}" if isinstance(backend, type) else type(layer).__qualname__
