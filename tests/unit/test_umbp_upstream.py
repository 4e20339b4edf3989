# SPDX-License-Identifier: Apache-2.0
"""The upstream UMBP planner of vLLM 0.33.0 without an engine: Qwen3-0.6B's dimensions, six layouts, three ways to move.

Blocks are stored and restored into other blocks; every byte of the KV storage is checked, guards included. Four layouts
are exact on every path; LHBNC is refused, BHLNC restores wrong pages.
"""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import pytest
from vllm.v1.kv_cache_layout import KVCacheLayout

from harness.kvstore.placement import LAYOUTS, placements
from harness.kvstore.roundtrip import wrong_bytes
from harness.kvstore.runs import plan_group
from harness.kvstore.synthetic import qwen3
from harness.kvstore.verify import verify
from harness.plugin import overlay
from harness.plugin.mori_stand_in import MemoryLocationType, UMBPClient, UMBPConfig
from harness.plugin.umbp_runtime import Runtime

BLOCKS = 7
#: (source, key, target): targets differ from sources.
MOVES = [(0, 2, 4), (1, 3, 5), (5, 0, 1), (2, 1, 6), (3, 4, 0)]
CAPACITY = 64 * 2**20
OBJECT_BYTES = 28 * 65536


@pytest.fixture(scope="module")
def data(upstream_umbp):
    """UMBP's module ``data``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(overlay.RUNTIME_VARIABLE, "")
        overlay.install(str(upstream_umbp))
        assert overlay.os.environ[overlay.RUNTIME_VARIABLE] == "adapter"
    return importlib.import_module(f"{overlay.PACKAGE}.data")


class Adapter:
    """Moves blocks through the worker handle of the harness's runtime, as UMBP's worker does."""

    def __init__(self, data, planner, kv_caches, transfer):
        self._data, self._planner = data, planner
        config = SimpleNamespace(options={"transfer": transfer, "capacity_bytes": CAPACITY})
        topology = data.RankTopology()
        runtime = Runtime(config, data)
        runtime._objects = {}
        self._handle = runtime.create_worker_handle("units", topology, planner.describe(topology))
        self._handle.register_buffers(kv_caches)

    def _plans(self, blocks, slots):
        return [self._data.BlockTransferPlan(key=f"k{slot}", block_id=block, group_id=0)
                for block, slot in zip(blocks, slots, strict=True)]

    def _run(self, name, blocks, slots):
        plans = self._plans(blocks, slots)
        job = getattr(self._handle, f"{name}_blocks")(plans)
        self.bulk = job is not None
        if job is None:
            job = getattr(self._handle, name)([self._planner.materialize(plan) for plan in plans])
        assert job.status.value == "completed" and job.completed_bytes == len(plans) * OBJECT_BYTES
        return job

    def store(self, blocks, slots):
        self._handle.publish(self._run("store", blocks, slots))

    def load(self, blocks, slots):
        self._run("load", blocks, slots)


class StandIn:
    """Moves blocks through the stand-in for MORI's client, with the arguments that UMBP makes of its ranges."""

    def __init__(self, data, planner, kv_caches):
        self._data, self._planner = data, planner
        config = UMBPConfig()
        config.dram.capacity_bytes = CAPACITY
        self._client = UMBPClient(config)
        for tensor in kv_caches.values():
            storage = tensor.untyped_storage()
            assert self._client.register_memory(storage.data_ptr(), storage.nbytes(), MemoryLocationType.CPU, -1)

    def _arguments(self, blocks, slots):
        ranges = [self._planner.materialize(self._data.BlockTransferPlan(key="", block_id=block, group_id=0)).ranges
                  for block in blocks]
        columns = [[[getattr(part, name) for part in parts] for parts in ranges]
                   for name in ("base_address", "length", "object_offset")]
        return [f"k{slot}" for slot in slots], columns

    def store(self, blocks, slots):
        keys, columns = self._arguments(blocks, slots)
        assert all(self._client.batch_put_ranges_from_ptr(keys, [OBJECT_BYTES] * len(keys), *columns))

    def load(self, blocks, slots):
        keys, columns = self._arguments(blocks, slots)
        assert all(self._client.batch_get_ranges_into_ptr(keys, *columns))


def mover_of(way, data, planner, kv_caches):
    return StandIn(data, planner, kv_caches) if way == "stand-in" else Adapter(data, planner, kv_caches, way)


def prepare(data, layout, two_slots=False):
    config, kv_caches = qwen3(layout, BLOCKS, two_slots)
    order = KVCacheLayout[layout]
    storage = verify(placements(config, 0, order), plan_group(config, 0, order), kv_caches)
    planner = data.KVLayoutPlanner.from_kv_cache_config(config)
    planner.register_kv_caches(kv_caches)
    return kv_caches, storage, planner


@pytest.mark.parametrize("way", ["bulk", "ranges", "stand-in"])
@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name not in ("LHBNC", "BHLNC")])
def test_layouts_whose_pages_are_one_run_are_exact(data, layout, way):
    kv_caches, storage, planner = prepare(data, layout)
    mover = mover_of(way, data, planner, kv_caches)
    assert wrong_bytes(kv_caches, storage, BLOCKS, mover, mover, MOVES) == 0
    if way != "stand-in":
        assert mover.bulk is (way == "bulk")


@pytest.mark.parametrize("way", ["bulk", "ranges", "stand-in"])
def test_bhlnc_restores_wrong_pages(data, way):
    kv_caches, storage, planner = prepare(data, "BHLNC")
    mover = mover_of(way, data, planner, kv_caches)
    wrong = wrong_bytes(kv_caches, storage, BLOCKS, mover, mover, MOVES)
    # Of each block's 28 pages only the first 286,720 bytes come back.
    assert wrong > 0.8 * len(MOVES) * OBJECT_BYTES


@pytest.mark.parametrize(("two_slots", "stride"), [(False, 8192), (True, 32768)])
def test_lhbnc_is_refused_with_its_figures(data, two_slots, stride):
    with pytest.raises(ValueError, match=rf"^KV region bytes \(65536\) exceed its stride \({stride}\) for '"):
        prepare(data, "LHBNC", two_slots)


def test_the_split_page_of_two_head_slots_is_exact_where_it_is_one_run(data):
    kv_caches, storage, planner = prepare(data, "LBHNC", two_slots=True)
    bulk, ranges = (mover_of(way, data, planner, kv_caches) for way in ("bulk", "ranges"))
    assert wrong_bytes(kv_caches, storage, BLOCKS, bulk, bulk, MOVES) == 0
    assert wrong_bytes(kv_caches, storage, BLOCKS, ranges, ranges, MOVES) == 0
