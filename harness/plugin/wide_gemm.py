# SPDX-License-Identifier: Apache-2.0
"""Linear layers on CPUs without bf16 kernels: the same product in float32.

Where oneDNN has no bf16 primitive for the machine (x86 without AVX-512), vLLM falls back to torch's own bf16 product
(vllm/model_executor/layers/utils.py: dispatch_cpu_unquantized_gemm), which for a prefill of some hundred rows is
several times slower than float32: a Qwen3-0.6B prefill of 600 tokens then takes a minute. Both sum in float32 and
round once to bf16. The weights are widened once, when vLLM packs them, and put into oneDNN's blocked order: a decode
step of few rows then reads them once instead of packing them anew. The output head keeps vLLM's product.
``KVPARITY_NATIVE_GEMM=1`` leaves vLLM's product everywhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import torch

SWITCH = "KVPARITY_NATIVE_GEMM"

#: Rows for which oneDNN orders the weights; few rows are as fast in that order, many are slower in the default one.
PREFILL_ROWS = 512

Product = Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]


def widened(weight: torch.Tensor) -> Callable[..., torch.Tensor]:
    """``cpu_linear`` of a layer: x [..., K] times ``weight`` [N, K] in float32, rounded to x's dtype.

    The returned function has the signature of vLLM's; the weight that it is called with is not used.
    """
    product = _product(weight.detach().float())

    def linear(x: torch.Tensor, _: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        added = None if bias is None else bias.float()
        return product(x.float(), added).to(x.dtype)

    return linear


def _product(wide: torch.Tensor) -> Product:
    """x [..., K] and bias [N] or None -> [..., N], all float32; oneDNN's where this torch has it."""
    if not (torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")):
        return lambda x, bias: torch.nn.functional.linear(x, wide, bias)
    # torch's compiler uses these two for the linear layers of a frozen model.
    packed = torch.ops.mkldnn._reorder_linear_weight(wide, PREFILL_ROWS)
    return lambda x, bias: torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")


def widen(layer: torch.nn.Module) -> bool:
    """Widen a layer whose weight vLLM could not pack; whether it did.

    A packed layer's weight is gone (vLLM empties it), and there is nothing to widen in float32.
    """
    weight = layer.weight
    if weight.is_meta or weight.ndim != 2 or weight.numel() == 0 or weight.dtype != torch.bfloat16:
        return False
    layer.cpu_linear = widened(weight)
    layer.weight = torch.nn.Parameter(torch.empty(0, dtype=weight.dtype), requires_grad=False)
    return True


def install() -> None:
    """Look after every linear layer that vLLM packs from here on; safe to call again."""
    from vllm.model_executor.layers import utils

    if os.environ.get(SWITCH) == "1" or hasattr(utils.dispatch_cpu_unquantized_gemm, "kvparity"):
        return
    pack = utils.dispatch_cpu_unquantized_gemm

    def packed(layer: torch.nn.Module, remove_weight: bool) -> None:
        pack(layer, remove_weight)
        # vLLM keeps the weight of what else reads it, the embedding that is the output head.
        if remove_weight:
            widen(layer)

    packed.kvparity = True
    utils.dispatch_cpu_unquantized_gemm = packed
