# SPDX-License-Identifier: Apache-2.0
"""The front page is true: its map names every module, its links and commands exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_map_names_every_module_once():
    table = README.split("## Where things live")[1].split("\n## ")[0]
    named = re.findall(r"^\| `([^`]+\.py)` \|", table, re.MULTILINE)
    there = {str(path.relative_to(ROOT / "harness")) for path in (ROOT / "harness").rglob("*.py")} - {"__init__.py"}
    assert sorted(named) == sorted(there)


def test_every_scenario_is_described():
    for path in (ROOT / "scenarios").glob("*.yaml"):
        assert f"`{path.name}`" in README, path.name


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_make_targets_and_verbs_exist():
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:`|^)make ([a-z]+(?:-[a-z]+)*)", README, re.MULTILINE)) <= targets
    assert {"matrix", "test"} <= targets
    parsers = "".join(path.read_text() for path in (ROOT / "harness" / "verbs").glob("*.py"))
    for verb in re.findall(r"python -m harness\s+([a-z]+)", README):
        assert f'add_parser("{verb}"' in parsers, verb
