# SPDX-License-Identifier: Apache-2.0
"""What a leg's child may write down, and whose account its import is on."""

from __future__ import annotations

import pytest

from harness import worker
from harness.records import Ending
from harness.worker import RECORDED_VARIABLES, Stages, run_leg


@pytest.mark.parametrize(
    ("name", "recorded"),
    [
        ("VLLM_KV_CACHE_LAYOUT", True), ("KVPARITY_BACKEND", True), ("OMP_NUM_THREADS", True), ("PYTHONHASHSEED", True),
        ("HIP_VISIBLE_DEVICES", True), ("VLLM_API_KEY", False), ("HF_TOKEN", False), ("AWS_SECRET_ACCESS_KEY", False),
        ("PATH", False), ("X_VLLM_KEY", False),
    ],
)
def test_only_listed_variables_are_written_down(name, recorded):
    assert bool(RECORDED_VARIABLES.match(name)) is recorded


@pytest.mark.parametrize("spent", [0.0, 1000.0])
def test_the_import_of_a_warm_process_is_on_the_account_of_the_leg_that_waited_for_it(
    make_leg, tmp_path, monkeypatch, spent
):
    monkeypatch.setattr(worker, "import_seconds", spent)
    with (tmp_path / "stages").open("wb") as stages:
        observation = run_leg(make_leg(), Stages(stages.fileno()), tmp_path / "log")
    assert observation.ending is Ending.OK
    assert spent <= observation.seconds["import"] < spent + 1000.0
    assert (tmp_path / "stages").read_text().splitlines()[:2] == ["import", "load"]
