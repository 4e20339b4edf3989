# SPDX-License-Identifier: Apache-2.0
"""A store's own promise without an engine: vLLM's KV tensors, the store's planner and worker handle, and no model.

``harness.engines.unit`` goes with it through the phases of any other leg. Instead of a forward pass it writes bytes
that follow from the prompt's tokens alone, so a restored block must be the oracle's block, bit for bit.
"""
