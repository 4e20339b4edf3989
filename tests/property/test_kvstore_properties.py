# SPDX-License-Identifier: Apache-2.0
"""Round trips over drawn dimensions on vLLM's own placement and allocator, with every other byte as a guard."""

from __future__ import annotations

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from vllm.v1.kv_cache_layout import KVCacheLayout
from vllm.v1.worker.utils import allocate_kv_cache

from harness.kvstore.bench import minimum_runs
from harness.kvstore.placement import LAYOUTS, kernel_block_size_of, placements
from harness.kvstore.pool import Pool
from harness.kvstore.roundtrip import wrong_bytes
from harness.kvstore.runs import plan_group
from harness.kvstore.synthetic import attention_spec, cache_config, group_of
from harness.kvstore.transfer import PATHS
from harness.kvstore.verify import verify

DTYPES = (torch.bfloat16, torch.float32, torch.uint8)


@st.composite
def caches(draw):
    """(config, kv_caches, layout) that vLLM itself accepts."""
    layout = KVCacheLayout[draw(st.sampled_from(LAYOUTS))]
    dtype = draw(st.sampled_from(DTYPES))
    block_size = draw(st.sampled_from([1, 2, 4, 6, 16]))
    padding = draw(st.sampled_from([0, 0, 0, 16, 52])) if layout.is_block_compact else 0
    two_slots = draw(st.booleans())

    def spec():
        return attention_spec(draw(st.integers(1, 8)), draw(st.integers(1, 5)), block_size, dtype, two_slots, padding)

    mixed = draw(st.booleans()) and layout.is_block_compact
    shared = spec()
    groups = [
        group_of([spec() if mixed else shared for _ in range(draw(st.integers(1, 5)))], f"g{index}")
        for index in range(draw(st.integers(1, 3)))
    ]
    num_blocks = draw(st.integers(1, 9))
    try:
        config = cache_config(groups, layout, num_blocks)
        splits = [size for size in range(1, block_size + 1) if block_size % size == 0]
        kernel = draw(st.sampled_from(splits)) if layout.is_layer_compact and not padding else block_size
        kv_caches = allocate_kv_cache(config, torch.device("cpu"), layout, [kernel] * len(groups))
    except (ValueError, AssertionError):
        # vLLM itself refuses the combination.
        assume(False)
    return config, kv_caches, layout


@settings(max_examples=max(200, settings.default.max_examples), deadline=None)
@given(cache=caches(), paths=st.tuples(st.sampled_from(list(PATHS)), st.sampled_from(list(PATHS))), data=st.data())
def test_restored_bytes_equal_stored_bytes_and_nothing_else_changes(cache, paths, data):
    config, kv_caches, layout = cache
    group = data.draw(st.integers(0, len(config.kv_cache_groups) - 1))
    mine = {name: kv_caches[name] for name in config.kv_cache_groups[group].layer_names}
    kernel = kernel_block_size_of(config, group, kv_caches)
    plan = plan_group(config, group, layout, kernel)
    storage = verify(placements(config, group, layout, kernel), plan, kv_caches)
    assert plan.object_bytes * config.num_blocks == sum(
        tensor.numel() * tensor.element_size() for tensor in mine.values()
    )
    # What a plan joins must touch in every block of any pool; of a single block, layers may happen to lie side by side.
    if config.num_blocks > 1 and kernel == config.kv_cache_groups[group].kv_cache_spec.block_size:
        assert len(plan.runs) == minimum_runs(mine)

    count = data.draw(st.integers(1, config.num_blocks))
    source, target, slots = (data.draw(st.permutations(range(config.num_blocks)))[:count] for _ in range(3))
    pool = Pool(config.num_blocks * plan.object_bytes, plan.object_bytes)
    store, load = (PATHS[path](plan, storage, pool.data) for path in paths)
    moves = list(zip(source, slots, target, strict=True))
    assert wrong_bytes(mine, storage, config.num_blocks, store, load, moves) == 0
