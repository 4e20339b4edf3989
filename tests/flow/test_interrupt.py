# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C once ends a run in order, twice at once; neither leaves a process, and what had finished is kept."""

from __future__ import annotations

import signal
import subprocess
import sys

from tests.small import CELLS

#: The second cell hangs; the first one has finished then, also with two workers.
HANGS = {CELLS[1]: {"subject": {"stages": {"restore": "hang"}}}}
#: The engine ignores SIGTERM and the like by being stopped.
STOPS = {CELLS[1]: {"subject": {"stages": {"restore": "sigstop"}}}}


def harness(root, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "harness", *arguments], cwd=root, capture_output=True, text=True, check=False
    )


def test_once_keeps_what_has_finished_and_writes_the_reports(suite, start):
    run = start(suite, fake=STOPS)
    run.until_it_hangs(suite.folder, ended=CELLS[0])
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 2
    assert "KeyboardInterrupt" in run.text and "INTERNALERROR" not in run.text
    assert suite.outcomes() == {CELLS[0]: "pass"}
    kept = len(list(suite.folder.glob("legs/*.json")))
    # The oracle of the cell that hangs may have run beside it.
    assert kept in (2, 3)
    assert (suite.folder / "report.md").read_text().count(CELLS[0]) >= 1
    assert "2 cells: 1 pass, 1 not run" in run.text
    # What was asked for and has no result is a gap of the run, which is not green then.
    assert harness(suite.root, "check", "results/latest").returncode == 10
    again = suite.run("--kvparity-run", str(suite.folder.resolve()))
    assert again.ret == 0
    again.stdout.fnmatch_lines([f"*({kept} legs reused)*"])


def test_twice_is_at_once(suite, start):
    """The second one comes while the first is still being worked on: the worker that should end is stopped."""
    run = start(suite, fake=STOPS)
    run.until_it_hangs(suite.folder, ended=CELLS[0])
    run.process.send_signal(signal.SIGINT)
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 2
    assert len(list(suite.folder.glob("legs/*.json"))) >= 2


def test_a_run_that_is_killed_takes_its_legs_with_it(alone, start):
    run = start(alone, fake=HANGS)
    run.until_it_hangs(alone.folder, ended=CELLS[0])
    run.process.kill()
    run.process.wait()
    run.none_left()


def test_a_terminal_sends_it_to_the_workers_too(two_workers, start):
    run = start(two_workers, fake=STOPS)
    run.until_it_hangs(two_workers.folder, ended=CELLS[0])
    subprocess.run(["kill", "-INT", "--", f"-{run.process.pid}"], check=True)
    assert run.end() == 2
    assert two_workers.outcomes() == {CELLS[0]: "pass"}
