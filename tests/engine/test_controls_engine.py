# SPDX-License-Identifier: Apache-2.0
"""A handful of controls on real engines: what outputs show, what only digests show, a false claim, an unstable engine.

``python -m harness controls`` runs all of them.
"""

from __future__ import annotations

import pytest

from harness import host
from harness.controls import CONTROLS, plant, run_controls
from harness.models import find_model
from harness.records import FindingKind, Outcome

pytestmark = pytest.mark.engine

#: Name -> a part of what the expected finding says. They share one warm process and, where it is right, one oracle.
CASES = {
    "head_slot_skipped": "layer 0, head slot 3",
    "blocks_exchanged": "blocks 0-1 of every prompt",
    "restored_late": "prompt 0, token 0",
    "partial_block_claimed": "165 external hit tokens, exactly 144 expected",
    "reset_ignored": "144 local hit tokens, exactly 0 expected",
    "one_ulp-oracle": "recompute_again differs from recompute in 1 of 3 prompts",
    "token_forgotten": "oracle recompute is not what transformers bfloat16 computes",
    "killed": "child died of SIGKILL in stage restore",
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    from harness.archive import RunFolder

    scratch = tmp_path_factory.mktemp("controls")
    folder = RunFolder(scratch / "run")
    folder.prepare()
    planted = plant(CONTROLS, find_model=find_model, identity=host.identity(), stores=str(scratch))
    chosen = [one for one in planted if one.name in CASES]
    return {result.planted.name: result for result in run_controls(chosen, folder, workers=1)}


def test_each_is_caught(results):
    assert {name: result.problem for name, result in results.items()} == dict.fromkeys(CASES, "")


@pytest.mark.parametrize("name", CASES)
def test_the_finding_says_where(results, name):
    assert CASES[name] in results[name].finding.message


def test_only_the_digests_see_exchanged_blocks_for_what_they_are(results):
    verdict = results["blocks_exchanged"].verdict
    assert (verdict.outcome, verdict.compared.blocks, verdict.compared.blocks_equal) == (Outcome.FAIL, 9, 3)
    assert FindingKind.KV_DIGESTS in {finding.kind for finding in verdict.findings}


def test_only_the_ground_truth_sees_a_forgotten_token(results):
    """Oracle and subject agree in every token, logprob and block; the truth agrees with itself in another dtype."""
    verdict = results["token_forgotten"].verdict
    compared = verdict.compared
    assert {finding.kind for finding in verdict.findings} == {FindingKind.GROUND_TRUTH}
    assert (compared.tokens_equal, compared.logprobs_equal, compared.blocks_equal) == (24, 144, 9)
    assert [(one.left, one.right, one.within) for one in verdict.agreements] == [
        ("recompute", "transformers bfloat16", False), ("recompute", "transformers float32", False),
        ("transformers bfloat16", "transformers float32", True),
    ]
