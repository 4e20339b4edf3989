# SPDX-License-Identifier: Apache-2.0
"""``bench --matrix``: a whole run, what it costs beside the naive way, and how the harness's own work grows."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from harness.archive import RunFolder
from harness.benches import growth, naive, share
from harness.device import slots
from harness.errors import HarnessError
from harness.records import Cell, Plan

#: Cells that are run the naive way as well, at even distances over the run's.
SAMPLE = 4

#: Targets: the harness's own share at most, the speed-up at least, all processes' memory at most, digests' share.
SHARE_LIMIT, SPEEDUP, PEAK_GIB, DIGEST_LIMIT = 0.05, 2.5, 10.0, 0.10

Report = Mapping[str, Any]


class BenchError(HarnessError):
    """The run that was to be measured did not come to its end."""


def measure(
    scenarios: Sequence[str],
    *,
    expression: str | None,
    model: str | None,
    workers: int,
    sample: int,
    folder: Path,
    rest: Sequence[str] = (),
    sizes: Sequence[int] = growth.SIZES,
) -> dict[str, Any]:
    """Run ``scenarios`` through ``python -m harness matrix``, a sample of them the naive way, and the growth table.

    Args:
        scenarios, expression, model, workers: as the verb ``matrix`` takes them.
        sample: cells that are run the naive way, 0 for all.
        folder: where both runs are kept.
        rest: further arguments for pytest.
        sizes: numbers of cells of the growth table.

    Returns:
        ``cells``, ``legs``, ``workers``, ``seconds`` (wall, harness's way), ``harness_share``, ``idle_share``,
        ``digest_share``, ``filler_share`` (unrelated prompts, which are vLLM's time), ``peak_gib``, ``exit`` (exit code
        of the run), ``sample`` (cells run both ways), ``sample_seconds`` (their part of ``seconds``),
        ``naive_seconds``, ``naive_interpreters``, ``speedup_vs_naive`` (the ratio of these two), ``growth``.

    Raises:
        BenchError: the run wrote no results.
    """
    run = RunFolder(folder / "run")
    wall, code = _harness_way(scenarios, expression, model, workers, run.path, rest)
    facts_path = run.path / "env.json"
    if not facts_path.exists():
        raise BenchError(f"the run to be measured ended with exit code {code} and wrote no results in {run.path}")
    plan = run.read_plan()
    spans = _spans(run, plan)
    busy = sum(one.total for one in spans.values())
    chosen = naive.spread(plan.cells, sample)
    part = wall * sum(_cell_seconds(cell, spans) for cell in chosen) / busy if busy else 0.0
    slow, interpreters = naive.seconds(plan, chosen, folder / "naive")
    found = list(spans.values())
    # With room for it a single worker runs a cell's two legs side by side.
    lanes = max(workers, slots())
    return {
        "cells": len(plan.cells),
        "legs": len(found),
        "workers": workers,
        "exit": code,
        "seconds": wall,
        "harness_share": share.harness_share(found, wall=wall, workers=lanes),
        "idle_share": share.idle_seconds(found, lanes) / (wall * lanes),
        "digest_share": share.digest_share(found),
        "filler_share": share.filler_share(found),
        "peak_gib": float(json.loads(facts_path.read_text())["peak_gib"]),
        "sample": [cell.name for cell in chosen],
        "sample_seconds": part,
        "naive_seconds": slow,
        "naive_interpreters": interpreters,
        "speedup_vs_naive": slow / part if part else 0.0,
        "growth": growth.run(sizes),
    }


def _harness_way(
    scenarios: Sequence[str], expression: str | None, model: str | None, workers: int, run: Path, rest: Sequence[str]
) -> tuple[float, int]:
    """(wall seconds, exit code), from the first line of the interpreter to the last."""
    command = [sys.executable, "-m", "harness", "matrix", *scenarios, "--workers", str(workers), "--run", str(run)]
    command += [*(("-k", expression) if expression else ()), *(("--model", model) if model else ())]
    started = time.monotonic()
    # What pytest prints is not the bench's answer, which may be JSON.
    done = subprocess.run([*command, "--", "-p", "no:cacheprovider", *rest], stdout=sys.stderr, check=False)
    return time.monotonic() - started, done.returncode


def _spans(run: RunFolder, plan: Plan) -> dict[str, share.Span]:
    """Leg digest -> span, of those legs that have ended."""
    return {
        digest: share.span(observation, run.observation_path(digest).stat().st_mtime)
        for digest, observation in run.read_observations(plan).items()
    }


def _cell_seconds(cell: Cell, spans: Mapping[str, share.Span]) -> float:
    """Seconds of a cell's legs; a leg that several cells share is counted whole for each."""
    return sum(spans[digest].total for digest in (cell.oracle, cell.subject) if digest in spans)


def short(report: Report) -> list[str]:
    """One sentence for each target that is missed."""
    said = []
    if report["harness_share"] > SHARE_LIMIT:
        said.append(f"harness's own share: {report['harness_share']:.1%}, target {SHARE_LIMIT:.0%}")
    if report["speedup_vs_naive"] < SPEEDUP:
        said.append(f"speed-up over the naive way: {report['speedup_vs_naive']:.2f}, target {SPEEDUP}")
    if report["peak_gib"] > PEAK_GIB:
        said.append(f"peak memory: {report['peak_gib']:.2f} GiB, target {PEAK_GIB:.0f} GiB")
    if report["digest_share"] > DIGEST_LIMIT:
        said.append(f"digests' share of the legs: {report['digest_share']:.1%}, target {DIGEST_LIMIT:.0%}")
    return said + growth.short(report["growth"])


def tables(report: Report) -> Iterator[Table]:
    """The report for a terminal."""
    run = Table(title="A run", box=SIMPLE_HEAD, show_header=False)
    rows = (
        ("cells, legs run, side by side", f"{report['cells']}, {report['legs']}, {report['workers']}"),
        ("wall time, the harness's way", f"{report['seconds']:.0f} s (exit code {report['exit']})"),
        ("the harness's own share", f"{report['harness_share']:.1%}"),
        ("idle at the end, one side", f"{report['idle_share']:.1%}"),
        ("digests' share of the legs", f"{report['digest_share']:.2%}"),
        ("unrelated prompts' share of the legs (vLLM's time)", f"{report['filler_share']:.2%}"),
        ("peak memory of all processes", f"{report['peak_gib']:.2f} GiB"),
        ("sample for the naive way", f"{len(report['sample'])} cells, {report['naive_interpreters']} interpreters"),
        ("the sample, naive way", f"{report['naive_seconds']:.0f} s"),
        ("the sample, its part of this run", f"{report['sample_seconds']:.0f} s"),
        ("speed-up", f"{report['speedup_vs_naive']:.2f}"),
    )
    for row in rows:
        run.add_row(*row)
    yield run
    yield growth.table(report["growth"])


@contextmanager
def folder_of(given: str | None) -> Iterator[Path]:
    """Where the runs are kept: the given folder, which must be new, or one that goes away afterwards."""
    if given is None:
        with tempfile.TemporaryDirectory(prefix="kvparity-bench-") as name:
            yield Path(name)
        return
    path = Path(given)
    if path.exists():
        raise BenchError(f"{given}: exists; a measurement needs a folder of its own")
    path.mkdir(parents=True)
    yield path


def show(
    scenarios: Sequence[str], *, expression: str | None, model: str | None, workers: int, sample: int,
    run: str | None, as_json: bool, rest: Sequence[str] = (),
) -> Report:
    """Measure and print; returns the report."""
    with folder_of(run) as folder:
        report = measure(
            scenarios, expression=expression, model=model, workers=workers, sample=sample, folder=folder,
            rest=rest,
        )
    _print(report, tables(report), short(report), as_json)
    return report


def show_growth(*, as_json: bool) -> Sequence[growth.Row]:
    """Measure growth alone and print; returns the rows."""
    rows = growth.run()
    _print({"growth": rows}, [growth.table(rows)], growth.short(rows), as_json)
    return rows


def _print(report: Report, shown: Iterator[Table] | Sequence[Table], missed: Sequence[str], as_json: bool) -> None:
    if as_json:
        print(json.dumps(report, indent=2))
        return
    console = Console() if Console().is_terminal else Console(width=100)
    for table in shown:
        console.print(table)
    for line in missed:
        console.print(f"target missed: {line}", highlight=False)
