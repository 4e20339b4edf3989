# SPDX-License-Identifier: Apache-2.0
"""The command for one cell of a stored run, and what is said of an installation that has changed."""

from __future__ import annotations

import json
import shlex

from harness.session import load_plan, scenario_files
from tests.small import CELLS, FIRST


def test_the_command_names_the_cell_and_the_model_that_was_given(quick):
    quick.run("run")
    for name in (CELLS[0], FIRST):
        code, text = quick.verb("repro", name, "run")
        assert code == 0
        assert text.startswith(f"pytest small.yaml::{CELLS[0]} --kvparity-model {quick.root}/model\n")
    # Which is what pytest takes: the file is found, and has that cell.
    target = shlex.split(text.splitlines()[0])[1]
    plan, _ = load_plan(scenario_files([target], quick.root), root=quick.root, model=str(quick.root / "model"), fake={})
    assert target.split("::")[1] in {cell.id for cell in plan.cells}


def test_what_has_changed_since_is_said(quick):
    folder = quick.run("run")
    assert "changed since" not in quick.verb("repro", FIRST, "run")[1]
    plan = json.loads((folder / "plan.json").read_text())
    for leg in plan["legs"]:
        now = leg["identity"]["torch"]
        leg["identity"]["torch"] = "9.9"
    (folder / "plan.json").write_text(json.dumps(plan))
    assert f"changed since: torch: 9.9 -> {now}\n" in quick.verb("repro", FIRST, "run")[1]


def test_a_cell_that_is_not_there_names_near_ones(quick):
    quick.run("run")
    code, text = quick.verb("repro", "LBHNC-REFERENCE-b1", "run")
    assert code == 4
    assert text.startswith("ERROR: LBHNC-REFERENCE-b1: no such cell in this run; near: LBHNC-REFERENCE-bi")
