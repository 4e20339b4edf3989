# SPDX-License-Identifier: Apache-2.0
"""``report``: a stored run once more."""

from __future__ import annotations

import argparse

from harness.errors import ExitCode
from harness.verbs.stored import open_stored, say_gaps, view_of


def add(verbs: argparse._SubParsersAction) -> None:
    parser = verbs.add_parser("report", help="Print a stored run again")
    parser.add_argument("run", nargs="?", default="results/latest", metavar="RUN", help="Run folder (default: latest)")
    parser.add_argument("--write", action="store_true", help="Also write its frames, report.md and report.html anew")
    parser.set_defaults(verb=run)


def run(options: argparse.Namespace) -> int:
    from harness.report.text import render_text

    stored = open_stored(options.run)
    view = view_of(stored)
    print(render_text(view), end="")
    say_gaps(stored)
    if options.write:
        from harness.report.files import write_reports

        write_reports(view, stored.path)
        print(f"written: {stored.path}/report.html, {stored.path}/report.md, {stored.path}/frame.csv")
    return ExitCode.OK
