# SPDX-License-Identifier: Apache-2.0
"""Restores of the embedded store in real engines on the CPU: bitwise, whole, or refused."""

from __future__ import annotations

from importlib.metadata import entry_points

import pytest

from tests.engine.store_engine import BLOCK, OBJECT_BYTES, PREFIX

pytestmark = pytest.mark.engine


@pytest.mark.parametrize(
    ("group", "scenario"),
    [("cpu", "restore"), ("cpu", "restore_ranges"), ("cpu", "restore_async"), ("multiprocess", "restore")],
)
def test_a_restore_is_bitwise_a_local_hit(child, group, scenario):
    seen = child(group, scenario)
    assert seen["external"] == {"populate": 0, "local": 0, "restore": 3 * PREFIX, "again": 3 * PREFIX}
    assert seen["local"] == {"populate": 0, "local": 3 * PREFIX, "restore": 0, "again": 0}
    assert seen["resets"] == [True, True]
    assert seen["equal"] == {"local": True, "restore": True, "again": True}
    assert seen["evidence"] == {
        "delivered_tokens": 2 * 3 * PREFIX,
        "loaded_blocks": 2 * 18,
        "loaded_bytes": 2 * 18 * OBJECT_BYTES,
        "stored_blocks": 18,
        "stored_bytes": 18 * OBJECT_BYTES,
        "evicted_blocks": 0,
        "failed_loads": 0,
    }
    assert seen["metrics"] == {
        "promised_tokens": 2 * 3 * PREFIX,
        "delivered_tokens": 2 * 3 * PREFIX,
        "stored_bytes": 18 * OBJECT_BYTES,
        "objects": 18,
        "slots": 16 * 2**20 // OBJECT_BYTES,
    }


def test_skipped_reads_and_full_hits(child):
    seen = child("cpu", "limits")
    assert seen["skipped"] == 0
    # 192 tokens are 6 whole blocks, but one token must be computed, so the last block is.
    assert seen["full_hit"] == PREFIX - BLOCK
    assert seen["equal"] is True
    assert seen["promised"] == PREFIX - BLOCK


def need_plugin() -> None:
    if not entry_points(group="vllm.general_plugins", name="kvparity"):
        pytest.skip("the kvparity package is not installed, so vLLM does not load its reference backend")


@pytest.mark.parametrize("layout", ["LHBNC", "BHLNC"])
def test_split_layouts_restore_bitwise(child, layout):
    need_plugin()
    seen = child(layout, "restore")
    assert seen["external"]["restore"] == 3 * PREFIX
    assert seen["equal"] == {"local": True, "restore": True, "again": True}


def test_single_span_claims_full_hits_and_restores_wrong_kv_in_bhlnc(child):
    need_plugin()
    seen = child("BHLNC", "single_span")
    assert seen["external"]["restore"] == 3 * PREFIX
    assert seen["equal"] == {"local": True, "restore": False, "again": False}


def test_single_span_is_refused_in_lhbnc(child):
    need_plugin()
    seen = child("LHBNC", "single_span")
    assert "(LHBNC): KV region bytes (8192) exceed its stride (4096)" in seen["refused"]


def test_an_unknown_setting_is_refused_at_start(child):
    assert "['capacity']; valid are" in child("cpu", "bad_setting")["refused"]
