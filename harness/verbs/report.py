# SPDX-License-Identifier: Apache-2.0
"""``report``: a stored run once more."""

from __future__ import annotations

import argparse

from harness.errors import ExitCode
from harness.verbs.stored import open_stored, say_gaps, view_of


def add(verbs: argparse._SubParsersAction) -> None:
    parser = verbs.add_parser("report", help="Print a stored run again")
    parser.add_argument("run", nargs="?", default="results/latest", metavar="RUN", help="Run folder (default: latest)")
    parser.set_defaults(verb=run)


def run(options: argparse.Namespace) -> int:
    from harness.report.text import render_text

    stored = open_stored(options.run)
    print(render_text(view_of(stored)), end="")
    say_gaps(stored)
    return ExitCode.OK
