# SPDX-License-Identifier: Apache-2.0
"""The bench's table and targets, on made-up rows; what is measured is tested where it is measured."""

from __future__ import annotations

import json
import sys
import types

import pytest
from rich.console import Console

from harness import cli
from harness.benches import store as bench
from harness.errors import UsageError


def row(layout: str, path: str, runs: int, store: float, load: float) -> dict:
    return {
        "layout": layout, "path": path, "runs_per_block": runs, "minimum_runs_per_block": runs, "store_gbps": 5.0,
        "load_gbps": 6.0, "store_ratio": store, "load_ratio": load, "memcpy_gbps": 7.0, "extra_mib": 1.2,
    }


ROWS = [
    row("BLHNC", "bulk", 1, 0.81, 0.79),
    row("LBHNC", "bulk", 28, 0.61, 0.60),
    row("LHBNC", "bulk", 224, 0.59, 0.70),
    row("LHBNC", "ranges", 224, 0.31, 0.29),
]


@pytest.mark.parametrize(("index", "wanted"), [(0, 0.8), (1, 0.6), (2, 0.6), (3, 0.3)])
def test_targets_by_path_and_runs(index, wanted):
    assert bench.target(ROWS[index]) == wanted


def test_what_falls_short_is_said_with_both_figures():
    assert bench.short(ROWS) == [
        "BLHNC bulk load: 0.79 of memcpy, target 0.80",
        "LHBNC bulk store: 0.59 of memcpy, target 0.60",
        "LHBNC ranges load: 0.29 of memcpy, target 0.30",
    ]


def test_the_table_shows_runs_beside_their_minimum():
    console = Console(width=140)
    with console.capture() as capture:
        console.print(bench.table(ROWS))
    lines = capture.get().splitlines()
    line = next(line for line in lines if "BLHNC" in line)
    assert line.split() == [
        "BLHNC", "bulk", "1", "1", "5.0", "GB/s", "6.0", "GB/s", "0.81", "0.79", "0.80", "1",
    ]


@pytest.fixture
def measured(monkeypatch):
    fake = types.ModuleType("harness.kvstore.bench")
    fake.run = lambda blocks: [*ROWS, {"blocks": blocks}][:4]
    monkeypatch.setitem(sys.modules, "harness.kvstore.bench", fake)
    import harness.kvstore

    monkeypatch.setattr(harness.kvstore, "bench", fake, raising=False)


def test_json_has_one_object_per_layout_and_path(measured, capsys):
    assert cli.main(["bench", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == ROWS


def test_a_plot_is_a_png(measured, tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="matplotlib comes with the extra kvparity[plot]")
    assert cli.main(["bench", "--plot", str(tmp_path / "bench.png")]) == 0
    assert (tmp_path / "bench.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_no_blocks_is_bad_input(capsys):
    with pytest.raises(UsageError, match="--blocks 0: at least 1"):
        bench.show(blocks=0, as_json=False, plot_to=None)
    assert cli.main(["bench", "--blocks", "-3"]) == 4
    assert "at least 1" in capsys.readouterr().err
