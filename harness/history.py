# SPDX-License-Identifier: Apache-2.0
"""Many runs, cell by cell: how long each cell has ended as it ends now, when it failed, when it last was green.

Reads the stored frames and nothing else (a run without one: its stored verdicts), so a year of runs is read in seconds.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from harness.errors import UsageError
from harness.frame.read import check_words, read_whole
from harness.records import GREEN, OUTCOME_ORDER, RED, Outcome

#: What is read of a frame.
NEEDED = ("scenario", "cell", "verdict", "platform")
#: What identifies a cell over many runs; the same cell on two platforms is two.
KEYS = ["platform", "scenario", "cell"]
#: Columns of ``table``, after ``KEYS``.
COLUMNS = ("outcome", "since", "streak", "first_failure", "last_success", "flips", "runs", "last_run")

_STAMP = re.compile(r"^(\d{8}T\d{6}Z)")


@dataclass(frozen=True, kw_only=True)
class Past:
    """The runs under a folder.

    Attributes:
        results: a row per run and cell: ``KEYS``, ``verdict``, ``when`` (UTC, ISO 8601) and ``run`` (folder name),
            in the order of time.
        runs: number of runs read.
        gaps: one sentence for each folder that could not be read, or not whole.
    """

    results: pd.DataFrame
    runs: int
    gaps: tuple[str, ...]


def read_past(root: Path, *, last: int | None = None) -> Past:
    """All runs directly under ``root``; with ``last`` only the newest so many.

    Raises:
        UsageError: no such folder, or no run in it.
    """
    if not root.is_dir():
        raise UsageError(f"{root}: no such folder; history reads a folder of run folders, such as results/")
    found, gaps = [], []
    for path in sorted(root.iterdir()):
        # `latest` is one of the others.
        if not path.is_dir() or path.is_symlink() or not _is_run(path):
            continue
        facts = _facts(path)
        frame, problem = _results(path)
        if problem:
            gaps.append(f"{path.name}: {problem}")
        if frame is not None:
            platform = frame["platform"] if "platform" in frame else pd.Series(pd.NA, index=frame.index)
            frame["platform"] = platform.fillna(facts.get("platform") or "unknown platform")
            found.append((_when(path, facts), path.name, frame))
    if not found:
        why = f" ({'; '.join(gaps)})" if gaps else ""
        raise UsageError(f"{root}: holds no run with results{why}")
    found.sort(key=lambda run: run[:2])
    found = found[-last:] if last else found
    results = pd.concat([frame.assign(when=when, run=name) for when, name, frame in found], ignore_index=True)
    return Past(results=results, runs=len(found), gaps=tuple(gaps))


def _is_run(path: Path) -> bool:
    # A frame alone is a copy that was kept of some other run: an accepted or a good one.
    return any((path / name).exists() for name in ("plan.json", "verdicts.jsonl"))


def _facts(path: Path) -> Mapping[str, Any]:
    try:
        return dict(json.loads((path / "env.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


def _when(path: Path, facts: Mapping[str, Any]) -> str:
    """When the run ended, from ``env.json``; else when it began, from its name; else its folder's time."""
    if facts.get("ended"):
        return str(facts["ended"])
    stamp = _STAMP.match(path.name)
    if stamp:
        return datetime.datetime.strptime(stamp[1], "%Y%m%dT%H%M%SZ").strftime("%Y-%m-%dT%H:%M:%SZ")
    return datetime.datetime.fromtimestamp(path.stat().st_mtime, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _results(path: Path) -> tuple[pd.DataFrame | None, str]:
    """A run's cells and verdicts, and what is wrong with it."""
    try:
        frame = read_whole(path / "frame.csv", usecols=lambda name: name in NEEDED)
        if not {"scenario", "cell", "verdict"} <= set(frame.columns):
            raise ValueError("it has no column scenario, cell or verdict")
        check_words(frame, ["verdict"])
        return frame, ""
    except FileNotFoundError:
        problem = "has no frame.csv"
    except ValueError as error:
        problem = f"frame.csv is not whole ({error})"
    rows, cut = _verdict_rows(path / "verdicts.jsonl")
    if not rows:
        return None, f"{problem} and no verdict; `python -m harness check` judges its legs"
    told = f"{problem}; {len(rows)} verdicts read from verdicts.jsonl"
    told += f", {cut} lines of it are not whole" if cut else ""
    return pd.DataFrame(rows, columns=["scenario", "cell", "verdict"], dtype="string"), told


def _verdict_rows(path: Path) -> tuple[list[tuple[str, str, str]], int]:
    rows, cut = [], 0
    if path.exists():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                plain = json.loads(line)
                rows.append((plain["scenario"], plain["cell"], Outcome(plain["verdict"]).value))
            except (ValueError, KeyError, TypeError):
                cut += 1
    return rows, cut


def table(past: Past) -> pd.DataFrame:
    """One row per cell, ``KEYS`` and ``COLUMNS``, the worst of today first.

    ``outcome`` is the newest verdict, ``streak`` the number of runs in a row that ended so and ``since`` the first of
    them; ``first_failure`` the first red verdict in the window, ``last_success`` the last green one, both missing where
    there is none; ``flips`` how often the verdict was another than the time before; ``last_run`` when the cell was last
    run.
    """
    columns = [past.results[name].tolist() for name in (*KEYS, "when", "verdict")]
    seen: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    for platform, scenario, cell, when, verdict in zip(*columns, strict=True):
        seen.setdefault((platform, scenario, cell), []).append((when, verdict))
    rows = [{**dict(zip(KEYS, key, strict=True)), **_told(ends)} for key, ends in seen.items()]
    rows.sort(key=lambda row: -OUTCOME_ORDER.index(Outcome(row["outcome"])))
    return pd.DataFrame(rows, columns=[*KEYS, *COLUMNS])


def _told(ends: list[tuple[str, str]]) -> dict[str, Any]:
    """One cell's ``COLUMNS`` from its (when, verdict), oldest first."""
    last_run, outcome = ends[-1]
    flips = [place for place in range(1, len(ends)) if ends[place][1] != ends[place - 1][1]]
    began = flips[-1] if flips else 0
    return {
        "outcome": outcome,
        "since": ends[began][0],
        "streak": len(ends) - began,
        "first_failure": next((when for when, verdict in ends if verdict in RED), None),
        "last_success": next((when for when, verdict in reversed(ends) if verdict in GREEN), None),
        "flips": len(flips),
        "runs": len(ends),
        "last_run": last_run,
    }


def quiet(rows: pd.DataFrame) -> pd.Series:
    """Rows of which there is nothing to tell: green in every run of the window."""
    return rows["outcome"].isin(GREEN) & (rows["flips"] == 0)


def lines(past: Past, *, everything: bool = False) -> Iterator[str]:
    """The history as text: a line per cell that is not quiet, the quiet ones counted."""
    rows = table(past)
    first, last = past.results["when"].iloc[0], past.results["when"].iloc[-1]
    yield f"{past.runs} runs, {first} to {last}; {len(rows)} cells"
    shown = rows if everything else rows[~quiet(rows)]
    if len(shown):
        shown = shown.fillna("never")
        names = [f"{row.scenario}::{row.cell}" for row in shown.itertuples()]
        if rows["platform"].nunique() > 1:
            names = [f"{platform} {name}" for platform, name in zip(shown["platform"], names, strict=True)]
        heads = ["cell", "outcome", "since", "runs in a row", "first failure", "last success", "flips", "runs"]
        body = [
            [name, row.outcome, row.since, str(row.streak), row.first_failure, row.last_success, str(row.flips),
             str(row.runs)]
            for name, row in zip(names, shown.itertuples(), strict=True)
        ]
        widths = [max(len(line[column]) for line in [heads, *body]) for column in range(len(heads))]
        for line in [heads, *body]:
            yield "  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip()
    hidden = len(rows) - len(shown)
    if hidden:
        yield f"{hidden} cells were green in every run"
    yield from (f"not whole: {gap}" for gap in past.gaps)
