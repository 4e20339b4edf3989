# SPDX-License-Identifier: Apache-2.0
"""The scenario of runs with the fake engine: two cells, four legs; and what the fake engine plants in them."""

from __future__ import annotations

SMALL = """\
name: small
platforms: [cpu]
model: qwen3-0.6b
subject: {connector: embedded}
axes:
  layout: [LBHNC]
  backend: [REFERENCE]
  batch_invariant: [false, true]
prompts: {count: 2, prefix_tokens: 32, tail_tokens: 8}
decode: {max_tokens: 4, logprobs: 3}
engine: {block_size: 16}
"""
CELLS = ["LBHNC-REFERENCE-bi0", "LBHNC-REFERENCE-bi1"]
FIRST, SECOND = (f"small::{cell}" for cell in CELLS)

_WRONG = {"bits": [[1, 2]]}
VALUES = {CELLS[1]: {"subject": {"phases": {"restore": _WRONG, "restore_again": _WRONG}}}}
VACUOUS = {CELLS[1]: {"subject": {"phases": {"restore": {"external_tokens": -1}}}}}
UNSTABLE = {CELLS[0]: {"oracle": {"phases": {"recompute_again": {"bits": [[0, 0]]}}}}}
