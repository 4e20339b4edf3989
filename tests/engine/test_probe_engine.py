# SPDX-License-Identifier: Apache-2.0
"""The probe in real engines: layout, zeroing, block tables, digests."""

from __future__ import annotations

import pytest

from tests.engine.plugin_engines import LAYOUTS, Engines, values

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_probe_reads_the_layout_from_the_tensors(engines: Engines, layout: str) -> None:
    resolved = dict(engines.run("REFERENCE", layout)["resolved"])
    settings = dict(resolved.pop("settings"))
    assert resolved["layout"] == layout
    assert resolved["layout_by_strides"] == [layout]
    # [L, B, H, N, C] = [3, 96, 2, 16, 64]
    page = 2 * 16 * 64
    strides = {
        "LBHNC": [96 * page, page, 1024, 64, 1],
        "LBNHC": [96 * page, page, 64, 128, 1],
        "LHBNC": [96 * page, 1024, 96 * 1024, 64, 1],
        "BLHNC": [page, 3 * page, 1024, 64, 1],
        "BLNHC": [page, 3 * page, 64, 128, 1],
        "BHLNC": [1024, 3 * page, 3 * 1024, 64, 1],
    }
    assert resolved["strides"] == strides[layout]
    assert resolved | {"layout": "", "layout_by_strides": [], "strides": []} == {
        "layout": "",
        "layout_by_strides": [],
        "shape": [96, 2, 16, 64],
        "strides": [],
        "dtype": "bfloat16",
        "num_layers": 3,
        "backend": "REFERENCE",
        "backend_class": ["harness.plugin.reference.ReferenceBackend"],
        "batch_invariant": False,
        "block_size": 16,
        "kernel_block_size": 16,
        "num_blocks": 96,
        "threads": 1,
        "connector": None,
    }
    # 32 bytes of a seed for block hashes, 8 of a digest of the weights.
    assert len(bytes.fromhex(settings.pop("hash seed"))) == 32 and len(bytes.fromhex(settings.pop("weights"))) == 8
    assert settings.pop("model").endswith("/model")
    assert settings == {"revision": "None", "model dtype": "bfloat16", "kv cache dtype": "auto"}


def test_zeroing_leaves_no_byte_and_changes_the_digests(engines: Engines) -> None:
    said = engines.run("REFERENCE", "BHLNC")
    assert said["zero"] == {"zeroed_bytes": 3 * 96 * 2 * 16 * 64 * 2, "nonzero_after": 0}
    assert len(set(said["zero_digests"])) == 1
    assert said["zero_digests"][0] not in said["digests"][0]
    assert said["digests_after_hit"] == said["digests"]
    assert said["transfer"] == {}


def test_the_watch_knows_prompts_and_blocks(engines: Engines) -> None:
    blocks = engines.run("REFERENCE", "LBHNC")["blocks"]
    assert [len(entry["prompt_token_ids"]) for entry in blocks] == [72, 64, 9]
    # 6 new tokens, the last of which is never written: 77, 69 and 14 tokens.
    assert [len(entry["blocks"]) for entry in blocks] == [5, 5, 1]
    assert [entry["reused"] for entry in blocks] == [False, False, False]


def test_the_probe_answers_from_another_process(engines: Engines) -> None:
    said = engines.run("REFERENCE", "BHLNC", multiprocessing=True)
    inside = engines.run("REFERENCE", "BHLNC")
    # Block hashes, and with them their seed, are made in the engine core's process; the worker beside it has none.
    worker, inside_settings = said["resolved"]["settings"], inside["resolved"]["settings"]
    assert {**worker, "hash seed": inside_settings["hash seed"]} == inside_settings
    assert {**said["resolved"], "settings": {}} == {**inside["resolved"], "settings": {}}
    assert said["digests"] == inside["digests"]
    assert values(said["cold"]) == values(inside["cold"])
