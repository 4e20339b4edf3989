# SPDX-License-Identifier: Apache-2.0
"""The files of a report in a run folder: the frames, ``report.md`` and ``report.html``."""

from __future__ import annotations

from pathlib import Path

from harness import wire
from harness.frame import to_steps
from harness.frame.files import CELLS, STEPS, write_frame
from harness.report import RunView
from harness.report.html import render_html
from harness.report.markdown import render_markdown


def write_reports(run: RunView, folder: Path) -> None:
    """Write all of them, each whole; those that are there are replaced."""
    write_frame(run.frame, folder / CELLS)
    write_frame(to_steps(run.plan, run.observations), folder / STEPS)
    wire.write_text(folder / "report.md", render_markdown(run))
    wire.write_text(folder / "report.html", render_html(run))
