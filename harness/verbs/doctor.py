# SPDX-License-Identifier: Apache-2.0
"""``doctor``: what this machine can run, and why not the rest."""

from __future__ import annotations

import argparse
import json


def add(verbs: argparse._SubParsersAction) -> None:
    parser = verbs.add_parser("doctor", help="Say what this machine can run, and why not the rest")
    parser.add_argument("--json", action="store_true", help="One object per fact")
    parser.set_defaults(verb=run)


def run(options: argparse.Namespace) -> int:
    from harness import doctor

    facts = doctor.examine()
    print(json.dumps(doctor.as_plain(facts), indent=2) if options.json else doctor.render(facts).rstrip())
    return doctor.exit_code(facts)
