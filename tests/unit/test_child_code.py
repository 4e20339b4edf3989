# SPDX-License-Identifier: Apache-2.0
"""Every module of ours that a leg's child loads is part of the leg's identity, or only looks at the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness import host
from harness.host import CHILD_MODULES, CHILD_PACKAGES

#: Loaded in the child, and without a say in its answer.
ONLY_LOOKING = {"harness", "harness.device", "harness.errors", "harness.footprint", "harness.stacks"}


def test_what_the_child_loads_is_part_of_its_identity():
    code = "import sys, harness.worker, harness.warm; print(*(name for name in sys.modules if 'harness' in name))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    loaded = [name for name in loaded if name.split(".")[0] == "harness"]
    assert "harness.leg" in loaded
    covered = {f"harness.{name}" for name in (*CHILD_MODULES, *CHILD_PACKAGES)}
    left = {name for name in loaded if ".".join(name.split(".")[:2]) not in covered}
    assert left <= ONLY_LOOKING


@pytest.mark.parametrize("name", ["leg", "child_env", "parts", "servers"])
def test_a_change_in_what_decides_an_answer_makes_other_legs(tmp_path, monkeypatch, name):
    for path in Path(host.__file__).parent.rglob("*.py"):
        copy = tmp_path / path.relative_to(Path(host.__file__).parent)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    monkeypatch.setattr(host, "__file__", str(tmp_path / "host.py"))
    before = host.source_digest()
    with (tmp_path / "progress.py").open("a") as stream:
        stream.write("# other\n")
    assert host.source_digest() == before
    with (tmp_path / f"{name}.py").open("a") as stream:
        stream.write("# other\n")
    assert host.source_digest() != before


def test_code_of_every_engine_is_covered():
    from harness.engines import ENGINES

    assert {module.split(".")[1] for module in ENGINES.values()} <= set(CHILD_PACKAGES)
    # harness.engines.unit goes on in this package.
    assert "unit" in CHILD_PACKAGES
