# SPDX-License-Identifier: Apache-2.0
"""The report as one HTML file that needs no network: ``report.html`` of a run folder.

Works from ``file://``; its own content security policy forbids every request. Cells that differ are shown with all of
their evidence, worst first, as far as the file's size allows; the rest keeps its outcome, its findings and its command.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from harness.axes import FURTHER_AXES, REQUIRED_AXES
from harness.frame import outcome_word
from harness.records import Cell
from harness.report import RunView
from harness.report.content import counts, header
from harness.report.dossier import Dossier, dossier_of
from harness.report.heat import heat_maps
from harness.report.marks import MARKS, NOT_RUN, rank
from harness.report.truth import TRUTH, truth_limits

#: Bytes of the file above which cells are shown without their evidence; such cells cost some 600 bytes each.
MOST_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One filter: an axis with more than one value among the cells."""

    name: str
    values: tuple[str, ...]


def render_html(run: RunView, *, most_bytes: int = MOST_BYTES) -> str:
    """The whole page. Every name, message and log line of the run is text in it, never markup."""
    templates = Environment(
        loader=PackageLoader("harness.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )
    style, script = (resources.files("harness.report").joinpath("templates", name).read_text(encoding="utf-8")
                     for name in ("report.css", "report.js"))
    anchors = {cell.name: f"c{number}" for number, cell in enumerate(run.plan.cells)}
    dossiers = _dossiers(run, anchors)
    axes = _axes(run.plan.cells)
    templates.globals |= {"truth_headings": TRUTH[1:], "truth_limits": truth_limits(run)}
    return templates.get_template("report.html").render(
        header=header(run), counts=counts(run), versions=run.versions, heats=list(heat_maps(run, anchors)), axes=axes,
        outcomes=_outcomes(dossiers), cells=Markup("").join(_cells(templates, dossiers, axes, most_bytes)),
        total=len(dossiers), missing=sum(one.mark.word == NOT_RUN for one in dossiers),
        style=Markup(style), script=Markup(script), style_hash=_hash(style), script_hash=_hash(script), marks=MARKS,
    )


def _hash(text: str) -> str:
    """Source expression of a content security policy that allows exactly this text."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _dossiers(run: RunView, anchors: dict[str, str]) -> list[Dossier]:
    """Worst first, then in the plan's order."""
    verdicts = {verdict.name: verdict for verdict in run.verdicts}
    found = []
    for cell in run.plan.cells:
        verdict = verdicts.get(cell.name)
        word = outcome_word(verdict.outcome, verdict.verdict) if verdict else NOT_RUN
        found.append(dossier_of(run, cell, verdict, word, anchors[cell.name]))
    return sorted(found, key=lambda one: -rank(one.mark.word))


def _outcomes(dossiers: Sequence[Dossier]):
    """(mark, number of cells), worst first."""
    words = [one.mark.word for one in dossiers]
    return [(MARKS[word], words.count(word)) for word in dict.fromkeys(words)]


def _axes(cells: Iterable[Cell]) -> list[Axis]:
    values: dict[str, dict[str, None]] = {name: {} for name in ("scenario", *REQUIRED_AXES, *FURTHER_AXES)}
    for cell in cells:
        for name in values:
            values[name].setdefault(axis_value(cell, name), None)
    return [Axis(name=name, values=tuple(found)) for name, found in values.items() if len(found) > 1]


def axis_value(cell: Cell, name: str) -> str:
    """A cell's value of an axis in words; ``none`` where it does not have the axis."""
    value = cell.scenario if name == "scenario" else cell.axes.get(name)
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value is None else str(value)


def _cells(templates: Environment, dossiers: Sequence[Dossier], axes: Sequence[Axis], most_bytes: int):
    """Each cell's markup; behind ``most_bytes`` without its evidence, and it says so."""
    template, size = templates.get_template("cell.html"), 0
    for one in dossiers:
        values = [axis_value(one.cell, axis.name) for axis in axes]
        text = template.render(one=one, values=values, whole=True)
        if size + len(text) > most_bytes:
            text = template.render(one=one, values=values, whole=False)
        size += len(text)
        yield Markup(text)
