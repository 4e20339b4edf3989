# SPDX-License-Identifier: Apache-2.0
"""Run folders of the shards of one plan into one run folder, as if it had run on one machine."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import wire
from harness.archive import RunFolder
from harness.asked import CELLS, SHARD
from harness.errors import UsageError, WireError
from harness.plan import select
from harness.records import Cell, Leg, Plan, Verdict
from harness.shard import SHARD_FILE, Shard, ShardFile, part, question
from harness.stored import StoredRun, listed, read_run

#: Facts of ``env.json`` in which shards may differ; every other one is a version or a setting of the installation.
OWN = ("exit", "seconds", "ended", "peak_gib", "processor", "gpus", "model", CELLS, SHARD)

#: Files of a leg that are taken over.
LEG_FILES = (".json", ".log")


def merge(out: Path, paths: Sequence[Path]) -> StoredRun:
    """Make ``out`` of the shards' run folders; its reports are for the caller to write.

    Planned cells of a shard that is not among ``paths`` are in the merged plan and have no result.

    Raises:
        UsageError: fewer than one folder, ``out`` is not empty, a folder that is no shard, shards of other plans,
            of other versions, or a cell with two verdicts.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out}: is not empty; name a folder that does not exist yet")
    runs = [read_run(path) for path in paths]
    shards = [_shard(run) for run in runs]
    _one_plan(runs, shards)
    _one_version(runs)
    _one_verdict(runs)
    plan = _plan(runs, shards)
    folder = RunFolder(out)
    folder.prepare()
    folder.write_plan(plan)
    for run in runs:
        for leg in run.plan.legs:
            for suffix in LEG_FILES:
                source = run.path / "legs" / f"{leg.digest}{suffix}"
                target = folder.legs / source.name
                if source.exists() and not target.exists():
                    shutil.copy2(source, target)
    folder.write_environment(_facts(runs))
    return read_run(out)


def _shard(run: StoredRun) -> ShardFile:
    path = run.path / SHARD_FILE
    if not path.exists():
        raise UsageError(f"{run.path}: is no shard (it has no {SHARD_FILE}); merge takes runs made with SHARD=I/N")
    try:
        return wire.read(ShardFile, path)
    except WireError as error:
        raise UsageError(f"{run.path}: its {SHARD_FILE} cannot be read: {error}") from None


def _one_plan(runs: Sequence[StoredRun], shards: Sequence[ShardFile]) -> None:
    asked = [(question(shard.whole), shard.count) for shard in shards]
    for place, (run, (what, count)) in enumerate(zip(runs, asked, strict=True)):
        if count != asked[0][1]:
            raise UsageError(
                f"{run.path} is one of {count} shards, {runs[0].path} one of {asked[0][1]}: merge shards of one cut"
            )
        if what != asked[0][0]:
            differ = _difference(shards[0].whole, shards[place].whole)
            raise UsageError(f"{run.path} and {runs[0].path} are shards of other plans ({differ}): nothing was merged")


def _difference(one: Plan, two: Plan) -> str:
    names = [{cell.name for cell in plan.cells} for plan in (one, two)]
    only = sorted(names[0] ^ names[1])
    return f"cells of one alone: {listed(only)}" if only else "the same cells with other settings"


def _one_version(runs: Sequence[StoredRun]) -> None:
    first = runs[0]
    for run in runs[1:]:
        one, two = first.facts, run.facts
        names = [*one, *(name for name in two if name not in one)]
        if not one or not two:
            # A shard that was killed has no facts; its legs' identity was compared by nobody, so look there.
            one, two = _identity(first), _identity(run)
            names = sorted(one.keys() & two.keys())
        for name in names:
            old, new = one.get(name), two.get(name)
            if name not in OWN and old != new:
                raise UsageError(
                    f"{first.path} has {name} {old or 'none'}, {run.path} has {new or 'none'}: "
                    "shards of other versions are not one run; nothing was merged"
                )


def _identity(run: StoredRun) -> Mapping[str, str]:
    return run.plan.legs[0].identity if run.plan.legs else {}


def _one_verdict(runs: Sequence[StoredRun]) -> None:
    known: dict[str, tuple[Verdict, Path]] = {}
    for run in runs:
        for verdict in run.judged:
            name = verdict.name
            earlier, where = known.setdefault(name, (verdict, run.path))
            if earlier.verdict is not verdict.verdict:
                raise UsageError(
                    f"{name} is {earlier.verdict} in {where} and {verdict.verdict} in {run.path}: "
                    "keep one of the two; nothing was merged"
                )


def _plan(runs: Sequence[StoredRun], shards: Sequence[ShardFile]) -> Plan:
    """Cells in the whole plan's order: those that the shards have, and those of the shards that are not here."""
    whole = shards[0].whole
    cells: dict[str, Cell] = {}
    legs: dict[str, Leg] = {}
    # A run that has a result for a cell goes before one that only planned it.
    for run in sorted(runs, key=lambda run: len(run.unanswered)):
        for cell in run.plan.cells:
            cells.setdefault(cell.name, cell)
        legs.update({leg.digest: leg for leg in run.plan.legs})
    for shard in _absent(shards):
        lacking = part(whole, shard)
        for cell in lacking.cells:
            cells.setdefault(cell.name, cell)
        legs.update({leg.digest: leg for leg in lacking.legs})
    ordered = tuple(cells[cell.name] for cell in whole.cells if cell.name in cells)
    order = dict.fromkeys(leg.digest for leg in whole.legs)
    known = [legs[digest] for digest in [*order, *(d for d in legs if d not in order)] if digest in legs]
    return select(Plan(schema=whole.schema, cells=ordered, legs=tuple(known)), [cell.name for cell in ordered])


def _facts(runs: Sequence[StoredRun]) -> Mapping[str, Any]:
    """Facts of all shards together: times added up, memory of the largest, what may differ side by side."""
    facts = [run.facts for run in runs if run.facts]
    merged: dict[str, Any] = dict(facts[0]) if facts else {}
    for name in OWN:
        known = [one[name] for one in facts if name in one]
        if known:
            merged[name] = _together(name, known)
    # A part that is not among them has its cells in the plan, without a result.
    merged.pop(SHARD, None)
    merged["merged"] = [str(run.path) for run in runs]
    return merged


def _together(name: str, known: list[Any]) -> Any:
    if name == "seconds":
        return sum(known)
    if name == "peak_gib":
        return max(known, key=float)
    if name == "exit":
        return next((code for code in (1, 10) if code in known), max(known))
    return max(known) if name == "ended" else ", ".join(dict.fromkeys(map(str, known)))


def missing_shards(runs: Sequence[Path]) -> Iterator[str]:
    """``3/5`` for each part that is not among ``runs``."""
    yield from map(str, _absent([wire.read(ShardFile, path / SHARD_FILE) for path in runs]))


def _absent(shards: Sequence[ShardFile]) -> list[Shard]:
    """The parts of the cut that are not among ``shards``."""
    count = shards[0].count
    there = {shard.index for shard in shards}
    return [Shard(index=index, count=count) for index in range(1, count + 1) if index not in there]
