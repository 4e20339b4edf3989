# SPDX-License-Identifier: Apache-2.0
"""A DRAM runtime for UMBP versions that bring none, registered through UMBP's own registry of runtimes.

Written against the contract in UMBP's ``runtime/base.py``. It moves exactly the bytes that UMBP's planner names and
nothing else: every range must lie in memory that UMBP registered, and in the object that it stored. A range that does
not is UMBP's mistake and ends the engine. Objects live in the process of the worker, which on a CPU host is the
scheduler's too; copies are done when they are submitted, so no job is ever pending.
"""

from __future__ import annotations

import ctypes
import dataclasses
import importlib
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch

#: Capacity where ``capacity_bytes`` is not given.
CAPACITY_BYTES = 256 * 2**20

#: Fields of a region that the bulk path understands (UMBP ``data.py: KVRegion``); with others, UMBP plans the ranges.
REGION_FIELDS = frozenset({
    "layer_name", "group_id", "block_stride", "block_bytes", "object_offset", "block_size",
})

#: One piece of an object: address in KV memory, bytes, offset in the object.
Piece = tuple[int, int, int]


class Objects:
    """Stored objects of one namespace, least recently stored or loaded first; shared by threads.

    Args:
        capacity: bytes; storing more evicts the oldest objects.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._kept: OrderedDict[str, ctypes.Array] = OrderedDict()
        self._used = 0
        self._evicted: list[str] = []
        self._lock = threading.Lock()

    def has(self, key: str) -> bool:
        with self._lock:
            return key in self._kept

    def get(self, key: str) -> ctypes.Array | None:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def put(self, key: str, content: ctypes.Array) -> None:
        with self._lock:
            old = self._kept.pop(key, None)
            self._used += len(content) - (len(old) if old is not None else 0)
            self._kept[key] = content
            while self._used > self._capacity and len(self._kept) > 1:
                name, oldest = self._kept.popitem(last=False)
                self._used -= len(oldest)
                self._evicted.append(name)

    def take_evicted(self) -> list[str]:
        with self._lock:
            taken, self._evicted = self._evicted, []
            return taken

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()
            self._used = 0


class Memory:
    """Registered KV memory: whole storages, looked up by address."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: dict[int, int] = {}

    def register(self, tensor: torch.Tensor) -> None:
        if tensor.device.type != "cpu":
            raise ValueError(f"The UMBP runtime adapter moves CPU memory only, this KV cache is on {tensor.device}.")
        storage = tensor.untyped_storage()
        self._ends[storage.data_ptr()] = storage.data_ptr() + storage.nbytes()
        self._starts = sorted(self._ends)

    def check(self, address: int, length: int) -> None:
        """Raises:
            ValueError: some of these bytes are not registered.
        """
        place = bisect_right(self._starts, address) - 1
        if length <= 0 or place < 0 or address + length > self._ends[self._starts[place]]:
            raise ValueError(
                f"UMBP asked for {length} bytes at {address:#x}, which is not within the KV memory that it registered."
            )


class SchedulerHandle:
    """The scheduler's side: which keys are there."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def lookup(self, keys: Sequence[str]) -> list[bool]:
        return [self._objects.has(key) for key in keys]

    def clear(self) -> bool:
        self._objects.clear()
        return True

    def close(self) -> None:
        """Nothing to release: the objects are the worker's."""


class WorkerHandle:
    """The worker's side: moves blocks, either by UMBP's ranges or, in bulk, by its description of the layout."""

    def __init__(self, objects: Objects, layout: Any, bulk: bool, data: ModuleType) -> None:
        self._objects = objects
        self._layout = layout
        self._bulk = bulk
        self._data = data
        self._memory = Memory()
        #: Cache group -> (base address, stride, bytes) per layer, in the order of the object.
        self._groups: dict[int, list[tuple[int, int, int]]] = {}
        #: Stored but not yet published, by job.
        self._staged: dict[int, dict[str, ctypes.Array]] = {}

    def register_buffers(self, kv_caches: dict[str, torch.Tensor]) -> None:
        for tensor in kv_caches.values():
            self._memory.register(tensor)
        if self._bulk:
            self._groups = _bulk_groups(self._layout.regions, kv_caches)

    def load(self, plans: Sequence[Any]) -> Any:
        return self._load(tuple(plans), [_pieces(plan) for plan in plans], None)

    def store(self, plans: Sequence[Any]) -> Any:
        return self._store(tuple(plans), [_pieces(plan) for plan in plans], None)

    def load_blocks(self, plans: Sequence[Any]) -> Any | None:
        pieces = self._bulk_pieces(plans)
        return None if pieces is None else self._load(_kept(plans), pieces, _sizes(pieces))

    def store_blocks(self, plans: Sequence[Any]) -> Any | None:
        pieces = self._bulk_pieces(plans)
        return None if pieces is None else self._store(_kept(plans), pieces, _sizes(pieces))

    def wait(self, job: Any) -> Any:
        return job

    def poll(self, job: Any) -> Any:
        return job

    def cancel(self, job: Any) -> Any:
        return job

    def publish(self, job: Any) -> None:
        for key, content in self._staged.pop(id(job), {}).items():
            self._objects.put(key, content)

    def take_evicted_keys(self) -> list[str]:
        return self._objects.take_evicted()

    def close(self) -> None:
        self._staged.clear()
        self._objects.clear()

    def _bulk_pieces(self, plans: Sequence[Any]) -> list[list[Piece]] | None:
        """Pieces of whole blocks, None where UMBP has to plan them."""
        if not self._groups or any(plan.ranges or plan.group_id not in self._groups for plan in plans):
            return None
        return [_block_pieces(self._groups[plan.group_id], plan.block_id) for plan in plans]

    def _store(self, plans: Any, pieces: list[list[Piece]], sizes: tuple[int, ...] | None) -> Any:
        job = self._data.TransferJobState(plans, plan_bytes=sizes)
        job.start()
        staged: dict[str, ctypes.Array] = {}
        for key, parts in zip(job.keys, pieces, strict=True):
            content = ctypes.create_string_buffer(max(offset + length for _, length, offset in parts))
            for address, length, offset in parts:
                self._memory.check(address, length)
                ctypes.memmove(ctypes.addressof(content) + offset, address, length)
            staged[key] = content
        self._staged[id(job)] = staged
        job.complete()
        return job

    def _load(self, plans: Any, pieces: list[list[Piece]], sizes: tuple[int, ...] | None) -> Any:
        job = self._data.TransferJobState(plans, plan_bytes=sizes)
        job.start()
        missing = []
        for key, parts in zip(job.keys, pieces, strict=True):
            content = self._objects.get(key)
            if content is None:
                missing.append(key)
                continue
            for address, length, offset in parts:
                self._memory.check(address, length)
                if offset < 0 or offset + length > len(content):
                    raise ValueError(
                        f"UMBP asked for bytes {offset} to {offset + length} of an object of {len(content)} bytes."
                    )
                ctypes.memmove(address, ctypes.addressof(content) + offset, length)
        if missing:
            job.fail(missing, "no such object")
        done = [key for key in job.keys if key not in missing]
        if done or not missing:
            job.complete(done)
        return job


def _kept(plans: Sequence[Any]) -> Any:
    """UMBP's own batches keep their columns; a plain list becomes the tuple that a job wants."""
    return tuple(plans) if isinstance(plans, list) else plans


def _sizes(pieces: list[list[Piece]]) -> tuple[int, ...]:
    return tuple(sum(length for _, length, _ in parts) for parts in pieces)


def _pieces(plan: Any) -> list[Piece]:
    if not plan.ranges:
        raise ValueError(f"UMBP handed over block {plan.block_id} without ranges on the path that needs them.")
    return [(part.base_address, part.length, part.object_offset) for part in plan.ranges]


def _block_pieces(layers: list[tuple[int, int, int]], block: int) -> list[Piece]:
    pieces, offset = [], 0
    for base, stride, length in layers:
        pieces.append((base + block * stride, length, offset))
        offset += length
    return pieces


def _bulk_groups(
    regions: Sequence[Any], kv_caches: dict[str, torch.Tensor]
) -> dict[int, list[tuple[int, int, int]]]:
    """Layers per cache group as the layout describes them; empty where the description says more than a stride."""
    groups: dict[int, list[tuple[int, int, int]]] = {}
    for region in regions:
        if {field.name for field in dataclasses.fields(region)} != REGION_FIELDS:
            return {}
        tensor = kv_caches[region.layer_name]
        if tensor.stride(0) * tensor.element_size() != region.block_stride:
            return {}
        layer = (tensor.data_ptr(), region.block_stride, region.block_bytes)
        groups.setdefault(region.group_id, []).append(layer)
    return groups


class Runtime:
    """Makes the handles; those of one namespace share their objects.

    Args:
        config: UMBP's ``UMBPRuntimeConfig``; its options ``capacity_bytes`` and ``transfer`` (``bulk``, ``ranges``)
            are the adapter's.
    """

    _objects: dict[str, Objects] = {}

    def __init__(self, config: Any, data: ModuleType) -> None:
        self._capacity = int(config.options.get("capacity_bytes", CAPACITY_BYTES))
        self._bulk = config.options.get("transfer", "bulk") == "bulk"
        self._data = data

    def create_scheduler_handle(self, namespace: str, topology: Any, layout: Any) -> SchedulerHandle:
        return SchedulerHandle(self._of(namespace))

    def create_worker_handle(self, namespace: str, topology: Any, layout: Any) -> WorkerHandle:
        return WorkerHandle(self._of(namespace), layout, self._bulk, self._data)

    def _of(self, namespace: str) -> Objects:
        return self._objects.setdefault(namespace, Objects(self._capacity))


_registered: list[type] = []


def register(runtime: ModuleType) -> None:
    """Register the adapter with UMBP's ``UMBPRuntimeFactory``; safe to call again.

    Args:
        runtime: UMBP's ``runtime`` package.
    """
    factory = runtime.UMBPRuntimeFactory
    if factory in _registered:
        return
    data = importlib.import_module(f"{runtime.__name__.rpartition('.')[0]}.data")
    factory.register("embedded", lambda config: Runtime(config, data))
    _registered.append(factory)
