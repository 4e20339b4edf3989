# SPDX-License-Identifier: Apache-2.0
"""Prompt sets on real engines: hits by source and by prompt, chunks, preemption; each as the rule has it.

``scenarios/prompts.yaml`` and ``scenarios/preemption.yaml`` run all of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import host
from harness.archive import RunFolder
from harness.compare import judge
from harness.models import find_model
from harness.plan import make_plan
from harness.records import FindingKind, Outcome, Phase, Plan, Role
from harness.runner import Runner
from harness.scenario import read_scenarios

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
#: Sets whose hits are mixed, one that is cut short, one that is preempted; in a layout whose pages are split.
CELLS = ("BHLNC-REFERENCE-bi1-rolled_back", "BHLNC-REFERENCE-bi1-local_then_external", "BHLNC-REFERENCE-bi1-chunked",
         "BHLNC-REFERENCE-bi1-shorter_than_block", "BHLNC-REFERENCE-bi1-async")


@pytest.fixture(scope="module")
def plan() -> Plan:
    scenarios = read_scenarios([ROOT / "scenarios" / name for name in ("prompts.yaml", "preemption.yaml")])
    return make_plan(scenarios, platform="cpu", find_model=find_model, identity=host.identity())


@pytest.fixture(scope="module")
def judged(plan, tmp_path_factory):
    folder = RunFolder(tmp_path_factory.mktemp("prompts") / "run")
    folder.prepare()
    runner, legs = Runner(folder), {leg.digest: leg for leg in plan.legs}
    try:
        return {
            cell.id: (cell, judge(cell, legs, oracle, subject), subject)
            for cell in plan.cells if cell.id in CELLS
            for oracle, subject in [runner.ensure_pair(legs[cell.oracle], legs[cell.subject])]
        }
    finally:
        runner.close()


@pytest.mark.parametrize("name", CELLS)
def test_each_ends_as_it_should(judged, name):
    _, verdict, _ = judged[name]
    wanted = Outcome.EXPECTED if "shorter" in name else Outcome.PASS
    assert verdict.verdict is wanted, [finding.message for finding in verdict.findings]


@pytest.mark.parametrize("name", CELLS)
def test_every_prompt_has_its_hits_by_source(judged, name):
    cell, _, subject = judged[name]
    for phase in (Phase.POPULATE, Phase.RESTORE, Phase.RESTORE_AGAIN):
        hits = cell.hits_of(Role.SUBJECT, phase)
        prompts = subject.phase(phase).prompts
        assert [(one.local_tokens, one.external_tokens) for one in prompts] == list(
            zip(hits.local, hits.external, strict=True)
        ), phase


def test_what_is_too_short_to_be_restored_says_so(judged):
    _, verdict, _ = judged["BHLNC-REFERENCE-bi1-shorter_than_block"]
    assert [finding.kind for finding in verdict.findings] == [FindingKind.NOTHING_COMPARED]


def test_the_edges_were_reached(judged):
    _, _, chunked = judged["BHLNC-REFERENCE-bi1-chunked"]
    assert [one.prefill_steps for one in chunked.phase(Phase.POPULATE).prompts] == [3, 3, 3]
    _, _, many = judged["BHLNC-REFERENCE-bi1-async"]
    assert all(many.phase(phase).preemptions > 0 for phase in (Phase.POPULATE, Phase.RESTORE, Phase.RESTORE_AGAIN))
