# SPDX-License-Identifier: Apache-2.0
"""``bench``: the embedded store's speed."""

from __future__ import annotations

import argparse

from harness.errors import ExitCode


def add(verbs: argparse._SubParsersAction) -> None:
    parser = verbs.add_parser("bench", help="Measure the embedded store beside a plain copy of the same bytes")
    parser.add_argument("--blocks", type=int, default=64, metavar="N", help="Blocks moved at once (default: 64)")
    parser.add_argument("--json", action="store_true", help="One object per layout and path")
    parser.add_argument("--plot", metavar="FILE", help="Write the ratios as a PNG (needs matplotlib)")
    parser.set_defaults(verb=run)


def run(options: argparse.Namespace) -> int:
    from harness import bench

    bench.show(blocks=options.blocks, as_json=options.json, plot_to=options.plot)
    return ExitCode.OK
