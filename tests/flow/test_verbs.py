# SPDX-License-Identifier: Apache-2.0
"""``python -m harness``: a stored run is shown and judged again without an engine."""

from __future__ import annotations

import json
import subprocess
import sys

from harness.cli import main
from tests.small import CELLS, VALUES


def harness(root, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "harness", *arguments], cwd=root, capture_output=True, text=True, check=False
    )


def test_report_and_check_of_a_stored_run(alone):
    assert alone.run().ret == 0
    shown = harness(alone.root, "report")
    assert shown.returncode == 0
    assert "LBHNC   pass" in shown.stdout and "2 cells: 2 pass" in shown.stdout

    same = harness(alone.root, "check", "results/latest")
    assert (same.returncode, same.stdout) == (0, "2 cells judged again, 0 verdicts changed\n")

    # An observation that was changed after the run is judged as it is now.
    plan = json.loads((alone.folder / "plan.json").read_text())
    subject = next(cell["subject"] for cell in plan["cells"] if cell["id"] == CELLS[1])
    path = alone.folder / "legs" / f"{subject}.json"
    observation = json.loads(path.read_text())
    for phase in observation["phases"]:
        if phase["phase"] in {"restore", "restore_again"}:
            phase["prompts"][0]["steps"][2]["token"] += 1
    path.write_text(json.dumps(observation))
    changed = harness(alone.root, "check")
    assert changed.returncode == 1
    first, second, third, last = changed.stdout.splitlines()
    assert first == f"small::{CELLS[1]}: pass -> fail"
    assert second.startswith("  + tokens: prompt 0, token 2: ")
    assert third == "  compared: tokens_equal 8 -> 6, logprobs 32 -> 27, logprobs_equal 32 -> 27"
    assert last == "2 cells judged again, 1 verdicts changed"


def test_a_path_that_is_no_run_is_one_sentence(alone):
    for verb in ("report", "check"):
        answer = harness(alone.root, verb, "results/none")
        assert answer.returncode == 4
        assert answer.stderr == "ERROR: results/none: no such run folder; runs live under results/\n"
    (alone.root / "empty").mkdir()
    answer = harness(alone.root, "report", "empty")
    assert answer.returncode == 4 and "has no plan.json: not a run folder" in answer.stderr


def test_a_run_of_another_schema_is_refused_with_both_numbers(alone):
    assert alone.run("-k", "bi1").ret == 0
    path = alone.folder / "plan.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": 1}))
    answer = harness(alone.root, "report")
    assert answer.returncode == 4
    assert "written with schema 1, this version reads 2" in answer.stderr


def test_matrix_names_a_missing_scenario(alone):
    answer = harness(alone.root, "matrix", "scenarios/nothing.yaml")
    assert answer.returncode == 4
    assert "scenarios/nothing.yaml: no such scenario file" in answer.stderr


def test_a_run_ends_with_the_comparison_with_the_accepted_one(alone, monkeypatch):
    monkeypatch.chdir(alone.root)
    assert "accepted run" not in alone.run().stdout.str()
    assert main(["accept", "results/latest"]) == 0
    result = alone.run("-k", "bi1", fake=VALUES)
    assert result.ret == 1
    result.stdout.fnmatch_lines([
        "compared with the accepted run of fake engine: 1 cell: 1 newly failing",
        "1 of the 2 cells of the accepted run of fake engine were run",
        f"newly failing: small::{CELLS[1]}: pass -> fail",
    ])
