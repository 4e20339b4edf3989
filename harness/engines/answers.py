# SPDX-License-Identifier: Apache-2.0
"""vLLM's request outputs as answers: greedy tokens and top candidates, logprobs as float32 bit patterns."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Any

from harness.engines import Answer
from harness.records import Step


def float_bits(value: float) -> int:
    """float32 bit pattern of a logprob.

    vLLM hands a float32 logprob over as a Python float, so the conversion back is exact; NaN keeps being NaN.
    """
    if math.isnan(value):
        return 0x7FC00000
    return struct.unpack("<I", struct.pack("<f", value))[0]


def answer_of(
    output: Any, hits: tuple[int | None, int | None], carried: Mapping[str, str] | None = None
) -> Answer:
    """One prompt's answer; hits are its local and external tokens."""
    completion = output.outputs[0]
    logprobs = completion.logprobs or [None] * len(completion.token_ids)
    steps = tuple(
        _step(token, candidates) for token, candidates in zip(completion.token_ids, logprobs, strict=True)
    )
    return Answer(
        steps=steps, cached_tokens=output.num_cached_tokens, finish_reason=completion.finish_reason,
        local_tokens=hits[0], external_tokens=hits[1], carried=carried or {},
    )


def _step(token: int, candidates: Any) -> Step:
    """One step; candidates is vLLM's token id -> Logprob(logprob, rank), or None when it gave none."""
    if not candidates:
        return Step(token=token, bits=None, top=())
    ranked = sorted(candidates.items(), key=lambda item: (item[1].rank, item[0]))
    bits = {identifier: float_bits(entry.logprob) for identifier, entry in ranked}
    return Step(token=token, bits=bits.get(token), top=tuple(bits.items()))
