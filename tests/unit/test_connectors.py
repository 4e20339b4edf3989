# SPDX-License-Identifier: Apache-2.0
"""Adapters: what each makes of a scenario, what is missing, and how a cell without any restore is judged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness import subjects
from harness.cause import classify
from harness.connectors import ADAPTERS, FOLDER, PROCESS, Need, filled, refusals_of_class
from harness.plan import make_plan
from harness.records import Ending, FindingKind, Outcome, Phase, Reference, Role, SubjectSpec
from harness.scenario import read_scenario
from harness.sources import modules_of, package_digest
from harness.subjects import kv_transfer_config, source_of
from tests.unit.handmade import (
    HIT,
    PROMPTS,
    RESTORED,
    clean,
    digest_block,
    edit,
    edit_prompt,
    edit_step,
    make_hits,
    verdict_of,
)

SCENARIO = """
name: x
platforms: [cpu]
model: tiny
subject: {subject}
axes: {{layout: [LBHNC], backend: [REFERENCE], batch_invariant: [false], {axis}}}
"""


@pytest.mark.parametrize("alias", ADAPTERS)
def test_every_adapter_configures_a_connector_of_its_class(alias):
    adapter = ADAPTERS[alias]
    config = adapter.configure(SubjectSpec(connector=alias))
    assert adapter.alias == alias
    assert (config["kv_connector"], config["kv_role"]) == (adapter.connector, "kv_both")
    assert kv_transfer_config(SubjectSpec(connector=alias)) == config
    assert adapter.evidence and adapter.drain


def test_the_files_of_our_own_hooks_enter_the_legs_identity():
    own = {alias: modules_of(adapter.configure(SubjectSpec(connector=alias))) for alias, adapter in ADAPTERS.items()}
    assert own["offloading_cpu"] == own["offloading_fs"] == own["multi"] == ("harness.plugin.host_offload",)
    assert own["noop"] == ("harness.plugin.noop_connector",)
    assert own["example"] == own["offloading"] == ()


def test_placeholders_are_filled_at_any_depth():
    config = {"a": [{"path": f"{FOLDER}/x"}, 3], "b": f"n-{PROCESS}", "c": True, "d": None}
    assert filled(config, {FOLDER: "/run/s", PROCESS: "7"}) == {
        "a": [{"path": "/run/s/x"}, 3], "b": "n-7", "c": True, "d": None,
    }


def test_what_is_not_installed_is_named_with_how_to_get_it():
    adapter = replace(
        ADAPTERS["example"],
        needs=(
            Need(name="json", module="json"),
            Need(name="no-such 1.0", module="no_such_module", hint="Run make connectors."),
            Need(name="no-such-program", program="no-such-program", hint="Run make connectors."),
        ),
    )
    assert adapter.missing() == (
        "connector example: no-such 1.0, no-such-program not installed here. Run make connectors."
    )
    assert source_of(SubjectSpec(connector="example")).missing is None


def test_the_files_of_what_a_connector_needs_enter_the_legs_identity(monkeypatch):
    needs = (Need(name="json", module="json"), Need(name="python", program="python3"))
    monkeypatch.setitem(subjects.ADAPTERS, "example", replace(ADAPTERS["example"], needs=needs, env={"A": "1"}))
    source = source_of(SubjectSpec(connector="example"))
    assert source.env == {"A": "1"}
    assert source.identity == {"package files json": package_digest("json")}


@pytest.mark.parametrize(("connector", "words", "ending"), [
    ("OffloadingConnector", "CPU Offloading is currently only supported on CUDA-alike and XPU GPUs", Ending.REFUSED),
    ("SimpleCPUOffloadConnector", "type object '_StreamPlaceholder' has no attribute 'priority_range'",
     Ending.REFUSED),
    ("ExampleConnector", "CPU Offloading is currently only supported on CUDA-alike and XPU GPUs", Ending.CRASHED),
    ("OffloadingConnector", "something else", Ending.CRASHED),
])
def test_a_connectors_own_words_for_cannot_run_here_are_a_refusal(tmp_path, connector, words, ending):
    refusals = refusals_of_class(connector)
    log = tmp_path / "none.log"
    assert classify(Exception(words), "load", accepted=False, log=log, refusals=refusals)[0] is ending
    # Once the engine was up it is no refusal any more.
    assert classify(Exception(words), "populate", accepted=True, log=log, refusals=refusals)[0] is Ending.CRASHED


# --- the axis ---------------------------------------------------------------------------------------------------


def plan_of(tmp_path, model, subject: str, axis: str):
    path = Path(tmp_path) / "x.yaml"
    path.write_text(SCENARIO.format(subject=subject, axis=axis))
    return make_plan([read_scenario(path)], platform="cpu", find_model=lambda name: model, identity={})


def test_connectors_as_an_axis_share_their_oracle(tmp_path, model):
    plan = plan_of(tmp_path, model, "example", "connector: [example, noop]")
    example, noop = plan.cells
    assert (example.id, noop.id) == ("LBHNC-REFERENCE-bi0-example", "LBHNC-REFERENCE-bi0-noop")
    assert example.oracle == noop.oracle and example.subject != noop.subject
    assert (example.reference, example.restores, example.expected_external_tokens) == (Reference.LOCAL_HIT, True, 576)
    assert (noop.reference, noop.restores, noop.expected_external_tokens) == (Reference.RECOMPUTE, False, 0)


@pytest.mark.parametrize(("subject", "axis", "words"), [
    ("example", "connector: [exampel]", "`exampel` is no connector; did you mean `example`?"),
    ("{connector: embedded, load: async}", "connector: [example]", "the axis replaces the whole subject"),
    ("embedded", "connector: [example], load: [sync, async]", "the axis replaces the whole subject"),
])
def test_what_cannot_stand_beside_the_axis(tmp_path, model, subject, axis, words):
    with pytest.raises(Exception) as caught:
        plan_of(tmp_path, model, subject, axis)
    assert words in str(caught.value)


# --- a connector that restores nothing --------------------------------------------------------------------------


def nothing_restored(case=None):
    """A pair in which the subject recomputed what a store would have restored."""
    case = clean(restores=False, hits=make_hits(external=0)) if case is None else case
    case = edit(case, Role.SUBJECT, RESTORED, external_tokens=0, delivered_tokens=None, loaded_bytes=None)
    for index in range(PROMPTS):
        case = edit_prompt(case, Role.SUBJECT, RESTORED, index, cached_tokens=0)
    return case


def test_recomputed_answers_equal_to_the_oracles_pass_and_their_blocks_are_counted():
    verdict = verdict_of(nothing_restored())
    assert (verdict.outcome, verdict.findings) == (Outcome.PASS, ())
    assert (verdict.compared.prompts, verdict.compared.blocks) == (PROMPTS, PROMPTS * HIT // 4)


def test_it_must_not_count_as_a_restore():
    """The same observations in a cell that asks for a restore say nothing."""
    verdict = verdict_of(nothing_restored(clean()))
    assert verdict.outcome is Outcome.VACUOUS
    assert FindingKind.EXTERNAL_HITS in {one.kind for one in verdict.findings}


@pytest.mark.parametrize(("case", "outcome", "kind"), [
    (lambda: edit(nothing_restored(), Role.SUBJECT, RESTORED, external_tokens=HIT), "vacuous", "external_hits"),
    (lambda: edit(nothing_restored(), Role.SUBJECT, RESTORED, local_tokens=HIT), "vacuous", "local_hits"),
    (lambda: edit(nothing_restored(), Role.SUBJECT, Phase.LOCAL_HIT, local_tokens=0), "vacuous", "local_hits"),
    (lambda: edit_prompt(nothing_restored(), Role.SUBJECT, Phase.RESTORE, 0,
                         kv=(digest_block(0, 0, ((1, 0, 0),)), digest_block(0, 1))), "fail", "kv_digests"),
    (lambda: edit_step(nothing_restored(), Role.SUBJECT, RESTORED, 0, 1, token=99), "fail", "tokens"),
])
def test_what_it_must_not_do(case, outcome, kind):
    verdict = verdict_of(case())
    assert (str(verdict.outcome), str(verdict.findings[0].kind)) == (outcome, kind)
