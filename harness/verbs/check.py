# SPDX-License-Identifier: Apache-2.0
"""``check``: a stored run judged again with today's comparator, without an engine."""

from __future__ import annotations

import argparse
import json

from harness import wire
from harness.errors import ExitCode
from harness.records import Verdict
from harness.verbs.stored import open_stored


def add(verbs: argparse._SubParsersAction) -> None:
    parser = verbs.add_parser("check", help="Judge a stored run again; says which verdicts changed")
    parser.add_argument("run", nargs="?", default="results/latest", metavar="RUN", help="Run folder (default: latest)")
    parser.set_defaults(verb=run)


def run(options: argparse.Namespace) -> int:
    from harness.session import GREEN

    stored = open_stored(options.run)
    verdicts, _ = stored.judge_stored(stored.plan)
    before = {}
    path = stored.folder.path / "verdicts.jsonl"
    if path.exists():
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            verdict = wire.from_plain(Verdict, json.loads(line), where=f"{path}:{number}")
            before[verdict.scenario, verdict.cell] = verdict
    changed = 0
    for verdict in verdicts:
        earlier = before.get((verdict.scenario, verdict.cell))
        if earlier != verdict:
            changed += 1
            was = earlier.verdict if earlier else "not judged"
            print(f"{verdict.scenario}::{verdict.cell}: {was} -> {verdict.verdict}")
    print(f"{len(verdicts)} cells judged again, {changed} verdicts changed")
    return ExitCode.OK if all(verdict.verdict in GREEN for verdict in verdicts) else ExitCode.FAILED
