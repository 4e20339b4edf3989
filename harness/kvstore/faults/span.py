# SPDX-License-Identifier: Apache-2.0
"""The store that takes a layer's page for one contiguous span, as UMBP did before it copied per head.

The span starts at the tensor and repeats every ``stride(0)``. Where the layout splits the page this either exceeds the
stride (LHBNC: refused at start) or silently copies other layers' heads (BHLNC).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from vllm.v1.kv_cache_interface import KVCacheConfig

from harness.kvstore.placement import Placement
from harness.kvstore.runs import BlockPlan, Region


def single_span(
    config: KVCacheConfig, plan: BlockPlan, places: Sequence[Placement], kv_caches: Mapping[str, torch.Tensor]
) -> BlockPlan:
    """The plan of a store that believes in contiguous pages; its objects have the right size and the wrong bytes.

    Raises:
        ValueError: the page exceeds the tensor's first stride, in the words that UMBP used.
    """
    regions = []
    for place in places:
        for layer in place.layers:
            tensor = kv_caches[layer]
            stride = tensor.stride(0) * tensor.element_size() * place.split
            if config.num_blocks > 1 and place.page_bytes > stride:
                raise ValueError(
                    f"Layer {layer} ({place.layout}): KV region bytes ({place.page_bytes}) exceed its stride "
                    f"({stride})."
                )
            offset = tensor.data_ptr() - tensor.untyped_storage().data_ptr()
            regions.append(Region((layer,), offset, stride, (), place.page_bytes))
    # Not through the planner: spans of different layers overlap here, which is the fault.
    return BlockPlan(plan.group, plan.layout, plan.num_blocks, tuple(regions))
