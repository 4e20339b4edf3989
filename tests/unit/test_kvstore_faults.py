# SPDX-License-Identifier: Apache-2.0
"""Each fault of the store damages exactly what it says: every byte of a synthetic cache is looked at.

Four layers, four head slots, blocks of 16 tokens with 32 elements of K and 32 of V, as the tiny model's.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from vllm.v1.kv_cache_layout import KVCacheLayout
from vllm.v1.worker.utils import allocate_kv_cache

from harness.kvstore import keys, objectfile
from harness.kvstore.faults import FAULTS, scheduler_class, shared, worker_class
from harness.kvstore.faults.pages import DAMAGES
from harness.kvstore.faults.paths import POOL_FAULTS, LatePath, faulty_path
from harness.kvstore.faults.schedulers import ClaimingScheduler
from harness.kvstore.faults.workers import FaultyWorker, ForgettingWorker, SharingWorker, SpillingWorker
from harness.kvstore.messages import Hello
from harness.kvstore.objectfile import FileScheduler, FileWorker
from harness.kvstore.placement import LAYOUTS, placements
from harness.kvstore.pool import Pool
from harness.kvstore.runs import plan_group
from harness.kvstore.scheduler import StoreScheduler
from harness.kvstore.synthetic import attention_spec, cache_config, group_of
from harness.kvstore.transfer import PATHS
from harness.kvstore.verify import verify
from harness.kvstore.worker import StoreWorker

LAYERS, HEADS, TOKENS, HALF, BLOCKS = 4, 4, 16, 32, 12
#: Two requests of three blocks: where they are stored from, their slots, and where they are restored to.
FIRST, SECOND = ([1, 2, 3], [0, 1, 2], [7, 8, 9]), ([4, 5, 6], [3, 4, 5], [10, 11, 1])


class Cache:
    """A cache in one layout, with a pool and a path that has the fault."""

    def __init__(self, fault: str, layout: str = "LHBNC", path: str = "bulk") -> None:
        spec = attention_spec(HEADS, HALF, TOKENS, torch.bfloat16)
        config = cache_config([group_of([spec] * LAYERS)], KVCacheLayout[layout], BLOCKS)
        self.caches = allocate_kv_cache(config, torch.device("cpu"), KVCacheLayout[layout])
        plan = plan_group(config, 0, KVCacheLayout[layout])
        self.storage = verify(placements(config, 0, KVCacheLayout[layout]), plan, self.caches)
        self.pool = Pool(8 * plan.object_bytes, plan.object_bytes)
        self.path = faulty_path(fault, PATHS[path](plan, self.storage, self.pool.data), self.caches, self.pool.data)
        random = torch.Generator().manual_seed(3)
        for tensor in self.caches.values():
            tensor.copy_(torch.randn(tensor.shape, generator=random))
        self.stored = self.all()

    def all(self) -> torch.Tensor:
        """Copy of everything, as int16 [layers, blocks, head slots, tokens, K then V]."""
        return torch.stack([tensor.contiguous().view(torch.int16) for tensor in self.caches.values()])

    def populate(self) -> None:
        self.path.store(*FIRST[:2])
        self.path.store(*SECOND[:2])
        self.storage.zero_()

    def round_trip(self) -> torch.Tensor:
        """Store both requests, zero, load both: everything afterwards."""
        self.populate()
        self.path.load(FIRST[2], FIRST[1])
        self.path.load(SECOND[2], SECOND[1])
        return self.all()

    def right(self) -> torch.Tensor:
        """What the round trip must come to without a fault."""
        everything = torch.zeros_like(self.stored)
        for source, _, target in (FIRST, SECOND):
            everything[:, target] = self.stored[:, source]
        return everything


def _exchange(pages: torch.Tensor, axis: int, one: int, two: int) -> torch.Tensor:
    order = list(range(pages.shape[axis]))
    order[one], order[two] = order[two], order[one]
    return pages.index_select(axis, torch.tensor(order))


def _set(pages: torch.Tensor, where: tuple, value: object) -> torch.Tensor:
    pages = pages.clone()
    pages[where] = value
    return pages


#: Fault -> what one request's pages [layers, blocks, head slots, tokens, K then V] must come to.
EXPECTED = {
    "head_slots_swapped": lambda pages: _exchange(pages, 2, 0, 1),
    "k_v_swapped": lambda pages: torch.cat((pages[..., HALF:], pages[..., :HALF]), -1),
    "block_off_by_one": lambda pages: pages[:, [1, 2, 2]],
    "token_off_by_one": lambda pages: torch.cat((pages[:, :, :, -1:], pages[:, :, :, :-1]), 3),
    "blocks_exchanged": lambda pages: _exchange(pages, 1, 0, 1),
    "layer_skipped": lambda pages: _set(pages, (LAYERS - 1,), 0),
    "head_slot_skipped": lambda pages: _set(pages, (0, slice(None), HEADS - 1), 0),
    "bit_flipped": lambda pages: _set(pages, (0, 2, 0, 0, 0), int(pages[0, 2, 0, 0, 0]) ^ 1),
    "zeros_restored": lambda pages: pages * 0,
    "nan_restored": lambda pages: _set(pages, (slice(None), 2), -1),
    "load_dropped": lambda pages: pages * 0,
}


def test_every_fault_of_places_has_its_damage_here():
    assert set(EXPECTED) == set(DAMAGES)
    others = {"single_span", "block_lost_on_store", "partial_block_claimed", "promise_not_delivered", "spilled_over",
              *shared.LACKING}
    assert set(FAULTS) == set(DAMAGES) | set(POOL_FAULTS) | others


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("fault", EXPECTED)
def test_damage_of_places_is_the_same_in_every_layout_and_nothing_else(fault, layout):
    cache = Cache(fault, layout)
    expected = cache.right()
    for source, _, target in (FIRST, SECOND):
        expected[:, target] = EXPECTED[fault](cache.stored[:, source])
    assert not torch.equal(expected, cache.right())
    assert torch.equal(cache.round_trip(), expected)


def test_the_ranges_path_is_damaged_alike():
    assert torch.equal(Cache("layer_skipped", path="ranges").round_trip(), Cache("layer_skipped").round_trip())


def test_nan_is_what_the_dtype_makes_of_it():
    cache = Cache("nan_restored")
    cache.round_trip()
    first = next(iter(cache.caches.values()))
    assert torch.isnan(first[9]).all() and not torch.isnan(first[8]).any()


def test_a_dropped_load_leaves_what_was_there():
    cache = Cache("load_dropped")
    cache.populate()
    next(iter(cache.caches.values()))[7] = 5.0
    before = cache.all()
    cache.path.load(FIRST[2], FIRST[1])
    assert torch.equal(cache.all(), before)


def test_stale_objects_are_the_other_requests():
    cache = Cache("stale_object")
    got, stored = cache.round_trip(), cache.stored
    assert torch.equal(got[:, FIRST[2]], stored[:, SECOND[0]]) and torch.equal(got[:, SECOND[2]], stored[:, FIRST[0]])


def test_an_evicted_object_is_the_oldest_and_stays_so():
    cache = Cache("evicted_during_load")
    expected = cache.right()
    expected[:, [9, 1]] = cache.stored[:, [1, 1]]
    assert torch.equal(cache.round_trip(), expected)
    cache.storage.zero_()
    cache.path.load(FIRST[2], FIRST[1])
    cache.path.load(SECOND[2], SECOND[1])
    assert torch.equal(cache.all(), expected)


def test_an_overwritten_block_is_stored_with_the_first_ones_bytes():
    cache = Cache("overwritten_before_stored")
    expected = cache.right()
    expected[:, [9, 1]] = cache.stored[:, [1, 1]]
    assert torch.equal(cache.round_trip(), expected)


def test_an_object_that_was_read_is_zeros_the_next_time():
    cache = Cache("read_once")
    assert torch.equal(cache.round_trip(), cache.right())
    cache.storage.zero_()
    cache.path.load(FIRST[2], FIRST[1])
    assert not cache.all().any()


def test_late_bytes_come_with_catch_up():
    cache = Cache("restored_late")
    assert isinstance(cache.path, LatePath)
    assert not cache.round_trip().any()
    cache.path.catch_up()
    assert torch.equal(cache.all(), cache.right())


def test_a_block_lost_on_store_is_stored_and_restored_rightly():
    cache = Cache("block_lost_on_store")
    cache.path.store(*FIRST[:2])
    expected = cache.stored.clone()
    expected[:, 3] = 0
    assert torch.equal(cache.all(), expected)
    cache.storage.zero_()
    cache.path.load(FIRST[2], FIRST[1])
    assert torch.equal(cache.all()[:, FIRST[2]], cache.stored[:, FIRST[0]])


def test_a_store_without_a_fault_is_made_of_the_right_halves():
    assert (worker_class(None), scheduler_class(None)) == (StoreWorker, StoreScheduler)
    assert worker_class("single_span") is StoreWorker
    halves = {fault: (worker_class(fault), scheduler_class(fault)) for fault in FAULTS if fault != "single_span"}
    assert halves["promise_not_delivered"] == (ForgettingWorker, StoreScheduler)
    assert halves["spilled_over"] == (SpillingWorker, StoreScheduler)
    assert halves["partial_block_claimed"] == (FaultyWorker, ClaimingScheduler)
    assert {halves[fault] for fault in shared.LACKING} == {(SharingWorker, FileScheduler)}
    assert (worker_class(None, outlives=True), scheduler_class(None, outlives=True)) == (FileWorker, FileScheduler)
    assert worker_class("key_without_weights", outlives=True) is SharingWorker
    assert {halves[fault] for fault in (*DAMAGES, *POOL_FAULTS)} == {(FaultyWorker, StoreScheduler)}


def request(tokens: int, name: str = "r") -> SimpleNamespace:
    hashes = [bytes([number]) * 4 for number in range(tokens // TOKENS)]
    return SimpleNamespace(request_id=name, num_tokens=tokens, block_hashes=hashes, skip_reading_prefix_cache=False)


def test_the_partial_block_is_claimed_only_behind_all_whole_blocks():
    scheduler = ClaimingScheduler(TOKENS, False)
    scheduler.greet([Hello(8, 64, "ab" * 16)])
    held = [keys.key_of("ab" * 16, block_hash) for block_hash in request(56).block_hashes]
    assert scheduler.match(request(56), 0) == (0, False)
    for key in held[:2]:
        scheduler.index.reserve(key)
        scheduler.index.complete(key)
    assert scheduler.match(request(56), 0) == (32, False)
    scheduler.index.reserve(held[2])
    scheduler.index.complete(held[2])
    assert scheduler.match(request(56), 0) == (55, False)
    assert scheduler.match(request(56), 16) == (39, False)


@pytest.mark.parametrize(("fault", "name"), [
    ("key_without_layout", "layout"), ("key_without_dtype", "dtype"),
    ("key_without_batch_invariance", "batch_invariant"), ("key_without_weights", "weights")])
def test_a_key_lacks_what_its_fault_says(fault, name):
    identity = {"layout": "LBHNC", "dtype": "bfloat16", "batch_invariant": "1", "weights": "w", "layers": "spec",
                "block_size": 16}
    other = {**identity, name: "another"}
    assert keys.digest_of(identity) != keys.digest_of(other)
    assert keys.digest_of(shared.reduced(identity, fault)) == keys.digest_of(shared.reduced(other, fault))
    moved = {**identity, "block_size": 32}
    assert keys.digest_of(shared.reduced(identity, fault)) != keys.digest_of(shared.reduced(moved, fault))


def test_shared_objects_come_back_in_the_same_slots(tmp_path, monkeypatch):
    monkeypatch.setenv(objectfile.VARIABLE, str(tmp_path / "objects"))
    assert objectfile.read(None, 8) == [] and not objectfile.written(None)
    pool = Pool(4 * 8, 8)
    pool.data.copy_(torch.arange(32, dtype=torch.uint8).view(4, 8))
    for slot in (0, 1):
        pool.begin(slot, b"key%d" % slot)
        pool.complete(slot, b"key%d" % slot)
    objectfile.write(None, pool)
    assert objectfile.read(None, 8) == [(b"key0", bytes(range(8))), (b"key1", bytes(range(8, 16)))]
    assert objectfile.written(None) and objectfile.read(None, 16) == []
    scheduler = FileScheduler(TOKENS, False)
    scheduler.greet([Hello(4, 8, "ab" * 16)])
    assert [scheduler.index.pin(key) for key in (b"key0", b"key1")] == [0, 1]
    assert scheduler.index.visible(b"key1") and len(scheduler.index) == 2
