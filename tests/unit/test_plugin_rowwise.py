# SPDX-License-Identifier: Apache-2.0
"""Attention of single rows: right against float64, and the same bits whatever else is computed."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the reference attention is written in torch")

from harness.plugin import rowwise  # noqa: E402

HEADS, KV_HEADS, DIM, LENGTH = 4, 2, 32, 75


@pytest.fixture
def tensors() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    query = torch.randn(LENGTH, HEADS, DIM, generator=generator)
    both = torch.zeros(2, KV_HEADS, rowwise.padded(LENGTH), DIM)
    both[:, :, :LENGTH] = torch.randn(2, KV_HEADS, LENGTH, DIM, generator=generator)
    return query, both[0], both[1]


def cut(tensor: torch.Tensor, length: int) -> torch.Tensor:
    """The first ``length`` positions, padded anew."""
    padded = torch.zeros(KV_HEADS, rowwise.padded(length), DIM)
    padded[:, :length] = tensor[:, :length]
    return padded


def test_it_is_causal_attention(tensors) -> None:
    query, keys, values = tensors
    got = rowwise.attend(query, keys, values, LENGTH, 0.25)
    k, v = (tensor[:, :LENGTH].double().repeat_interleave(HEADS // KV_HEADS, 0) for tensor in (keys, values))
    scores = torch.einsum("qhd,hkd->hqk", query.double(), k) * 0.25
    scores.masked_fill_(torch.ones(LENGTH, LENGTH).triu(1).bool(), float("-inf"))
    expected = torch.einsum("hqk,hkd->qhd", scores.softmax(-1), v)
    assert (got.double() - expected).abs().max().item() < 1e-6


@pytest.mark.parametrize("chunks", [[75], [1] * 75, [16, 16, 16, 16, 11], [3, 40, 1, 31], [64, 11], [74, 1]])
def test_chunking_does_not_change_a_bit(tensors, chunks: list[int]) -> None:
    query, keys, values = tensors
    whole = rowwise.attend(query, keys, values, LENGTH, 0.25)
    end, parts = 0, []
    for chunk in chunks:
        end += chunk
        parts.append(rowwise.attend(query[end - chunk : end], cut(keys, end), cut(values, end), end, 0.25))
    assert torch.equal(torch.cat(parts).view(torch.int32), whole.view(torch.int32))


def test_later_tokens_do_not_change_a_bit(tensors) -> None:
    query, keys, values = tensors
    before = rowwise.attend(query, keys, values, LENGTH, 0.25)[:70]
    keys[:, 70:], values[:, 70:] = 1e4, -1e4
    after = rowwise.attend(query, keys, values, LENGTH, 0.25)[:70]
    assert torch.equal(before.view(torch.int32), after.view(torch.int32))


def test_one_earlier_token_changes_every_later_row(tensors) -> None:
    query, keys, values = tensors
    before = rowwise.attend(query, keys, values, LENGTH, 0.25)
    values[:, 20] += 1
    differs = (rowwise.attend(query, keys, values, LENGTH, 0.25) != before).flatten(1).any(1)
    assert differs.tolist() == [position >= 20 for position in range(LENGTH)]
