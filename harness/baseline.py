# SPDX-License-Identifier: Apache-2.0
"""Two runs side by side, cell by cell: newly failing, fixed, still failing, newly without a claim, not comparable.

Works on frames alone (``harness.frame``), so that an accepted run needs no legs. Verdicts are compared, after
expectations: what a scenario declares is no news. A cell that the base has and the run lacks although it was asked for
(``harness.asked``) is without a claim now, as one that turned vacuous.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from harness.asked import EVERYTHING, Asked, of_facts
from harness.errors import ExitCode, SchemaError, UsageError
from harness.frame import outcome_word, to_frame
from harness.frame.read import read_frame
from harness.records import AMBER, GREEN, RED, Change, Outcome
from harness.stored import listed, read_facts, read_run

NOT_COMPARABLE = Change.NOT_COMPARABLE

#: Column -> what it is called; two rows that differ in one of these do not answer the same question.
MUST_AGREE: Mapping[str, str] = {
    "platform": "platform",
    "model_digest": "model digest",
    "prompts": "prompts",
    "decode": "decoding",
    "reference": "reference",
    "block_size": "block size",
    "store": "store",
}
#: Columns whose change is what a comparison is made for; named above the table.
MAY_DIFFER = ("vllm", "torch", "overlay", "overlay_files")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One cell of either run.

    Attributes:
        cell: ``scenario::cell``.
        base, run: outcome words as in the tables; empty where the cell is not in that run.
        change: what became of it.
        reason: why it is not comparable, or the findings and the first message behind a red or amber cell.
    """

    cell: str
    base: str
    run: str
    change: Change
    reason: str = ""

    @property
    def both(self) -> bool:
        """Whether both runs have the cell."""
        return bool(self.base and self.run)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two runs compared.

    Attributes:
        base, run: what they are called.
        rows: worst change first, in the run's order within one change.
        versions: ``vllm 0.32.0 -> 0.33.0``, for what differs.
        notes: one sentence for each thing that limits the comparison.
    """

    base: str
    run: str
    rows: tuple[Row, ...]
    versions: tuple[str, ...]
    notes: tuple[str, ...]

    def count(self, change: Change) -> int:
        return sum(row.change is change for row in self.rows)

    @property
    def compared(self) -> int:
        """Cells of both runs about which something was said."""
        return sum(row.both and row.change is not NOT_COMPARABLE for row in self.rows)

    @property
    def exit_code(self) -> ExitCode:
        """Failed for a newly failing cell; amber for one newly without a claim, and where nothing was compared."""
        if self.count(Change.NEWLY_FAILING):
            return ExitCode.FAILED
        return ExitCode.AMBER if self.count(Change.NEWLY_AMBER) or not self.compared else ExitCode.OK


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A stored run as a side of a comparison.

    Attributes:
        frame: a row per judged cell.
        gaps: one sentence for each thing that its folder lacks.
        asked: what it was asked to run.
    """

    frame: pd.DataFrame
    gaps: tuple[str, ...]
    asked: Asked


def load(path: Path) -> Loaded:
    """The run folder ``path``.

    The stored frame where it is whole, otherwise one made from the stored observations.

    Raises:
        UsageError: not a run folder, or one that holds nothing that can be compared.
    """
    try:
        run = read_run(path)
    except SchemaError:
        return _frame_alone(path)
    try:
        frame = read_frame(path / "frame.csv")
    except FileNotFoundError:
        frame, gaps = None, run.gaps
    except ValueError as error:
        frame, gaps = None, (*run.gaps, f"frame.csv is not whole: {error}")
    else:
        gaps = run.gaps
        # Counted and not judged: judging a whole run takes longer than all the rest.
        answered = len(run.plan.cells) - len(run.unanswered)
        if len(frame) < answered:
            frame, gaps = None, (*gaps, f"frame.csv has {len(frame)} of {answered} cells")
    if frame is None:
        if not run.judged:
            raise UsageError(f"{path}: no cell of this run has a result; nothing can be compared ({'; '.join(gaps)})")
        frame = to_frame(run.plan, run.judged, run.observations, platform=run.facts.get("platform"))
    if run.facts.get("platform"):
        # A frame of before this column was written.
        frame["platform"] = frame["platform"].fillna(run.facts["platform"])
    return Loaded(frame=frame, gaps=tuple(gaps), asked=of_facts(run.facts, run.unanswered))


def _frame_alone(path: Path) -> Loaded:
    """The frame of a run whose other files are of another schema; frames of every version are read.

    Raises:
        UsageError: there is none, or it is not whole.
    """
    try:
        frame = read_frame(path / "frame.csv")
    except (FileNotFoundError, ValueError) as error:
        raise UsageError(f"{path}: was written with another schema and has no whole frame.csv ({error})") from None
    asked = of_facts(read_facts(path)[0])
    return Loaded(frame=frame, gaps=("written with another schema: its frame alone was read",), asked=asked)


def covered(base: pd.DataFrame, run: pd.DataFrame, *, names: tuple[str, str] = ("base", "run"),
            notes: Sequence[str] = (), asked: Asked = EVERYTHING) -> Comparison:
    """Compare the cells that the run was asked for; how many others either frame has is a note."""
    left, right = (set(by_cell(frame)) for frame in (base, run))
    both = left & right
    told = [f"{len(both)} of the {len(left)} cells of {names[0]} were run"] if both != left else []
    if right - left:
        told.append(f"{len(right - left)} cells are not in {names[0]}: {listed(sorted(right - left))}")
    whole = compare(base, run, names=names, notes=(*notes, *told), asked=asked)
    # Versions of cells that nobody compares are no news.
    halves = (frame[[f"{s}::{c}" in both for s, c in zip(frame["scenario"], frame["cell"], strict=True)]]
              for frame in (base, run))
    rows = (row for row in whole.rows if row.both or row.change is not NOT_COMPARABLE)
    return replace(whole, rows=tuple(rows), versions=tuple(_versions(*halves)))


def compare(base: pd.DataFrame, run: pd.DataFrame, *, names: tuple[str, str] = ("base", "run"),
            notes: Sequence[str] = (), asked: Asked = EVERYTHING) -> Comparison:
    """Compare two frames cell by cell.

    Args:
        base, run: the frames.
        names: what the runs are called.
        notes: what else limits the comparison.
        asked: what the run was asked to run.
    """
    left, right = by_cell(base), by_cell(run)
    rows = [_row(name, left.get(name), row) for name, row in right.items()]
    rows += [_gone(name, row, _excuse(row, run, asked)) for name, row in left.items() if name not in right]
    order = list(Change)
    for name, frame in zip(names, (base, run), strict=True):
        unknown = [word for column, word in MUST_AGREE.items() if column != "store" and frame[column].isna().all()]
        if unknown and len(frame):
            notes = [*notes, f"{name} does not say its {', '.join(unknown)}; compared without"]
    return Comparison(
        base=names[0], run=names[1], rows=tuple(sorted(rows, key=lambda row: order.index(row.change))),
        versions=tuple(_versions(base, run)), notes=tuple(notes),
    )


def _gone(name: str, base: Mapping, excuse: str) -> Row:
    """The row of a cell that is not in the run: nothing is known of it any more, unless nobody asked."""
    word = outcome_word(base["outcome"], base["verdict"])
    if excuse:
        return Row(cell=name, base=word, run="", change=NOT_COMPARABLE, reason=f"not in the run, {excuse}")
    change = Change.STILL_AMBER if Outcome(base["verdict"]) in AMBER else Change.NEWLY_AMBER
    return Row(cell=name, base=word, run="", change=change, reason="not in the run any more")


def _excuse(base: Mapping, run: pd.DataFrame, asked: Asked) -> str:
    platforms = sorted(run["platform"].dropna().unique())
    if platforms and not pd.isna(base["platform"]) and base["platform"] not in platforms:
        return f"which is of {', '.join(platforms)}"
    return asked.excuse(f"{base['scenario']}::{base['cell']}")


def by_cell(frame: pd.DataFrame) -> dict[str, dict]:
    """``scenario::cell`` -> row."""
    return {f"{row['scenario']}::{row['cell']}": row for row in frame.to_dict("records")}


def _row(name: str, base: Mapping | None, run: Mapping) -> Row:
    words = ["" if one is None else outcome_word(one["outcome"], one["verdict"]) for one in (base, run)]
    if base is None:
        return Row(cell=name, base="", run=words[1], change=NOT_COMPARABLE, reason="not in the base")
    different = list(_different(base, run))
    if different:
        return Row(
            cell=name, base=words[0], run=words[1], change=NOT_COMPARABLE, reason="; ".join(different)
        )
    change = change_of(Outcome(base["verdict"]), Outcome(run["verdict"]))
    if change is NOT_COMPARABLE:
        reason = "unavailable in the base"
    elif run["verdict"] in GREEN:
        reason = ""
    else:
        parts = [run["findings"], run["message"]]
        reason = ": ".join(part for part in parts if not pd.isna(part) and part)
    return Row(cell=name, base=words[0], run=words[1], change=change, reason=reason)


def _different(base: Mapping, run: Mapping) -> Iterator[str]:
    for column, word in MUST_AGREE.items():
        old, new = base[column], run[column]
        if not pd.isna(old) and not pd.isna(new) and old != new:
            yield f"{word} {old} -> {new}"


def change_of(base: Outcome, run: Outcome) -> Change:
    """What became of a cell that both runs judged.

    A cell that failed and now is vacuous is not fixed: nothing is known of it any more.
    """
    if run in RED:
        return Change.STILL_FAILING if base in RED else Change.NEWLY_FAILING
    if run not in GREEN:
        return Change.STILL_AMBER if base is run else Change.NEWLY_AMBER
    if base is Outcome.UNAVAILABLE:
        return NOT_COMPARABLE
    return Change.SAME if base in GREEN else Change.FIXED


def _versions(base: pd.DataFrame, run: pd.DataFrame) -> Iterator[str]:
    for column in MAY_DIFFER:
        # A run of no cell does not have it.
        values = (frame[column].dropna().unique() if column in frame else () for frame in (base, run))
        old, new = (", ".join(sorted(one)) for one in values)
        if old != new:
            yield f"{column} {old or 'none'} -> {new or 'none'}"
