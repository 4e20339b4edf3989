# SPDX-License-Identifier: Apache-2.0
"""Legs on real vLLM engines with the tiny model: warm processes, and a layout forced behind the harness's back."""

from __future__ import annotations

from dataclasses import replace

import psutil
import pytest

from harness.compare import judge
from harness.records import Cell, Ending, FindingKind, Outcome, Phase, Plan
from harness.runner import Runner

pytestmark = pytest.mark.engine


def cell_of(plan: Plan, name: str) -> Cell:
    return next(cell for cell in plan.cells if cell.id == name)


def answers(observation) -> list:
    """Everything of an observation that must not depend on how its process was started."""
    return [
        (record.phase, record.local_tokens, record.external_tokens, record.delivered_tokens, record.loaded_bytes,
         [(prompt.digest, prompt.steps, prompt.kv) for prompt in record.prompts])
        for record in observation.phases
    ]


def test_a_forked_leg_and_a_spawned_leg_give_the_same_bits(smoke_plan, run_folder, tmp_path, monkeypatch):
    leg = smoke_plan.leg(cell_of(smoke_plan, "LHBNC-REFERENCE-bi0").subject)
    runner = Runner(run_folder)
    try:
        warm = runner.ensure(leg)
        assert warm.ending is Ending.OK, warm.failure
        processes = [process for _, process in runner._warm._ready.values()]
        assert len(processes) == 1
        again = runner.ensure(replace(leg, digest="f" * 16))
        assert [process for _, process in runner._warm._ready.values()] == processes
        assert answers(again) == answers(warm)
    finally:
        runner.close()
    assert not psutil.pid_exists(processes[0].pid)

    monkeypatch.setenv("KVPARITY_WARM", "0")
    spawned = Runner(run_folder).ensure(replace(leg, digest="e" * 16))
    assert spawned.ending is Ending.OK, spawned.failure
    assert answers(spawned) == answers(warm)
    assert replace(spawned.resolved) == replace(warm.resolved)
    restore = warm.phase(Phase.RESTORE)
    assert restore.external_tokens == cell_of(smoke_plan, "LHBNC-REFERENCE-bi0").expected_external_tokens
    assert all(kv is not None for prompt in restore.prompts for kv in prompt.kv)


FORCING = """\
import os
if "VLLM_KV_CACHE_LAYOUT" in os.environ:
    os.environ["VLLM_KV_CACHE_LAYOUT"] = "LBNHC"
"""


@pytest.fixture
def forced_layout(tmp_path, monkeypatch):
    """Every Python that starts from here on changes the layout it was given, as a stray site file could."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(FORCING)
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.setenv("KVPARITY_WARM", "0")


def test_a_layout_forced_behind_the_harnesss_back_is_vacuous(smoke_plan, run_folder, forced_layout):
    cell = cell_of(smoke_plan, "BHLNC-REFERENCE-bi0")
    runner = Runner(run_folder)
    subject, oracle = runner.ensure(smoke_plan.leg(cell.subject)), runner.ensure(smoke_plan.leg(cell.oracle))
    assert (subject.ending, oracle.ending) == (Ending.OK, Ending.OK)
    assert subject.resolved.layout == "LBNHC" and subject.resolved.layout_by_strides == ("LBNHC",)
    verdict = judge(cell, {leg.digest: leg for leg in smoke_plan.legs}, oracle, subject)
    assert verdict.outcome is Outcome.VACUOUS and verdict.verdict is Outcome.VACUOUS
    assert FindingKind.LAYOUT_NOT_AS_ASKED in {finding.kind for finding in verdict.findings}


def test_a_forced_layout_that_the_backend_lacks_is_rejected(smoke_plan, run_folder, forced_layout):
    cell = cell_of(smoke_plan, "LBHNC-CPU_ATTN-bi0")
    subject = Runner(run_folder).ensure(smoke_plan.leg(cell.subject))
    assert subject.ending is Ending.REFUSED
    verdict = judge(cell, {leg.digest: leg for leg in smoke_plan.legs}, None, subject)
    assert (verdict.outcome, verdict.verdict) == (Outcome.REJECTED, Outcome.REJECTED)
    assert "LBNHC" in verdict.findings[0].message
