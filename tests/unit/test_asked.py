# SPDX-License-Identifier: Apache-2.0
"""What a run was asked, from its command line into ``env.json`` and back."""

from __future__ import annotations

import pytest

from harness.asked import EVERYTHING, MATRIX, Asked, of_facts, of_files


def asked(root, *names: str, scenarios=("matrix", "matrix", "umbp"), **more) -> Asked:
    return of_files(scenarios, [root / name for name in names], root=root, platform="cpu", **more)


def test_the_whole_matrix_of_a_platform_is_no_choice(tmp_path):
    whole = asked(tmp_path, *MATRIX["cpu"])
    assert whole == Asked(scenarios=("matrix", "umbp"))
    assert whole.facts() == {"scenarios": "matrix, umbp"}
    assert whole == asked(tmp_path, *MATRIX["cpu"], "scenarios/smoke.yaml") == whole.chosen(5, 5)
    assert whole.excuse("gone::cell") == whole.excuse("matrix::cell") == ""


def test_less_than_that_is_one_and_excuses_the_other_files_cells(tmp_path):
    some = asked(tmp_path, "scenarios/matrix.yaml", "scenarios/smoke.yaml", scenarios=["matrix"])
    assert some.files == "scenarios/matrix.yaml, scenarios/smoke.yaml"
    assert some.excuse("matrix::cell") == ""
    assert some.excuse("umbp::cell") == "which was asked for scenarios/matrix.yaml, scenarios/smoke.yaml"


@pytest.mark.parametrize("one", [
    EVERYTHING,
    Asked(scenarios=("a", "b"), files="x.yaml, y.yaml", cells="1 of 2 cells", shard="2/5"),
])
def test_it_comes_back_from_the_facts_of_a_run(one):
    assert of_facts({**one.facts(), "platform": "cpu"}) == one


def test_a_chosen_cell_without_a_result_has_no_excuse(tmp_path):
    some = of_facts(asked(tmp_path, *MATRIX["cpu"]).chosen(2, 9).facts(), ("matrix::one",))
    assert [some.excuse(name) for name in ("matrix::one", "matrix::two")] == ["", "which was asked for 2 of 9 cells"]
