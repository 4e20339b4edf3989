# SPDX-License-Identifier: Apache-2.0
"""Tiles of the batch-invariant product: how rows are cut, and which sizes are trusted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch", reason="the tiles are cut from torch tensors")

from harness.plugin import batch_invariant  # noqa: E402
from harness.plugin.batch_invariant import agreeing_sizes, cuts, tiled  # noqa: E402

COLUMNS, RESULTS = 16, 128


@pytest.fixture
def weight() -> torch.Tensor:
    return torch.randn(RESULTS, COLUMNS, generator=torch.Generator().manual_seed(2))


def exact(weight: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """A product whose rows know nothing of each other."""
    return lambda x: (x[:, None, :].double() * weight.double()).sum(-1).to(x.dtype)


@pytest.mark.parametrize(
    ("rows", "sizes", "expected"),
    [
        (1, (1, 4, 16), [1]),
        (3, (1, 4, 16), [4]),
        (5, (1, 4, 16), [4, 1]),
        (13, (1, 4, 16), [16]),
        (70, (1, 4, 8, 16, 32, 64), [64, 8]),
        (600, (1, 4, 8, 16, 32, 64), [64] * 9 + [32]),
        (3, (16,), [16]),
        (40, (16,), [16, 16, 16]),
        (3, (1,), [1, 1, 1]),
    ],
)
def test_cuts(rows: int, sizes: tuple[int, ...], expected: list[int]) -> None:
    assert cuts(rows, sizes) == expected


@pytest.mark.parametrize("sizes", [(1,), (16,), (4, 16), (1, 4, 8, 16, 32, 64)])
@pytest.mark.parametrize("rows", [1, 2, 15, 16, 17, 63, 100])
def test_tiles_give_the_product(weight: torch.Tensor, rows: int, sizes: tuple[int, ...]) -> None:
    x = torch.randn(rows, COLUMNS, generator=torch.Generator().manual_seed(3))
    assert torch.equal(tiled(exact(weight), x, sizes), exact(weight)(x))


def test_a_kernel_that_treats_rows_alone_may_have_every_size(weight: torch.Tensor) -> None:
    assert agreeing_sizes(exact(weight), COLUMNS, RESULTS, torch.float32) == (1, 4, 8, 16, 32, 64)


def test_a_kernel_that_sees_the_number_of_rows_gets_one_size(weight: torch.Tensor) -> None:
    def sees_rows(x: torch.Tensor) -> torch.Tensor:
        return exact(weight)(x) * (1 + x.shape[0] * 2**-20)

    assert agreeing_sizes(sees_rows, COLUMNS, RESULTS, torch.float32) == (16,)


def test_a_kernel_with_another_path_for_few_rows_gets_the_others(weight: torch.Tensor) -> None:
    def few_rows_differ(x: torch.Tensor) -> torch.Tensor:
        return exact(weight)(x) * (1 + 2**-20 if x.shape[0] < 8 else 1)

    assert agreeing_sizes(few_rows_differ, COLUMNS, RESULTS, torch.float32) == (8, 16, 32, 64)


def test_a_kernel_that_sees_the_position_gets_single_rows(weight: torch.Tensor) -> None:
    def sees_position(x: torch.Tensor) -> torch.Tensor:
        return exact(weight)(x) * (1 + torch.arange(len(x))[:, None] * 2**-20)

    assert agreeing_sizes(sees_position, COLUMNS, RESULTS, torch.float32) == (1,)


def test_a_large_product_has_tiles_of_one_size_that_sees_no_position(weight: torch.Tensor, monkeypatch) -> None:
    monkeypatch.setattr(batch_invariant, "LARGE", COLUMNS * RESULTS)
    calls = []

    def counted(x: torch.Tensor) -> torch.Tensor:
        calls.append(x.shape[0])
        # The number of rows may be seen: no other size is used beside this one.
        return exact(weight)(x) * (1 + x.shape[0] * 2**-20)

    assert agreeing_sizes(counted, COLUMNS, RESULTS, torch.float32) == (4,)
    assert calls == [4, 4]

    def sees_position(x: torch.Tensor) -> torch.Tensor:
        return exact(weight)(x) * (1 + torch.arange(len(x))[:, None] * 2**-20)

    assert agreeing_sizes(sees_position, COLUMNS, RESULTS, torch.float32) == (1,)


def test_a_rounding_that_only_another_order_of_summation_makes_is_seen(weight: torch.Tensor) -> None:
    rounded = weight.bfloat16().float()

    def another_order(x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        if x.shape[0] < 16:
            return (wide[:, :8] @ rounded[:, :8].T + wide[:, 8:] @ rounded[:, 8:].T).bfloat16()
        return exact(rounded)(wide).bfloat16()

    assert agreeing_sizes(another_order, COLUMNS, RESULTS, torch.bfloat16) == (16, 32, 64)


def test_the_probe_leaves_the_global_random_state_alone(weight: torch.Tensor) -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    agreeing_sizes(exact(weight), COLUMNS, RESULTS, torch.float32)
    assert torch.equal(torch.get_rng_state(), before)
