# SPDX-License-Identifier: Apache-2.0
"""``python -m harness``: what pytest has not. Verbs in the order of a working day.

``matrix`` runs this platform's matrix through pytest, ``plan`` shows cells and legs without running anything,
``report`` prints a stored run again, ``check`` judges its observations again with today's comparator, ``bench``
measures the embedded store.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness import __version__, host, wire
from harness.archive import RunFolder
from harness.device import slots
from harness.errors import ExitCode, HarnessError, UsageError
from harness.records import PLATFORMS, Verdict

if TYPE_CHECKING:
    from harness.report import RunView
    from harness.session import Run

#: What ``matrix`` runs where no scenario is named.
MATRIX = {"cpu": ("scenarios/matrix.yaml",), "rocm": ("scenarios/rocm.yaml",), "cuda": ("scenarios/cuda.yaml",)}


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

    matrix = verbs.add_parser("matrix", help="Run this platform's matrix, or the named scenarios")
    matrix.add_argument("scenarios", nargs="*", metavar="FILE", help="Scenario files (default: the platform's matrix)")
    matrix.add_argument("--workers", type=int, metavar="N", help="Cells side by side (default: what fits)")
    matrix.add_argument("--model", metavar="DIR", help="Model directory instead of the scenarios' own")
    matrix.add_argument("--run", metavar="DIR", help="Run folder to resume, or to make under this name")
    matrix.add_argument("-k", dest="expression", metavar="EXPRESSION", help="Cells whose name matches (pytest -k)")
    matrix.set_defaults(verb=_matrix)

    plan = verbs.add_parser("plan", help="Show what scenario files cover, as vLLM's own classes say; runs nothing")
    plan.add_argument("scenarios", nargs="+", metavar="FILE")
    plan.add_argument("--model", metavar="DIR", help="Model directory instead of the scenarios' own")
    plan.add_argument("--platform", choices=PLATFORMS, help="Platform to plan for (default: this machine's)")
    plan.add_argument("--cells", action="store_true", help="Also a line for every cell")
    plan.add_argument("--json", action="store_true", help="One object per cell")
    plan.set_defaults(verb=_plan)

    report = verbs.add_parser("report", help="Print a stored run again")
    report.add_argument("run", nargs="?", default="results/latest", metavar="RUN", help="Run folder (default: latest)")
    report.set_defaults(verb=_report)

    check = verbs.add_parser("check", help="Judge a stored run again; says which verdicts changed")
    check.add_argument("run", nargs="?", default="results/latest", metavar="RUN", help="Run folder (default: latest)")
    check.set_defaults(verb=_check)

    controls = verbs.add_parser("controls", help="Prove the detector: run every planted fault, fail on what is missed")
    controls.add_argument("--list", action="store_true", help="Show the faults and what each must lead to")
    controls.add_argument("--json", action="store_true", help="One object per fault")
    controls.add_argument("-k", dest="expression", metavar="TEXT", help="Faults whose name has one of the texts a,b")
    controls.add_argument("--workers", type=int, metavar="N", help="Faults side by side (default: what fits)")
    controls.add_argument("--run", metavar="DIR", help="Keep the run folder, and what has run in it, here")
    controls.set_defaults(verb=_controls)

    ab = verbs.add_parser("ab", help="The same scenarios against two versions of the UMBP connector's source")
    ab.add_argument("base", metavar="BASE", help="Overlay: a vLLM checkout, git:REPO@REF or wheel:vllm==VERSION")
    ab.add_argument("candidate", metavar="CAND", help="Overlay to hold against it")
    ab.add_argument("scenarios", nargs="*", metavar="FILE", help="Scenario files (default: scenarios/umbp.yaml)")
    ab.add_argument("--workers", type=int, metavar="N", help="Cells side by side (default: what fits)")
    ab.add_argument("--run", metavar="DIR", help="Folder for both runs (default: a new one under results/)")
    ab.add_argument("-k", dest="expression", metavar="EXPRESSION", help="Cells whose name matches (pytest -k)")
    ab.set_defaults(verb=_ab)

    doctor = verbs.add_parser("doctor", help="Say what this machine can run, and why not the rest")
    doctor.add_argument("--json", action="store_true", help="One object per fact")
    doctor.set_defaults(verb=_doctor)

    bench = verbs.add_parser("bench", help="Measure the embedded store beside a plain copy of the same bytes")
    bench.add_argument("--blocks", type=int, default=64, metavar="N", help="Blocks moved at once (default: 64)")
    bench.add_argument("--json", action="store_true", help="One object per layout and path")
    bench.add_argument("--plot", metavar="FILE", help="Write the ratios as a PNG (needs matplotlib)")
    bench.set_defaults(verb=_bench)
    return parser


def _matrix(options: argparse.Namespace) -> int:
    import pytest

    scenarios = options.scenarios or list(MATRIX[host.platform()])
    missing = [name for name in scenarios if not Path(name).exists()]
    if missing:
        raise UsageError(f"{', '.join(missing)}: no such scenario file; run from the checkout, or name one that exists")
    workers = slots() if options.workers is None else options.workers
    arguments = [*scenarios]
    if workers > 1:
        arguments += ["-n", str(workers)]
    if options.expression:
        arguments += ["-k", options.expression]
    if options.model:
        arguments += ["--kvparity-model", options.model]
    if options.run:
        arguments += ["--kvparity-run", options.run]
    return int(pytest.main([*arguments, *options.rest]))


def _ab(options: argparse.Namespace) -> int:
    from harness import ab

    return ab.run(
        options.base,
        options.candidate,
        options.scenarios or ab.SCENARIOS,
        expression=options.expression,
        workers=slots() if options.workers is None else options.workers,
        folder=Path(options.run) if options.run else None,
        rest=options.rest,
    )


def _plan(options: argparse.Namespace) -> int:
    from harness import coverage
    from harness.session import scenario_files

    files = scenario_files(options.scenarios, Path.cwd())
    here = coverage.machine_platform()
    plan, notes = coverage.load(files, platform=options.platform or host.platform(), model=options.model)
    found = coverage.predict(plan, options.platform or host.platform(), here) if plan.cells else None
    if options.json:
        print(json.dumps(coverage.rows(found) if found else [], indent=2))
        return ExitCode.OK
    for note in notes:
        print(note)
    if found:
        print(coverage.render(found, cells=options.cells), end="")
    print(f"{len(plan.cells)} cells, {len(plan.legs)} legs ({2 * len(plan.cells) - len(plan.legs)} shared)")
    return ExitCode.OK


def _stored(path: str) -> Run:
    from harness.session import join_run

    folder = Path(path)
    if not folder.is_dir():
        raise UsageError(f"{path}: no such run folder; runs live under results/")
    return join_run(RunFolder(folder))


def _report(options: argparse.Namespace) -> int:
    from harness.report.text import render_text

    run = _stored(options.run)
    print(render_text(_view(run)), end="")
    return ExitCode.OK


def _view(run: Run) -> RunView:
    env = run.folder.path / "env.json"
    facts = json.loads(env.read_text()) if env.exists() else {}
    view = run.view([cell.name for cell in run.plan.cells], {key: str(value) for key, value in facts.items()})
    # The stored duration, not the time since this process read the folder.
    return replace(view, seconds=float(facts.get("seconds", 0.0)))


def _check(options: argparse.Namespace) -> int:
    from harness.session import GREEN

    run = _stored(options.run)
    verdicts, _ = run.judge_stored(run.plan)
    stored = {}
    path = run.folder.path / "verdicts.jsonl"
    if path.exists():
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            verdict = wire.from_plain(Verdict, json.loads(line), where=f"{path}:{number}")
            stored[verdict.scenario, verdict.cell] = verdict
    changed = 0
    for verdict in verdicts:
        before = stored.get((verdict.scenario, verdict.cell))
        if before != verdict:
            changed += 1
            was = before.verdict if before else "not judged"
            print(f"{verdict.scenario}::{verdict.cell}: {was} -> {verdict.verdict}")
    print(f"{len(verdicts)} cells judged again, {changed} verdicts changed")
    return ExitCode.OK if all(verdict.verdict in GREEN for verdict in verdicts) else ExitCode.FAILED


def _controls(options: argparse.Namespace) -> int:
    from harness.controls import show

    return show.main(
        expression=options.expression, list_only=options.list, to_json=options.json, workers=options.workers,
        run=options.run,
    )


def _doctor(options: argparse.Namespace) -> int:
    from harness import doctor

    facts = doctor.examine()
    print(json.dumps(doctor.as_plain(facts), indent=2) if options.json else doctor.render(facts).rstrip())
    return doctor.exit_code(facts)


def _bench(options: argparse.Namespace) -> int:
    from harness import bench

    bench.show(blocks=options.blocks, as_json=options.json, plot_to=options.plot)
    return ExitCode.OK
