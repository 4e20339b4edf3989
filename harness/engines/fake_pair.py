# SPDX-License-Identifier: Apache-2.0
"""Two fake engines of one leg, through the same door as two real ones: a process below the leg's own, and a pipe.

``Leg.fake["prefill"]`` plants endings in the engine that prefills: ``load``, ``generate`` or ``hand_over`` -> one of
``harness.engines.fake.ENDINGS``. Everything else is planted in the engine that decodes, as in a single fake engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from harness.engines import Answer, Counters
from harness.engines.apart import Apart
from harness.engines.fake import ENDINGS, FakeEngine
from harness.records import DecodeSpec, Handover, Leg, Resolved

#: Bytes of one token's KV, as what a fake engine says to have resolved makes it.
TOKEN_BYTES = 64


class FakePrefill(FakeEngine):
    """Computes prompts, and holds them for the other engine."""

    def end_if_planted(self, stage: str) -> None:
        """The leg's own endings are the other engine's."""

    def _end(self, name: str) -> None:
        ending = self._leg.fake.get("prefill", {}).get(name)
        if ending is not None:
            ENDINGS[ending]()

    def generate(self, prompts: Sequence[Sequence[int]], decode: DecodeSpec) -> list[Answer]:
        self._end("generate")
        return super().generate(prompts, decode)

    def hand_over(self, prompts: Sequence[Sequence[int]]) -> list[Handover]:
        """What it holds ready for each prompt."""
        self._end("hand_over")
        handed = []
        for prompt in prompts:
            local, _ = self._caches.find(prompt)
            self._caches.keep(prompt)
            count = -(-len(prompt) // self._block_size)
            handed.append(Handover(cached_tokens=local, tokens=len(prompt), blocks=tuple(range(1, 1 + count))))
        return handed


class FakeDecode(FakeEngine):
    """Decodes with what the other engine holds ready, block by block."""

    def __init__(self, leg: Leg, stage: Any) -> None:
        # Nothing is stored: without another engine it finds what it computed itself.
        super().__init__(leg, stage)
        self._caches.store = False
        self._read_blocks = 0

    def generate_handed(
        self, prompts: Sequence[Sequence[int]], decode: DecodeSpec, handed: Sequence[Handover]
    ) -> list[Answer]:
        found = [self._caches.find(prompt)[0] for prompt in prompts]
        before = dict(self._totals)
        answers = self.generate(prompts, decode)
        own = self._totals["local"] - before["local"] - sum(answer.local_tokens or 0 for answer in answers)
        self._totals["local"] = before["local"] + sum(found) + own
        result = []
        for answer, prompt, local, one in zip(answers, prompts, found, handed, strict=False):
            external = one.tokens - local
            self._totals["external"] += external
            self._totals["delivered"] += external
            self._read_blocks += -(-external // self._block_size)
            result.append(replace(
                answer, cached_tokens=len(prompt), local_tokens=local, external_tokens=external, handover=one,
            ))
        return result

    def counters(self) -> Counters:
        return replace(super().counters(), loaded_bytes=self._read_blocks * self._block_size * TOKEN_BYTES)


class FakePair:
    """Both, as ``harness.engines.Pair`` has them."""

    def __init__(self, prefill: Apart, decode: FakeDecode) -> None:
        self.prefill, self.decode = prefill, decode

    def resolved(self) -> Resolved:
        return self.decode.resolved()

    def restore(self, prompts: Sequence[Sequence[int]], decode: DecodeSpec) -> list[Answer]:
        return self.decode.generate_handed(prompts, decode, self.prefill.call("hand_over", prompts))

    def close(self) -> None:
        self.prefill.close()
        self.decode.close()


def open_engine(leg: Leg, stage: Callable[[str], None]) -> FakePair:
    """Both engines; planted endings at ``import`` and ``load`` come as those of a single one do."""
    stage("import")
    prefill = Apart("prefill", f"{__name__}:open_prefill", leg, {})
    try:
        decode = FakeDecode(leg, stage)
        stage("load")
        decode.end_if_planted("load")
        prefill.wait()
    except BaseException:
        prefill.close()
        raise
    return FakePair(prefill, decode)


def open_prefill(leg: Leg, stage: Callable[[str], None]) -> FakePrefill:
    """The engine that prefills, in its own process."""
    engine = FakePrefill(leg, _Stages())
    engine._end("load")
    return engine


class _Stages:
    """Stands for the leg's stages, of which this process is not told."""

    current = ""
