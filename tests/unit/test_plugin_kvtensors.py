# SPDX-License-Identifier: Apache-2.0
"""KV cache tensors as vLLM allocates them: layout recognition, digests in logical order, zeroing."""

from __future__ import annotations

import base64
from hashlib import sha256

import pytest

torch = pytest.importorskip("torch", reason="the KV cache consists of torch tensors")
pytest.importorskip("vllm", reason="the tensors are allocated by vLLM's own allocator")

from vllm.v1.kv_cache_interface import (  # noqa: E402
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
    compute_layout_strides,
)
from vllm.v1.kv_cache_layout import KVCacheLayout  # noqa: E402
from vllm.v1.worker.utils import allocate_kv_cache  # noqa: E402

from harness.plugin.kvtensors import LayerSet, block_digests, layer_sets, zero  # noqa: E402

LAYOUTS = tuple(layout.name for layout in KVCacheLayout)
LAYERS, BLOCKS, HEADS, TOKENS, DIM = 3, 7, 2, 8, 4


def allocated(
    layout: str, kernel_block: int = TOKENS, layers: int = LAYERS, heads: int = HEADS
) -> tuple[LayerSet, ...]:
    spec = FullAttentionSpec(block_size=TOKENS, num_kv_heads=heads, head_size=DIM, dtype=torch.bfloat16)
    names = [f"layer.{index}" for index in range(layers)]
    strides = compute_layout_strides(spec, BLOCKS, layers, KVCacheLayout[layout])
    size = layers * BLOCKS * spec.page_size_bytes
    config = KVCacheConfig(
        num_blocks=BLOCKS,
        kv_cache_tensors=[KVCacheTensor(size=size, layers=names, layer_stride=strides[0], block_stride=strides[1])],
        kv_cache_groups=[KVCacheGroupSpec(names, spec)],
    )
    return layer_sets(config, allocate_kv_cache(config, torch.device("cpu"), KVCacheLayout[layout], [kernel_block]))


def filled(sets: tuple[LayerSet, ...]) -> torch.Tensor:
    """Random content of [L, B, H, N, C] in manager blocks, written through the views; returned as int16 bits."""
    (layers,) = sets
    heads = layers.tensors[0].shape[1]
    shape = (len(layers.tensors), BLOCKS, heads, TOKENS, 2 * DIM)
    content = torch.randint(-(2**15), 2**15, shape, generator=torch.Generator().manual_seed(4), dtype=torch.int16)
    split = layers.split
    for tensor, values in zip(layers.tensors, content, strict=True):
        parts = values.unflatten(2, (split, TOKENS // split)).transpose(1, 2).flatten(0, 1)
        tensor.view(torch.int16).copy_(parts)
    return content


def expected(content: torch.Tensor, block: int) -> str:
    digests = [
        sha256(content[layer, block, head, :, half * DIM : (half + 1) * DIM].contiguous().numpy().tobytes())
        for layer in range(content.shape[0])
        for head in range(content.shape[2])
        for half in (0, 1)
    ]
    return base64.b64encode(b"".join(digest.digest()[:8] for digest in digests)).decode()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_layout_is_read_from_the_strides(layout: str) -> None:
    (layers,) = allocated(layout)
    assert layers.layouts() == (layout,)


@pytest.mark.parametrize("layout", ["LBHNC", "LHBNC", "LBNHC"])
def test_an_axis_of_length_one_has_no_say(layout: str) -> None:
    (found,) = allocated(layout, layers=1)
    alike = {"LBHNC": {"LBHNC", "BLHNC"}, "LBNHC": {"LBNHC", "BLNHC"}, "LHBNC": {"LHBNC"}}
    assert alike[layout] <= set(found.layouts())


def test_one_head_slot_leaves_layer_or_block_outermost() -> None:
    (layers,) = allocated("LHBNC", heads=1)
    assert layers.layouts() == ("LBHNC", "LBNHC", "LHBNC")


def test_strides_of_no_layout_are_no_layout() -> None:
    (layers,) = allocated("LBHNC")
    turned = LayerSet(tuple(reversed(layers.tensors)), layers.spec, layers.num_blocks)
    assert turned.layouts() == ()
    uneven = LayerSet((layers.tensors[0], layers.tensors[2], layers.tensors[1]), layers.spec, layers.num_blocks)
    assert uneven.layouts() == ()
    with pytest.raises(ValueError, match="Layer 2 of 3 does not continue the strides of layer 0"):
        _ = uneven.strides


@pytest.mark.parametrize("layout", LAYOUTS)
def test_digests_are_those_of_the_logical_bytes(layout: str) -> None:
    sets = allocated(layout)
    content = filled(sets)
    wanted = [5, 0, 6, 2]
    assert block_digests(sets, wanted) == [expected(content, block) for block in wanted]


@pytest.mark.parametrize("kernel_block", [2, 4])
@pytest.mark.parametrize("layout", ["LBHNC", "LBNHC"])
def test_a_manager_block_may_be_several_kernel_blocks(layout: str, kernel_block: int) -> None:
    sets = allocated(layout, kernel_block)
    assert sets[0].split == TOKENS // kernel_block
    assert layout in sets[0].layouts()
    content = filled(sets)
    assert block_digests(sets, [3, 1]) == [expected(content, 3), expected(content, 1)]


def test_one_changed_byte_changes_one_digest() -> None:
    sets = allocated("BHLNC")
    filled(sets)
    before = base64.b64decode(block_digests(sets, [4])[0])
    sets[0].tensors[1].view(torch.uint8)[4, 1, 3, 2 * DIM + 1] ^= 1
    after = base64.b64decode(block_digests(sets, [4])[0])
    changed = {index // 8 for index, (a, b) in enumerate(zip(before, after, strict=True)) if a != b}
    assert changed == {(1 * HEADS + 1) * 2 + 1}  # layer 1, head slot 1, V


def test_blocks_outside_the_pool_are_refused() -> None:
    with pytest.raises(ValueError, match=r"Blocks \[7, -1\] are not in the pool of 7 blocks; valid ids: 0 to 6\."):
        block_digests(allocated("LBHNC"), [0, 7, -1])
    assert block_digests(allocated("LBHNC"), []) == []


@pytest.mark.parametrize("layout", LAYOUTS)
def test_zeroing_reaches_every_byte(layout: str) -> None:
    sets = allocated(layout)
    filled(sets)
    assert zero(sets) == (LAYERS * BLOCKS * HEADS * TOKENS * 2 * DIM * 2, 0)
    assert all(int(torch.count_nonzero(tensor)) == 0 for tensor in sets[0].tensors)
