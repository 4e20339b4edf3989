# SPDX-License-Identifier: Apache-2.0
"""The accepted run: what is refused, what is written, what a later run is told."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pandas as pd
import pytest

from harness.accepted import against_reference
from harness.asked import Asked
from harness.baseline import MAY_DIFFER
from harness.errors import UsageError
from harness.frame.read import read_frame
from harness.plan import select
from harness.report.changes import render_short
from tests.small import CELLS, FIRST, SECOND, SMALL, UNSTABLE, VACUOUS, VALUES

ROOT = Path(__file__).parents[2]
REFERENCE = Path("results/reference")
ACCEPTED = REFERENCE / "fake-engine"


def test_a_green_run_leaves_frame_and_report(quick):
    folder = quick.run("green")
    code, text = quick.verb("accept", "green")
    assert (code, text) == (0, f"{ACCEPTED}: 2 cells accepted (2 pass); commit frame.csv and report.md\n")
    assert sorted(path.name for path in ACCEPTED.iterdir()) == ["frame.csv", "report.md"]
    assert (ACCEPTED / "report.md").read_text() == (folder / "report.md").read_text()
    pd.testing.assert_frame_equal(read_frame(ACCEPTED / "frame.csv"), read_frame(folder / "frame.csv"))
    # Which is a base like any run folder.
    assert quick.verb("compare", str(ACCEPTED), "green")[0] == 0


@pytest.mark.parametrize(
    ("fake", "words"),
    [
        (VACUOUS, f"1 of 2 cells are not green: {SECOND} (vacuous)"),
        (VALUES, f"1 of 2 cells are not green: {SECOND} (fail)"),
        ({**VACUOUS, **UNSTABLE}, f"2 of 2 cells are not green: {FIRST} (unstable), {SECOND} (vacuous)"),
    ],
    ids=["vacuous", "red", "two"],
)
def test_a_run_that_is_not_green_is_refused_with_its_cells(quick, fake, words):
    quick.run("other", fake=fake)
    code, text = quick.verb("accept", "other")
    assert (code, text) == (4, f"ERROR: other: not accepted, {words}\n")
    assert not REFERENCE.exists()


def test_a_run_that_is_not_whole_is_refused(quick):
    folder = quick.run("killed")
    (folder / "verdicts.jsonl").unlink()
    code, text = quick.verb("accept", "killed")
    assert code == 4 and "not accepted, the run is not whole: verdicts.jsonl is missing" in text
    folder = quick.run("nameless")
    (folder / "env.json").write_text("{}")
    code, text = quick.verb("accept", "nameless")
    assert code == 4 and "env.json does not say its platform" in text
    assert not REFERENCE.exists()


def test_a_run_of_fewer_cells_does_not_replace_the_reference(quick):
    quick.run("green")
    assert quick.verb("accept", "green")[0] == 0
    before = (ACCEPTED / "frame.csv").read_text()
    quick.of_plan("half", select(quick.plan(), [FIRST]))
    code, text = quick.verb("accept", "half")
    assert code == 4 and f"half: does not cover 1 cells of the reference in {ACCEPTED} ({SECOND})" in text
    assert (ACCEPTED / "frame.csv").read_text() == before


def test_where_the_run_lay_is_not_written(quick):
    folder = quick.run("green")
    assert quick.verb("accept", str(folder))[0] == 0
    assert all(str(quick.root) not in path.read_text() for path in ACCEPTED.iterdir())


def test_a_run_is_told_what_changed_since_the_accepted_one(quick):
    quick.run("green")
    quick.verb("accept", "green")
    told = against_reference(read_frame(quick.run("red", fake=VALUES) / "frame.csv"), REFERENCE, "fake engine")
    first, second, third = render_short(told).splitlines()
    assert first == "compared with the accepted run of fake engine: 2 cells: 1 newly failing, 1 same"
    assert second == f"newly failing: {SECOND}: pass -> fail"
    assert third.startswith("    logprobs: ")


def test_a_partial_run_says_how_much_of_the_reference_it_covered(quick):
    quick.run("green")
    quick.verb("accept", "green")
    wider = SMALL.replace("[LBHNC]", "[LBHNC, BHLNC]")
    plan = select(quick.plan(wider), [FIRST, f"small::BHLNC-{CELLS[0][6:]}"])
    asked = Asked(scenarios=("small",), cells="2 of 4 cells")
    frame = read_frame(quick.of_plan("part", plan, **asked.facts()) / "frame.csv")
    told = against_reference(frame, REFERENCE, "fake engine", asked)
    assert render_short(told).splitlines() == [
        "compared with the accepted run of fake engine: 1 cell: 1 same",
        "1 of the 2 cells of the accepted run of fake engine were run",
        "1 cells are not in the accepted run of fake engine: small::BHLNC-REFERENCE-bi0",
    ]
    code, text = quick.verb("compare", "green", "part", "--common")
    assert code == 0 and "note: 1 of the 2 cells of green were run" in text
    code, text = quick.verb("compare", "green", "part")
    assert code == 0
    assert f"  {SECOND}: pass -> none\n    not in the run, which was asked for 2 of 4 cells\n" in text


def test_a_run_of_other_cells_alone_is_told_nothing(quick):
    quick.run("green")
    quick.verb("accept", "green")
    other = select(quick.plan(SMALL.replace("[LBHNC]", "[BHLNC]")), [f"small::BHLNC-{CELLS[0][6:]}"])
    frame = read_frame(quick.of_plan("other", other) / "frame.csv")
    asked = Asked(scenarios=("small",), cells="1 of 4 cells")
    assert against_reference(frame, REFERENCE, "fake engine", asked) is None
    # One that was asked for everything has lost both cells.
    assert len(against_reference(frame, REFERENCE, "fake engine").rows) == 2
    # So has one that ran no cell at all; one that was asked for none has lost none.
    none = frame.head(0).drop(columns=list(MAY_DIFFER))
    assert len(against_reference(none, REFERENCE, "fake engine").rows) == 2
    assert against_reference(none, REFERENCE, "fake engine", asked) is None


def test_without_an_accepted_run_nothing_is_said_and_a_damaged_one_is(quick):
    frame = read_frame(quick.run("green") / "frame.csv")
    assert against_reference(frame, REFERENCE, "fake engine") is None
    quick.verb("accept", "green")
    (ACCEPTED / "frame.csv").write_text("nothing")
    with pytest.raises(UsageError, match="frame.csv cannot be read .*; restore it from git"):
        against_reference(frame, REFERENCE, "fake engine")


def test_git_keeps_the_reference_and_no_other_run():
    def ignored(path: str) -> bool:
        return subprocess.run(["git", "check-ignore", "-q", path], cwd=ROOT, check=False).returncode == 0

    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout, so there is no ignore list to ask")
    assert not ignored("results/reference/cpu/frame.csv")
    assert ignored("results/20261130T000000Z-12345678/frame.csv") and ignored("results/latest")
