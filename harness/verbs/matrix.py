# SPDX-License-Identifier: Apache-2.0
"""``matrix``: this platform's matrix, or the named scenarios, through pytest."""

from __future__ import annotations

import argparse
from pathlib import Path

from harness import host
from harness.asked import MATRIX
from harness.device import slots
from harness.errors import UsageError


def add(verbs: argparse._SubParsersAction) -> None:
    parser = verbs.add_parser("matrix", help="Run this platform's matrix, or the named scenarios")
    parser.add_argument("scenarios", nargs="*", metavar="FILE", help="Scenario files (default: the platform's matrix)")
    parser.add_argument("--workers", type=int, metavar="N", help="Cells side by side (default: what fits)")
    parser.add_argument("--model", metavar="DIR", help="Model directory instead of the scenarios' own")
    parser.add_argument("--run", metavar="DIR", help="Run folder to resume, or to make under this name")
    parser.add_argument("-k", dest="expression", metavar="EXPRESSION", help="Cells whose name matches (pytest -k)")
    parser.add_argument("--shard", metavar="I/N", help="Only part I of N; `merge` puts the parts together")
    parser.set_defaults(verb=run)


#: What pytest would do, in each process of a run, for tests that a run does not have: a second or more.
UNUSED = ("--assert=plain", "-p", "no:hypothesispytest", "-p", "no:anyio")


def run(options: argparse.Namespace) -> int:
    import pytest

    scenarios = options.scenarios or list(MATRIX[host.platform()])
    missing = [name for name in scenarios if not Path(name).exists()]
    if missing:
        raise UsageError(f"{', '.join(missing)}: no such scenario file; run from the checkout, or name one that exists")
    workers = slots() if options.workers is None else options.workers
    arguments = [*scenarios, *UNUSED]
    if workers > 1:
        arguments += ["-n", str(workers)]
    if options.expression:
        arguments += ["-k", options.expression]
    if options.model:
        arguments += ["--kvparity-model", options.model]
    if options.run:
        arguments += ["--kvparity-run", options.run]
    if options.shard:
        arguments += ["--kvparity-shard", options.shard]
    return int(pytest.main([*arguments, *options.rest]))
