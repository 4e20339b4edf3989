# SPDX-License-Identifier: Apache-2.0
"""A small suite in a folder of its own, run by the real pytest with the fake engine.

What several processes share (verdicts, exit codes, resume, progress) is run twice, without pytest-xdist and with two
workers: what a run says must not depend on that.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import psutil
import pytest

from harness import footprint
from tests.model_folders import make_directory
from tests.small import SMALL

#: Seconds for anything that a test waits for; nothing takes so long unless it is broken.
PATIENCE_S = 120.0


class Suite:
    """Runs ``pytest scenarios`` with the fake engine and reads what it left."""

    def __init__(self, pytester: pytest.Pytester, workers: list[str]) -> None:
        self._pytester = pytester
        self.workers = workers
        self.root: Path = pytester.path
        pytester.makeconftest('pytest_plugins = ["harness.pytest_plugin"]')
        (self.root / "scenarios").mkdir()
        self.scenario(SMALL)
        make_directory(self.root / "model")

    def scenario(self, text: str, name: str = "small.yaml") -> None:
        (self.root / "scenarios" / name).write_text(text)

    def command(self, *arguments: str, fake: dict | None = None, paths: tuple[str, ...] = ("scenarios",)) -> list[str]:
        plants = self.root / "fake.json"
        plants.write_text(json.dumps(fake or {}))
        return [
            sys.executable, "-m", "pytest", *paths, "--kvparity-fake", str(plants),
            "--kvparity-model", str(self.root / "model"), *self.workers, *arguments,
        ]

    def run(self, *arguments: str, **options):
        return self._pytester.run(*self.command(*arguments, **options))

    @property
    def folder(self) -> Path:
        return self.root / "results" / "latest"

    def frame(self) -> pd.DataFrame:
        return self.frame_of(self.folder)

    def frame_of(self, folder: str | Path) -> pd.DataFrame:
        return pd.read_csv(self.root / folder / "frame.csv").set_index("cell")

    def outcomes(self) -> dict[str, str]:
        return dict(self.frame()["verdict"])


class Started:
    """A run in a session of its own that goes on while the test does something."""

    def __init__(self, suite: Suite, arguments: tuple[str, ...], fake: dict | None) -> None:
        # A token for the run: whatever it starts inherits it, and can be found by it afterwards.
        self._token = f"test-{secrets.token_hex(8)}"
        self._lines: list[str] = []
        self.text = ""
        self.process = subprocess.Popen(
            suite.command(*arguments, fake=fake), cwd=suite.root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, start_new_session=True, env={**os.environ, "STARTED_BY_TEST": self._token},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        self._lines.extend(self.process.stdout)

    def until_it_hangs(self, folder: Path, *, ended: str, stage: str = "restore") -> None:
        """Wait until both legs of the cell ``ended`` have, and the one that is to hang is in its stage.

        Its own oracle may have ended as well: where there is room, a cell's legs run at the same time.
        """
        def there() -> bool:
            stages = [path.read_text() for path in folder.glob("legs/*.stage")]
            return stages == [stage] and all((folder / "legs" / f"{leg}.json").exists() for leg in legs_of(folder))

        def legs_of(folder: Path) -> list[str]:
            cells = json.loads((folder / "plan.json").read_text())["cells"]
            return [cell[role] for cell in cells if cell["id"] == ended for role in ("oracle", "subject")]

        until, tick = time.monotonic() + PATIENCE_S, threading.Event()
        while not there():
            assert self.process.poll() is None and time.monotonic() < until, self.rest()
            tick.wait(0.05)

    def rest(self) -> str:
        self.kill()
        return self._rest()

    def _rest(self) -> str:
        self._reader.join(PATIENCE_S)
        return "".join(self._lines)

    def end(self) -> int:
        """Wait for its end and look for what it has left; its exit code."""
        code = self.process.wait(PATIENCE_S)
        self.text = self._rest()
        self.none_left()
        return code

    def none_left(self) -> None:
        """Nothing that the run started is alive; the kernel may still be about to end what was just killed."""
        footprint.await_gone(self.alive(), PATIENCE_S)
        assert [footprint.describe(pid) for pid in self.alive()] == []

    def alive(self) -> list[int]:
        return [
            process.pid for process in psutil.process_iter()
            if process.pid != os.getpid() and self._token in _environment(process)
            and process.status() != psutil.STATUS_ZOMBIE
        ]

    def kill(self) -> None:
        for pid in self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def _environment(process: psutil.Process) -> str:
    try:
        return process.environ().get("STARTED_BY_TEST", "")
    except psutil.Error:
        return ""


@pytest.fixture
def start() -> Iterator[Callable[..., Started]]:
    """Starts runs; kills at the test's end what is left of them."""
    runs: list[Started] = []

    def started(suite: Suite, *arguments: str, fake: dict | None = None) -> Started:
        runs.append(Started(suite, arguments, fake))
        return runs[-1]

    yield started
    for run in runs:
        run.kill()


@pytest.fixture(params=[["-p", "no:xdist"], ["-n", "2"]], ids=["alone", "two-workers"])
def suite(request: pytest.FixtureRequest, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Suite:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    return Suite(pytester, request.param)


@pytest.fixture
def alone(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Suite:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    return Suite(pytester, ["-p", "no:xdist"])


@pytest.fixture
def two_workers(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Suite:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    return Suite(pytester, ["-n", "2"])


@pytest.fixture
def two_workers_of() -> Callable[[Suite], Suite]:
    """The same suite, run by two workers."""

    def made(suite: Suite) -> Suite:
        other = copy.copy(suite)
        other.workers = ["-n", "2"]
        return other

    return made
