# SPDX-License-Identifier: Apache-2.0
"""``compare``: two stored runs side by side; what fails now that did not, and what cannot be compared."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from harness import wire


def add(verbs: argparse._SubParsersAction) -> None:
    parser = verbs.add_parser("compare", help="Say what changed from one stored run to another")
    parser.add_argument("base", metavar="BASE", help="Run folder, or results/reference/PLATFORM")
    parser.add_argument("run", nargs="?", default="results/latest", metavar="RUN", help="Run folder (default: latest)")
    parser.add_argument("--markdown", metavar="FILE", help="Also write it as Markdown")
    parser.add_argument("--json", action="store_true", help="One object instead of text")
    parser.add_argument("--common", action="store_true", help="Without cells that one run alone was asked for")
    parser.set_defaults(verb=run)


def run(options: argparse.Namespace) -> int:
    from harness import baseline
    from harness.report import changes

    names = (options.base, options.run)
    base, new = (baseline.load(Path(name)) for name in names)
    notes = [f"{name} is not whole: {gap}" for name, side in zip(names, (base, new), strict=True) for gap in side.gaps]
    how = baseline.covered if options.common else baseline.compare
    comparison = how(base.frame, new.frame, names=names, notes=notes, asked=new.asked)
    if options.markdown:
        wire.write_text(Path(options.markdown), changes.render_markdown(comparison))
    if options.json:
        print(json.dumps(changes.as_plain(comparison), indent=2))
    else:
        print(changes.render_text(comparison), end="")
    return comparison.exit_code
