# SPDX-License-Identifier: Apache-2.0
"""Legs of the tiny model for tests that start real vLLM engines."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import host
from harness.archive import RunFolder
from harness.models import find_model
from harness.plan import make_plan
from harness.records import Plan
from harness.scenario import read_scenario

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def smoke_plan() -> Plan:
    """The plan of scenarios/smoke.yaml on a CPU host."""
    scenario = read_scenario(ROOT / "scenarios" / "smoke.yaml")
    return make_plan([scenario], platform="cpu", find_model=find_model, identity=host.identity())


@pytest.fixture
def run_folder(tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path / "run")
    made.prepare()
    return made
