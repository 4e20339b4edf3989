# SPDX-License-Identifier: Apache-2.0
"""``nightly``: matrix, controls and the comparison with the last good run, as the CI jobs run it."""

from __future__ import annotations

import argparse
from pathlib import Path


def add(verbs: argparse._SubParsersAction) -> None:
    parser = verbs.add_parser("nightly", help="Matrix, controls, comparison with the last good run, summary")
    parser.add_argument("scenarios", nargs="*", metavar="FILE", help="Scenario files (default: the platform's matrix)")
    parser.add_argument("--folder", default="results/nightly", metavar="DIR", help="Where nights are kept")
    parser.add_argument("--good", default="results/good", metavar="DIR", help="Frame and report of the last good run")
    parser.add_argument("--workers", type=int, metavar="N", help="Cells side by side (default: what fits)")
    parser.add_argument("--model", metavar="DIR", help="Model directory instead of the scenarios' own")
    parser.add_argument("-k", dest="expression", metavar="EXPRESSION", help="Cells whose name matches (pytest -k)")
    parser.add_argument("--faults", metavar="TEXT", help="Controls whose name has one of the texts a,b (default: all)")
    parser.set_defaults(verb=run)


def run(options: argparse.Namespace) -> int:
    from harness.nightly import nightly

    workers = ["--workers", str(options.workers)] if options.workers else []
    matrix = [*options.scenarios, *workers]
    matrix += ["--model", options.model] if options.model else []
    matrix += ["-k", options.expression] if options.expression else []
    return nightly(
        Path(options.folder),
        good=Path(options.good),
        matrix=matrix,
        controls=[*workers, *(["-k", options.faults] if options.faults else [])],
        rest=options.rest,
    )
