# SPDX-License-Identifier: Apache-2.0
"""Run folders of the fake engine, made in this process: no pytest, no children, milliseconds a run.

The plan, the phases, the judgement and the files are those of a real run; only the child process is missing, which
tests/flow and tests/process cover.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness import host
from harness.archive import RunFolder
from harness.cli import main
from harness.records import Ending, Plan
from harness.session import Run, load_plan, write_results
from harness.worker import Stages, run_leg
from tests.model_folders import make_directory
from tests.small import SMALL

FACTS = {"platform": "fake engine", "exit": 0, "seconds": 1.0, "ended": "2026-11-30T00:00:00Z"}


class Quick:
    """Makes run folders under ``root``, and carries out verbs there."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root = root
        self._capsys = capsys
        make_directory(root / "model")

    def plan(self, text: str = SMALL, fake: Mapping[str, Any] | None = None) -> Plan:
        path = self.root / "small.yaml"
        path.write_text(text)
        plan, _ = load_plan([path], root=self.root, model=str(self.root / "model"), fake=fake or {})
        return plan

    def run(self, name: str, text: str = SMALL, fake: Mapping[str, Any] | None = None) -> Path:
        """A whole run folder ``name``."""
        return self.of_plan(name, self.plan(text, fake))

    def of_plan(self, name: str, plan: Plan, **facts: Any) -> Path:
        """The same for a plan, whose ``env.json`` has ``facts`` beside the usual ones."""
        folder = RunFolder(self.root / name)
        folder.prepare()
        folder.write_plan(plan)
        legs = {leg.digest: leg for leg in plan.legs}
        # As the runner does: an oracle whose subject did not come up is not run.
        for cell in plan.cells:
            for digest in (cell.subject, cell.oracle):
                observation = folder.read_observation(digest)
                if observation is None:
                    observation = _observe(legs[digest])
                    folder.write_observation(observation)
                if observation.ending is not Ending.OK:
                    break
        run = Run(plan=plan, folder=folder)
        known = {**host.identity(), **FACTS, **facts}
        view = run.view([cell.name for cell in plan.cells], {key: str(value) for key, value in known.items()})
        write_results(run, replace(view, seconds=known["seconds"]), known)
        return folder.path

    def verb(self, *arguments: str) -> tuple[int, str]:
        """Exit code of ``python -m harness``, and what it printed."""
        self._capsys.readouterr()
        code = main(arguments)
        told = self._capsys.readouterr()
        return code, told.out + told.err


def _observe(leg):
    with contextlib.ExitStack() as stack:
        descriptor = os.open(os.devnull, os.O_WRONLY)
        stack.callback(os.close, descriptor)
        return run_leg(leg, Stages(descriptor), Path(os.devnull))
