# SPDX-License-Identifier: Apache-2.0
"""``python -m harness bench``: the embedded store's speed as a table, as JSON and as a picture.

The figures are ratios to a plain memcpy of the same bytes in the same process; absolute GB/s are for orientation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from harness.errors import UsageError

#: Smallest accepted ratio of store and load: path -> runs per block at most -> ratio. One-run layouts are held to more.
TARGETS: Mapping[str, tuple[tuple[int, float], ...]] = {"bulk": ((1, 0.8), (224, 0.6)), "ranges": ((224, 0.3),)}

#: Columns of the table where no terminal says how many there are.
TABLE_WIDTH = 130

Row = Mapping[str, Any]


def target(row: Row) -> float:
    """The ratio that a row is held to."""
    return next(ratio for runs, ratio in TARGETS[row["path"]] if row["runs_per_block"] <= runs)


def short(rows: Sequence[Row]) -> list[str]:
    """One sentence for each row below its target."""
    return [
        f"{row['layout']} {row['path']} {name}: {row[f'{name}_ratio']:.2f} of memcpy, target {target(row):.2f}"
        for row in rows
        for name in ("store", "load")
        if row[f"{name}_ratio"] < target(row)
    ]


def table(rows: Sequence[Row]) -> Table:
    """The rows for a terminal."""
    shown = Table(
        title="Embedded store, Qwen3-0.6B's KV cache (28 layers, 8 KV heads, head_dim 128, bf16, block 16)",
        box=SIMPLE_HEAD,
    )
    names = (
        "layout", "path", "runs a block", "minimum", "store", "load", "store / memcpy", "load / memcpy", "target",
        "extra MiB",
    )
    for name in names:
        shown.add_column(name, justify="left" if name in {"layout", "path"} else "right", no_wrap=True)
    for row in rows:
        shown.add_row(
            row["layout"], row["path"], str(row["runs_per_block"]), str(row["minimum_runs_per_block"]),
            f"{row['store_gbps']:.1f} GB/s", f"{row['load_gbps']:.1f} GB/s",
            f"{row['store_ratio']:.2f}", f"{row['load_ratio']:.2f}", f"{target(row):.2f}", f"{row['extra_mib']:.0f}",
        )
    return shown


def plot(rows: Sequence[Row], path: Path) -> None:
    """Bars of both ratios per layout and path, as a PNG.

    Raises:
        UsageError: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ModuleNotFoundError:
        raise UsageError("--plot needs matplotlib: install the extra kvparity[plot]") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4), sharey=True)
    for axis, name in zip(axes, ("store", "load"), strict=True):
        layouts = list(dict.fromkeys(row["layout"] for row in rows))
        for shift, path_name in ((-0.2, "bulk"), (0.2, "ranges")):
            heights = [row[f"{name}_ratio"] for row in rows if row["path"] == path_name]
            axis.bar([index + shift for index in range(len(layouts))], heights, 0.38, label=path_name)
        axis.axhline(1.0, color="gray", linewidth=0.8)
        axis.set_xticks(range(len(layouts)), layouts, rotation=30)
        axis.set_title(f"{name}, ratio to memcpy")
    axes[0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def show(*, blocks: int, as_json: bool, plot_to: str | None) -> list[Row]:
    """Measure and print; returns the rows.

    Raises:
        UsageError: fewer blocks than one; no matplotlib for the plot.
    """
    if blocks < 1:
        raise UsageError(f"--blocks {blocks}: at least 1")
    from harness.kvstore import bench

    rows = bench.run(blocks=blocks)
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        # A pipe has no width of its own; the table needs this much.
        console = Console() if Console().is_terminal else Console(width=TABLE_WIDTH)
        console.print(table(rows))
        for line in short(rows):
            console.print(f"below target: {line}", highlight=False)
    if plot_to:
        plot(rows, Path(plot_to))
    return rows
