# SPDX-License-Identifier: Apache-2.0
"""Faults of a load that are a matter of places: what a layer's restored pages come to instead of what they should.

Everything is said in the logical view [blocks, head slots, tokens, content], so a fault is the same damage in every
layout. ``blocks`` are those of one load, in the request's order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Pages:
    """One layer's pages of one load.

    Attributes:
        layer, layers: number of the layer, and of layers.
        before, after: [blocks, head slots, tokens, content] before the load and as it should be after it.
    """

    layer: int
    layers: int
    before: torch.Tensor
    after: torch.Tensor


def _head_slots_swapped(pages: Pages) -> torch.Tensor:
    damaged = pages.after.clone()
    damaged[:, [0, 1]] = pages.after[:, [1, 0]]
    return damaged


def _k_v_swapped(pages: Pages) -> torch.Tensor:
    # A head slot's content is K then V of one token.
    return pages.after.roll(pages.after.shape[3] // 2, 3)


def _block_off_by_one(pages: Pages) -> torch.Tensor:
    return torch.cat((pages.after[1:], pages.after[-1:]))


def _token_off_by_one(pages: Pages) -> torch.Tensor:
    return pages.after.roll(1, 2)


def _blocks_exchanged(pages: Pages) -> torch.Tensor:
    return torch.cat((pages.after[:2].flip(0), pages.after[2:]))


def _layer_skipped(pages: Pages) -> torch.Tensor:
    return pages.before if pages.layer == pages.layers - 1 else pages.after


def _head_slot_skipped(pages: Pages) -> torch.Tensor:
    damaged = pages.after.clone()
    if pages.layer == 0:
        damaged[:, -1] = pages.before[:, -1]
    return damaged


def _bit_flipped(pages: Pages) -> torch.Tensor:
    damaged = pages.after.clone()
    if pages.layer == 0:
        # Little-endian: the first byte of a value holds its lowest bits.
        damaged.view(torch.uint8)[-1, 0, 0, 0] ^= 1
    return damaged


def _zeros_restored(pages: Pages) -> torch.Tensor:
    return torch.zeros_like(pages.after)


def _nan_restored(pages: Pages) -> torch.Tensor:
    damaged = pages.after.clone()
    damaged.view(torch.uint8)[-1] = 0xFF
    return damaged


def _load_dropped(pages: Pages) -> torch.Tensor:
    return pages.before


DAMAGES: Mapping[str, Callable[[Pages], torch.Tensor]] = {
    "head_slots_swapped": _head_slots_swapped,
    "k_v_swapped": _k_v_swapped,
    "block_off_by_one": _block_off_by_one,
    "token_off_by_one": _token_off_by_one,
    "blocks_exchanged": _blocks_exchanged,
    "layer_skipped": _layer_skipped,
    "head_slot_skipped": _head_slot_skipped,
    "bit_flipped": _bit_flipped,
    "zeros_restored": _zeros_restored,
    "nan_restored": _nan_restored,
    "load_dropped": _load_dropped,
}
