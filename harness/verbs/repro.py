# SPDX-License-Identifier: Apache-2.0
"""``repro``: the one command that runs a cell of a stored run again, and what has changed here since."""

from __future__ import annotations

import argparse
import difflib
import shlex
from collections.abc import Iterator

from harness import host
from harness.errors import UsageError
from harness.records import Cell, Leg, Plan
from harness.verbs.stored import open_stored


def add(verbs: argparse._SubParsersAction) -> None:
    parser = verbs.add_parser("repro", help="Print the command that runs one cell of a stored run again")
    parser.add_argument("cell", metavar="CELL", help="Cell id, or scenario::cell")
    parser.add_argument("run", nargs="?", default="results/latest", metavar="RUN", help="Run folder (default: latest)")
    parser.add_argument("--go", action="store_true", help="Run it too")
    parser.set_defaults(verb=run)


def run(options: argparse.Namespace) -> int:
    plan = open_stored(options.run).plan
    cell = find_cell(plan, options.cell)
    leg = plan.leg(cell.subject)
    arguments = command(cell, leg)
    print(shlex.join(["pytest", *arguments]))
    for line in changed(leg, host.identity()):
        print(f"changed since: {line}")
    if not options.go:
        return 0
    import pytest

    return int(pytest.main([*arguments, *options.rest]))


def find_cell(plan: Plan, name: str) -> Cell:
    """The cell of that name or id.

    Raises:
        UsageError: none, or several scenarios have one.
    """
    found = [cell for cell in plan.cells if name in (cell.name, cell.id)]
    if len(found) > 1:
        raise UsageError(f"{name}: {len(found)} scenarios have this cell; valid: {', '.join(c.name for c in found)}")
    if not found:
        near = difflib.get_close_matches(name, [known for cell in plan.cells for known in (cell.id, cell.name)], n=3)
        raise UsageError(f"{name}: no such cell in this run; near: {', '.join(near) or 'none'}")
    return found[0]


def command(cell: Cell, leg: Leg) -> list[str]:
    """pytest's arguments; a model that was named by hand is named again."""
    model = ["--kvparity-model", leg.model.path] if leg.model.source == "given" else []
    return [f"{cell.path}::{cell.id}", *model]


def changed(leg: Leg, here: dict[str, str]) -> Iterator[str]:
    """``name: then -> now`` for each fact of the installation that is another one now."""
    for name, now in here.items():
        then = leg.identity.get(name)
        if then != now:
            yield f"{name}: {then or 'none'} -> {now}"
    yield from (f"{name}: {then} -> none" for name, then in leg.identity.items()
                if name not in here and name in host.DISTRIBUTIONS)
