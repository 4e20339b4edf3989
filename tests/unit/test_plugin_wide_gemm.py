# SPDX-License-Identifier: Apache-2.0
"""The float32 product of linear layers: the bf16 product up to one rounding, and only where vLLM packs nothing."""

from __future__ import annotations

import pytest
import torch

from harness.plugin import wide_gemm


class Layer(torch.nn.Module):
    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(weight, requires_grad=False)


def bf16(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)


@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("with_bias", [False, True])
def test_the_product_is_the_float64_one_rounded_once(rows, with_bias):
    weight, x = bf16(64, 128, seed=1), bf16(rows, 128, seed=2)
    bias = bf16(64, seed=3) if with_bias else None
    got = wide_gemm.widened(weight)(x, torch.empty(0), bias)
    exact = x.double() @ weight.double().T + (bias.double() if with_bias else 0.0)
    assert got.dtype is torch.bfloat16
    # One rounding to 8 significant bits: half a unit in the last place, and float32's own error far below it.
    assert bool(((got.double() - exact).abs() <= exact.abs() * 2.0**-8 + 1e-5).all())


def test_a_widened_layer_lets_go_of_its_weight():
    weight = bf16(8, 16, seed=4)
    layer = Layer(weight.clone())
    assert wide_gemm.widen(layer) is True
    assert layer.weight.numel() == 0
    x = bf16(2, 16, seed=5)
    assert torch.equal(layer.cpu_linear(x, layer.weight, None), wide_gemm.widened(weight)(x, weight))


@pytest.mark.parametrize(
    "weight",
    [torch.empty(0, dtype=torch.bfloat16), torch.zeros(4, 4), torch.zeros(2, 2, 2, dtype=torch.bfloat16)],
    ids=["packed", "float32", "three dimensions"],
)
def test_other_layers_are_left_alone(weight):
    layer = Layer(weight)
    assert wide_gemm.widen(layer) is False
    assert not hasattr(layer, "cpu_linear") and torch.equal(layer.weight, weight)


def test_install_wraps_once_and_obeys_the_switch(monkeypatch):
    from vllm.model_executor.layers import utils

    calls = []
    monkeypatch.setattr(utils, "dispatch_cpu_unquantized_gemm", lambda layer, remove: calls.append(remove))
    monkeypatch.setenv(wide_gemm.SWITCH, "1")
    wide_gemm.install()
    assert not hasattr(utils.dispatch_cpu_unquantized_gemm, "kvparity")
    monkeypatch.delenv(wide_gemm.SWITCH)
    wide_gemm.install()
    first = utils.dispatch_cpu_unquantized_gemm
    wide_gemm.install()
    assert utils.dispatch_cpu_unquantized_gemm is first
    head, linear = Layer(bf16(8, 16, seed=6)), Layer(bf16(8, 16, seed=6))
    first(head, False)
    first(linear, True)
    assert calls == [False, True]
    assert head.weight.numel() == 128 and linear.weight.numel() == 0
