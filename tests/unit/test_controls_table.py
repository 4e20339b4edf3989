# SPDX-License-Identifier: Apache-2.0
"""The table of controls is whole: each finding kind has a fault that triggers it, each fault a finding."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from harness.compare import OUTCOME_OF
from harness.compare.pair import finding
from harness.controls import CONTROLS, Control, plant, show
from harness.controls.build import Planted
from harness.controls.run import _Queue, result_of
from harness.controls.show import as_json, line, listing, summary
from harness.controls.table import ENGINE, STORE
from harness.engines.faults import FAULTS as ENGINE_FAULTS
from harness.errors import UsageError
from harness.kvstore.faults import FAULTS as STORE_FAULTS
from harness.records import Compared, FindingKind, Leg, Model, Outcome, Role, Verdict
from harness.scenario_model import KNOWN_FAULTS
from harness.wire import named as name_leg

#: The kind that no fault can stand for: what a scenario says of a cell.
NO_FAULT = {FindingKind.EXPECTATION_UNMET}
MODEL = Model(
    alias="tiny", path="/nowhere", source="stand-in", digest="0" * 16, num_layers=4, num_kv_heads=4, head_dim=32,
    vocab_size=1024,
)


def planted(controls=CONTROLS) -> list[Planted]:
    return plant(controls, find_model=lambda name: MODEL, identity={"vllm": "0"}, stores="/stores")


def named(fault: str) -> Planted:
    return next(one for one in planted() if one.name == fault)


def verdict(outcome: Outcome, *kinds: FindingKind) -> Verdict:
    return Verdict(
        scenario="controls", cell="x", outcome=outcome, verdict=outcome, expected_outcome=Outcome.PASS,
        findings=tuple(finding(kind, f"saw {kind}", place="here") for kind in kinds), compared=Compared(),
    )


def test_every_kind_of_finding_has_a_fault_that_must_lead_to_it():
    demanded = {kind for control in CONTROLS for kind in (control.finding, *control.must)}
    assert set(FindingKind) - demanded == NO_FAULT


def test_every_fault_of_store_and_engine_is_in_the_table():
    assert {control.fault for control in CONTROLS if control.where == STORE} == set(STORE_FAULTS)
    assert {control.fault for control in CONTROLS if control.where == ENGINE} == set(ENGINE_FAULTS)
    assert tuple(STORE_FAULTS) == KNOWN_FAULTS


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: f"{control.fault}-{control.finding}")
def test_the_outcome_is_one_that_the_findings_can_come_to(control: Control):
    assert OUTCOME_OF[control.finding] is not Outcome.PASS
    kinds = (control.finding, *control.must, *control.also)
    assert control.outcome in {OUTCOME_OF[kind] for kind in kinds}
    assert control.outcome is not Outcome.PASS


def test_names_are_unique_and_legs_are_named_by_their_content():
    ones = planted()
    assert len({one.name for one in ones}) == len(CONTROLS) == len(ones)
    for one in ones:
        for digest, leg in one.legs.items():
            assert digest == leg.digest == name_leg(leg).digest
            assert isinstance(leg, Leg)


def test_faults_are_planted_in_the_legs_that_the_table_names():
    store = named("layer_skipped")
    assert store.subject.kv_transfer_config["kv_connector_extra_config"]["fault"] == "layer_skipped"
    assert store.oracle.engine_name == store.subject.engine_name == "vllm"
    oracle = named("one_ulp-oracle")
    assert (oracle.oracle.engine_name, oracle.oracle.fake) == ("faulty", {"fault": "one_ulp"})
    assert oracle.subject.engine_name == "vllm"
    both = named("other_layout")
    assert [leg.fake for leg in both.legs.values()] == [{"fault": "other_layout"}] * 2
    keys = named("key_without_layout")
    assert (keys.first.layout, keys.subject.layout) == ("BHLNC", "LHBNC")
    assert keys.first.env["KVPARITY_SHARED_STORE"] == "/stores/key_without_layout.objects"
    assert keys.subject.env["KVPARITY_SHARED_STORE"] == keys.first.env["KVPARITY_SHARED_STORE"]
    assert "KVPARITY_SHARED_STORE" not in keys.oracle.env
    assert named("killed").subject.fake == {"stages": {"restore": "sigkill"}}
    assert named("killed").oracle.engine_name == "fake"


def test_controls_share_their_oracles():
    oracles = {one.oracle.digest for one in planted() if one.control.where == STORE}
    assert len(oracles) == 2


def test_a_fault_is_caught_only_by_what_it_is_said_to_lead_to():
    one = named("partial_block_claimed")
    kinds = FindingKind
    right = result_of(one, verdict(Outcome.FAIL, kinds.EXTERNAL_HITS, kinds.LOGPROBS))
    assert right.caught and right.finding.kind is kinds.EXTERNAL_HITS
    assert result_of(one, verdict(Outcome.PASS)).problem == "not caught"
    wrong = result_of(one, verdict(Outcome.FAIL, kinds.LOGPROBS))
    assert wrong.problem == "caught for the wrong reason: no finding external_hits"
    foreign = result_of(one, verdict(Outcome.FAIL, kinds.EXTERNAL_HITS, kinds.LOGPROBS, kinds.NOT_ZEROED))
    assert foreign.problem == "caught with findings that are not the fault's: not_zeroed"
    mild = result_of(one, verdict(Outcome.VACUOUS, kinds.EXTERNAL_HITS))
    assert mild.problem == "caught, but as vacuous and not as fail"
    assert not any(result.caught for result in (wrong, foreign, mild))


def test_a_worker_gets_what_it_has_warm_and_two_begin_with_different_processes():
    ones = [SimpleNamespace(control=SimpleNamespace(fake=None, batch_invariant=value)) for value in (True, False) * 2]
    queue = _Queue(ones)
    first, second = queue.take(""), queue.take("")
    assert {first.control.batch_invariant, second.control.batch_invariant} == {True, False}
    assert queue.take("bi1").control.batch_invariant is True
    assert queue.take("bi1").control.batch_invariant is False
    assert queue.take("bi0") is None


def test_what_is_printed():
    one = named("reset_refused")
    held = result_of(one, verdict(Outcome.VACUOUS, FindingKind.RESET_FAILED))
    missed = result_of(one, verdict(Outcome.PASS))
    assert line(held, 14) == "ok   reset_refused   vacuous  reset_failed: saw reset_failed"
    assert line(missed, 14) == (
        "MISS reset_refused   pass     nothing\n     not caught; expected vacuous: reset_failed"
    )
    assert summary([held, missed], 2.4) == "1 of 2 planted faults caught for the right reason, 2 s"
    assert as_json([missed]).count('"caught": false') == 1
    keys = {"fault", "expected_outcome", "expected_finding", "outcome", "finding", "caught"}
    assert all(f'"{key}"' in as_json([held]) for key in keys)
    assert [row.split()[0] for row in listing(CONTROLS).splitlines()] == [control.fault for control in CONTROLS]
    assert one.subject.role is Role.SUBJECT


def test_the_verb_fails_when_one_is_missed(monkeypatch, capsys):
    one = named("reset_refused")
    held = result_of(one, verdict(Outcome.VACUOUS, FindingKind.RESET_FAILED))
    missed = result_of(one, verdict(Outcome.PASS))
    monkeypatch.setattr(show.host, "platform", lambda: "cpu")
    monkeypatch.setattr(show.host, "identity", dict)
    monkeypatch.setattr(show, "plant", lambda *_, **__: [one])
    codes = []
    for results in ([held], [held, missed]):
        monkeypatch.setattr(show, "run_controls", lambda *_, results=results, **__: results)
        codes.append(show.main(expression="reset_refused", list_only=False, to_json=True, workers=1, run=None))
        assert json.loads(capsys.readouterr().out)[-1]["caught"] is results[-1].caught
    assert codes == [0, 1]


def test_names_that_do_not_exist_are_an_error_and_several_may_be_given(capsys):
    with pytest.raises(UsageError, match="no planted fault's name contains 'nothing'; there are: single_span, "):
        show.main(expression="nothing", list_only=True, to_json=False, workers=1, run=None)
    assert show.main(expression="other_threads,no_memory", list_only=True, to_json=False, workers=1, run=None) == 0
    assert [row.split()[0] for row in capsys.readouterr().out.splitlines()] == ["other_threads", "no_memory"]
