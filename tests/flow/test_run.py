# SPDX-License-Identifier: Apache-2.0
"""A whole run through pytest: cells, exit codes, files, resume. The fake engine plants what a real one cannot."""

from __future__ import annotations

import csv
import json
from xml.etree import ElementTree

import pytest

from harness.asked import of_facts
from harness.stored import read_run
from tests.small import CELLS, SMALL, UNSTABLE, VACUOUS, VALUES

REFUSED = {CELLS[0]: {role: {"stages": {"load": "refuse"}} for role in ("oracle", "subject")}}


def test_a_clean_run_is_green_and_leaves_its_files(suite):
    result = suite.run()
    assert result.ret == 0
    assert suite.outcomes() == dict.fromkeys(CELLS, "pass")
    frame = suite.frame()
    assert list(frame["external_tokens"]) == [64] * 2 and list(frame["expected_external_tokens"]) == [64] * 2
    assert list(frame["tokens_compared"]) == [8] * 2
    assert list(frame["reference"]) == ["local_hit", "recompute"]
    names = {path.name for path in suite.folder.iterdir()}
    assert names - {"frame.parquet", "steps.parquet"} == {
        "plan.json", "env.json", "legs", "verdicts.jsonl", "frame.csv", "steps.csv", "report.md", "report.html",
    }
    assert len(list(suite.folder.glob("legs/*.json"))) == 4
    verdicts = [json.loads(line) for line in (suite.folder / "verdicts.jsonl").read_text().splitlines()]
    assert [verdict["cell"] for verdict in verdicts] == CELLS
    result.stdout.fnmatch_lines(["*1 scenarios -> 2 cells, 4 legs (0 shared)*"])
    result.stdout.fnmatch_lines(["*2 passed*"])
    # Nobody may take such a report for one of a real engine.
    assert "; fake engine," in (suite.folder / "report.md").read_text()


@pytest.mark.parametrize(
    ("fake", "code", "cell", "verdict"),
    [
        (VALUES, 1, CELLS[1], "fail"),
        (VACUOUS, 10, CELLS[1], "vacuous"),
        (UNSTABLE, 10, CELLS[0], "unstable"),
        (REFUSED, 10, CELLS[0], "rejected"),
        ({**VALUES, **UNSTABLE}, 1, CELLS[0], "unstable"),
    ],
    ids=["values", "vacuous", "unstable", "refused", "values-and-unstable"],
)
def test_exit_code_and_verdict_of_each_kind(suite, fake, code, cell, verdict):
    result = suite.run(fake=fake)
    outcomes = suite.outcomes()
    assert (result.ret, outcomes[cell]) == (code, verdict)
    assert all(outcomes[other] == "pass" for other in CELLS if other not in fake)


def test_a_crash_is_red_and_the_other_cells_are_kept(alone):
    result = alone.run(fake={CELLS[0]: {"subject": {"stages": {"restore": "sigkill"}}}})
    assert result.ret == 1
    assert alone.outcomes() == {CELLS[0]: "crashed", **dict.fromkeys(CELLS[1:], "pass")}


EXPECTING = SMALL + """\
expect:
  - {when: {layout: LBHNC, batch_invariant: false}, outcome: rejected, match: does not satisfy every supported set}
"""


def test_an_expected_refusal_is_green_and_named_so(alone):
    alone.scenario(EXPECTING)
    result = alone.run(fake=REFUSED)
    assert result.ret == 0
    row = alone.frame().loc[CELLS[0]]
    assert (row["outcome"], row["verdict"], row["expected_outcome"]) == ("rejected", "expected", "rejected")
    result.stdout.fnmatch_lines(["*1 expected*"])
    # The oracle of a refused subject has nothing to be compared with; it is not started.
    assert len(list(alone.folder.glob("legs/*.json"))) == 3


def test_an_expectation_that_is_not_met_is_red(alone):
    alone.scenario(EXPECTING)
    assert alone.run().ret == 1
    assert alone.outcomes()[CELLS[0]] == "fail"
    alone.scenario(EXPECTING.replace("does not satisfy every supported set", "other words"))
    assert alone.run(fake=REFUSED).ret == 1
    assert alone.outcomes()[CELLS[0]] == "fail"


def asked(folder) -> dict[str, str]:
    """What the run says that it was asked for."""
    return of_facts(json.loads((folder / "env.json").read_text())).facts()


SMALL_FILE = {"scenarios": "small", "only_files": "scenarios/small.yaml"}


def test_k_selects_cells_and_their_legs_only(suite):
    assert suite.run("-k", "LBHNC and bi1").ret == 0
    assert suite.outcomes() == {CELLS[1]: "pass"}
    assert len(list(suite.folder.glob("legs/*.json"))) == 2
    assert asked(suite.folder) == {**SMALL_FILE, "only_cells": "1 of 2 cells"}


def test_a_cell_that_was_to_run_and_did_not_is_named_so(alone):
    assert alone.run("-x", fake={CELLS[0]: {"subject": {"stages": {"restore": "raise"}}}}).ret == 1
    assert asked(alone.folder) == SMALL_FILE
    assert alone.outcomes() == {CELLS[0]: "crashed"}
    assert "2 cells: 1 crashed, 1 not run" in (alone.folder / "report.md").read_text()
    assert read_run(alone.folder).unanswered == (f"small::{CELLS[1]}",)


def test_a_shard_runs_its_part_and_says_of_what(suite):
    result = suite.run("--kvparity-shard", "2/2", paths=("scenarios/small.yaml",))
    assert result.ret == 0
    result.stdout.fnmatch_lines(["kvparity: shard 2/2: 1 of 2 cells, 2 of 4 legs"])
    assert suite.outcomes() == {CELLS[1]: "pass"}
    shard = json.loads((suite.folder / "shard.json").read_text())
    assert (shard["index"], shard["count"], [cell["id"] for cell in shard["whole"]["cells"]]) == (2, 2, CELLS)
    assert asked(suite.folder) == {**SMALL_FILE, "shard": "2/2"}


def test_a_shard_without_cells_selects_nothing(alone):
    result = alone.run("--kvparity-shard", "3/3", paths=("scenarios/small.yaml",))
    assert result.ret == 5
    assert alone.run("--kvparity-shard", "3/2").ret == 4


def test_nothing_selected_is_exit_code_5(suite):
    result = suite.run("-k", "no_such_cell")
    assert result.ret == 5
    assert "Traceback" not in result.stdout.str() and suite.frame().empty


def test_collect_only_starts_nothing(alone):
    result = alone.run("--collect-only", "-q")
    assert result.ret == 0
    assert not (alone.root / "results").exists()
    for cell in CELLS:
        result.stdout.fnmatch_lines([f"scenarios/small.yaml::{cell}"])


def test_one_cell_by_its_node_id(alone):
    assert alone.run(paths=(f"scenarios/small.yaml::{CELLS[1]}",)).ret == 0
    assert alone.outcomes() == {CELLS[1]: "pass"}


def test_every_problem_of_every_file_at_once_and_nothing_started(suite):
    suite.scenario(SMALL.replace("LBHNC", "LBHNX").replace("decode:", "decoder:"))
    suite.scenario(SMALL.replace("[REFERENCE]", "[]").replace("name: small", "name: other"), name="other.yaml")
    result = suite.run()
    assert result.ret == 4
    text = result.stderr.str() + result.stdout.str()
    for words in ("small.yaml:6", "LBHNX", "small.yaml:10", "decoder", "other.yaml:7"):
        assert words in text
    assert not (suite.root / "results").exists()


def test_a_missing_file_names_what_is_there(alone):
    result = alone.run(paths=("scenarios/smal.yaml",))
    assert result.ret == 4
    assert "no such scenario file" in result.stderr.str() and "small.yaml" in result.stderr.str()


def test_a_model_folder_without_a_model_is_one_sentence(alone):
    (alone.root / "model" / "config.json").unlink()
    result = alone.run()
    assert result.ret == 4
    assert "config.json" in result.stderr.str() and "Traceback" not in result.stderr.str()


def test_resume_reuses_what_ended_and_repeats_what_died(suite):
    folder = suite.root / "mine"
    died = {CELLS[0]: {"subject": {"stages": {"restore": "sigkill"}}}}
    assert suite.run("--kvparity-run", str(folder), fake=died).ret == 1
    ended = {path.name: path.stat().st_mtime_ns for path in folder.glob("legs/????????????????.json")}
    result = suite.run("--kvparity-run", str(folder), fake=died)
    assert result.ret == 1
    result.stdout.fnmatch_lines([f"*({len(ended) - 1} legs reused)*"])
    again = {path.name: path.stat().st_mtime_ns for path in folder.glob("legs/????????????????.json")}
    # Where there is room for both, the dead subject's oracle may have ended before it, in either run.
    assert again.keys() >= ended.keys() and 3 <= len(ended) <= len(again) <= 4
    assert sum(again[name] != ended[name] for name in ended) == 1


def test_a_changed_scenario_makes_new_legs_in_the_same_folder(alone):
    folder = alone.root / "mine"
    assert alone.run("--kvparity-run", str(folder)).ret == 0
    alone.scenario(SMALL.replace("max_tokens: 4", "max_tokens: 5"))
    result = alone.run("--kvparity-run", str(folder))
    result.stdout.fnmatch_lines(["*(0 legs reused)*"])


def test_a_folder_that_is_no_run_is_refused(alone):
    (alone.root / "mine").mkdir()
    (alone.root / "mine" / "thesis.tex").write_text("x")
    result = alone.run("--kvparity-run", str(alone.root / "mine"))
    assert result.ret == 4 and "not a run folder" in result.stderr.str()
    assert [path.name for path in (alone.root / "mine").iterdir()] == ["thesis.tex"]


def test_junit_carries_the_verdict_and_the_evidence(suite):
    suite.run("--junitxml", "junit.xml", fake=VACUOUS)
    tree = ElementTree.parse(suite.root / "junit.xml")
    properties = {
        case.get("name"): {item.get("name"): item.get("value") for item in case.iter("property")}
        for case in tree.iter("testcase")
    }
    assert properties[CELLS[1]]["verdict"] == "vacuous"
    assert "external_hits" in properties[CELLS[1]]["findings"]
    assert properties[CELLS[0]]["outcome"] == "pass"
    # Every value of the frame's row is among them.
    with (suite.folder / "frame.csv").open() as stream:
        for row in csv.DictReader(stream):
            there = properties[row.pop("cell")]
            for name in set(row) - {"platform"}:
                assert row[name] == there.get(name, ""), name
    assert properties[CELLS[1]]["external_tokens"] == "63"
    assert properties[CELLS[1]]["resolved_layout"] == "LBHNC"


def test_other_platforms_files_say_so_and_make_no_cells(alone):
    alone.scenario(
        SMALL.replace("platforms: [cpu]", "platforms: [rocm]").replace("[REFERENCE]", "[TRITON_ATTN]")
        .replace("name: small", "name: far"), name="far.yaml",
    )
    result = alone.run()
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*far.yaml: made for rocm, this machine is cpu: no cells"])
    assert set(alone.outcomes()) == set(CELLS)


def test_progress_speaks_of_the_selected_cells_alone(suite):
    # The leg pauses, so that whoever watches the run looks at it while it is there; its oracle may run beside it, and
    # be done before it.
    result = suite.run("-k", "bi1", fake={CELLS[1]: {"subject": {"stages": {"restore": "pause"}}}})
    assert result.ret == 0
    subject = r"subject LBHNC-REFERENCE-bi1 \(\w+\)"
    result.stdout.re_match_lines([rf".*legs: [01] of 2 ended, [01] remain, running: .*{subject}"])


def test_plain_tests_without_scenarios_are_left_alone(alone):
    (alone.root / "test_plain.py").write_text("def test_it(): pass\n")
    result = alone.run(paths=("test_plain.py",))
    assert result.ret == 0
    assert "kvparity report" not in result.stdout.str() and not (alone.root / "results").exists()
