# SPDX-License-Identifier: Apache-2.0
"""The embedded store under loss in real engines: missing objects, eviction, preemption, an abort."""

from __future__ import annotations

import pytest

from tests.engine.store_engine import BLOCK, PREFIX

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("load", ["sync", "async"])
def test_a_missing_object_is_recomputed_never_stale(child, load):
    seen = child("cpu", f"missing_{load}")
    assert seen["failed_loads"] == 1
    assert seen["delivered_tokens"] == 3 * PREFIX - BLOCK
    assert seen["finish"] == ["length"] * 3
    assert seen["equal"] == {"restore": True, "again": True}
    # What was recomputed is stored again: the next restore is whole.
    assert seen["external_again"] == 3 * PREFIX


def test_a_missing_object_fails_the_request_when_the_policy_says_so(child):
    seen = child("cpu", "missing_fail")
    assert seen["finish"] == ["length", "error", "length"]
    assert seen["equal_others"] is True
    assert seen["equal_again"] is True


def test_chunked_prefill_and_preemption_store_the_right_bytes(child):
    seen = child("cpu", "pressure")
    assert seen["preemptions"] > 0
    assert seen["equal"] == {"pressed": True, "restore": True}
    assert seen["external"] == 3 * PREFIX


def test_a_small_store_evicts_and_stays_right(child):
    seen = child("cpu", "eviction")
    assert seen["objects"] == 8
    # The last prompt is whole, of the one before the first two blocks are left, of the first none.
    assert seen["hits"] == [PREFIX, 2 * BLOCK, 0]
    assert seen["delivered"] == 8 * BLOCK
    # 4 and 6 on the way there, 4 and 6 on the way back.
    assert seen["evicted"] == [20, 20]
    assert seen["equal"] is True


def test_an_aborted_request_leaves_nothing_pinned(child):
    seen = child("cpu", "abort")
    assert seen["loads_running"] == 1
    assert seen["loads_after"] == 0
    assert seen["reset"] is True
    assert (seen["external"], seen["equal"]) == (PREFIX, True)
    assert seen["store_reset"] is True
    assert seen["objects"] == 0
