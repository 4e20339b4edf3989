# SPDX-License-Identifier: Apache-2.0
"""Stored runs that are not whole: every verb says what is missing and goes on with the rest."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from harness.archive import RunFolder
from harness.session import join_run
from tests.quick import Quick
from tests.small import CELLS, FIRST, SECOND, SMALL, VACUOUS, VALUES


@pytest.fixture
def stored(quick: Quick) -> Path:
    """A whole run, in which nothing failed, as ``whole``."""
    return quick.run("whole")


def leg_of(folder: Path, cell: str, role: str) -> Path:
    plan = json.loads((folder / "plan.json").read_text())
    return folder / "legs" / f"{next(one[role] for one in plan['cells'] if one['id'] == cell)}.json"


def damaged(stored: Path, name: str) -> Path:
    shutil.copytree(stored, stored.parent / name)
    return stored.parent / name


def killed(stored: Path) -> Path:
    """The run as it lies there when it is killed while the last cell's oracle runs."""
    folder = damaged(stored, "killed")
    for name in ("env.json", "verdicts.jsonl", "frame.csv", "report.md"):
        (folder / name).unlink()
    oracle = leg_of(folder, CELLS[1], "oracle")
    oracle.with_suffix(".stage").write_text("recompute")
    oracle.unlink()
    return folder


def test_a_whole_run_lacks_nothing(stored, quick):
    assert quick.verb("check", "whole") == (0, "2 cells judged again, 0 verdicts changed\n")
    code, text = quick.verb("report", "whole")
    assert code == 0 and "not whole" not in text


@pytest.mark.parametrize(("told", "judged"), [
    ((), (FIRST,)),
    # The run itself says that the second cell had ended: what is missing then is a finding.
    ((FIRST, SECOND), (FIRST, SECOND)),
])
def test_an_interrupted_run_shows_what_had_its_legs_and_what_was_to_come(stored, told, judged):
    view = join_run(RunFolder(killed(stored))).view(told, {}, asked=(FIRST, SECOND))
    assert tuple(verdict.name for verdict in view.verdicts) == judged
    assert tuple(view.cells) == (FIRST, SECOND)
    # Of a cell that nobody asked for nothing is said.
    assert tuple(join_run(RunFolder(stored)).view((), {}, asked=(FIRST,)).cells) == (FIRST,)


def test_a_killed_run_is_reported_with_what_it_has(stored, quick):
    folder = killed(stored)
    oracle = leg_of(folder, CELLS[1], "oracle").stem
    gaps = [
        "env.json is missing, the run did not end: platform, versions and duration are unknown",
        "verdicts.jsonl is missing: no verdict was written",
        f"1 of 2 cells have no result: {SECOND}",
        f"leg {oracle} (oracle) was in stage recompute and has not ended",
        "frame.csv is missing",
        "report.md is missing",
    ]
    code, text = quick.verb("report", "killed")
    assert code == 0
    assert "2 cells: 1 pass, 1 not run" in text
    assert [line.removeprefix("not whole: ") for line in text.splitlines() if line.startswith("not whole")] == gaps

    # A cell whose oracle never ended is not a cell that crashed.
    code, text = quick.verb("check", "killed")
    assert code == 10
    assert f"{FIRST}: not judged -> pass\n" in text and SECOND not in text.split("not whole")[0]
    assert text.endswith("1 cells judged again, 1 verdicts changed\n")

    code, text = quick.verb("compare", "whole", "killed")
    assert code == 10
    assert f"newly without a claim:\n  {SECOND}: pass -> none\n    not in the run any more\n" in text
    assert "note: killed is not whole: env.json is missing" in text

    code, text = quick.verb("history", ".")
    assert code == 0
    assert "not whole: killed: has no frame.csv and no verdict; `python -m harness check` judges its legs" in text


def test_verdicts_that_are_cut_off(stored, quick):
    folder = damaged(stored, "cut")
    path = folder / "verdicts.jsonl"
    path.write_text(path.read_text()[:-40])
    code, text = quick.verb("check", "cut")
    assert code == 0
    assert "not whole: verdicts.jsonl: line 2 is not a whole verdict\n" in text
    assert f"not whole: 1 of 2 cells have legs but no stored verdict: {SECOND}\n" in text
    assert f"{SECOND}: not judged -> pass\n" in text


def test_an_observation_that_is_cut_off_or_gone(stored, quick):
    folder = damaged(stored, "legs-cut")
    subject, oracle = leg_of(folder, CELLS[0], "subject"), leg_of(folder, CELLS[1], "oracle")
    subject.write_text(subject.read_text()[:200])
    oracle.unlink()
    code, text = quick.verb("check", "legs-cut")
    assert code == 10
    assert f"not whole: legs/{subject.name} (subject) is not a whole observation\n" in text
    assert f"not whole: 2 of 2 cells have no result: {FIRST}, {SECOND}\n" in text
    code, text = quick.verb("report", "legs-cut")
    assert code == 0 and "2 cells: 2 not run" in text


def test_an_environment_that_is_cut_off(stored, quick):
    folder = damaged(stored, "env-cut")
    (folder / "env.json").write_text('{"platform": "cp')
    code, text = quick.verb("report", "env-cut")
    assert code == 0 and "not whole: env.json is not whole: platform, versions and duration are unknown" in text
    assert "unknown platform" in text


def test_a_frame_that_is_cut_off_is_made_again_from_the_legs(stored, quick):
    folder = damaged(stored, "frame-cut")
    (folder / "frame.csv").write_text((folder / "frame.csv").read_text()[:-10])
    code, text = quick.verb("compare", "whole", "frame-cut")
    assert code == 0 and "2 cells: 2 same" in text
    assert "note: frame-cut is not whole: frame.csv is not whole: its last line is cut off" in text


def test_a_frame_with_fewer_rows_than_cells_is_not_believed(stored, quick):
    folder = damaged(stored, "short")
    (folder / "frame.csv").write_text("".join((folder / "frame.csv").read_text().splitlines(keepends=True)[:-1]))
    code, text = quick.verb("compare", "short", "whole")
    assert code == 0 and "2 cells: 2 same" in text and "frame.csv has 1 of 2 cells" in text


def test_a_whole_frame_is_compared_without_judging_anything(stored, quick, monkeypatch):
    cut = damaged(stored, "cut")
    leg_of(cut, CELLS[1], "oracle").unlink()
    rows = (cut / "frame.csv").read_text().splitlines(keepends=True)
    (cut / "frame.csv").write_text("".join(rows[:-1]))
    monkeypatch.setattr("harness.stored.judge", lambda *_: pytest.fail("judged"))
    assert quick.verb("compare", "whole", "whole")[1].endswith("2 cells: 2 same\n")
    # As many rows as there are cells with a result: the frame is whole although the run is not.
    code, text = quick.verb("compare", "whole", "cut")
    assert code == 10 and text.endswith("2 cells: 1 newly without a claim, 1 same\n")
    assert "frame.csv has" not in text


def test_a_folder_with_a_frame_alone_is_compared_but_not_judged(stored, quick):
    (stored.parent / "accepted").mkdir()
    shutil.copy(stored / "frame.csv", stored.parent / "accepted")
    code, text = quick.verb("compare", "accepted", "whole")
    assert code == 0 and "2 cells: 2 same" in text
    for name in ("check", "report"):
        code, text = quick.verb(name, "accepted")
        assert code == 4 and "accepted: holds a frame alone, its legs were not kept" in text


def test_a_run_without_any_result_cannot_be_compared(stored, quick):
    folder = killed(stored)
    for path in folder.glob("legs/*.json"):
        path.unlink()
    code, text = quick.verb("compare", "whole", "killed")
    assert code == 4 and "no cell of this run has a result; nothing can be compared" in text
    # What was never judged is not green.
    assert quick.verb("check", "killed")[0] == 10


def older(stored: Path, schema: int = 1) -> Path:
    folder = damaged(stored, "old")
    for path in (folder / "plan.json", *folder.glob("legs/*.json")):
        path.write_text(json.dumps({**json.loads(path.read_text()), "schema": schema}))
    return folder


def test_legs_of_an_older_schema_are_refused_with_the_command_for_them(stored, quick):
    older(stored)
    for name in ("check", "report", "accept"):
        code, text = quick.verb(name, "old")
        assert code == 4
        assert "plan.json: written with schema 1, this version reads 2: `compare` and `history` read its frame" in text
        assert "use the version that wrote it: git worktree add ../kvparity-schema-1 $(git log -1 " in text


def test_a_newer_schema_asks_for_an_update(stored, quick):
    older(stored, 3)
    code, text = quick.verb("check", "old")
    assert code == 4 and "written with schema 3, this version reads 2: update this checkout" in text


def test_a_frame_of_an_older_schema_is_compared_and_in_the_history(stored, quick):
    folder = older(stored)
    code, text = quick.verb("compare", "old", "whole")
    assert code == 0 and "2 cells: 2 same" in text
    assert "note: old is not whole: written with another schema: its frame alone was read" in text
    assert quick.verb("history", ".")[1].startswith("2 runs, ")
    (folder / "frame.csv").unlink()
    code, text = quick.verb("compare", "old", "whole")
    assert code == 4 and "old: was written with another schema and has no whole frame.csv" in text


def test_check_names_the_finding_that_makes_the_difference(stored, quick):
    folder = damaged(stored, "changed")
    path = leg_of(folder, CELLS[1], "subject")
    observation = json.loads(path.read_text())
    for phase in observation["phases"]:
        if phase["phase"] in {"restore", "restore_again"}:
            phase["external_tokens"] -= 1
    path.write_text(json.dumps(observation))
    code, text = quick.verb("check", "changed")
    assert code == 10
    assert f"{SECOND}: pass -> vacuous\n  + external_hits: " in text
    assert text.endswith("2 cells judged again, 1 verdicts changed\n")


def test_compare_and_history_of_several_runs(quick):
    quick.run("green")
    quick.run("red", fake=VALUES)
    quick.run("amber", fake=VACUOUS)
    quick.run("longer", SMALL.replace("tail_tokens: 8", "tail_tokens: 9"))
    code, text = quick.verb("compare", "green", "red", "--markdown", "changes.md")
    assert code == 1 and "newly failing" in text and "2 cells: 1 newly failing, 1 same" in text
    assert f"| {SECOND} | pass | fail | logprobs: " in Path("changes.md").read_text()
    assert quick.verb("compare", "red", "green")[0] == 0
    assert quick.verb("compare", "green", "amber")[0] == 10
    code, text = quick.verb("compare", "green", "longer", "--json")
    plain = json.loads(text)
    assert code == plain["exit"] == 10
    assert {one["reason"] for one in plain["cells"]} == {
        "prompts 2 of 32+8 tokens, seed 0 -> 2 of 32+9 tokens, seed 0"
    }
    code, text = quick.verb("history", ".", "--json")
    rows = {row["cell"]: row for row in json.loads(text)}
    assert (rows[CELLS[0]]["outcome"], rows[CELLS[0]]["runs"], rows[CELLS[0]]["flips"]) == ("pass", 4, 0)
    assert rows[CELLS[1]]["platform"] == "fake engine"
