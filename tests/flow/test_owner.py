# SPDX-License-Identifier: Apache-2.0
"""A run folder has one run at a time, and runs in different folders do not disturb each other."""

from __future__ import annotations

import datetime
import os
import signal
import subprocess
import sys

import pytest

from harness.archive import RunFolder
from harness.errors import UsageError
from harness.records import Plan
from tests.small import CELLS

HANGS = {CELLS[1]: {"subject": {"stages": {"restore": "hang"}}}}
PAUSES = {CELLS[0]: {"subject": {"stages": {"restore": "pause"}}}}


def test_the_second_run_of_a_folder_is_told_who_has_it(two_workers, start):
    """While it runs its workers share it; after it has ended another one may have it."""
    folder = two_workers.root / "mine"
    first = start(two_workers, "--kvparity-run", str(folder), fake=HANGS)
    first.until_it_hangs(folder, ended=CELLS[0])
    second = two_workers.run("--kvparity-run", str(folder))
    assert second.ret == 4
    line = next(line for line in second.stderr.lines if "mine" in line)
    assert f"a run is going on in this folder (process {first.process.pid} on " in line and ", since 20" in line
    assert "Traceback" not in second.stderr.str()
    first.process.send_signal(signal.SIGINT)
    first.end()
    assert two_workers.run("--kvparity-run", str(folder)).ret == 0


def test_two_runs_at_once_have_folders_of_their_own_and_the_same_verdicts(alone, start):
    runs = [start(alone, fake=PAUSES) for _ in range(2)]
    assert [run.end() for run in runs] == [0, 0]
    folders = sorted(path for path in (alone.root / "results").iterdir() if not path.is_symlink())
    assert len(folders) == 2
    frames = [(folder / "frame.csv").read_text().splitlines() for folder in folders]
    assert [line.split(",")[:8] for line in frames[0]] == [line.split(",")[:8] for line in frames[1]]
    assert len(frames[0]) == 3
    assert (alone.root / "results" / "latest").resolve() in folders


def test_two_runs_that_start_in_one_second_get_two_folders(tmp_path):
    now = datetime.datetime(2026, 11, 30, tzinfo=datetime.UTC)
    plan = Plan(schema=1, cells=(), legs=())
    one, two = (RunFolder.create(tmp_path, plan, now=now) for _ in range(2))
    assert two.path.name == f"{one.path.name}-2"
    assert (tmp_path / "latest").resolve() == two.path


def test_a_folder_is_free_again_when_its_owner_lets_go_or_dies(tmp_path):
    folder = RunFolder(tmp_path)
    folder.prepare()
    folder.own()
    with pytest.raises(UsageError, match=rf"\(process {os.getpid()} on .*, since .*\); wait until it has ended, or"):
        RunFolder(tmp_path).own()
    folder.disown()
    script = (
        "import os, signal, sys, pathlib; from harness.archive import RunFolder; "
        "f = RunFolder(pathlib.Path(sys.argv[1])); f.own(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False).returncode == -signal.SIGKILL
    RunFolder(tmp_path).own()
