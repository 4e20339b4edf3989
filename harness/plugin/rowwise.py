# SPDX-License-Identifier: Apache-2.0
"""Causal attention whose every row is a function of that row, its position and its context, bit for bit.

A matrix product's rounding depends on the shape of the call, so the shape must not depend on
what else is computed. Positions are cut into tiles at fixed places; the tile ``t`` always multiplies
``TILE * group`` query rows with ``(t + 1) * TILE`` keys, whether one of its rows is wanted (decode) or all of them
(prefill). A query at position p therefore always sits in the same row of a product of the same shape.
"""

from __future__ import annotations

from functools import lru_cache

import torch

#: Positions of one tile. Larger means fewer calls in prefill and more unused rows in decode.
TILE = 8


def padded(length: int) -> int:
    """Smallest multiple of ``TILE`` that holds ``length`` positions."""
    return -(-length // TILE) * TILE


@lru_cache(maxsize=8)
def _future(group: int) -> torch.Tensor:
    """True where a key of the tile lies behind the query: [TILE * group, TILE]."""
    rows = torch.arange(TILE).repeat_interleave(group)
    return torch.arange(TILE)[None, :] > rows[:, None]


def attend(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, length: int, scale: float) -> torch.Tensor:
    """Attention of the last rows of one request over its whole context, in float32.

    Args:
        query: [rows, query heads, D], the queries of positions ``length - rows`` to ``length - 1``.
        keys: [KV heads, padded(length), D], float32; rows from ``length`` on must be finite.
        values: as ``keys``.
        length: tokens of the context, the queries' own included.
        scale: factor of the scores.

    Returns:
        [rows, query heads, D], float32.
    """
    rows, num_heads, dim = query.shape
    num_kv_heads = keys.shape[0]
    group = num_heads // num_kv_heads
    start = length - rows
    first, last = start // TILE, (length - 1) // TILE
    lead = start - first * TILE
    tiles = query.new_zeros((last - first + 1) * TILE, num_heads, dim, dtype=torch.float32)
    torch.mul(query, scale, out=tiles[lead : lead + rows])
    # [tiles, KV heads, TILE * group, D]: heads that share a KV head become rows of one product.
    tiles = tiles.view(-1, TILE, num_kv_heads, group, dim).transpose(1, 2).reshape(-1, num_kv_heads, TILE * group, dim)
    future = _future(group)
    done = torch.empty_like(tiles)
    for index in range(last - first + 1):
        context = (first + index + 1) * TILE
        scores = torch.bmm(tiles[index], keys[:, :context].transpose(1, 2))
        scores[:, :, -TILE:].masked_fill_(future, float("-inf"))
        torch.bmm(torch.softmax(scores, dim=-1), values[:, :context], out=done[index])
    # A weight of exactly zero times a finite value adds a zero of either sign; adding +0 makes its sign the same.
    done += 0.0
    flat = done.view(-1, num_kv_heads, TILE, group, dim).transpose(1, 2).reshape(-1, num_heads, dim)
    return flat[lead : lead + rows]
