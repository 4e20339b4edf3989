# SPDX-License-Identifier: Apache-2.0
"""The report as Markdown: ``report.md`` of a run folder, and the summary of a CI job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from harness.report import RunView
from harness.report.content import EVIDENCE, Content, Group, collect
from harness.report.story import Story
from harness.report.truth import TRUTH

#: A CI job's summary takes no more bytes.
MOST_BYTES = 1024 * 1024
#: Kept free for the sentence on what was left out and the counts.
RESERVE_BYTES = 4096


def render_markdown(run: RunView, *, most_bytes: int = MOST_BYTES) -> str:
    """The report as Markdown of at most ``most_bytes`` bytes; cells that do not fit are counted, worst cells stay."""
    content = collect(run)
    kept, size, left_out = [], 0, 0
    for block in _blocks(content):
        length = len(block.encode()) + 1
        if size + length > most_bytes - min(RESERVE_BYTES, most_bytes // 2):
            left_out += 1
            continue
        kept.append(block)
        size += length
    if left_out:
        kept.append(f"{left_out} sections do not fit in {most_bytes} bytes; see `{run.folder}/verdicts.jsonl`.\n")
    return "\n".join([*kept, f"**{_plain(content.counts)}**\n"])


def _blocks(content: Content) -> Iterator[str]:
    """Sections, most important first: tables, red cells, evidence, expected cells."""
    yield f"# KV parity report\n\n{_plain(content.header)}\n"
    for title, table in content.tables:
        rows = ([layout, *row] for layout, row in zip(table.index, table.values.tolist(), strict=True))
        yield f"## {title[0].upper()}{title[1:]}\n\n{_table(['layout', *table.columns], rows)}"
    if content.evidence:
        yield f"## Evidence of the passing cells\n\n{_table(EVIDENCE, content.evidence)}"
    if content.truth:
        yield f"## Ground truth\n\n{_table(TRUTH, content.truth)}\n{_plain(content.limits)}\n"
    if content.stories:
        yield "## Red and amber cells\n"
        yield from map(_story, content.stories)
    if content.groups:
        yield "## As expected, or not available here\n"
        yield _table(["cells", "outcome", "words", "which"], map(_group, content.groups))


def _group(group: Group) -> Sequence[str]:
    return str(len(group.cells)), group.word, group.message, ", ".join(group.cells)


def _story(story: Story) -> str:
    lines = [*story.findings, f"evidence: {story.evidence}", *story.localisation]
    parts = [f"### {story.word}: {_plain(story.name)}\n\n{story.sentence[0].upper()}{story.sentence[1:]}.\n"]
    if story.settings:
        parts.append(_table(["setting", "oracle", "subject"], story.settings))
    parts.append(_fence([*lines, *(line if line[0] == " " else f"log of {line}" for line in story.logs)]))
    parts.append("".join(f"- {line}\n" for line in story.next_steps))
    parts.append(_fence([story.reproduce]))
    return "\n".join(parts)


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headings, ["--"] * len(headings), *rows]
    return "".join(f"| {' | '.join(_plain(str(cell)) for cell in line)} |\n" for line in lines)


def _fence(lines: Iterable[str]) -> str:
    text = "\n".join(line.replace("```", "'''") for line in lines)
    return f"```\n{text}\n```\n"


def _plain(text: str) -> str:
    """Text that Markdown shows as it is: no line break, no cell border, no emphasis, no tag."""
    text = " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
    return text.replace("*", "\\*").replace("`", "\\`")
