# SPDX-License-Identifier: Apache-2.0
"""``controls``: prove the detector."""

from __future__ import annotations

import argparse


def add(verbs: argparse._SubParsersAction) -> None:
    parser = verbs.add_parser("controls", help="Prove the detector: run every planted fault, fail on what is missed")
    parser.add_argument("--list", action="store_true", help="Show the faults and what each must lead to")
    parser.add_argument("--json", action="store_true", help="One object per fault")
    parser.add_argument("-k", dest="expression", metavar="TEXT", help="Faults whose name has one of the texts a,b")
    parser.add_argument("--workers", type=int, metavar="N", help="Faults side by side (default: what fits)")
    parser.add_argument("--run", metavar="DIR", help="Keep the run folder, and what has run in it, here")
    parser.set_defaults(verb=run)


def run(options: argparse.Namespace) -> int:
    from harness.controls import show

    return show.main(
        expression=options.expression, list_only=options.list, to_json=options.json, workers=options.workers,
        run=options.run,
    )
