# SPDX-License-Identifier: Apache-2.0
"""A leg of two engines through runner and comparator, with fake ones: a clean pair, and every end of the one below."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.archive import RunFolder
from harness.compare import judge
from harness.plan import make_plan
from harness.records import DEADLINES_S, Ending, FindingKind, Outcome, Phase, Plan
from harness.runner import Runner
from harness.scenario import read_scenario

TEXT = """\
name: pairs
platforms: [cpu]
model: tiny
subject: nixl
axes: {{layout: [LBHNC], backend: [REFERENCE], batch_invariant: [true], restore: [prefill_decode]}}
prompts: {{set: {prompts}, count: 3, prefix_tokens: 64, tail_tokens: 8}}
decode: {{max_tokens: 20, logprobs: 2}}
engine: {{block_size: 16}}
"""
CELL = "LBHNC-REFERENCE-bi1-prefill_decode"


@pytest.fixture
def make(tmp_path: Path, model):
    """A plan of one cell; ``subject`` is what is planted in its subject."""

    def plan(prompts: str = "partial", **subject) -> Plan:
        path = tmp_path / "pairs.yaml"
        path.write_text(TEXT.format(prompts=prompts))
        return make_plan(
            [read_scenario(path)], platform="cpu", find_model=lambda name: model, identity={},
            fake={CELL: {"subject": subject}},
        )

    return plan


def verdict_of(plan: Plan, folder: RunFolder):
    (cell,) = plan.cells
    legs = {leg.digest: leg for leg in plan.legs}
    return judge(cell, legs, *Runner(folder).ensure_cell(cell, legs))


@pytest.mark.parametrize(("prompts", "blocks"), [
    ("partial", 12), ("aligned", 9), ("shorter_than_block", 0), ("same_four", 16), ("local_then_external", 12),
    ("block_edges", 11),
])
def test_a_clean_pair_passes_with_whole_prompts_from_the_other_engine(make, folder, prompts, blocks):
    plan = make(prompts)
    verdict = verdict_of(plan, folder)
    assert (verdict.outcome, verdict.findings) == (Outcome.PASS, ())
    assert verdict.compared.blocks == verdict.compared.blocks_equal == blocks


def test_its_observation_says_what_both_did(make, folder):
    plan = make()
    observation = Runner(folder).ensure(plan.leg(plan.cells[0].subject))
    assert observation.prefill == observation.resolved is not None
    populate, local, *restores = observation.phases
    assert (populate.external_tokens, local.local_tokens) == (0, 3 * 64)
    for record in restores:
        assert (record.local_tokens, record.external_tokens, record.reset_ok) == (0, 3 * 72, True)
        handed = [(one.handover.cached_tokens, one.handover.tokens, len(one.handover.blocks)) for one in record.prompts]
        assert handed == [(64, 72, 5)] * 3
        assert [one.cached_tokens for one in record.prompts] == [72] * 3


def test_one_token_less_from_the_other_engine_is_vacuous(make, folder):
    planted = {"restore": {"external_tokens": -1}}
    verdict = verdict_of(make(phases=planted), folder)
    assert (verdict.outcome, {one.kind for one in verdict.findings}) == (
        Outcome.VACUOUS, {FindingKind.EXTERNAL_HITS, FindingKind.NOTHING_DELIVERED})


#: What happens to the engine that prefills -> stage, phases that were finished.
STAGES = {
    "load": ("load", ()), "generate": ("populate", ()), "hand_over": ("restore", (Phase.POPULATE, Phase.LOCAL_HIT)),
}


@pytest.mark.parametrize("place", STAGES)
def test_killed_at_any_time_it_is_named(make, folder, place):
    plan = make(prefill={place: "sigkill"})
    observation = Runner(folder).ensure(plan.leg(plan.cells[0].subject))
    stage, phases = STAGES[place]
    assert (observation.ending, observation.failure.stage, observation.attempts) == (Ending.CRASHED, stage, 1)
    assert observation.failure.message == "the prefill engine died of SIGKILL"
    assert tuple(record.phase for record in observation.phases) == phases


@pytest.mark.parametrize("place", STAGES)
def test_stopped_at_any_time_it_is_a_hang_with_the_stacks_of_both(make, folder, place):
    plan = make(prefill={place: "sigstop"})
    stage, phases = STAGES[place]
    key = {"populate": "prefill"}.get(stage, stage)
    leg = replace(plan.leg(plan.cells[0].subject), deadlines={**DEADLINES_S, key: 3.0})
    observation = Runner(folder).ensure(leg)
    assert (observation.ending, observation.failure.stage) == (Ending.HUNG, stage)
    assert tuple(record.phase for record in observation.phases) == ()
    sections = folder.log_path(leg.digest).read_text(errors="replace").split("--- stacks of ")[1:]
    (stopped,) = (section for section in sections if "(stopped)" in section.split("\n", 1)[0])
    assert "harness/engines/fake_pair.py" in stopped
    assert [section for section in sections if "harness/worker.py" in section]


@pytest.mark.parametrize(("place", "ending", "words", "outcome"), [
    ("load", "refuse", "planted refusal", Ending.REFUSED),
    ("load", "raise", "planted crash", Ending.CRASHED),
    ("generate", "exit0", "the prefill engine ended with exit code 0", Ending.CRASHED),
    ("hand_over", "raise", "planted crash", Ending.CRASHED),
    ("hand_over", "memory", "planted lack of memory", Ending.OUT_OF_MEMORY),
])
def test_what_it_says_itself_is_the_legs_end(make, folder, place, ending, words, outcome):
    plan = make(prefill={place: ending})
    observation = Runner(folder).ensure(plan.leg(plan.cells[0].subject))
    assert (observation.ending, observation.failure.stage) == (outcome, STAGES[place][0])
    assert words in observation.failure.message
    if ending in ("refuse", "raise", "memory"):
        assert "harness/engines/apart.py" in observation.failure.trace
