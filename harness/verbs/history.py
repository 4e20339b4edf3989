# SPDX-License-Identifier: Apache-2.0
"""``history``: many stored runs, cell by cell."""

from __future__ import annotations

import argparse
from pathlib import Path

from harness.errors import ExitCode, UsageError


def add(verbs: argparse._SubParsersAction) -> None:
    parser = verbs.add_parser("history", help="Say since when each cell ends as it does, over many runs")
    parser.add_argument("folder", nargs="?", default="results", metavar="DIR", help="Folder of run folders")
    parser.add_argument("--last", type=int, metavar="N", help="Only the newest N runs")
    parser.add_argument("--all", action="store_true", help="Also the cells that were green in every run")
    parser.add_argument("--json", action="store_true", help="One object per cell")
    parser.set_defaults(verb=run)


def run(options: argparse.Namespace) -> int:
    from harness import history

    if options.last is not None and options.last < 1:
        raise UsageError(f"--last {options.last}: at least 1")
    past = history.read_past(Path(options.folder), last=options.last)
    if options.json:
        print(history.table(past).to_json(orient="records", indent=2))
    else:
        for line in history.lines(past, everything=options.all):
            print(line)
    return ExitCode.OK
