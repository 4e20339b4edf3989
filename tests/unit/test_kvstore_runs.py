# SPDX-License-Identifier: Apache-2.0
"""The layout planner: what it states, and what it refuses with which figures."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from vllm.v1.kv_cache_interface import MLAAttentionSpec
from vllm.v1.kv_cache_layout import KVCacheLayout
from vllm.v1.worker.utils import allocate_kv_cache

from harness.kvstore.placement import LAYOUTS, kernel_block_size_of, placements
from harness.kvstore.runs import Run, coalesce, plan_group
from harness.kvstore.synthetic import attention_spec, cache_config, group_of, qwen3
from harness.kvstore.verify import verify


def small(layout, layers=3, blocks=4, groups=1, **changes):
    values = {"heads": 2, "head_size": 4, "block_size": 8, "dtype": torch.bfloat16, **changes}
    specs = [attention_spec(**values)] * layers
    config = cache_config([group_of(specs, f"g{index}") for index in range(groups)], KVCacheLayout[layout], blocks)
    return config, allocate_kv_cache(config, torch.device("cpu"), KVCacheLayout[layout])


def test_runs_carry_offset_size_and_block_stride():
    # Page: 2 heads x 8 tokens x 4 elements of K and V in bf16 = 256 bytes; 3 layers, 4 blocks.
    assert plan_group(small("LBHNC")[0], 0, KVCacheLayout.LBHNC).runs == (
        Run(0, 256, 256), Run(1024, 256, 256), Run(2048, 256, 256),
    )  # fmt: skip
    assert plan_group(small("LHBNC")[0], 0, KVCacheLayout.LHBNC).runs == tuple(
        Run(offset, 128, 128) for offset in range(0, 3072, 512)
    )
    assert plan_group(small("BHLNC")[0], 0, KVCacheLayout.BHLNC).runs == (Run(0, 768, 768),)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_head_and_mla_pages_stay_one_run(layout):
    config, _ = small(layout, heads=1)
    assert len(plan_group(config, 0, KVCacheLayout[layout]).runs) == (1 if layout.startswith("B") else 3)
    spec = MLAAttentionSpec(block_size=8, num_kv_heads=1, head_size=6, dtype=torch.bfloat16)
    config = cache_config([group_of([spec] * 3)], KVCacheLayout[layout], 4)
    plan = plan_group(config, 0, KVCacheLayout[layout])
    assert (len(plan.runs), plan.object_bytes) == (1 if layout.startswith("B") else 3, 3 * spec.page_size_bytes)


def test_padding_stays_outside_the_object():
    for layout, strides in (("LBHNC", 320), ("BLHNC", 960)):
        config, kv_caches = small(layout, padding=64)
        plan = plan_group(config, 0, KVCacheLayout[layout])
        verify(placements(config, 0, KVCacheLayout[layout]), plan, kv_caches)
        assert plan.object_bytes == 3 * 256
        assert [run.size for run in plan.runs] == [256] * 3
        assert {run.block_stride for run in plan.runs} == {strides}


@pytest.mark.parametrize("layout", ["LBHNC", "LBNHC"])
def test_kernel_blocks_are_read_from_the_tensor(layout):
    config, _ = small(layout)
    kv_caches = allocate_kv_cache(config, torch.device("cpu"), KVCacheLayout[layout], [2])
    assert kernel_block_size_of(config, 0, kv_caches) == 2
    places = placements(config, 0, KVCacheLayout[layout], 2)
    plan = plan_group(config, 0, KVCacheLayout[layout], 2)
    assert verify(places, plan, kv_caches).numel() == 3 * 4 * 256
    assert [run.size for run in plan.runs] == [256] * 3
    # Taken for whole blocks, the same tensors have another shape.
    with pytest.raises(ValueError, match=re.escape("[B, H, N, C bytes] = [16, 2, 2, 16], the spec says [4, 2, 8, 16]")):
        verify(placements(config, 0, KVCacheLayout[layout]), plan, kv_caches)


def test_kernel_blocks_in_split_pages_are_refused():
    config, _ = small("LHBNC")
    with pytest.raises(ValueError, match=re.escape("page of 256 bytes is not dense (block stride 128)")):
        plan_group(config, 0, KVCacheLayout.LHBNC, 2)


def test_kernel_blocks_that_do_not_divide_are_refused():
    config, kv_caches = small("LBHNC")
    with pytest.raises(ValueError, match="kernel blocks of 3 tokens do not divide blocks of 8 tokens"):
        plan_group(config, 0, KVCacheLayout.LBHNC, 3)
    with pytest.raises(ValueError, match="its tensor has 4 blocks for 3 blocks of 8 tokens"):
        kernel_block_size_of(replace(config, num_blocks=3), 0, kv_caches)


def test_layers_of_different_size_share_a_block():
    big, little = attention_spec(2, 4, 8, torch.bfloat16), attention_spec(1, 4, 8, torch.bfloat16)
    config = cache_config([group_of([big, big, little])], KVCacheLayout.BLHNC, 4)
    plan = plan_group(config, 0, KVCacheLayout.BLHNC)
    assert plan.runs == (Run(0, 640, 640),)
    config = cache_config([group_of([big, big, little])], KVCacheLayout.LBHNC, 4)
    assert plan_group(config, 0, KVCacheLayout.LBHNC).runs == (
        Run(0, 256, 256), Run(1024, 256, 256), Run(2048, 128, 128),
    )  # fmt: skip


@pytest.mark.parametrize("layout", ["LHBNC", "BHLNC"])
def test_a_split_page_with_the_layout_unset_is_refused(layout):
    config, _ = qwen3(layout, 3)
    with pytest.raises(
        ValueError, match=r"Layer g0.layer.0: its page of 65536 bytes is split .* 8192\b.*layout is unset"
    ):
        plan_group(config, 0, None)


@pytest.mark.parametrize("layout", ["LBHNC", "LBNHC", "BLHNC", "BLNHC"])
def test_a_whole_page_needs_no_layout(layout):
    config, kv_caches = small(layout)
    plan = plan_group(config, 0, None)
    assert plan.runs == plan_group(config, 0, KVCacheLayout[layout]).runs
    verify(placements(config, 0, None), plan, kv_caches)


def test_run_bytes_beyond_the_stride_are_refused():
    config, _ = qwen3("LBHNC", 3)
    config.kv_cache_tensors[0].block_stride = 8192
    message = "Layer g0.layer.0 (LBHNC): KV region bytes (65536) exceed its stride (8192)."
    with pytest.raises(ValueError, match=re.escape(message)):
        plan_group(config, 0, KVCacheLayout.LBHNC)


@pytest.mark.parametrize("told", LAYOUTS)
@pytest.mark.parametrize("real", LAYOUTS)
def test_strides_that_contradict_the_layout_are_refused(real, told):
    _, kv_caches = small(real)
    config, _ = small(told)
    places, plan = placements(config, 0, KVCacheLayout[told]), plan_group(config, 0, KVCacheLayout[told])
    if real == told:
        assert verify(places, plan, kv_caches).numel() == 3 * 4 * 256
        return
    with pytest.raises(ValueError, match=rf"Layer g0\.layer\.[01].*(contradict layout {told}|starts at byte)"):
        verify(places, plan, kv_caches)


def test_a_storage_smaller_than_the_plan_is_refused():
    config, kv_caches = small("LBHNC")
    places, plan = placements(config, 0, KVCacheLayout.LBHNC), plan_group(config, 0, KVCacheLayout.LBHNC)
    with pytest.raises(ValueError, match=r"\(LBHNC\): the KV storage holds 3072 bytes, but the plan reaches byte 3328"):
        verify(places, replace(plan, num_blocks=5), kv_caches)


def test_a_layer_in_another_storage_or_without_tensor_is_refused():
    config, kv_caches = small("LBHNC")
    places, plan = placements(config, 0, KVCacheLayout.LBHNC), plan_group(config, 0, KVCacheLayout.LBHNC)
    moved = {**kv_caches, "g0.layer.1": kv_caches["g0.layer.1"].clone()}
    with pytest.raises(ValueError, match="Layer g0.layer.1 .LBHNC.: its tensor lies in another storage"):
        verify(places, plan, moved)
    del moved["g0.layer.1"]
    with pytest.raises(ValueError, match="Layer g0.layer.1 .LBHNC. is in the KV cache configuration but has no tensor"):
        verify(places, plan, moved)


def test_coalesce_orders_by_stride_and_joins_what_touches():
    assert coalesce([(28, 8192), (8, 28 * 8192)], 8192, "x") == ((), 28 * 8 * 8192)
    assert coalesce([(4, 1000), (2, 100), (1, 7)], 50, "x") == (((4, 1000), (2, 100)), 50)
    assert coalesce([(4, 200), (2, 100)], 50, "x") == (((8, 100),), 50)
    with pytest.raises(ValueError, match=re.escape("Layer x: KV region bytes (200) exceed its stride (150).")):
        coalesce([(4, 150), (2, 100)], 50, "x")
