# SPDX-License-Identifier: Apache-2.0
"""float32 bit patterns as unsigned integers: what a logprob is stored as, so that equal means bitwise equal."""

from __future__ import annotations

import math
import struct


def to_bits(value: float) -> int:
    """float32 bit pattern of ``value``, which is rounded to float32 first."""
    return struct.unpack("<I", struct.pack("<f", value))[0]


def from_bits(bits: int) -> float:
    """The float32 value whose bit pattern is ``bits``."""
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def is_nan(bits: int) -> bool:
    """True for every NaN, whatever its payload and sign."""
    return bits & 0x7FFFFFFF > 0x7F800000


def difference(left: int, right: int) -> float:
    """Absolute difference of two float32 given as bits; 0 when bitwise equal, infinite against NaN or an infinity."""
    if left == right:
        return 0.0
    distance = abs(from_bits(left) - from_bits(right))
    return math.inf if math.isnan(distance) else distance
