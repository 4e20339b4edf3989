# SPDX-License-Identifier: Apache-2.0
"""The report as Markdown: ``report.md`` of a run folder, and the summary of a CI job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from harness.report import RunView
from harness.report.content import EVIDENCE, Content, Group, collect
from harness.report.story import Story
from harness.report.truth import TRUTH

T = TypeVar("T")

#: Neither GitHub's job summary nor Buildkite's annotation takes more bytes.
MOST_BYTES = 1024 * 1024
#: Kept free for headings, the sentences on what was left out, and the counts.
RESERVE_BYTES = 4096
#: Bytes of one cell's story, and names listed of cells that ended alike.
STORY_BYTES, GROUP_NAMES = 32 * 1024, 100


def render_markdown(run: RunView, *, most_bytes: int = MOST_BYTES) -> str:
    """The report as Markdown of at most ``most_bytes`` bytes.

    Where it does not fit, the parts that grow with the number of cells are cut from their ends, those first that are
    missed least: evidence of passing cells, the ground truth, expected cells, and last the stories of red and amber
    cells, of which the worst stay. Each says how much of it is left out.
    """
    content = collect(run)
    budget = Budget(most_bytes - min(RESERVE_BYTES, most_bytes // 2), f"{run.folder}/verdicts.jsonl")
    # In the order in which they may use the bytes.
    head = budget.take(list(_head(content)), str, "tables")
    stories = budget.take(content.stories, _story, "cells")
    groups = budget.take(content.groups, lambda group: _row(_group(group)), "groups of cells")
    truth = budget.take(content.truth, _row, "rows")
    evidence = budget.take(content.evidence, _row, "rows")
    # In the order in which they are read.
    parts = [*head]
    if content.evidence:
        parts.append(_long("Evidence of the passing cells", EVIDENCE, evidence))
    if content.truth:
        parts.append(f"{_long('Ground truth', TRUTH, truth)}\n{plain(content.limits)}\n")
    if content.stories:
        parts += ["## Red and amber cells\n", *stories]
    if content.groups:
        parts.append(_long("As expected, or not available here", ["cells", "outcome", "words", "which"], groups))
    return "\n".join([*parts, f"**{plain(content.counts)}**\n"])


class Budget:
    """Bytes that are left, and where readers find what did not fit."""

    def __init__(self, most_bytes: int, elsewhere: str) -> None:
        self._left = most_bytes
        self._elsewhere = elsewhere

    def take(self, items: Sequence[T], render: Callable[[T], str], noun: str) -> list[str]:
        """The first items, as many as fit; behind them one sentence on those that do not."""
        kept: list[str] = []
        for item in items:
            text = render(item)
            self._left -= len(text.encode()) + 1
            if self._left < 0:
                # What comes later is not worth more than what was cut.
                self._left = 0
                left_out = f"{len(items) - len(kept)} of {len(items)} {noun} are left out here for size"
                return [*kept, f"\n{left_out}; see `{self._elsewhere}`.\n"]
            kept.append(text)
        return kept


def _head(content: Content) -> Iterator[str]:
    yield f"# KV parity report\n\n{plain(content.header)}\n"
    for title, table in content.tables:
        rows = ([layout, *row] for layout, row in zip(table.index, table.values.tolist(), strict=True))
        yield f"## {title[0].upper()}{title[1:]}\n\n{markdown_table([table.index.name, *table.columns], rows)}"


def _long(title: str, headings: Sequence[str], rows: Iterable[str]) -> str:
    return f"## {title}\n\n{markdown_table(headings, ())}{''.join(rows)}"


def _group(group: Group) -> Sequence[str]:
    names = ", ".join(group.cells[:GROUP_NAMES])
    more = f" and {len(group.cells) - GROUP_NAMES} more" if len(group.cells) > GROUP_NAMES else ""
    return str(len(group.cells)), group.word, group.message, f"{names}{more}"


def _story(story: Story) -> str:
    lines = [*story.findings, f"evidence: {story.evidence}", *story.localisation]
    logs = [line if line[0] == " " else f"log of {line}" for line in story.logs]
    parts = [f"### {story.word}: {plain(story.name)}\n\n{story.sentence[0].upper()}{story.sentence[1:]}.\n"]
    if story.settings:
        parts.append(markdown_table(["setting", "oracle", "subject"], story.settings))
    parts.append(_fence(_cut([*lines, *logs])))
    parts.append("".join(f"- {line}\n" for line in story.next_steps))
    parts.append(_fence([story.reproduce]))
    return "\n".join(parts)


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table, a line per row, the headings' first."""
    return "".join(map(_row, [headings, ["--"] * len(headings), *rows]))


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(plain(str(cell)) for cell in cells)} |\n"


def _cut(lines: Sequence[str]) -> list[str]:
    """The first lines of a story, as many as it may have."""
    left, kept = STORY_BYTES, []
    for line in lines:
        left -= len(line.encode()) + 1
        if left < 0:
            return [*kept, f"... {len(lines) - len(kept)} more lines"]
        kept.append(line)
    return kept


def _fence(lines: Iterable[str]) -> str:
    text = "\n".join(line.replace("```", "'''") for line in lines)
    return f"```\n{text}\n```\n"


def plain(text: str) -> str:
    """Text that Markdown shows as it is: no line break, no cell border, no emphasis, no tag."""
    text = " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
    return text.replace("*", "\\*").replace("`", "\\`")
