# SPDX-License-Identifier: Apache-2.0
"""The front page and the pages it links are true: rooms, modules, controls, links and commands, none missing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.controls import CONTROLS, plant
from harness.records import Model

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "results" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
#: Controls are planted on a model that nobody loads.
MODEL = Model(
    alias="tiny", path="/nowhere", source="stand-in", digest="0" * 16, num_layers=4, num_kv_heads=4, head_dim=32,
    vocab_size=1024,
)

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def test_the_map_names_every_module_once():
    named = re.findall(r"^\| `([^`]+\.py)` \|", (ROOT / "docs" / "map.md").read_text(encoding="utf-8"), re.MULTILINE)
    there = {str(path.relative_to(ROOT / "harness")) for path in (ROOT / "harness").rglob("*.py")} - {"__init__.py"}
    assert sorted(named) == sorted(there)


def test_every_room_is_named_and_exists():
    table = README.split("## Where things live")[1].split("\n\n")[1]
    named = re.findall(r"`([^`]+/)`", "\n".join(line.split(" | ")[0] for line in table.splitlines()))
    assert all((ROOT / room).is_dir() for room in named)
    packages = {f"harness/{path.parent.name}/" for path in (ROOT / "harness").glob("*/__init__.py")}
    assert packages <= set(named)
    assert {"harness/", "scenarios/", "results/", "tests/", "docs/"} <= set(named)


def test_every_scenario_is_described():
    for path in (ROOT / "scenarios").glob("*.yaml"):
        assert f"`{path.name}`" in README, path.name


def test_the_front_page_leads_to_every_page():
    linked = re.findall(r"^\| \[docs/([^]]+)\]", README, re.MULTILINE)
    assert sorted(linked) == sorted(path.name for path in (ROOT / "docs").glob("*.md"))


def test_both_tables_of_controls_are_those_that_run():
    """The page has a row for each control, the front page each of their names beside its finding."""
    planted = plant(CONTROLS, find_model=lambda name: MODEL, identity={"vllm": "0"}, stores="/stores")
    asked = {(one.name, one.control.where, str(one.control.outcome), str(one.control.finding)) for one in planted}
    page = (ROOT / "docs" / "controls.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `([^`]+)` \| (\w+) \| (\w+) \| `(\w+)`: ", page, re.MULTILINE)) == asked
    rows = re.findall(r"^\| (\w+) \| (\w+) \| `(\w+)` \| (`.+`) \|$", README, re.MULTILINE)
    assert {
        (name, where, outcome, kind) for where, outcome, kind, names in rows for name in re.findall("`([^`]+)`", names)
    } == asked
    for text in (README, page):
        assert set(re.findall(r"(\d+)\s+(?:planted )?faults in store", text)) == {str(len(asked))}


@every_page
def test_links_lead_somewhere(page: Path):
    """Files exist, and so do the headings behind ``#``, named as a Markdown page's anchors are."""
    for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]+))?\)", page.read_text(encoding="utf-8")):
        there = (page.parent / target).resolve() if target else page
        assert there.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", there.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in headings}, anchor


@every_page
def test_make_targets_and_verbs_exist(page: Path):
    text = page.read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"matrix", "test"} <= targets
    assert set(re.findall(r"(?:`|^|[A-Z]=\S+ )make ([a-z]+(?:-[a-z]+)*)", text, re.MULTILINE)) <= targets
    parsers = "".join(path.read_text() for path in (ROOT / "harness" / "verbs").glob("*.py"))
    for verb in re.findall(r"python -m harness\s+([a-z]+)", text):
        assert f'add_parser("{verb}"' in parsers, verb
