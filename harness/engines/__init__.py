# SPDX-License-Identifier: Apache-2.0
"""What a leg needs of an engine. ``vllm.py`` is the only module outside vLLM's own processes that imports vllm.

An engine is made by ``open_engine(leg, stage)``; it lives and dies in the leg's child process. ``stage`` is called with
the name of each stage as it begins (``import``, ``load``), so that the parent can hold deadlines.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from harness.errors import LegError
from harness.records import RESTORES, DecodeSpec, Handover, Leg, Phase, Resolved, Step

#: Name of ``Leg.engine_name`` -> module with ``open_engine``.
ENGINES = {
    "vllm": "harness.engines.vllm",
    "prefill_decode": "harness.engines.prefill_decode",
    "faulty": "harness.engines.faulty",
    "transformers": "harness.engines.transformers",
    "fake": "harness.engines.fake",
    "fake_pair": "harness.engines.fake_pair",
    "unit": "harness.engines.unit",
    "unavailable": "harness.engines.unavailable",
}


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One prompt's output: generated steps, promised cached tokens, finish reason, the promise by source if known, and
    what another engine held ready for it, if one did.

    ``carried`` is what its request carried beside the prompt when it reached the engine core.
    """

    steps: tuple[Step, ...]
    cached_tokens: int | None
    finish_reason: str | None
    local_tokens: int | None = None
    external_tokens: int | None = None
    handover: Handover | None = None
    carried: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Counters:
    """Cumulative counts since the engine started; a phase's evidence is the difference of two of them.

    Attributes:
        local_tokens, external_tokens: prompt tokens found in the local prefix cache, and promised by the connector.
        delivered_tokens, loaded_bytes, stored_bytes: what the connector itself counted; None without such a counter.
        preemptions: requests that the scheduler preempted; None without such a counter.
    """

    local_tokens: int
    external_tokens: int
    delivered_tokens: int | None
    loaded_bytes: int | None
    stored_bytes: int | None
    preemptions: int | None = None


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where one request's prompt lay: its token ids, its block ids in order, and whether one was reused since.

    ``prefill_steps``: engine steps in which it was computed; None when unknown.
    """

    tokens: tuple[int, ...]
    blocks: tuple[int, ...]
    reused: bool
    prefill_steps: int | None = None


class Engine(Protocol):
    """What ``harness.leg`` asks of an engine, in the words of vLLM's own API."""

    def resolved(self) -> Resolved:
        """What the worker really uses."""

    def generate(self, prompts: Sequence[Sequence[int]], decode: DecodeSpec) -> list[Answer]:
        """Greedy answers in the order of ``prompts``."""

    def abort_load(self, prompt: Sequence[int]) -> bool:
        """Submit a prompt and abort it once its load is under way; False when that was never seen."""

    def counters(self) -> Counters:
        """Cumulative counts."""

    def placements(self) -> list[Placement]:
        """Block tables of the requests since the last call, in order of first appearance."""

    def digests(self, blocks: Sequence[int]) -> list[str]:
        """KV digests of blocks, as ``PromptResult.kv`` holds them."""

    def reset(self, deadline_s: float) -> bool:
        """Drop the local prefix cache and leave the store alone; False when blocks stay held until the deadline."""

    def zero(self) -> tuple[int, int]:
        """Zero the KV tensors; (bytes zeroed, nonzero bytes found afterwards)."""

    def close(self) -> None:
        """Stop everything the engine started."""


@runtime_checkable
class Pair(Protocol):
    """Two live engines of one leg: one computes the prompts, the other gets their KV from it."""

    prefill: Engine
    decode: Engine

    def resolved(self) -> Resolved:
        """What the worker of the engine that decodes really uses."""

    def restore(self, prompts: Sequence[Sequence[int]], decode: DecodeSpec) -> list[Answer]:
        """Let the one engine hand the prompts over; the other's answers, in the order of ``prompts``."""

    def close(self) -> None:
        """Stop both."""


def engine_of(opened: Engine | Pair, phase: Phase) -> Engine:
    """The engine that a phase is about."""
    if not isinstance(opened, Pair):
        return opened
    return opened.decode if phase in RESTORES else opened.prefill


def answers_of(
    opened: Engine | Pair, phase: Phase, prompts: Sequence[Sequence[int]], decode: DecodeSpec
) -> list[Answer]:
    """The prompts' answers in a phase."""
    if phase in RESTORES and isinstance(opened, Pair):
        return opened.restore(prompts, decode)
    return engine_of(opened, phase).generate(prompts, decode)


def open_engine(leg: Leg, stage: Callable[[str], None]) -> Engine | Pair:
    """Start the engine that the leg names, or both of its engines.

    Raises:
        LegError: no such engine.
        Exception: whatever the engine raises when it refuses or dies, in its own words.
    """
    try:
        module = ENGINES[leg.engine_name]
    except KeyError:
        raise LegError(f"unknown engine {leg.engine_name!r}; one of {', '.join(ENGINES)}") from None
    return importlib.import_module(module).open_engine(leg, stage)
