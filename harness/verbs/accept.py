# SPDX-License-Identifier: Apache-2.0
"""``accept``: make a stored run the one that later runs on its platform are compared with."""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import replace

from harness import wire
from harness.errors import ExitCode, UsageError
from harness.records import GREEN
from harness.stored import StoredRun, listed
from harness.verbs.stored import open_stored, view_of


def add(verbs: argparse._SubParsersAction) -> None:
    parser = verbs.add_parser("accept", help="Commit a green run's frame and report as its platform's reference")
    parser.add_argument("run", metavar="RUN", help="Run folder")
    parser.set_defaults(verb=run)


def run(options: argparse.Namespace) -> int:
    from harness import accepted
    from harness.report.markdown import render_markdown

    stored = open_stored(options.run)
    _refuse(stored)
    # The folder's name alone: where it lay on this machine is nobody's business later.
    view = replace(view_of(stored), folder=stored.path.resolve().name)
    folder = accepted.reference_of(accepted.REFERENCE, view.platform)
    lost = accepted.lost_cells(folder, view.frame)
    if lost:
        raise UsageError(
            f"{options.run}: does not cover {len(lost)} cells of the reference in {folder} ({listed(lost)}); accept a "
            "whole run, or remove that folder where these cells are gone for good"
        )
    wire.write_text(folder / "frame.csv", view.frame.to_csv(index=False))
    wire.write_text(folder / "report.md", render_markdown(view))
    counts = Counter(verdict.verdict.value for verdict in view.verdicts)
    words = ", ".join(f"{number} {word}" for word, number in counts.items())
    print(f"{folder}: {len(view.verdicts)} cells accepted ({words}); commit frame.csv and report.md")
    return ExitCode.OK


def _refuse(stored: StoredRun) -> None:
    """Raise for a run that shows less than it seems to."""
    path = stored.path
    others = [one for one in stored.judged if one.verdict not in GREEN]
    if others:
        names = [f"{one.name} ({one.verdict})" for one in others]
        raise UsageError(f"{path}: not accepted, {len(others)} of {len(stored.plan.cells)} cells are not green: "
                         f"{', '.join(names)}")
    if stored.gaps:
        raise UsageError(f"{path}: not accepted, the run is not whole: {'; '.join(stored.gaps)}")
    if not stored.judged:
        raise UsageError(f"{path}: not accepted, it has no cells")
    if not stored.facts.get("platform"):
        raise UsageError(f"{path}: not accepted, env.json does not say its platform")
