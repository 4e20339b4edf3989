# SPDX-License-Identifier: Apache-2.0
"""``python -m harness``: what pytest has not. Each verb is a module of ``harness.verbs``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from harness import __version__
from harness.errors import ExitCode, HarnessError
from harness.verbs import VERBS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; its exit code is one of ``harness.errors.ExitCode``."""
    parser = _parser()
    # What follows `--` is pytest's.
    given = list(sys.argv[1:] if arguments is None else arguments)
    own, rest = (given[: given.index("--")], given[given.index("--") + 1 :]) if "--" in given else (given, [])
    options = parser.parse_args(own)
    options.rest = rest
    try:
        return options.verb(options)
    except HarnessError as error:
        print(f"ERROR: {error}", file=sys.stderr)
        return ExitCode.USAGE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m harness", description="Differential correctness tests of KV cache stores in vLLM"
    )
    parser.add_argument("--version", action="version", version=f"kvparity {__version__}")
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    for verb in VERBS:
        verb.add(verbs)
    return parser
