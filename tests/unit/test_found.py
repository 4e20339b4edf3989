# SPDX-License-Identifier: Apache-2.0
"""docs/found.md and scenarios/found: each entry has one scenario, and each of its cells expects what the entry says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.records import Outcome
from harness.scenario import read_scenario
from harness.sharing import CONTROL

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "scenarios" / "found").glob("*.yaml"), key=lambda path: int(path.name[1:].split("_")[0]))
ENTRIES = re.split(r"^## ", (ROOT / "docs" / "found.md").read_text(), flags=re.MULTILINE)[1:]


def number(path: Path) -> str:
    return path.name.split("_")[0].upper()


def test_every_entry_has_its_scenario_and_says_all_that_a_reader_needs():
    assert [entry.split(":")[0] for entry in ENTRIES] == [number(path) for path in FILES]
    for entry, path in zip(ENTRIES, FILES, strict=True):
        assert f"`scenarios/found/{path.name}`" in entry
        rows = re.findall(r"^\| ([a-z ]+) \| (.+) \|$", entry, re.MULTILINE)
        assert [name for name, _ in rows] == ["connector", "scenario", "what happens", "what should", "known"]
        # A report elsewhere is named by its repository and number; where there is none the entry says so.
        known = rows[-1][1]
        assert re.search(r"[\w.-]+/[\w.-]+ (issue|pull request) \d+", known) or known.startswith("No report")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_finding_is_turned_into_a_pass(path):
    scenario = read_scenario(path)
    (expectation,) = scenario.expect
    # Where engines that differ share a store, the one cell that differs in nothing is the control, and passes.
    control = tuple(value for value in scenario.axes.get("differs", ()) if value != CONTROL)
    when = {"differs": control} if control else {}
    assert scenario.name == f"found-{number(path).lower()}"
    assert expectation.when == when and expectation.issue == f"docs/found.md, {number(path)}"
    assert expectation.outcome in (Outcome.CRASHED, Outcome.FAIL, Outcome.VACUOUS)
    assert expectation.match or expectation.finding
