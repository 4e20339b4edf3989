# SPDX-License-Identifier: Apache-2.0
"""A small scenario with nothing wrong, for tests that change a part of it."""

GOOD = """\
name: good
platforms: [cpu]
model: tiny
subject: {connector: embedded}
axes:
  layout: [LBHNC, LHBNC]
  backend: [REFERENCE, CPU_ATTN]
  batch_invariant: [off, on]
"""
