# SPDX-License-Identifier: Apache-2.0
"""The stores that a unit leg can drive: upstream UMBP's planner and worker handle, and the embedded store's paths."""

from __future__ import annotations

import importlib
import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from harness.kvstore.placement import placements
from harness.kvstore.pool import Pool
from harness.kvstore.runs import plan_group
from harness.kvstore.settings import Settings
from harness.kvstore.transfer import PATHS
from harness.kvstore.verify import verify
from harness.plugin import overlay
from harness.unit.pages import Pages

#: Numbers the namespaces of keys: a runtime keeps its objects as long as its process lives.
_OPENED = itertools.count()


class Store(Protocol):
    """What the unit engine asks of a store; ``name`` stands where a worker names its connector."""

    name: str

    def has(self, key: str) -> bool:
        """Whether the key's block is there."""

    def store(self, keys: Sequence[str], blocks: Sequence[int]) -> int:
        """Store blocks; returns the bytes that the store says it moved."""

    def load(self, keys: Sequence[str], blocks: Sequence[int]) -> int:
        """Load into blocks; returns the bytes that the store says it moved."""


def open_store(config: Mapping[str, Any] | None, pages: Pages) -> Store | None:
    """The store that ``kv_transfer_config`` names, None without one.

    Raises:
        ValueError: no such store at this level, or what the store says to the KV cache's configuration.
        OverlayImportError: UMBP's source does not import.
    """
    if config is None:
        return None
    options = dict(config.get("kv_connector_extra_config", {}))
    stores = {"UMBPStoreConnector": Umbp, "EmbeddedStoreConnector": Embedded}
    if config["kv_connector"] not in stores:
        raise ValueError(f"{config['kv_connector']} cannot be run without an engine; valid: {', '.join(stores)}.")
    return stores[config["kv_connector"]](options, pages)


class Umbp:
    """UMBP's ``KVLayoutPlanner`` and the worker handle of its registered runtime, called as UMBP's worker does."""

    def __init__(self, options: Mapping[str, Any], pages: Pages) -> None:
        overlay.install(os.environ.get(overlay.VARIABLE, overlay.INSTALLED))
        self._data = importlib.import_module(f"{overlay.PACKAGE}.data")
        runtime = importlib.import_module(f"{overlay.PACKAGE}.runtime")
        self._planner = self._data.KVLayoutPlanner.from_kv_cache_config(pages.config)
        self._planner.register_kv_caches(pages.kv_caches)
        topology = self._data.RankTopology()
        layout = self._planner.describe(topology)
        built = runtime.UMBPRuntimeFactory.build(runtime.UMBPRuntimeConfig(mode="embedded", options=dict(options)))
        namespace = f"kvparity-unit-{next(_OPENED)}"
        self._scheduler = built.create_scheduler_handle(namespace, topology, layout)
        self._worker = built.create_worker_handle(namespace, topology, layout)
        self._worker.register_buffers(pages.kv_caches)
        self._ranges = options.get("transfer") == "ranges"
        self.name = f"KVLayoutPlanner and {type(self._worker).__name__}"

    def has(self, key: str) -> bool:
        return bool(self._scheduler.lookup([key])[0])

    def store(self, keys: Sequence[str], blocks: Sequence[int]) -> int:
        job = self._run("store", keys, blocks)
        self._worker.publish(job)
        return int(job.completed_bytes)

    def load(self, keys: Sequence[str], blocks: Sequence[int]) -> int:
        return int(self._run("load", keys, blocks).completed_bytes)

    def _run(self, what: str, keys: Sequence[str], blocks: Sequence[int]) -> Any:
        """One job, in bulk where the runtime takes it, otherwise by the planner's ranges."""
        plan = self._data.BlockTransferPlan
        plans = [plan(key=key, block_id=block, group_id=0) for key, block in zip(keys, blocks, strict=True)]
        job = getattr(self._worker, f"{what}_blocks")(plans)
        if self._ranges and job is not None:
            raise RuntimeError(f"UMBP's runtime moved whole blocks on {what}, although ranges were asked for")
        if job is None:
            job = getattr(self._worker, what)([self._planner.materialize(one) for one in plans])
        job = self._worker.wait(job)
        if str(job.status.value) != "completed":
            raise RuntimeError(f"UMBP's job to {what} {len(plans)} blocks ended as {job.status.value}")
        return job


class Embedded:
    """The embedded store's plan of a block, its pool and one of its two paths."""

    name = "plan_group and TransferPath"

    def __init__(self, options: Mapping[str, Any], pages: Pages) -> None:
        settings = Settings.of(options)
        plan = plan_group(pages.config, 0, pages.layout)
        storage = verify(placements(pages.config, 0, pages.layout), plan, pages.kv_caches)
        self._pool = Pool(int(settings.capacity_mib * 2**20), plan.object_bytes)
        self._path = PATHS[settings.transfer](plan, storage, self._pool.data)
        self._slots: dict[str, int] = {}
        self._object_bytes = plan.object_bytes

    def has(self, key: str) -> bool:
        return key in self._slots

    def store(self, keys: Sequence[str], blocks: Sequence[int]) -> int:
        first = len(self._slots)
        if first + len(keys) > self._pool.slots:
            raise RuntimeError(f"the store's {self._pool.slots} slots are full; raise capacity_mib")
        slots = list(range(first, first + len(keys)))
        self._path.store(blocks, slots)
        self._slots.update(zip(keys, slots, strict=True))
        return len(keys) * self._object_bytes

    def load(self, keys: Sequence[str], blocks: Sequence[int]) -> int:
        self._path.load(blocks, [self._slots[key] for key in keys])
        return len(keys) * self._object_bytes
