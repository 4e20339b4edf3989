# SPDX-License-Identifier: Apache-2.0
"""Every layout under the reference attention, in real engines: the same bits, the same digests."""

from __future__ import annotations

import pytest

from tests.engine.plugin_engines import LAYOUTS, Engines, values

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_bits_and_the_same_digests(engines: Engines, layout: str) -> None:
    first, said = engines.run("REFERENCE", "LBHNC"), engines.run("REFERENCE", layout)
    assert values(said["cold"]) == values(first["cold"])
    assert [len(digests) for digests in said["digests"]] == [4, 4, 0]
    assert said["digests"] == first["digests"]
    assert len({digest for digests in said["digests"] for digest in digests}) == 8


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_local_hit_equals_the_recompute(engines: Engines, layout: str) -> None:
    said = engines.run("REFERENCE", layout)
    assert [result["cached"] for result in said["cold"]] == [0, 0, 0]
    # A prompt of whole blocks keeps its last block to be computed (n - 1 rule).
    assert [result["cached"] for result in said["hit"]] == [64, 48, 0]
    assert values(said["hit"]) == values(said["cold"])


@pytest.mark.parametrize("layout", ["LHBNC", "LBHNC"])
def test_shuffle_computes_the_same_from_two_head_slots(engines: Engines, layout: str) -> None:
    said = engines.run("REFERENCE_SHUFFLE", layout)
    resolved = said["resolved"]
    assert (resolved["backend"], resolved["layout_by_strides"]) == ("REFERENCE_SHUFFLE", [layout])
    assert resolved["shape"] == [96, 2, 16, 64]
    assert values(said["cold"]) == values(engines.run("REFERENCE", "LBHNC")["cold"])
    assert values(said["hit"]) == values(said["cold"])
    assert said["digests"] == engines.run("REFERENCE_SHUFFLE", "LBHNC")["digests"]


def test_shuffle_prefers_the_head_outermost_layout(engines: Engines) -> None:
    assert engines.run("REFERENCE_SHUFFLE")["resolved"]["layout"] == "LHBNC"
