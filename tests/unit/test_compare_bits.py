# SPDX-License-Identifier: Apache-2.0
"""float32 bit patterns."""

from __future__ import annotations

import math

import pytest

from harness.bits import difference, from_bits, is_nan, to_bits


@pytest.mark.parametrize(("value", "bits"), [(0.0, 0), (-0.0, 0x80000000), (1.0, 0x3F800000), (-0.5, 0xBF000000)])
def test_bits_of_known_values(value, bits):
    assert to_bits(value) == bits
    assert math.copysign(1, from_bits(bits)) == math.copysign(1, value)
    assert from_bits(bits) == value


@pytest.mark.parametrize(("bits", "nan"), [(0x7F800000, False), (0xFF800000, False), (0x7F800001, True),
                                           (0xFFC00000, True), (0x7FC00000, True), (0x3F800000, False)])
def test_nan_is_known_whatever_its_payload(bits, nan):
    assert is_nan(bits) is nan


@pytest.mark.parametrize(
    ("left", "right", "distance"),
    [(-0.5, -0.75, 0.25), (-math.inf, -math.inf, 0.0), (-math.inf, -1.0, math.inf), (math.nan, -1.0, math.inf)],
)
def test_difference(left, right, distance):
    assert difference(to_bits(left), to_bits(right)) == distance
