# SPDX-License-Identifier: Apache-2.0
"""pytest is the door to a run: ``pytest scenarios`` collects every cell as an item.

``-k``, ``-x``, ``--lf``, ``--collect-only``, ``--junitxml`` and pytest-xdist's ``-n`` work as for any test. Loaded by
the repository's ``conftest.py``; does nothing when no scenario file is among the paths.
"""

from __future__ import annotations

import datetime
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness import host, wire
from harness.archive import RunFolder
from harness.asked import Asked, of_files
from harness.errors import ExitCode, HarnessError
from harness.helping import Helping
from harness.interrupt import Interrupts
from harness.items import RUN, VERDICT, CellItem, ScenarioFile, property_of
from harness.plan import select
from harness.progress import Progress
from harness.records import AMBER, GREEN, Outcome
from harness.report import RunView
from harness.session import Run, join_run, load_plan, open_run, scenario_files, write_results
from harness.shard import SHARD_FILE, ShardFile, part, read_spec

PROGRESS = pytest.StashKey[Progress]()
NOTES = pytest.StashKey[list[str]]()
#: Scenario files of this run, resolved; one may have no cell here, on this platform or in this shard.
FILES = pytest.StashKey[list[str]]()
#: Names of the cells that are to run.
SELECTED = pytest.StashKey[list[str]]()
#: What this run was asked to run.
ASKED = pytest.StashKey[Asked]()
#: Cell name -> the verdict word of its report, in the order in which the cells ended.
ENDED = pytest.StashKey[dict[str, str]]()
#: Where run folders are made.
RESULTS = pytest.StashKey[Path]()
#: Why the reports are not in the run folder.
UNWRITTEN = pytest.StashKey[str]()
#: What the reports show, once the session has finished.
VIEW = pytest.StashKey[RunView]()

#: Key of pytest-xdist's worker input that names the run folder.
WORKER_FOLDER = "kvparity_run_folder"
#: Key of its input that lists the scenario files.
WORKER_FILES = "kvparity_scenario_files"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kvparity", "KV cache parity scenarios")
    group.addoption("--kvparity-model", metavar="DIR", help="Model directory instead of the scenarios' own")
    group.addoption("--kvparity-run", metavar="DIR", help="Run folder to resume, or to make under this name")
    group.addoption("--kvparity-results", metavar="DIR", help="Where run folders are made (default: results)")
    group.addoption("--kvparity-shard", metavar="I/N", help="Only part I of N of the cells; no leg is in two parts")
    group.addoption("--kvparity-fake", metavar="FILE", help="Use the fake engine; JSON: cell id, role, what to plant")


# --- start ------------------------------------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Read every scenario file before anything starts; a bad one ends the session with exit code 4."""
    config = session.config
    try:
        worker = getattr(config, "workerinput", None)
        if worker is not None:
            if WORKER_FOLDER in worker:
                config.stash[FILES] = worker[WORKER_FILES]
                config.stash[RUN] = join_run(RunFolder(Path(worker[WORKER_FOLDER])))
                Interrupts().install()
                config.pluginmanager.register(Helping(), "kvparity-helping")
            return
        files = scenario_files(config.args, config.rootpath)
        if files:
            _open(config, files)
    except HarnessError as error:
        raise pytest.UsageError(str(error)) from None


def _open(config: pytest.Config, files: list[Path]) -> None:
    fake = config.getoption("--kvparity-fake")
    plan, notes = load_plan(
        files,
        root=config.rootpath,
        model=config.getoption("--kvparity-model"),
        fake=json.loads(Path(fake).read_text()) if fake else None,
    )
    config.stash[NOTES] = notes
    config.stash[FILES] = [str(path.resolve()) for path in files]
    whole, spec = plan, config.getoption("--kvparity-shard")
    config.stash[ASKED] = of_files(
        (cell.scenario for cell in whole.cells), files, root=config.rootpath,
        platform="cpu" if fake else host.platform(), shard=spec,
    )
    if spec:
        shard = read_spec(spec)
        plan = part(whole, shard)
        notes.append(
            f"shard {shard}: {len(plan.cells)} of {len(whole.cells)} cells, {len(plan.legs)} of {len(whole.legs)} legs"
        )
    results = Path(config.getoption("--kvparity-results") or config.rootpath / "results")
    config.stash[RESULTS] = results
    if config.option.collectonly:
        # Nothing will run: the plan is shown, no folder is made.
        config.stash[RUN] = Run(plan=plan, folder=RunFolder(results / "not-made"))
        return
    chosen = config.getoption("--kvparity-run")
    run = config.stash[RUN] = open_run(plan, results=results, chosen=Path(chosen) if chosen else None)
    if spec:
        wire.write(run.folder.path / SHARD_FILE, ShardFile(index=shard.index, count=shard.count, whole=whole))
    Interrupts().install()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a pytest-xdist worker which run it belongs to."""
    run = node.config.stash.get(RUN, None)
    if run is not None:
        node.workerinput[WORKER_FOLDER] = str(run.folder.path)
        node.workerinput[WORKER_FILES] = node.config.stash[FILES]


# --- collection -------------------------------------------------------------------------------------------------


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    run = parent.config.stash.get(RUN, None)
    if run is None or file_path.suffix not in {".yaml", ".yml"}:
        return None
    if str(file_path.resolve()) not in parent.config.stash[FILES]:
        return None
    return ScenarioFile.from_parent(parent, path=file_path)


# --- while it runs ----------------------------------------------------------------------------------------------


def pytest_report_header(config: pytest.Config) -> list[str]:
    run = config.stash.get(RUN, None)
    if run is None:
        return []
    plan = run.plan
    expected = sum(cell.expectation is not None for cell in plan.cells)
    model = sorted({f"{leg.model.alias} ({leg.model.source})" for leg in plan.legs})
    lines = [
        f"kvparity: {len({cell.scenario for cell in plan.cells})} scenarios -> {len(plan.cells)} cells, "
        f"{len(plan.legs)} legs ({plan.shared} shared), {expected} cells with an expectation; "
        f"model {', '.join(model) or 'none'}",
        *(f"kvparity: {note}" for note in config.stash[NOTES]),
    ]
    if not config.option.collectonly:
        lines.append(f"kvparity: run folder {run.folder.path} ({run.reused} legs reused)")
    ignored = host.ignored_variables()
    if ignored:
        lines.append(f"kvparity: not passed on to the engines: {', '.join(ignored)} (use a scenario's env)")
    return lines


def pytest_collection_finish(session: pytest.Session) -> None:
    config = session.config
    if config.stash.get(RUN, None) and not hasattr(config, "workerinput") and not config.option.collectonly:
        _start_progress(config, [item.cell.name for item in session.items if isinstance(item, CellItem)])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: list[str]) -> None:
    """With pytest-xdist the controller collects nothing itself; a worker tells it the node ids."""
    run = node.config.stash.get(RUN, None)
    if run and PROGRESS not in node.config.stash:
        names = {f"{cell.path}::{cell.id}": cell.name for cell in run.plan.cells}
        _start_progress(node.config, [names[identifier] for identifier in ids if identifier in names])


def _start_progress(config: pytest.Config, selected: list[str]) -> None:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    # A stream of its own: while an item runs, pytest's capture owns descriptor 1. It does not own it here.
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8")

    def say(line: str) -> None:
        if reporter is not None and reporter.verbosity >= 0:
            print(f"\n{datetime.datetime.now():%H:%M:%S} {line}", file=stream, flush=True)

    run = config.stash[RUN]
    config.stash[SELECTED] = selected
    config.stash[ASKED] = config.stash[ASKED].chosen(len(selected), len(run.plan.cells))
    progress = Progress(run.folder, select(run.plan, selected), say)
    config.stash[PROGRESS] = progress
    config.add_cleanup(stream.close)
    progress.start()


class Recorder:
    """Notes each cell's verdict word; an object because pytest_runtest_logreport is given no config."""

    def __init__(self, ended: dict[str, str]) -> None:
        self._ended = ended

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and (cell := property_of(report, "cell")):
            # Without a verdict the harness itself broke on this cell; pytest shows the traceback.
            self._ended[cell] = property_of(report, VERDICT) or Outcome.CRASHED.value


def pytest_configure(config: pytest.Config) -> None:
    config.stash[ENDED] = {}
    config.stash[NOTES] = []
    config.pluginmanager.register(Recorder(config.stash[ENDED]), "kvparity-recorder")


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """Give each verdict a word of its own, so that nothing amber or expected is folded into "passed"."""
    if report.when != "call" or (word := property_of(report, VERDICT)) is None:
        return None
    if word == Outcome.PASS:
        return "passed", ".", "PASS"
    if word == Outcome.EXPECTED:
        return "expected", "e", f"EXPECTED ({property_of(report, 'outcome')})"
    letter = {"fail": "F", "crashed": "C"}.get(word, word[0])
    # pytest lists the category "failed" with its details; the report below has them for the others.
    return ("failed" if word in {"fail", "crashed"} else word), letter, word.upper()


# --- end --------------------------------------------------------------------------------------------------------


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    config = session.config
    run = config.stash.get(RUN, None)
    if run is None:
        return
    run.close()
    if hasattr(config, "workerinput") or config.option.collectonly:
        return
    progress = config.stash.get(PROGRESS, None)
    if progress is not None:
        progress.stop()
    words = config.stash[ENDED]
    facts = run.facts(None if progress is None else progress.peak_bytes)
    view = run.view(words, facts, config.stash.get(SELECTED, ()))
    config.stash[VIEW] = view
    facts |= config.stash[ASKED].facts()
    try:
        write_results(run, view, facts | {"exit": int(exitstatus), "seconds": view.seconds, "ended": _now()})
    except OSError as error:
        # A full disk: the report is still printed, but nobody may take the run for one that left its files.
        config.stash[UNWRITTEN] = f"the reports could not be written: {error}"
        session.exitstatus = ExitCode.INTERNAL
        return
    red = [word for word in words.values() if word not in GREEN]
    if exitstatus == ExitCode.FAILED and red and len(red) == session.testsfailed and set(red) <= set(AMBER):
        session.exitstatus = ExitCode.AMBER


def _now() -> str:
    return f"{datetime.datetime.now(datetime.UTC):%Y-%m-%dT%H:%M:%SZ}"


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    view = config.stash.get(VIEW, None)
    if view is None:
        return
    from harness.report.text import render_text

    terminalreporter.ensure_newline()
    terminalreporter.section("kvparity report")
    terminalreporter.write(render_text(view, color=terminalreporter.hasmarkup))
    for name in sorted(config.stash[ENDED].keys() - {one.name for one in view.verdicts}):
        terminalreporter.write_line(f"{name}: {config.stash[ENDED][name]}, and its result could not be kept")
    _compare_with_accepted(terminalreporter, config, view)
    files = f"report: {view.folder}/report.html, {view.folder}/report.md, {view.folder}/frame.csv"
    terminalreporter.write_line(config.stash.get(UNWRITTEN, files))


def _compare_with_accepted(terminalreporter: Any, config: pytest.Config, view: RunView) -> None:
    """What changed since the accepted run of this platform, where there is one; the exit code is the run's own."""
    from harness import accepted
    from harness.report.changes import render_short

    root = config.stash[RESULTS] / accepted.REFERENCE.name
    asked = replace(config.stash[ASKED], unanswered=tuple(view.cells.keys() - {one.name for one in view.verdicts}))
    try:
        comparison = accepted.against_reference(view.frame, root, view.platform, asked)
    except HarnessError as error:
        terminalreporter.write_line(f"not compared with the accepted run: {error}")
        return
    if comparison is not None:
        terminalreporter.write(render_short(comparison) + "\n")
