# SPDX-License-Identifier: Apache-2.0
"""Index, pool, settings and keys."""

from __future__ import annotations

import pytest

from harness.kvstore.index import ObjectIndex
from harness.kvstore.keys import digest_of, key_of, weights_of
from harness.kvstore.metrics import Changes
from harness.kvstore.pool import Pool
from harness.kvstore.settings import Settings


def filled(slots, names):
    index = ObjectIndex(slots)
    for name in names:
        assert index.reserve(name) is not None
        index.complete(name)
    return index


def test_a_key_is_visible_only_when_complete():
    index = ObjectIndex(2)
    assert index.reserve(b"a") == 0
    assert (b"a" in index, index.visible(b"a"), len(index)) == (True, False, 0)
    index.complete(b"a")
    assert (b"a" in index, index.visible(b"a"), len(index)) == (True, True, 1)


def test_the_least_recently_used_key_goes_first():
    index = filled(3, [b"a", b"b", b"c"])
    index.touch([b"a"])
    assert index.reserve(b"d") == 1
    assert [index.visible(name) for name in (b"a", b"b", b"c")] == [True, False, True]
    assert index.evicted == 1


def test_a_chain_loses_its_tail_first():
    index = filled(3, [b"0", b"1", b"2"])
    index.touch([b"0", b"1", b"2"])
    assert index.reserve(b"x") == 2
    assert [index.visible(name) for name in (b"0", b"1", b"2")] == [True, True, False]


def test_pinned_incomplete_and_kept_keys_are_never_evicted():
    index = filled(3, [b"a", b"b"])
    assert index.pin(b"a") == 0
    index.reserve(b"c")
    assert index.reserve(b"d", keep={b"b"}) is None
    assert index.reserve(b"d") == 1
    assert index.reserve(b"e") is None
    index.unpin(b"a")
    assert index.reserve(b"e") == 0


def test_a_discarded_key_frees_its_slot_when_its_load_ends():
    index = filled(1, [b"a"])
    index.pin(b"a")
    index.discard(b"a")
    assert (index.visible(b"a"), index.reserve(b"b")) == (False, None)
    index.unpin(b"a")
    assert index.reserve(b"b") == 0


def test_clear_waits_for_what_is_being_written():
    index = filled(2, [b"a"])
    index.reserve(b"b")
    assert index.clear() is False
    assert (len(index), b"b" in index) == (0, False)
    index.complete(b"b")
    assert index.visible(b"b") is False
    assert index.clear() is True
    assert sorted([index.reserve(b"c"), index.reserve(b"d")]) == [0, 1]


def test_the_pool_shows_no_half_object_and_counts_evictions():
    pool = Pool(1000, 300)
    assert (pool.slots, tuple(pool.data.shape)) == (3, (3, 300))
    pool.begin(1, b"a")
    assert pool.holds(1, b"a") is False
    pool.complete(1, b"a")
    assert (pool.holds(1, b"a"), pool.holds(1, b"b"), pool.used, pool.evicted) == (True, False, 1, 0)
    pool.begin(1, b"b")
    assert (pool.holds(1, b"a"), pool.evicted) == (False, 1)


def test_a_capacity_below_one_object_is_refused():
    with pytest.raises(ValueError, match="capacity of 299 bytes holds no block of 300 bytes"):
        Pool(299, 300)


def test_settings_name_the_valid_choices():
    assert Settings.of(None) == Settings(256, "bulk", "sync", None)
    assert Settings.of({"fault": "single_span", "capacity_mib": 1}).fault == "single_span"
    valid = r"\['capacity_mib', 'transfer', 'load', 'fault', 'file'\]"
    with pytest.raises(ValueError, match=rf"\['transfr'\]; valid are {valid}"):
        Settings.of({"transfr": "bulk"})
    with pytest.raises(ValueError, match=r"\['transfer'\] is 'slow'; valid are \['bulk', 'ranges'\]"):
        Settings.of({"transfer": "slow"})
    with pytest.raises(ValueError, match="is 0; it must be a positive number"):
        Settings.of({"capacity_mib": 0})


def test_keys_differ_with_identity_and_hash(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"12345")
    (tmp_path / "notes.txt").write_text("not weights")
    assert [entry[:2] for entry in weights_of(str(tmp_path))] == [["config.json", 2], ["model.safetensors", 5]]
    assert weights_of("org/model") == []
    one, two = digest_of({"layout": "LBHNC"}), digest_of({"layout": "LBNHC"})
    assert len({one, two, digest_of({"layout": "LBHNC", "batch_invariant": "1"})}) == 3
    assert len({key_of(one, b"h"), key_of(two, b"h"), key_of(one, b"g")}) == 3
    assert len(key_of(one, b"h" * 32)) == 16


def test_statistics_sum_counters_and_keep_the_latest_gauge():
    changes = Changes()
    first = changes.since({"promised_tokens": 32, "objects": 4, "evicted_objects": 9})
    assert first.data == {"promised_tokens": 32, "objects": 4}
    assert changes.since({"promised_tokens": 32, "objects": 4}) is None
    second = changes.since({"promised_tokens": 64, "objects": 3})
    assert second.data == {"promised_tokens": 32, "objects": 3}
    assert first.aggregate(second).reduce() == {"promised_tokens": 64, "objects": 3}
