# SPDX-License-Identifier: Apache-2.0
"""A prompt alone and in a batch of eight, in real engines of the tiny model."""

from __future__ import annotations

import pytest

from tests.engine.plugin_engines import Engines, values

pytestmark = pytest.mark.engine


def test_without_batch_invariance_a_batch_of_eight_differs_on_a_kernel_that_sees_the_batch(engines: Engines) -> None:
    said = engines.run("REFERENCE", "LBHNC", count=8, alone=(0, 3), planted=True)
    assert values(said["alone"]) != values([said["cold"][0], said["cold"][3]])


@pytest.mark.parametrize("planted", [False, True], ids=["this CPU's kernel", "a kernel that sees the batch"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_alone_equals_a_batch_of_eight(engines: Engines, planted: bool, dtype: str) -> None:
    said = engines.run("REFERENCE", "LBHNC", invariant=True, count=8, alone=(0, 3, 7), planted=planted, dtype=dtype)
    assert said["resolved"]["batch_invariant"] is True
    assert values(said["alone"]) == values([said["cold"][index] for index in (0, 3, 7)])
    assert values(said["hit"]) == values(said["cold"])
    assert [result["cached"] for result in said["hit"]] == [64, 48, 0, 32, 48, 16, 64, 32]
