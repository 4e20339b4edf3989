# SPDX-License-Identifier: Apache-2.0
"""One cell of scenarios/ground_truth.yaml through the runner: vLLM's CPU kernel against transformers and REFERENCE."""

from __future__ import annotations

import pytest

from harness import host
from harness.models import find_model
from harness.plan import make_plan, select
from harness.records import Ending, Outcome
from harness.scenario import read_scenario
from harness.session import Run
from tests.engine.conftest import ROOT

pytestmark = pytest.mark.engine


def test_cpu_attn_against_transformers_and_the_reference(run_folder):
    scenario = read_scenario(ROOT / "scenarios" / "ground_truth.yaml")
    plan = make_plan([scenario], platform="cpu", find_model=find_model, identity=host.identity())
    plan = select(plan, ["ground_truth::LBHNC-CPU_ATTN-bi0"])
    cell, = plan.cells
    run = Run(plan=plan, folder=run_folder)
    try:
        verdict = run.run_cell(cell)
    finally:
        run.close()
    assert (verdict.outcome, verdict.findings) == (Outcome.PASS, ())
    found = {(one.left, one.right): one for one in verdict.agreements}
    assert list(found) == [
        ("recompute", "transformers bfloat16"), ("recompute", "transformers float32"),
        ("recompute", "LBHNC-REFERENCE-bi0"), ("transformers bfloat16", "transformers float32"),
    ]
    # Rounding, and not one of the two run twice: it is seen, and it is small.
    assert all(0.0 < one.largest < 0.3 and one.median < 0.08 and one.within for one in found.values())
    assert all(one.tokens_equal >= 12 and one.logprobs >= 90 for one in found.values())
    observations = run.folder.read_observations(plan)
    for digest, dtype in zip(cell.ground_truth.truths, ("bfloat16", "float32"), strict=True):
        seen = observations[digest]
        assert (seen.ending, seen.resolved.dtype, seen.resolved.threads) == (Ending.OK, dtype, 1)
        assert seen.resolved.backend_class == ("transformers.models.qwen3.modeling_qwen3.Qwen3ForCausalLM (sdpa)",)
        assert [len(prompt.steps[0].top) for prompt in seen.phases[0].prompts] == [20] * 6
    # Judged again from what is stored, the verdict is the same.
    assert run.judge_stored(plan)[0] == [verdict]
