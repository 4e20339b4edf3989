# SPDX-License-Identifier: Apache-2.0
"""From a scenario's UMBP subject to the leg: configuration, source, and what happens when the source is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.cause import classify
from harness.engines import open_engine
from harness.engines.unavailable import UnavailableError
from harness.overlay import Overlay, OverlayError
from harness.plan import make_plan
from harness.records import Outcome, SubjectSpec
from harness.scenario import read_scenario
from harness.subjects import OVERLAY_CHOICE, kv_transfer_config, source_of

ROOT = Path(__file__).parents[2]
HERE = Overlay(origin="git:r@v (abc)", digest="ab" * 8, path=Path("/cache/overlays/abab"), has_runtime=False)


def umbp(**options) -> SubjectSpec:
    return SubjectSpec(connector="umbp", options=options)


def refuse(spec):
    raise OverlayError(f"overlay {spec}: not to be had")


@pytest.fixture(autouse=True)
def no_choice(monkeypatch):
    monkeypatch.delenv(OVERLAY_CHOICE, raising=False)


@pytest.fixture
def plan_of(model, monkeypatch):
    def plan(find, identity=None):
        monkeypatch.setattr("harness.plan.find_overlay", find)
        scenario = read_scenario(ROOT / "scenarios" / "umbp_smoke.yaml")
        return make_plan([scenario], platform="cpu", find_model=lambda name: model, identity=identity or {})

    return plan


def test_umbps_configuration():
    options = {"mode": "embedded", "capacity_bytes": 256 * 2**20, "lookup_instance": "kvparity-{process}"}
    assert kv_transfer_config(umbp(overlay="x")) == {
        "kv_connector": "UMBPStoreConnector",
        "kv_connector_module_path": "vllm.distributed.kv_transfer.kv_connector.v1.umbp.connector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": options,
    }
    given = kv_transfer_config(umbp(capacity_mib=1, load="sync", transfer="ranges"))["kv_connector_extra_config"]
    assert given == {**options, "capacity_bytes": 2**20, "load_async": False, "transfer": "ranges"}


def test_the_source_enters_the_leg_and_a_choice_from_outside_wins(monkeypatch):
    asked = []
    source = source_of(umbp(overlay="wheel:vllm==0.33.0"), lambda spec: asked.append(spec) or HERE)
    assert source.env == {"KVPARITY_OVERLAY": "/cache/overlays/abab"}
    assert source.identity == {"overlay": HERE.origin, "overlay_files": HERE.digest}
    monkeypatch.setenv(OVERLAY_CHOICE, "/my/vllm")
    source_of(umbp(overlay="wheel:vllm==0.33.0"), lambda spec: asked.append(spec) or HERE)
    assert asked == ["wheel:vllm==0.33.0", "/my/vllm"]


def test_a_runtime_of_umbps_own_leaves_no_choice_of_ranges():
    own = Overlay(origin="tree", digest="0", path=Path("/t"), has_runtime=True)
    assert source_of(umbp(transfer="bulk"), lambda spec: own).missing is None
    assert "transfer `ranges` cannot be asked for" in source_of(umbp(transfer="ranges"), lambda spec: own).missing


def test_other_subjects_ask_for_no_overlay():
    source = source_of(SubjectSpec(connector="embedded"), refuse)
    assert (source.env, source.identity, source.missing) == ({}, {}, None)


def test_both_legs_of_a_cell_differ_in_connector_and_source_alone(plan_of):
    plan = plan_of(lambda spec: HERE)
    for cell in plan.cells:
        oracle, subject = plan.leg(cell.oracle), plan.leg(cell.subject)
        assert "KVPARITY_OVERLAY" not in oracle.env and "overlay" not in oracle.identity
        assert {**oracle.env, "KVPARITY_OVERLAY": str(HERE.path)} == subject.env
        assert subject.identity["overlay_files"] == HERE.digest
    assert (len(plan.cells), len(plan.legs)) == (48, 72)
    assert sum(cell.expectation.outcome is Outcome.CRASHED for cell in plan.cells if cell.expectation) == 6


def test_a_missing_source_is_asked_for_once_and_makes_unavailable_legs_that_say_why(plan_of, tmp_path):
    asked = []

    def find(spec):
        asked.append(spec)
        return refuse(spec)

    plan = plan_of(find)
    assert asked == ["wheel:vllm==0.33.0"]
    leg = plan.leg(plan.cells[0].subject)
    assert leg.engine_name == "unavailable" and plan.leg(plan.cells[0].oracle).engine_name == "vllm"
    with pytest.raises(UnavailableError, match="^overlay wheel:vllm==0.33.0: not to be had$") as caught:
        open_engine(leg, lambda stage: None)
    ending, failure = classify(caught.value, "load", accepted=False, log=tmp_path / "none.log")
    assert (str(ending), failure.message) == ("unavailable", "overlay wheel:vllm==0.33.0: not to be had")


@pytest.mark.parametrize(("subject", "words"), [
    ('{connector: umbp, overlay: 3}', "subject.overlay: must be text, got"),
    ('{connector: umbp, fault: single_span}', "subject.fault: unknown key"),
])
def test_the_readers_words(tmp_path, subject, words):
    path = tmp_path / "x.yaml"
    path.write_text(f"name: x\nmodel: tiny\nsubject: {subject}\n"
                    "axes: {layout: [LBHNC], backend: [REFERENCE], batch_invariant: [false]}\n")
    with pytest.raises(Exception) as caught:
        read_scenario(path)
    assert words in str(caught.value)
