# SPDX-License-Identifier: Apache-2.0
"""The report for a terminal, through rich; plain where colour is not wanted or not possible."""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from harness.records import Outcome
from harness.report import RunView
from harness.report.content import EVIDENCE, Content, collect
from harness.report.story import Story
from harness.report.truth import TRUTH

#: Columns of a report that does not go to a terminal.
PIPED_WIDTH = 120
#: Blanks between two columns.
GAP = 2

#: Passing cells whose evidence is listed; nobody reads thousands, and laying them out takes longer than judging them.
MOST_EVIDENCE = 200

STYLES = {
    Outcome.PASS: "green",
    Outcome.EXPECTED: "green",
    Outcome.UNAVAILABLE: "dim",
    Outcome.REJECTED: "yellow",
    Outcome.UNSTABLE: "yellow",
    Outcome.VACUOUS: "yellow",
    Outcome.CRASHED: "red",
    Outcome.FAIL: "bold red",
}


def render_text(run: RunView, *, width: int | None = None, color: bool | None = None) -> str:
    """The report as text, every line at most ``width`` columns except for paths and commands.

    Args:
        width: columns; None asks the terminal, and takes ``PIPED_WIDTH`` where there is none.
        color: None for colour on a terminal, unless ``NO_COLOR`` is set.
    """
    terminal = sys.stdout.isatty()
    if color is None:
        color = terminal and not os.environ.get("NO_COLOR")
    if width is None:
        width = shutil.get_terminal_size((PIPED_WIDTH, 24)).columns if terminal else PIPED_WIDTH
    out = io.StringIO()
    console = Console(
        file=out, width=width, force_terminal=color, color_system="standard" if color else None, no_color=not color,
        markup=False, highlight=False, emoji=False, legacy_windows=False, _environ={},
    )
    _print(console, collect(run))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _print(console: Console, content: Content) -> None:
    console.print(content.header)
    for title, table in content.tables:
        rows = zip(table.index, table.values.tolist(), strict=True)
        headings = [table.index.name, *table.columns]
        _section(console, title, headings, [[name, *map(_styled, row)] for name, row in rows])
    if content.evidence:
        _section(console, "Evidence of the passing cells", EVIDENCE, content.evidence[:MOST_EVIDENCE])
        if len(content.evidence) > MOST_EVIDENCE:
            console.print(f"{len(content.evidence) - MOST_EVIDENCE} more passing cells are in frame.csv")
    if content.truth:
        _section(console, "Ground truth", TRUTH, content.truth)
        console.print(content.limits)
    for group in content.groups:
        console.print()
        console.print(Text.assemble(f"{len(group.cells)} x ", _styled(group.word), f": {', '.join(group.cells)}"))
        _indented(console, group.message)
    for story in content.stories:
        _print_story(console, story)
    console.print()
    console.print(content.counts, style="bold")


def _print_story(console: Console, story: Story) -> None:
    console.print()
    console.print(Text.assemble(_styled(story.word), "  ", (story.name, "bold")))
    _indented(console, story.sentence)
    if story.settings:
        console.print(_table(["setting", "oracle", "subject"], story.settings))
    for line in (*story.findings, f"evidence: {story.evidence}"):
        _indented(console, line)
    for line in story.localisation:
        # Sentences are wrapped, a picture's rows are not.
        _indented(console, line) if line[0] != " " else console.print(f"  {line}", soft_wrap=True)
    for line in story.logs:
        console.print(f"  {line}" if line[0] == " " else f"  log of {line}", soft_wrap=True)
    for line in story.next_steps:
        _indented(console, f"next: {line}")
    console.print(f"  reproduce: {story.reproduce}", soft_wrap=True)


def _indented(console: Console, line: str) -> None:
    """A line whose continuation lines are indented as well."""
    depth = 2 + len(line) - len(line.lstrip())
    console.print(Padding(Text(line.lstrip()), (0, 0, 0, depth)))


def _section(console: Console, title: str, headings: Sequence[str], rows: Sequence[Sequence[str | Text]]) -> None:
    """A title and its table; where not even its longest words fit side by side, a paragraph per row."""
    console.print()
    console.print(title, style="bold")
    if _least_width(headings, rows) <= console.width:
        console.print(_table(headings, rows))
        return
    for first, *rest in rows:
        console.print(Text(str(first)))
        parts = [Text.assemble(f"{name} ", value) for name, value in zip(headings[1:], rest, strict=True) if value]
        console.print(Padding(Text(", ").join(parts), (0, 0, 0, 2)))


def _least_width(headings: Sequence[str], rows: Sequence[Sequence[str | Text]]) -> int:
    columns = zip(headings, *rows, strict=True)
    words = (max(len(word) for value in column for word in (str(value).split() or [""])) for column in columns)
    # rich counts the last column's gap, too.
    return sum(words) + GAP * len(headings)


def _table(headings: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _styled(word: str) -> Text:
    """An outcome word in its colour; an expected one is green whatever its outcome is."""
    if "(expected)" in word:
        return Text(word, style=STYLES[Outcome.EXPECTED])
    return Text(word, style=STYLES[Outcome(word.split()[0])] if word else "")
