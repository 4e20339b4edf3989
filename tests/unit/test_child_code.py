# SPDX-License-Identifier: Apache-2.0
"""Every module of ours that a leg's child can load is part of the leg's identity, or only looks at the process."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from harness import host
from harness.host import CHILD_MODULES, CHILD_PACKAGES

#: Loaded in the child, and without a say in its answer.
ONLY_LOOKING = {"device", "errors", "footprint", "garbage", "shared_memory", "stacks"}


def test_what_the_child_loads_is_part_of_its_identity():
    """Also what is imported inside a function, when it is needed."""
    root = Path(host.__file__).parent
    covered = {root / f"{name}.py" for name in CHILD_MODULES}
    covered |= {path for name in CHILD_PACKAGES for path in root.glob(f"{name}/**/*.py")}
    seen, ahead = set(covered), list(covered)
    while ahead:
        for path in _imported(ahead.pop(), root) - seen:
            seen.add(path)
            ahead.append(path)
    assert root / "leg.py" in seen and root / "connectors" / "lmcache.py" in seen
    assert {path.stem for path in seen - covered} == ONLY_LOOKING


def _imported(path: Path, root: Path) -> set[Path]:
    """Files of ours that a module imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{one.name}" for one in node.names)}
    parts = [root.joinpath(*name.split(".")[1:]) for name in names if name.startswith("harness.")]
    files = {file for part in parts for file in (part.with_suffix(".py"), part / "__init__.py")}
    return {file for file in files if file.exists()}


@pytest.mark.parametrize("name", ["leg", "child_env", "parts", "servers", "server_kinds", "adapter", "bits"])
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
