# SPDX-License-Identifier: Apache-2.0
"""Proof of a round trip, byte for byte, against vLLM's own views of the KV tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from vllm.v1.kv_cache_interface import group_kernel_blocks

from harness.kvstore.transfer import TransferPath


def wrong_bytes(
    kv_caches: Mapping[str, torch.Tensor],
    storage: torch.Tensor,
    num_blocks: int,
    store: TransferPath,
    load: TransferPath,
    blocks: Sequence[tuple[int, int, int]],
    seed: int = 0,
) -> int:
    """Store blocks, overwrite the whole storage, load them elsewhere, and count the bytes that are not as they must be.

    Every byte of the storage counts: the restored pages must be the stored ones, and every other byte is a guard that
    must keep its random value, padding and other groups' bytes included.

    Args:
        kv_caches: the layers of one cache group, ``[B, H, N, C]``.
        storage: uint8, 1-D, what all of them view.
        num_blocks: manager blocks.
        store, load: paths over the same plan and pool, possibly different ones.
        blocks: (source block, slot, target block).
        seed: of the random bytes.
    """
    source, slots, target = (list(column) for column in zip(*blocks, strict=True))
    random = torch.Generator().manual_seed(seed)
    pages = {name: group_kernel_blocks(tensor.view(torch.uint8), num_blocks) for name, tensor in kv_caches.items()}
    _fill(storage, random)
    wanted = {name: page[source].clone() for name, page in pages.items()}
    store.store(source, slots)
    _fill(storage, random)
    guards = storage.clone()
    for name, page in pages.items():
        page[target] = wanted[name]
    expected = storage.clone()
    storage.copy_(guards)
    load.load(target, slots)
    return int((storage != expected).sum())


def _fill(storage: torch.Tensor, random: torch.Generator) -> None:
    storage.copy_(torch.randint(0, 256, storage.shape, dtype=torch.uint8, generator=random))
