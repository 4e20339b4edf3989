# SPDX-License-Identifier: Apache-2.0
"""Everything that the HTML report shows of one cell, as plain values for its template."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.compare.pair import Pair
from harness.records import Cell, Ending, Finding, FindingKind, Leg, Observation, Verdict
from harness.report import RunView
from harness.report.content import clip
from harness.report.divergence import Comparison, comparisons
from harness.report.hints import HINTS
from harness.report.marks import MARKS, NOT_RUN, Mark
from harness.report.picture import PARTLY, UNKNOWN, WHOLLY, Damage, find_damage, outline
from harness.report.story import (
    TOLD,
    command_of,
    evidence_of,
    main_finding,
    sentence_of,
    settings_of,
    trace_lines,
)
from harness.report.truth import agreement_row

#: Lines of a log and of a traceback, and the bytes from a log's end that are looked at.
LOG_LINES, TRACE_LINES, LOG_BYTES = 15, 30, 16384
#: Characters of a line, and of a finding's words.
LINE_CHARACTERS, WORDS_CHARACTERS = 300, 4000
#: Findings and damaged prompts of one cell that are shown.
MOST_FINDINGS, MOST_PICTURES = 12, 6

#: Terminal colours and other control characters of a log.
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")


@dataclass(frozen=True, kw_only=True)
class FindingView:
    """A finding with both sides under headings that fit it."""

    finding: Finding
    message: str
    sides: tuple[str, str]
    headings: tuple[str, str]
    hint: str


@dataclass(frozen=True, kw_only=True)
class PictureView:
    """The KV damage of one prompt as SVG paths over a grid of blocks x layers."""

    damage: Damage
    partly: str
    wholly: str
    unknown: str
    label: str


@dataclass(frozen=True, kw_only=True)
class LogView:
    """A leg's log: where it lies, its last lines, and the traceback or the stacks of a leg that died."""

    role: str
    path: str
    lines: tuple[str, ...] = ()
    trace: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Dossier:
    """One cell.

    Attributes:
        agreements: rows of ``harness.report.truth.TRUTH`` without the cell.
        evidence: one line on hits, resolved configuration, the A/A control and what was compared.
        resolved: (name, asked, oracle's, subject's) as the workers report it.
        phases: (leg, phase, prompts, local, external, reset, zeroed, delivered, loaded, stored, seconds).
    """

    anchor: str
    cell: Cell
    mark: Mark
    word: str
    sentence: str
    command: str
    findings: tuple[FindingView, ...] = ()
    more_findings: int = 0
    comparisons: tuple[Comparison, ...] = ()
    pictures: tuple[PictureView, ...] = ()
    more_pictures: int = 0
    settings: tuple[tuple[str, str, str], ...] = ()
    evidence: str = ""
    agreements: tuple[tuple[str, ...], ...] = ()
    resolved: tuple[tuple[str, str, str, str], ...] = ()
    phases: tuple[tuple[str, ...], ...] = ()
    logs: tuple[LogView, ...] = ()


def dossier_of(run: RunView, cell: Cell, verdict: Verdict | None, word: str, anchor: str) -> Dossier:
    """The dossier of ``cell``; one without a verdict has only its name and its command."""
    if verdict is None:
        return Dossier(
            anchor=anchor, cell=cell, mark=MARKS[NOT_RUN], word=NOT_RUN, command=command_of(cell),
            sentence="planned, and there is no result of it in this run folder",
        )
    pair = run.pair(cell)
    main = main_finding(verdict)
    pictures = [
        damage for one in verdict.findings if one.kind is FindingKind.KV_DIGESTS
        for damage in find_damage(pair, one.left, one.right)
    ]
    return Dossier(
        anchor=anchor, cell=cell, mark=MARKS[verdict.verdict.value], word=word, command=command_of(cell),
        sentence=sentence_of(main, pair) if main else _passed(verdict, pair),
        findings=tuple(map(_finding, verdict.findings[:MOST_FINDINGS])),
        more_findings=max(0, len(verdict.findings) - MOST_FINDINGS),
        comparisons=tuple(comparisons(pair, verdict.findings)),
        pictures=tuple(map(_picture, pictures[:MOST_PICTURES])),
        more_pictures=max(0, len(pictures) - MOST_PICTURES),
        settings=tuple(settings_of(pair)),
        evidence=evidence_of(pair, verdict),
        agreements=tuple(map(agreement_row, verdict.agreements)),
        resolved=tuple(_resolved(pair)),
        phases=tuple(_phases(pair)),
        logs=tuple(_logs(run, pair)) if verdict.verdict in TOLD else (),
    )


def _passed(verdict: Verdict, pair: Pair) -> str:
    compared = verdict.compared
    if pair.subject_leg.level == "unit":
        return f"{compared.blocks} KV blocks bitwise equal, without an engine"
    if not pair.subject_leg.digests:
        return f"{compared.tokens} tokens and {compared.logprobs} logprobs bitwise equal; KV digests off"
    return f"{compared.tokens} tokens, {compared.logprobs} logprobs and {compared.blocks} KV blocks bitwise equal"


def _finding(finding: Finding) -> FindingView:
    values = finding.kind in (FindingKind.TOKENS, FindingKind.LOGPROBS, FindingKind.KV_DIGESTS)
    return FindingView(
        finding=finding, message=clip(finding.message, WORDS_CHARACTERS), hint=HINTS[finding.kind],
        sides=(clip(finding.left, WORDS_CHARACTERS), clip(finding.right, WORDS_CHARACTERS)),
        headings=("reference", "restore") if values else ("asked or expected", "found"),
    )


def _picture(damage: Damage) -> PictureView:
    def count(mark: str) -> int:
        return sum(marks.count(mark) for marks in damage.marks)

    total = damage.blocks * len(damage.marks) - count(UNKNOWN)
    return PictureView(
        damage=damage, partly=outline(damage, PARTLY), wholly=outline(damage, WHOLLY),
        unknown=outline(damage, UNKNOWN),
        label=f"prompt {damage.prompt}: of {total} pages (layer x block) {count(WHOLLY)} differ wholly,"
              f" {count(PARTLY)} partly",
    )


def _resolved(pair: Pair) -> Iterator[tuple[str, str, str, str]]:
    (_, asked, oracle), (_, _, subject) = pair.sides()
    yield "ending", "ok", *(one.ending.value if one else NOT_RUN for one in (oracle, subject))
    wanted = {"layout": asked.layout, "backend": asked.backend, "batch_invariant": asked.batch_invariant,
              "block_size": pair.cell.block_size}
    names = ("layout", "layout_by_strides", "strides", "shape", "backend", "backend_class", "batch_invariant",
             "block_size", "kernel_block_size", "dtype", "num_layers", "num_blocks", "threads", "connector")
    sides = [one.resolved if one else None for one in (oracle, subject)]
    if any(sides):
        for name in names:
            left, right = (_value(getattr(one, name)) if one else "" for one in sides)
            yield name.replace("_", " "), _value(wanted.get(name, "")), left, right
    yield "model", asked.model.alias, *(_model(leg) for _, leg, _ in pair.sides())
    yield "peak memory, MiB", "", *(f"{one.peak_bytes / 2**20:.0f}" if one else "" for one in (oracle, subject))
    yield "seconds", "", *(f"{sum(one.seconds.values()):.1f}" if one else "" for one in (oracle, subject))


def _model(leg: Leg) -> str:
    return f"{leg.model.source}, {leg.model.digest}"


def _value(value: object) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, tuple) else "" if value is None else str(value)
    return clip(text, LINE_CHARACTERS)


def _phases(pair: Pair) -> Iterator[tuple[str, ...]]:
    for role, _, observation in pair.sides():
        for phase in pair.cell.phases_of(role):
            record = observation.phase(phase) if observation else None
            if record is not None:
                reset = {None: "", True: "yes", False: "NO"}[record.reset_ok]
                moved = (record.zeroed_bytes, record.delivered_tokens, record.loaded_bytes, record.stored_bytes)
                yield (
                    role.value, phase.value, str(len(record.prompts)), str(record.local_tokens),
                    str(record.external_tokens), reset, *("" if one is None else str(one) for one in moved),
                    f"{record.seconds:.1f}",
                )


def _logs(run: RunView, pair: Pair) -> Iterator[LogView]:
    for role, _, observation in pair.sides():
        if observation is None:
            yield LogView(role=role.value, path="not run")
            continue
        path = f"{run.folder}/{observation.log}" if observation.log else "no log"
        lines, trace = _last_lines(run, observation), trace_lines(observation, TRACE_LINES)
        yield LogView(role=role.value, path=path, lines=tuple(map(_line, lines)), trace=tuple(map(_line, trace)))


def _line(text: str) -> str:
    return clip(CONTROL.sub("", text), LINE_CHARACTERS)


def _last_lines(run: RunView, observation: Observation) -> tuple[str, ...]:
    """From the observation of a dead leg, otherwise from the log's file where it is still there."""
    if observation.ending is not Ending.OK and observation.log_tail:
        return observation.log_tail[-LOG_LINES:]
    folder = Path(run.folder)
    path = folder / observation.log
    # A stored record must not name a file outside its run folder.
    if not observation.log or not path.is_file() or not path.resolve().is_relative_to(folder.resolve()):
        return ()
    with path.open("rb") as stream:
        stream.seek(-min(LOG_BYTES, stream.seek(0, os.SEEK_END)), os.SEEK_END)
        return tuple(stream.read().decode(errors="replace").splitlines()[-LOG_LINES:])
