# SPDX-License-Identifier: Apache-2.0
"""Round trips on Qwen3-0.6B's dimensions: 12 of 12 exact, and exactly 4 of 12 not with the planted single span."""

from __future__ import annotations

import pytest
import torch
from vllm.v1.kv_cache_layout import KVCacheLayout

from harness.kvstore.bench import minimum_runs
from harness.kvstore.faults.span import single_span
from harness.kvstore.placement import LAYOUTS, placements
from harness.kvstore.pool import Pool
from harness.kvstore.roundtrip import wrong_bytes
from harness.kvstore.runs import plan_group
from harness.kvstore.synthetic import qwen3
from harness.kvstore.transfer import PATHS, stretches
from harness.kvstore.verify import verify

BLOCKS = 7
#: (source, slot, target): targets differ from sources, stretches of one, two and three blocks.
MOVES = [(0, 2, 4), (1, 3, 5), (5, 0, 1), (2, 1, 6), (3, 4, 0)]


def prepare(layout: str, fault: bool = False, two_slots: bool = False):
    config, kv_caches = qwen3(layout, BLOCKS, two_slots)
    places = placements(config, 0, KVCacheLayout[layout])
    plan = plan_group(config, 0, KVCacheLayout[layout])
    storage = verify(places, plan, kv_caches)
    if fault:
        plan = single_span(config, plan, places, kv_caches)
    pool = Pool(5 * plan.object_bytes, plan.object_bytes)
    return kv_caches, storage, plan, pool


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_round_trip_is_exact(layout, path):
    kv_caches, storage, plan, pool = prepare(layout)
    assert plan.object_bytes == 28 * 65536
    mover = PATHS[path](plan, storage, pool.data)
    assert wrong_bytes(kv_caches, storage, BLOCKS, mover, mover, MOVES) == 0


@pytest.mark.parametrize("layout", ["LHBNC", "LBHNC"])
def test_round_trip_with_two_head_slots_is_exact_across_paths(layout):
    kv_caches, storage, plan, pool = prepare(layout, two_slots=True)
    bulk, ranges = (kind(plan, storage, pool.data) for kind in PATHS.values())
    assert wrong_bytes(kv_caches, storage, BLOCKS, bulk, ranges, MOVES) == 0
    assert wrong_bytes(kv_caches, storage, BLOCKS, ranges, bulk, MOVES) == 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_both_paths_write_the_same_object(layout):
    _, storage, plan, pool = prepare(layout)
    storage.copy_(torch.randint(0, 256, storage.shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(1)))
    other = torch.zeros_like(pool.data)
    pool.data.zero_()
    source, slots, _ = zip(*MOVES, strict=True)
    PATHS["bulk"](plan, storage, pool.data).store(source, slots)
    PATHS["ranges"](plan, storage, other).store(source, slots)
    assert torch.equal(pool.data, other)
    assert int((pool.data != 0).sum()) > plan.object_bytes


def test_single_span_fails_exactly_four_of_twelve():
    results = {}
    for layout in LAYOUTS:
        for path in PATHS:
            try:
                kv_caches, storage, plan, pool = prepare(layout, fault=True)
            except ValueError as error:
                results[layout, path] = str(error)
                continue
            mover = PATHS[path](plan, storage, pool.data)
            results[layout, path] = wrong_bytes(kv_caches, storage, BLOCKS, mover, mover, MOVES)
    failed = {case: result for case, result in results.items() if result != 0}
    refusal = "Layer g0.layer.0 (LHBNC): KV region bytes (65536) exceed its stride (8192)."
    assert failed == {
        ("LHBNC", "bulk"): refusal,
        ("LHBNC", "ranges"): refusal,
        ("BHLNC", "bulk"): failed["BHLNC", "bulk"],
        ("BHLNC", "ranges"): failed["BHLNC", "bulk"],
    }
    # Of each block's 28 pages only the first 286,720 bytes come back.
    assert failed["BHLNC", "bulk"] > 0.8 * len(MOVES) * 28 * 65536


def test_single_span_refuses_two_head_slots_with_their_figures():
    with pytest.raises(ValueError, match=r"\(LHBNC\): KV region bytes \(65536\) exceed its stride \(32768\)"):
        prepare("LHBNC", fault=True, two_slots=True)


@pytest.mark.parametrize(
    ("layout", "two_slots", "runs"),
    [
        ("LBHNC", False, 28),
        ("LBNHC", False, 28),
        ("LHBNC", False, 224),
        ("LHBNC", True, 56),
        ("LBHNC", True, 28),
        ("BLHNC", False, 1),
        ("BLNHC", False, 1),
        ("BHLNC", False, 1),
    ],
)
def test_runs_per_block_are_the_fewest_possible(layout, two_slots, runs):
    kv_caches, _, plan, _ = prepare(layout, two_slots=two_slots)
    assert len(plan.runs) == runs
    assert minimum_runs(kv_caches, block=3) == runs


def test_stretches_join_what_counts_up_on_both_sides():
    assert list(stretches([3, 4, 5, 9, 8], [1, 2, 4, 5, 6])) == [(3, 1, 2), (5, 4, 1), (9, 5, 1), (8, 6, 1)]
    assert list(stretches([], [])) == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: moves blocks through pinned host memory")
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_gpu_storage_gives_the_same_objects(layout, path):
    _, storage, plan, pool = prepare(layout)
    storage.copy_(torch.randint(0, 256, storage.shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(2)))
    device = storage.to("cuda")
    pinned = Pool(5 * plan.object_bytes, plan.object_bytes, pinned=True)
    source, slots, target = zip(*MOVES, strict=True)
    PATHS[path](plan, storage, pool.data).store(source, slots)
    mover = PATHS[path](plan, device, pinned.data)
    mover.store(source, slots)
    assert torch.equal(pinned.data, pool.data)
    PATHS[path](plan, storage, pool.data).load(target, slots)
    mover.load(target, slots)
    assert torch.equal(device.cpu(), storage)
