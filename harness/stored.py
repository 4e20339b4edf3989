# SPDX-License-Identifier: Apache-2.0
"""A stored run as it lies on disk, whole or not: what is there, and one sentence for each thing that is missing.

A run that was killed has a plan and some legs, but neither verdicts nor a frame; an accepted run has a frame and a
report alone. Everything that can be read is read, nothing is guessed.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from harness import wire
from harness.archive import RunFolder
from harness.compare import judge
from harness.errors import SchemaError, UsageError, WireError
from harness.records import SCHEMA_VERSION, Cell, Ending, Observation, Plan, Verdict

#: How many names a sentence about missing things lists.
NAMES_SHOWN = 4


@dataclass(frozen=True, kw_only=True)
class StoredRun:
    """What a run folder holds.

    Attributes:
        path: the folder.
        plan: cells and legs; empty for a folder that holds a frame alone.
        verdicts: cell name -> verdict, as the run wrote it.
        observations: leg digest -> what the leg saw, for those whose file is whole.
        facts: ``env.json``.
        gaps: one sentence for each thing that a whole run has and this one has not.
    """

    path: Path
    plan: Plan
    verdicts: Mapping[str, Verdict]
    observations: Mapping[str, Observation]
    facts: Mapping[str, Any]
    gaps: tuple[str, ...]

    @cached_property
    def judged(self) -> tuple[Verdict, ...]:
        """Today's verdicts, in the plan's order, of the cells whose legs are there."""
        legs = {leg.digest: leg for leg in self.plan.legs}
        return tuple(
            judge(
                cell, legs, self.observations.get(cell.oracle), self.observations[cell.subject], self.observations
            )
            for cell in self.plan.cells
            if answered(cell, self.observations)
        )

    @cached_property
    def unanswered(self) -> tuple[str, ...]:
        """Names of the planned cells that cannot be judged."""
        return tuple(cell.name for cell in self.plan.cells if not answered(cell, self.observations))


def answered(cell: Cell, observations: Mapping[str, Observation]) -> bool:
    """Whether the legs of ``cell`` are there; a subject that did not come up settles the cell alone."""
    subject, oracle = observations.get(cell.subject), observations.get(cell.oracle)
    if subject is None or subject.ending is not Ending.OK:
        return subject is not None
    return oracle is not None and (oracle.ending is not Ending.OK or all(one in observations for one in cell.further))


def read_run(path: Path) -> StoredRun:
    """Read the run folder ``path``.

    Raises:
        UsageError: no such folder, or one that holds neither a plan nor a frame.
        SchemaError: it was written with another schema.
        WireError: its plan is not whole; nothing else can be read without it.
    """
    if not path.is_dir():
        raise UsageError(f"{path}: no such run folder; runs live under results/")
    folder = RunFolder(path)
    facts, gaps = read_facts(path)
    if not folder.plan_path.exists() and (path / "frame.csv").exists():
        nothing = Plan(schema=SCHEMA_VERSION, cells=(), legs=())
        return StoredRun(path=path, plan=nothing, verdicts={}, observations={}, facts=facts, gaps=())
    plan = folder.read_plan()
    observations, damaged = _observations(folder, plan)
    verdicts, cut = _verdicts(path / "verdicts.jsonl")
    found = StoredRun(path=path, plan=plan, verdicts=verdicts, observations=observations, facts=facts, gaps=())
    gaps += [*cut, *damaged, *_cells(found), *_interrupted(folder, plan)]
    gaps += [f"{name} is missing" for name in ("frame.csv", "report.md") if not (path / name).exists()]
    return replace(found, gaps=tuple(gaps))


def read_facts(path: Path) -> tuple[dict[str, Any], list[str]]:
    """``env.json`` of the run folder ``path``, and one sentence where it is not there or not whole."""
    try:
        return dict(json.loads((path / "env.json").read_text(encoding="utf-8"))), []
    except FileNotFoundError:
        return {}, ["env.json is missing, the run did not end: platform, versions and duration are unknown"]
    except (ValueError, TypeError):
        return {}, ["env.json is not whole: platform, versions and duration are unknown"]


def _verdicts(path: Path) -> tuple[dict[str, Verdict], list[str]]:
    """Cell name -> verdict, of the lines that are whole."""
    if not path.exists():
        return {}, ["verdicts.jsonl is missing: no verdict was written"]
    verdicts, gaps = {}, []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        try:
            verdict = wire.from_plain(Verdict, json.loads(line), where=f"{path}:{number}")
        except SchemaError:
            raise
        except (ValueError, WireError):
            gaps.append(f"verdicts.jsonl: line {number} is not a whole verdict")
        else:
            verdicts[verdict.name] = verdict
    return verdicts, gaps


def _observations(folder: RunFolder, plan: Plan) -> tuple[dict[str, Observation], list[str]]:
    found, gaps = {}, []
    for leg in plan.legs:
        try:
            observation = folder.read_observation(leg.digest)
        except SchemaError:
            raise
        except WireError:
            gaps.append(f"legs/{leg.digest}.json ({leg.role}) is not a whole observation")
            continue
        if observation is not None:
            found[leg.digest] = observation
    return found, gaps


def _cells(run: StoredRun) -> Iterable[str]:
    planned = len(run.plan.cells)
    if run.unanswered:
        yield f"{len(run.unanswered)} of {planned} cells have no result: {listed(run.unanswered)}"
    silent = [cell.name for cell in run.plan.cells if cell.name not in run.verdicts and cell.name not in run.unanswered]
    if run.verdicts and silent:
        yield f"{len(silent)} of {planned} cells have legs but no stored verdict: {listed(silent)}"


def _interrupted(folder: RunFolder, plan: Plan) -> Iterable[str]:
    roles = {leg.digest: leg.role for leg in plan.legs}
    for digest, stage in sorted(folder.running().items()):
        with contextlib.suppress(KeyError):
            yield f"leg {digest} ({roles[digest]}) was in stage {stage or 'spawn'} and has not ended"


def listed(names: Iterable[str]) -> str:
    """``a, b, c, d and 7 more``."""
    names = tuple(names)
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(names[:NAMES_SHOWN]) + more
