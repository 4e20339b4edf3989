# SPDX-License-Identifier: Apache-2.0
"""A resumed run takes over exactly those legs whose answer could not have changed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from harness import host
from harness.records import Role
from harness.session import load_plan
from tests.flow.conftest import Suite
from tests.small import SMALL

OWN = SMALL.replace(
    "subject: {connector: embedded}",
    "subject: {kv_transfer_config: {kv_connector: Mine, kv_connector_module_path: mine.connector}}",
)
FILES = {
    "mine/__init__.py": "",
    "mine/connector.py": "x = 1",
    # Stands for the engine: any of harness.host.PACKAGES would do.
    "triton/__init__.py": "x = 1",
    "triton-1.0.dist-info/METADATA": "Name: triton\nVersion: 1.0\n",
}


@pytest.fixture
def site(tmp_path_factory: pytest.TempPathFactory, alone: Suite) -> Path:
    """A folder for Python's path with a connector and a package that computes for the engine."""
    folder = tmp_path_factory.mktemp("site")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    alone.scenario(OWN)
    return folder


def test_a_resumed_run_says_how_many_legs_it_takes_over(alone, site, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{site}:{':'.join(sys.path)}")

    def run() -> int:
        result = alone.run("--kvparity-run", str(alone.root / "run"))
        assert result.ret == 0, result.stdout.str()
        return int(next(line for line in result.stdout.lines if "legs reused" in line).split("(")[1].split()[0])

    assert [run(), run()] == [0, 4]
    (site / "mine" / "connector.py").write_text("x = 2")
    assert run() == 2, "the oracles have no connector"
    (site / "triton" / "__init__.py").write_text("x = 2")
    assert run() == 0
    plan = json.loads((alone.root / "run" / "plan.json").read_text())
    subjects = [leg["identity"] for leg in plan["legs"] if leg["role"] == "subject"]
    assert all({"connector_files:mine.connector", "triton_files", "triton"} <= set(one) for one in subjects)


@pytest.fixture
def digests(alone, site, monkeypatch):
    """The legs of the suite as they would be planned now: role -> digests."""
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.chdir(alone.root)

    def planned() -> dict[Role, set[str]]:
        host.identity.cache_clear()
        plan, _ = load_plan(
            [alone.root / "scenarios" / "small.yaml"], root=alone.root, model=str(alone.root / "model"), fake={}
        )
        return {role: {leg.digest for leg in plan.legs if leg.role is role} for role in Role}

    yield planned
    host.identity.cache_clear()


def write(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


CHANGES = {
    "a weights file": lambda suite, site, patch: (suite.root / "model" / "model.safetensors").write_bytes(b"weightz"),
    "the model's config": lambda suite, site, patch: write(suite.root / "model" / "config.json", "16", "32"),
    "a package's version": lambda suite, site, patch: write(site / "triton-1.0.dist-info/METADATA", "1.0", "1.1"),
    "a package's file": lambda suite, site, patch: write(site / "triton" / "__init__.py", "1", "2"),
    "the prompts": lambda suite, site, patch: suite.scenario(OWN.replace("count: 2", "count: 2, seed: 7")),
    "the scenario's env": lambda suite, site, patch: suite.scenario(OWN + "env: {OMP_NUM_THREADS: '2'}\n"),
    "the caller's environment": lambda suite, site, patch: patch.setenv("TORCH_ALLOW_TF32", "1"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_one_change_makes_every_leg_new(alone, site, digests, monkeypatch, change):
    before = digests()
    assert digests() == before
    CHANGES[change](alone, site, monkeypatch)
    after = digests()
    assert all(before[role].isdisjoint(after[role]) and len(after[role]) == 2 for role in Role)


@pytest.mark.parametrize("name", ["connector.py", "beside.py"])
def test_another_connector_makes_new_subjects_and_keeps_the_oracles(site, digests, name):
    before = digests()
    (site / "mine" / name).write_text("x = 2")
    after = digests()
    assert before[Role.ORACLE] == after[Role.ORACLE]
    assert before[Role.SUBJECT].isdisjoint(after[Role.SUBJECT])


def test_a_connector_that_is_not_there_is_said_before_anything_starts(alone):
    alone.scenario(OWN.replace("mine.connector", "nowhere_at_all.connector"))
    result = alone.run("--collect-only")
    result.stdout.fnmatch_lines(["*connector module nowhere_at_all.connector is not on Python's path*"])
