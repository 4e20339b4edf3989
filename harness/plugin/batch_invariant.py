# SPDX-License-Identifier: Apache-2.0
"""Batch invariance on CPU: a row's logits do not depend on the rows beside it, bit for bit.

vLLM's own set-up registers Triton kernels, which a CPU host does not have. Measured on CPU, the only
operation of a dense decoder whose rows depend on the batch is the matrix product, through its number of rows; norms,
rotary embedding, activations, embedding, softmax and top-k treat rows alone. So every unquantised linear layer, the
output head included, is cut into tiles of fixed sizes.

Which sizes round alike is a property of the kernel that vLLM chose for a shape, so it is measured, once for each shape:
sizes that agree bit for bit with tiles of ``BASE`` rows, wherever a row stands in its tile, are used beside it. On a
host where none agrees every tile has ``BASE`` rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from vllm.config import VllmConfig

Gemm = Callable[[torch.Tensor], torch.Tensor]

#: Rows of the tile that every other size has to agree with.
BASE = 16
#: Tile sizes that are tried.
SIZES = (1, 4, 8, 16, 32, 64)
#: A product so large that every probe would be felt (an output head) has tiles of one size, that need agree with none.
LARGE_SIZES = (4,)
LARGE = 1 << 26
#: Results that a probe compares at least: rounding differs in about one of 4,000 bfloat16 results.
PROBED = 1 << 18
#: Rows by which the probe moves; coprime with every size, so that each position is compared with each other one.
SHIFT = 5
#: Kernels want aligned rows, and may choose another path where they are not.
ALIGNMENT = 64

_sizes_by_shape: dict[tuple, tuple[int, ...]] = {}
_installed = False


def cuts(rows: int, sizes: tuple[int, ...]) -> list[int]:
    """Tile sizes, in order, that cover ``rows``; only the last one may reach beyond, by a quarter unless it must."""
    done: list[int] = []
    while rows > 0:
        holding = [size for size in sizes if size >= rows and (size - rows) * 4 <= size]
        fitting = [size for size in sizes if size <= rows]
        done.append(min(holding) if holding else max(fitting) if fitting else min(sizes))
        rows -= done[-1]
    return done


def tiled(gemm: Gemm, x: torch.Tensor, sizes: tuple[int, ...]) -> torch.Tensor:
    """``gemm(x)`` for ``x`` of [rows, K], computed in tiles of the given sizes; missing rows of a tile are zeros."""
    rows = x.shape[0]
    parts, start = [], 0
    for size in cuts(rows, sizes):
        tile = x[start : start + size]
        if tile.shape[0] < size:
            tile = torch.cat((tile, tile.new_zeros(size - tile.shape[0], x.shape[1])))
        elif not tile.is_contiguous() or tile.data_ptr() % ALIGNMENT:
            tile = tile.clone(memory_format=torch.contiguous_format)
        parts.append(gemm(tile))
        start += size
    return (parts[0] if len(parts) == 1 else torch.cat(parts))[:rows]


def agreeing_sizes(gemm: Gemm, columns: int, results: int, dtype: torch.dtype) -> tuple[int, ...]:
    """Tile sizes whose results are bitwise those of ``BASE`` rows (of a large product: 4), wherever a row stands.

    Args:
        gemm: the product, [rows, columns] -> [rows, results].
        columns: K.
        results: N.
        dtype: of the input.

    Returns:
        Ascending sizes, ``BASE`` among them unless the product is large; ``(1,)`` where a row's result depends on its
        position in the tile.
    """
    large = columns * results >= LARGE
    sizes = LARGE_SIZES if large else SIZES
    step = max(sizes)
    rows = step if large else -(-PROBED // (results * step)) * step
    # A generator of its own: the engine's random state must not know of the probe.
    generator = torch.Generator().manual_seed(columns * results)
    x = torch.randn(rows, columns, generator=generator).to(dtype)
    moved = x.roll(SHIFT, 0)
    base = BASE if BASE in sizes else sizes[0]
    expected = tiled(gemm, x, (base,)).roll(SHIFT, 0)
    agreeing = tuple(size for size in sizes if torch.equal(tiled(gemm, moved, (size,)), expected))
    return agreeing if base in agreeing else (1,)


def linear(
    layer: torch.nn.Module, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Stands in for vllm/model_executor/layers/utils.py: cpu_unquantized_gemm; same kernel, fixed tiles."""

    def gemm(tile: torch.Tensor) -> torch.Tensor:
        return layer.cpu_linear(tile, weight, bias)

    flat = x.reshape(-1, x.shape[-1])
    if flat.shape[0] == 0:
        return layer.cpu_linear(x, weight, bias)
    sizes = getattr(layer, "kvparity_tile_sizes", None)
    if sizes is None:
        # vLLM drops the weight of a packed layer, so the number of results is read from a product.
        results = gemm(flat[:1]).shape[-1]
        key = (flat.shape[-1], results, x.dtype, bias is None)
        if key not in _sizes_by_shape:
            _sizes_by_shape[key] = agreeing_sizes(gemm, key[0], results, x.dtype)
        sizes = layer.kvparity_tile_sizes = _sizes_by_shape[key]
    return tiled(gemm, flat, sizes).view(*x.shape[:-1], -1)


def uncovered(config: VllmConfig) -> list[str]:
    """Reasons why this configuration would not be batch invariant on CPU, empty when it is."""
    model = config.model_config
    present = {
        "batch invariance not supported with quantised weights on CPU": model.quantization is not None,
        "batch invariance not supported with mixture of experts on CPU": model.get_num_experts() > 0,
        "batch invariance not supported with LoRA on CPU": config.lora_config is not None,
        "batch invariance not supported with an output head of another dtype on CPU": model.head_dtype != model.dtype,
    }
    return [reason for reason, holds in present.items() if holds]


def active() -> bool:
    """Whether this process computes batch invariantly on CPU."""
    return _installed


def install() -> None:
    """Replace vLLM's set-up and its CPU product where ``VLLM_BATCH_INVARIANT`` is set; safe to call again."""
    global _installed
    from vllm import envs

    if not envs.VLLM_BATCH_INVARIANT:
        return
    from vllm.model_executor.determinism import batch_invariant
    from vllm.model_executor.layers import utils

    # Both are looked up in their module at the time of use, by the worker and by each layer's constructor.
    batch_invariant.init_batch_invariance = _nothing_to_register
    utils.cpu_unquantized_gemm = linear
    _installed = True


def _nothing_to_register() -> None:
    """What remains of vLLM's set-up on CPU."""
