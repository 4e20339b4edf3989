# SPDX-License-Identifier: Apache-2.0
"""The bench's rows; speeds are for a person to read, so only their relation to each other is held here."""

from __future__ import annotations

import pytest

from harness.kvstore.bench import run
from harness.kvstore.placement import LAYOUTS
from harness.kvstore.transfer import PATHS

RUNS = {"LBHNC": 28, "LBNHC": 28, "LHBNC": 224, "BLHNC": 1, "BLNHC": 1, "BHLNC": 1}


def test_one_row_per_layout_and_path():
    rows = run(blocks=4)
    assert [(row["layout"], row["path"]) for row in rows] == [(layout, path) for layout in LAYOUTS for path in PATHS]
    for row in rows:
        assert row["runs_per_block"] == row["minimum_runs_per_block"] == RUNS[row["layout"]]
        assert row["store_ratio"] == pytest.approx(row["store_gbps"] / row["memcpy_gbps"])
        assert row["load_ratio"] == pytest.approx(row["load_gbps"] / row["memcpy_gbps"])
        assert row["extra_mib"] < 64


def test_only_the_named_layouts_are_measured():
    assert {row["layout"] for row in run(blocks=1, layouts=["BHLNC"])} == {"BHLNC"}
