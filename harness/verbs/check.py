# SPDX-License-Identifier: Apache-2.0
"""``check``: a stored run judged again with today's comparator, without an engine."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import fields

from harness.records import Compared, Finding
from harness.verbs.stored import exit_code, open_stored, say_gaps

#: Findings that a changed verdict lists on each side.
FINDINGS_SHOWN = 3


def add(verbs: argparse._SubParsersAction) -> None:
    parser = verbs.add_parser("check", help="Judge a stored run again; says which verdicts changed")
    parser.add_argument("run", nargs="?", default="results/latest", metavar="RUN", help="Run folder (default: latest)")
    parser.set_defaults(verb=run)


def run(options: argparse.Namespace) -> int:
    stored = open_stored(options.run)
    changed = 0
    for verdict in stored.judged:
        name = verdict.name
        earlier = stored.verdicts.get(name)
        if earlier != verdict:
            changed += 1
            was = earlier.verdict if earlier else "not judged"
            print(f"{name}: {was} -> {verdict.verdict}")
            for line in _differing(earlier.findings if earlier else (), verdict.findings):
                print(f"  {line}")
            if earlier and (counts := _counts(earlier.compared, verdict.compared)):
                print(f"  compared: {counts}")
    say_gaps(stored)
    print(f"{len(stored.judged)} cells judged again, {changed} verdicts changed")
    return exit_code(stored.judged, whole=not stored.unanswered)


def _differing(before: tuple[Finding, ...], after: tuple[Finding, ...]) -> Iterator[str]:
    """Findings of one side alone, ``-`` for those that are gone and ``+`` for new ones."""
    for mark, mine, other in (("-", before, after), ("+", after, before)):
        alone = [one for one in mine if one not in other]
        for one in alone[:FINDINGS_SHOWN]:
            yield f"{mark} {one.kind}: {one.message}"
        if len(alone) > FINDINGS_SHOWN:
            yield f"{mark} and {len(alone) - FINDINGS_SHOWN} more"


def _counts(before: Compared, after: Compared) -> str:
    """``tokens_equal 8 -> 6, ...``, of the counts that differ."""
    pairs = ((one.name, getattr(before, one.name), getattr(after, one.name)) for one in fields(Compared))
    return ", ".join(f"{name} {old} -> {new}" for name, old, new in pairs if old != new)
