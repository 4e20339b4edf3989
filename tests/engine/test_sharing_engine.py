# SPDX-License-Identifier: Apache-2.0
"""A store that one real engine fills and another one, with other weights under the same path, reads."""

from __future__ import annotations

import pytest

from harness import host
from harness.compare import judge
from harness.models import find_model
from harness.plan import make_plan
from harness.records import Outcome, Phase
from harness.row import sharing_words
from harness.runner import Runner
from harness.scenario import read_scenario

pytestmark = pytest.mark.engine

TEXT = """name: shared
platforms: [cpu]
model: tiny
subject: embedded_file
axes:
  layout: [LBHNC]
  backend: [REFERENCE]
  batch_invariant: [true]
  differs: [nothing, weights_same_name]
prompts: {count: 3, prefix_tokens: 64, tail_tokens: 8}
decode: {max_tokens: 8, logprobs: 5}
engine: {block_size: 16, max_model_len: 256, num_gpu_blocks_override: 128}
"""


def test_a_store_whose_keys_have_the_weights_gives_nothing_of_other_ones(tmp_path, run_folder):
    path = tmp_path / "shared.yaml"
    path.write_text(TEXT)
    plan = make_plan([read_scenario(path)], platform="cpu", find_model=find_model, identity=host.identity())
    legs = {leg.digest: leg for leg in plan.legs}
    control, cell = plan.cells
    runner = Runner(run_folder)
    try:
        verdict = judge(cell, legs, *runner.ensure_cell(cell, legs))
        subject = runner.ensure(legs[cell.subject])
        kept = runner.ensure(legs[cell.sharing.control])
    finally:
        runner.close()
    assert (verdict.outcome, verdict.findings) == (Outcome.PASS, ())
    assert (verdict.compared.blocks, verdict.compared.blocks_equal) == (12, 12)
    assert sharing_words(cell, subject) == "must not hit: nothing shared"
    assert subject.filled.settings["model"] == subject.resolved.settings["model"]
    assert subject.filled.settings["weights"] != subject.resolved.settings["weights"]
    assert subject.left_bytes > 0
    # The filling engine gets its own back, the reading one what it stored itself, and one without a difference all.
    assert [subject.phase(phase).external_tokens for phase in (
        Phase.OWN_RESTORE, Phase.RESTORE, Phase.RESTORE_AGAIN)] == [192, 0, 192]
    assert kept.phase(Phase.RESTORE).external_tokens == 192
    assert control.sharing.control is None
