# SPDX-License-Identifier: Apache-2.0
"""Two frames side by side: every pair of verdicts, every reason not to compare, the exit codes, the texts."""

from __future__ import annotations

import json
from dataclasses import replace

import pandas as pd
import pytest

from harness.asked import Asked
from harness.baseline import change_of, compare, covered
from harness.compare import judge
from harness.errors import ExitCode
from harness.frame import COLUMNS, to_frame
from harness.frame.read import read_frame
from harness.records import GREEN, RED, SCHEMA_VERSION, Change, Outcome, Plan
from harness.report.changes import as_plain, render_markdown, render_text
from tests.unit.handmade import clean

CELLS = ("one", "two", "three")


def frame_of(*, platform: str | None = "cpu", **verdicts: str) -> pd.DataFrame:
    """A frame of ``CELLS``, each a pass unless another verdict is given; a cell whose verdict is None is left out."""
    case = clean()
    cells = tuple(replace(case.cell, id=name) for name in CELLS)
    judged = [judge(cell, case.legs, case.oracle, case.subject) for cell in cells]
    judged = [
        replace(one, verdict=Outcome(verdicts.get(one.cell, "pass")), outcome=Outcome(verdicts.get(one.cell, "pass")))
        for one in judged
        if verdicts.get(one.cell, "pass") is not None
    ]
    plan = Plan(schema=SCHEMA_VERSION, cells=cells, legs=tuple(case.legs.values()))
    seen = {"oracle-leg": case.oracle, "subject-leg": case.subject}
    return to_frame(plan, judged, seen, platform=platform)


def changes(base: pd.DataFrame, run: pd.DataFrame) -> dict[str, tuple[Change, str]]:
    return {row.cell.split("::")[1]: (row.change, row.reason) for row in compare(base, run).rows}


def test_every_pair_of_verdicts_has_its_change():
    amber = set(Outcome) - set(GREEN) - set(RED)
    for base in Outcome:
        for run in Outcome:
            got = change_of(base, run)
            if run in RED:
                want = Change.STILL_FAILING if base in RED else Change.NEWLY_FAILING
            elif run in amber:
                want = Change.STILL_AMBER if base is run else Change.NEWLY_AMBER
            elif base is Outcome.UNAVAILABLE:
                want = Change.NOT_COMPARABLE
            else:
                want = Change.SAME if base in GREEN else Change.FIXED
            assert got is want, (base, run)


def test_a_failure_that_turns_vacuous_is_not_fixed():
    assert change_of(Outcome.FAIL, Outcome.VACUOUS) is Change.NEWLY_AMBER
    assert compare(frame_of(one="fail"), frame_of(one="vacuous")).exit_code is ExitCode.AMBER


@pytest.mark.parametrize(
    ("verdict", "code"),
    [("pass", 0), ("expected", 0), ("fail", 1), ("crashed", 1), ("vacuous", 10), ("unstable", 10), ("rejected", 10),
     ("unavailable", 10)],
)
def test_exit_code_of_a_cell_that_passed_before(verdict, code):
    assert compare(frame_of(), frame_of(two=verdict)).exit_code == code


def test_what_was_red_before_is_no_news():
    comparison = compare(frame_of(one="fail", two="vacuous"), frame_of(one="crashed", two="vacuous"))
    assert [row.change for row in comparison.rows] == [Change.STILL_FAILING, Change.STILL_AMBER, Change.SAME]
    assert comparison.exit_code is ExitCode.OK


def test_a_cell_that_is_new_has_nothing_to_be_compared_with():
    assert changes(frame_of(two=None), frame_of())["two"] == (Change.NOT_COMPARABLE, "not in the base")
    assert compare(frame_of(two=None), frame_of()).exit_code is ExitCode.OK


@pytest.mark.parametrize(("before", "change", "code"), [
    ("pass", Change.NEWLY_AMBER, 10), ("expected", Change.NEWLY_AMBER, 10), ("fail", Change.NEWLY_AMBER, 10),
    ("vacuous", Change.STILL_AMBER, 0), ("unavailable", Change.STILL_AMBER, 0),
])
def test_of_a_cell_that_is_gone_nothing_is_known_any_more(before, change, code):
    base, run = frame_of(two=before), frame_of(two=None)
    assert changes(base, run)["two"] == (change, "not in the run any more")
    for how in (compare, covered):
        assert how(base, run).exit_code == code


@pytest.mark.parametrize(("asked", "excuse"), [
    (Asked(scenarios=("matrix",), cells="2 of 3 cells"), "which was asked for 2 of 3 cells"),
    (Asked(scenarios=("matrix",), shard="1/2"), "which is shard 1/2"),
    (Asked(scenarios=("other",), files="scenarios/other.yaml"), "which was asked for scenarios/other.yaml"),
])
def test_a_cell_that_nobody_asked_for_is_not_gone(asked, excuse):
    comparison = compare(frame_of(), frame_of(two=None), asked=asked)
    assert comparison.rows[0].reason == f"not in the run, {excuse}"
    assert (comparison.rows[0].change, comparison.exit_code) == (Change.NOT_COMPARABLE, ExitCode.OK)
    short = covered(frame_of(), frame_of(two=None), asked=asked)
    assert [row.change for row in short.rows] == [Change.SAME, Change.SAME]
    assert short.notes == ("2 of the 3 cells of base were run",)


@pytest.mark.parametrize("asked", [
    Asked(scenarios=("matrix",), files="scenarios/matrix.yaml"),
    Asked(scenarios=("matrix",), cells="3 of 9 cells", unanswered=("matrix::two",)),
])
def test_a_cell_that_was_asked_for_by_file_or_name_is(asked):
    comparison = compare(frame_of(), frame_of(two=None), asked=asked)
    assert comparison.count(Change.NEWLY_AMBER) == 1 and comparison.exit_code is ExitCode.AMBER


def test_cells_of_another_platform_are_not_gone():
    run = frame_of(platform="rocm", two=None)
    assert changes(frame_of(), run)["two"] == (Change.NOT_COMPARABLE, "not in the run, which is of rocm")


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("platform", "rocm", "platform cpu -> rocm"),
        ("model_digest", "m1", "model digest m0 -> m1"),
        ("prompts", "2 of 8+1 tokens, seed 1", "prompts 2 of 8+1 tokens, seed 0 -> 2 of 8+1 tokens, seed 1"),
        ("decode", "4 tokens, top 2, together", "decoding 3 tokens, top 2, together -> 4 tokens, top 2, together"),
        ("reference", "local_hit", "reference recompute -> local_hit"),
        ("block_size", 16, "block size 4 -> 16"),
        ("store", "Other", "store EmbeddedStore -> Other"),
    ],
)
def test_every_reason_not_to_compare(column, value, reason):
    run = frame_of(two="fail")
    run.loc[1, column] = value
    found = changes(frame_of(), run)
    assert found["two"] == (Change.NOT_COMPARABLE, reason)
    assert found["one"] == found["three"] == (Change.SAME, "")


def test_a_hit_that_was_none_before_is_no_reason_not_to_compare():
    """What a shared store's cell is held against follows from what the store gave: that is the answer, no question."""
    run = frame_of(two="fail")
    run.loc[1, "held_against"] = "local_hit"
    assert changes(frame_of(), run)["two"][0] is Change.NEWLY_FAILING


def test_where_nothing_is_comparable_nothing_was_shown():
    comparison = compare(frame_of(), frame_of(platform="rocm"))
    assert comparison.compared == 0 and comparison.exit_code is ExitCode.AMBER
    assert compare(frame_of(), frame_of().iloc[:0]).exit_code is ExitCode.AMBER


def test_other_versions_are_compared_and_named():
    run = frame_of()
    run["vllm"] = "0.33.0"
    comparison = compare(frame_of(), run)
    assert comparison.versions == ("vllm 0.32.0 -> 0.33.0",)
    assert comparison.count(Change.SAME) == 3


def test_what_a_frame_does_not_say_is_noted():
    base = frame_of(platform=None)
    base["model_digest"] = pd.NA
    comparison = compare(base, frame_of())
    assert comparison.notes == ("base does not say its platform, model digest; compared without",)
    assert comparison.count(Change.SAME) == 3


def test_the_texts_name_cell_both_words_and_reason():
    run = frame_of(two="fail", three=None)
    run.loc[1, ["findings", "message"]] = ["tokens", "subject restore: 10 instead of | 11"]
    comparison = compare(frame_of(), run, names=("monday", "tuesday"))
    assert render_text(comparison) == (
        "base: monday\nrun: tuesday\n\nnewly failing:\n  matrix::two: pass -> fail\n"
        "    tokens: subject restore: 10 instead of | 11\n\nnewly without a claim:\n"
        "  matrix::three: pass -> none\n    not in the run any more\n\n"
        "3 cells: 1 newly failing, 1 newly without a claim, 1 same\n"
    )
    markdown = render_markdown(comparison)
    assert "| matrix::two | pass | fail | tokens: subject restore: 10 instead of \\| 11 |" in markdown
    plain = json.loads(json.dumps(as_plain(comparison)))
    assert plain["exit"] == 1 and plain["counts"]["newly failing"] == 1
    assert plain["cells"][0]["cell"] == "matrix::two"


def test_a_frame_comes_back_from_csv_as_it_was(tmp_path):
    frame = frame_of(one="fail")
    path = tmp_path / "frame.csv"
    path.write_text(frame.to_csv(index=False))
    pd.testing.assert_frame_equal(read_frame(path), frame)


def test_a_frame_of_an_older_version_lacks_columns(tmp_path):
    path = tmp_path / "frame.csv"
    path.write_text(frame_of().drop(columns=["platform", "threads"]).to_csv(index=False))
    frame = read_frame(path)
    assert list(frame.columns) == list(COLUMNS)
    assert frame["platform"].isna().all() and str(frame["threads"].dtype) == "Int64"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda text: text[:-20], "its last line is cut off"),
        (lambda text: "a,b\n1,2\n", "it has no column scenario, cell, verdict, outcome"),
        (lambda text: text.replace(",pass,pass,", ",pass,green,", 1), "column verdict has 'green'; valid: pass, "),
        (lambda text: "", "its last line is cut off"),
    ],
    ids=["cut", "other-table", "unknown-word", "empty"],
)
def test_a_damaged_frame_is_refused_with_its_damage(tmp_path, damage, words):
    path = tmp_path / "frame.csv"
    path.write_text(damage(frame_of().to_csv(index=False)))
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        read_frame(path)
