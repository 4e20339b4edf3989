# SPDX-License-Identifier: Apache-2.0
"""``ab``: the same scenarios against two versions of the UMBP connector's source."""

from __future__ import annotations

import argparse
from pathlib import Path

from harness.device import slots


def add(verbs: argparse._SubParsersAction) -> None:
    parser = verbs.add_parser("ab", help="The same scenarios against two versions of the UMBP connector's source")
    parser.add_argument("base", metavar="BASE", help="Overlay: a vLLM checkout, git:REPO@REF or wheel:vllm==VERSION")
    parser.add_argument("candidate", metavar="CAND", help="Overlay to hold against it")
    parser.add_argument("scenarios", nargs="*", metavar="FILE", help="Scenario files (default: scenarios/umbp.yaml)")
    parser.add_argument("--workers", type=int, metavar="N", help="Cells side by side (default: what fits)")
    parser.add_argument("--run", metavar="DIR", help="Folder for both runs (default: a new one under results/)")
    parser.add_argument("-k", dest="expression", metavar="EXPRESSION", help="Cells whose name matches (pytest -k)")
    parser.set_defaults(verb=run)


def run(options: argparse.Namespace) -> int:
    from harness import ab

    return ab.run(
        options.base,
        options.candidate,
        options.scenarios or ab.SCENARIOS,
        expression=options.expression,
        workers=slots() if options.workers is None else options.workers,
        folder=Path(options.run) if options.run else None,
        rest=options.rest,
    )
