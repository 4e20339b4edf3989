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
