# SPDX-License-Identifier: Apache-2.0
"""``bench``: the embedded store's speed, a whole run beside the naive way, its own work, reading a year."""

from __future__ import annotations

import argparse

from harness import host
from harness.device import slots
from harness.errors import ExitCode, UsageError
from harness.verbs.matrix import MATRIX

#: What ``--matrix --model tiny`` runs where no scenario is named.
SMOKE = ("scenarios/smoke.yaml",)


def add(verbs: argparse._SubParsersAction) -> None:
    parser = verbs.add_parser("bench", help="Measure the embedded store, or with --matrix a whole run")
    parser.add_argument("scenarios", nargs="*", metavar="FILE", help="--matrix: scenarios (default: the platform's)")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--matrix", action="store_true", help="A run beside the naive way, and how its cost grows")
    kind.add_argument("--growth", action="store_true", help="Only how the harness's own cost grows; starts no engine")
    kind.add_argument("--history", action="store_true", help="Reading 365 runs of 400 cells; starts no engine")
    parser.add_argument("--json", action="store_true", help="The figures as JSON")
    parser.add_argument("--blocks", type=int, default=64, metavar="N", help="Store: blocks moved at once (default: 64)")
    parser.add_argument("--plot", metavar="FILE", help="Store: write the ratios as a PNG (needs matplotlib)")
    parser.add_argument("--model", metavar="NAME", help="--matrix: a model directory, or tiny for the smoke scenario")
    parser.add_argument("-k", dest="expression", metavar="EXPRESSION", help="--matrix: cells whose name matches")
    parser.add_argument("--workers", type=int, metavar="N", help="--matrix: cells side by side (default: what fits)")
    parser.add_argument(
        "--sample", type=int, default=None, metavar="N", help="--matrix: cells run the naive way (default: 4, 0: all)"
    )
    parser.add_argument("--run", metavar="DIR", help="--matrix: keep the run folders here")
    parser.set_defaults(verb=run)


def run(options: argparse.Namespace) -> int:
    if not options.matrix and options.scenarios:
        raise UsageError(f"{' '.join(options.scenarios)}: bench takes scenario files only with --matrix")
    if options.matrix:
        from harness.benches import matrix

        tiny = options.model == "tiny"
        matrix.show(
            # The first alone: in the others cells are expected to die, and some start no engine.
            options.scenarios or list(SMOKE if tiny else MATRIX[host.platform()][:1]),
            expression=options.expression,
            model=None if tiny else options.model,
            workers=slots() if options.workers is None else options.workers,
            sample=matrix.SAMPLE if options.sample is None else options.sample,
            run=options.run,
            as_json=options.json,
            rest=options.rest,
        )
    elif options.history:
        from harness.benches import history

        history.show(as_json=options.json)
    elif options.growth:
        from harness.benches import matrix

        matrix.show_growth(as_json=options.json)
    else:
        from harness.benches import store

        store.show(blocks=options.blocks, as_json=options.json, plot_to=options.plot)
    return ExitCode.OK
