# SPDX-License-Identifier: Apache-2.0
"""``plan``: what scenario files cover, as vLLM's own classes say; runs nothing."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from harness import host
from harness.errors import ExitCode
from harness.records import PLATFORMS


def add(verbs: argparse._SubParsersAction) -> None:
    parser = verbs.add_parser("plan", help="Show what scenario files cover, as vLLM's own classes say; runs nothing")
    parser.add_argument("scenarios", nargs="+", metavar="FILE")
    parser.add_argument("--model", metavar="DIR", help="Model directory instead of the scenarios' own")
    parser.add_argument("--platform", choices=PLATFORMS, help="Platform to plan for (default: this machine's)")
    parser.add_argument("--cells", action="store_true", help="Also a line for every cell")
    parser.add_argument("--json", action="store_true", help="One object per cell")
    parser.set_defaults(verb=run)


def run(options: argparse.Namespace) -> int:
    from harness import coverage
    from harness.session import scenario_files

    files = scenario_files(options.scenarios, Path.cwd())
    here = coverage.machine_platform()
    platform = options.platform or host.platform()
    plan, notes = coverage.load(files, platform=platform, model=options.model)
    found = coverage.predict(plan, platform, here) if plan.cells else None
    if options.json:
        print(json.dumps(coverage.rows(found) if found else [], indent=2))
        return ExitCode.OK
    for note in notes:
        print(note)
    if found:
        print(coverage.render(found, cells=options.cells), end="")
    print(f"{len(plan.cells)} cells, {len(plan.legs)} legs ({plan.shared} shared)")
    return ExitCode.OK
