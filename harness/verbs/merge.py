# SPDX-License-Identifier: Apache-2.0
"""``merge``: the run folders of a matrix's shards into one."""

from __future__ import annotations

import argparse
from pathlib import Path

from harness.archive import RunFolder
from harness.stored import read_run
from harness.verbs.stored import exit_code, say_gaps, view_of


def add(verbs: argparse._SubParsersAction) -> None:
    parser = verbs.add_parser("merge", help="Make one run folder of the shards of a matrix")
    parser.add_argument("out", metavar="OUT", help="Folder to make")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="Run folders made with --shard")
    parser.set_defaults(verb=run)


def run(options: argparse.Namespace) -> int:
    from harness.merge import merge, missing_shards
    from harness.report.text import render_text
    from harness.session import join_run, write_results

    paths = [Path(path) for path in options.runs]
    merged = merge(Path(options.out), paths)
    view = view_of(merged)
    write_results(join_run(RunFolder(merged.path)), view, merged.facts)
    merged = read_run(merged.path)
    print(render_text(view), end="")
    for shard in missing_shards(paths):
        print(f"not whole: shard {shard} is not among the merged runs")
    say_gaps(merged)
    return exit_code(view.verdicts, whole=not merged.unanswered)
