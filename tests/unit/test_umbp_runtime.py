# SPDX-License-Identifier: Apache-2.0
"""The DRAM runtime for UMBP: ranges and bulk move the same bytes, and nothing outside registered memory is touched."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch

from harness.plugin import umbp_runtime
from harness.plugin.umbp_runtime import Runtime

LAYERS, BLOCKS, BLOCK_BYTES = 3, 5, 64


@dataclass
class Job:
    """The part of UMBP's job that the runtime uses."""

    plans: tuple
    plan_bytes: tuple | None = None
    completed: list = field(default_factory=list)
    failed: list = field(default_factory=list)

    @property
    def keys(self):
        return [plan.key for plan in self.plans]

    def start(self):
        pass

    def complete(self, keys=()):
        self.completed += keys or self.keys

    def fail(self, keys, error):
        self.failed += keys


@dataclass(frozen=True)
class Region:
    layer_name: str
    group_id: int = 0
    block_stride: int = BLOCK_BYTES
    block_bytes: int = BLOCK_BYTES
    object_offset: int = 0
    block_size: int = 16


@pytest.fixture
def storage():
    return torch.arange(LAYERS * BLOCKS * BLOCK_BYTES, dtype=torch.int64).remainder(251).to(torch.uint8)


@pytest.fixture
def caches(storage):
    views = storage.view(LAYERS, BLOCKS, 1, 1, BLOCK_BYTES)
    return {f"layer{number}": views[number] for number in range(LAYERS)}


@pytest.fixture(autouse=True)
def own_objects(monkeypatch):
    monkeypatch.setattr(Runtime, "_objects", {})


def handles(caches, regions=None, **options):
    config = SimpleNamespace(options=options)
    data = SimpleNamespace(TransferJobState=Job)
    layout = SimpleNamespace(regions=regions or [Region(layer_name=name) for name in caches])
    # The connector builds one runtime for the scheduler and another for the worker.
    scheduler = Runtime(config, data).create_scheduler_handle("space", None, None)
    worker = Runtime(config, data).create_worker_handle("space", None, layout)
    worker.register_buffers(caches)
    return scheduler, worker


def block(key, number):
    return SimpleNamespace(key=key, block_id=number, group_id=0, ranges=())


def ranged(key, number, caches, piece=BLOCK_BYTES // 4):
    ranges, offset = [], 0
    for tensor in caches.values():
        for start in range(0, BLOCK_BYTES, piece):
            ranges.append(SimpleNamespace(base_address=tensor.data_ptr() + number * BLOCK_BYTES + start, length=piece,
                                          object_offset=offset))
            offset += piece
    return SimpleNamespace(key=key, block_id=number, group_id=0, ranges=tuple(ranges))


@pytest.mark.parametrize("stored", ["bulk", "ranges"])
@pytest.mark.parametrize("loaded", ["bulk", "ranges"])
def test_bulk_and_ranges_write_the_same_object(storage, caches, stored, loaded):
    scheduler, worker = handles(caches)
    before = storage.clone()
    one, two = block("a", 1), ranged("a", 1, caches)
    job = worker.store_blocks([one]) if stored == "bulk" else worker.store([two])
    assert scheduler.lookup(["a"]) == [False], "visible before it is published"
    worker.publish(worker.wait(job))
    assert scheduler.lookup(["a", "b"]) == [True, False]
    storage.zero_()
    job = worker.load_blocks([block("a", 3)]) if loaded == "bulk" else worker.load([ranged("a", 3, caches)])
    assert (job.completed, job.failed) == (["a"], [])
    if loaded == "bulk":
        assert job.plan_bytes == (LAYERS * BLOCK_BYTES,)
    views, old = storage.view(LAYERS, BLOCKS, -1), before.view(LAYERS, BLOCKS, -1)
    assert torch.equal(views[:, 3], old[:, 1])
    views[:, 3] = 0
    assert not storage.any(), "bytes outside the destination block changed"


def test_the_transfer_that_was_asked_for_is_the_one_that_is_used(caches):
    assert handles(caches, transfer="ranges")[1].store_blocks([block("a", 0)]) is None
    assert handles(caches, transfer="bulk")[1].store_blocks([block("a", 0)]) is not None


def test_a_description_that_says_more_than_a_stride_is_left_to_umbp(caches):
    @dataclass(frozen=True)
    class Wider(Region):
        head_stride: int = 8

    assert handles(caches, [Wider(layer_name=name) for name in caches])[1].load_blocks([block("a", 0)]) is None
    doubled = [Region(layer_name=name, block_stride=2 * BLOCK_BYTES) for name in caches]
    assert handles(caches, doubled)[1].load_blocks([block("a", 0)]) is None


def test_missing_objects_fail_alone(caches):
    _, worker = handles(caches)
    worker.publish(worker.store_blocks([block("a", 0)]))
    job = worker.load_blocks([block("a", 1), block("gone", 2)])
    assert (job.completed, job.failed) == (["a"], ["gone"])


@pytest.mark.parametrize("shift", [-1, LAYERS * BLOCKS * BLOCK_BYTES - BLOCK_BYTES + 1, 1 << 40])
@pytest.mark.parametrize("operation", ["store", "load"])
def test_memory_that_was_not_registered_is_refused(caches, shift, operation):
    _, worker = handles(caches)
    worker.publish(worker.store_blocks([block("a", 0)]))
    address = caches["layer0"].data_ptr() + shift
    part = SimpleNamespace(base_address=address, length=BLOCK_BYTES, object_offset=0)
    plan = SimpleNamespace(key="a", block_id=0, group_id=0, ranges=(part,))
    with pytest.raises(ValueError, match="not within the KV memory that it registered"):
        getattr(worker, operation)([plan])


def test_a_load_beyond_the_object_is_refused(caches):
    _, worker = handles(caches)
    worker.publish(worker.store_blocks([block("a", 0)]))
    part = SimpleNamespace(base_address=caches["layer0"].data_ptr(), length=64, object_offset=LAYERS * BLOCK_BYTES - 63)
    plan = SimpleNamespace(key="a", block_id=0, group_id=0, ranges=(part,))
    with pytest.raises(ValueError, match="bytes 129 to 193 of an object of 192 bytes"):
        worker.load([plan])


def test_the_oldest_objects_go_when_the_pool_is_full(caches):
    size = LAYERS * BLOCK_BYTES
    scheduler, worker = handles(caches, capacity_bytes=2 * size)
    for number, key in enumerate("abc"):
        worker.publish(worker.store_blocks([block(key, number)]))
    assert scheduler.lookup("abc") == [False, True, True]
    assert worker.take_evicted_keys() == ["a"] and worker.take_evicted_keys() == []
    assert scheduler.clear() and scheduler.lookup("abc") == [False] * 3


def test_plans_without_ranges_are_no_empty_transfer(caches):
    _, worker = handles(caches)
    with pytest.raises(ValueError, match="block 2 without ranges"):
        worker.load([block("a", 2)])


def test_registered_once_per_registry(monkeypatch):
    monkeypatch.setattr(umbp_runtime, "_registered", [])
    monkeypatch.setattr(umbp_runtime.importlib, "import_module", lambda name: SimpleNamespace(name=name))
    seen = []

    class Factory:
        @staticmethod
        def register(mode, builder):
            seen.append((mode, builder(SimpleNamespace(options={}))._data.name))

    package = SimpleNamespace(UMBPRuntimeFactory=Factory, __name__="umbp.runtime")
    umbp_runtime.register(package)
    umbp_runtime.register(package)
    assert seen == [("embedded", "umbp.data")]
