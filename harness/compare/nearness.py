# SPDX-License-Identifier: Apache-2.0
"""How near two recomputes are that come from different code, so that rounding parts them and equal bits prove nothing.

Both sides decode greedily by themselves. While their tokens are equal they have the same context, so their logprobs can
be compared; the step at which they part is the last such one, and only a near tie can explain it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from harness.bits import difference, from_bits
from harness.compare.steps import token_words
from harness.records import Agreement, Limits, PromptResult, Step


@dataclass(frozen=True, kw_only=True)
class Parting:
    """Where the greedy tokens of one prompt part.

    Attributes:
        prompt, token: position.
        gap: lead of the truth's token over the other side's in the truth, nat; a lower bound where ``listed`` is False.
        listed: whether the other side's token is among the truth's candidates.
        words: both tokens with their logprobs, the truth's first.
    """

    prompt: int
    token: int
    gap: float
    listed: bool
    words: tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class Nearness:
    """Everything that was compared between two recomputes.

    Attributes:
        prompts, tokens: prompts, and steps with equal contexts.
        differences: absolute differences of logprobs, nat, by (prompt, token).
        equal: bitwise equal ones.
        partings: at most one per prompt.
    """

    prompts: int
    tokens: int
    differences: tuple[tuple[float, int, int], ...]
    equal: int
    partings: tuple[Parting, ...]

    @property
    def largest(self) -> tuple[float, int, int]:
        """(nat, prompt, token); zeros for nothing."""
        return max(self.differences, key=lambda one: one[0], default=(0.0, 0, 0))

    @property
    def median(self) -> float:
        return median(nat for nat, _, _ in self.differences) if self.differences else 0.0

    def far(self, limits: Limits) -> list[Parting]:
        """Partings that no near tie explains."""
        return [one for one in self.partings if not one.listed or not one.gap <= limits.near_tie]

    def within(self, limits: Limits) -> bool:
        """Whether rounding can explain all of it; nothing compared is not within."""
        near = self.largest[0] <= limits.largest and self.median <= limits.median
        return bool(self.differences) and near and not self.far(limits)

    def agreement(self, left: str, right: str, limits: Limits) -> Agreement:
        """The record of it; ``right`` names the truth."""
        return Agreement(
            left=left, right=right, prompts=self.prompts, tokens=self.tokens,
            tokens_equal=self.tokens - len(self.partings), near_ties=len(self.partings) - len(self.far(limits)),
            logprobs=len(self.differences), logprobs_equal=self.equal, largest=self.largest[0], median=self.median,
            gap=max((one.gap for one in self.partings), default=0.0), within=self.within(limits),
        )


def nearness(pairs: Sequence[tuple[PromptResult, PromptResult]]) -> Nearness:
    """Compare (other side, truth) of each prompt."""
    differences: list[tuple[float, int, int]] = []
    partings: list[Parting] = []
    tokens = 0
    for ours, truth in pairs:
        for place, (step, true) in enumerate(zip(ours.steps, truth.steps, strict=False)):
            tokens += 1
            differences += [(nat, ours.index, place) for nat in _differences(step, true)]
            if step.token != true.token:
                partings.append(_parting(ours, truth, place))
                break
    return Nearness(
        prompts=len(pairs), tokens=tokens, differences=tuple(differences),
        equal=sum(nat == 0 for nat, _, _ in differences), partings=tuple(partings),
    )


def _differences(step: Step, true: Step) -> list[float]:
    """One per candidate of ``step``; one that the truth does not list has at most the truth's last logprob there."""
    known, ours = _candidates(true), _candidates(step)
    lowest = min((from_bits(bits) for bits in known.values()), default=math.nan)
    return [
        difference(bits, known[token]) if token in known else _number(max(0.0, from_bits(bits) - lowest))
        for token, bits in ours.items()
    ]


def _candidates(step: Step) -> dict[int, int]:
    chosen = {} if step.bits is None else {step.token: step.bits}
    return {**chosen, **dict(step.top)}


def _parting(ours: PromptResult, truth: PromptResult, place: int) -> Parting:
    true, token = truth.steps[place], ours.steps[place].token
    known = _candidates(true)
    best = from_bits(known[true.token]) if true.token in known else math.nan
    behind = known[token] if token in known else min(known.values(), key=from_bits, default=None)
    return Parting(
        prompt=ours.index, token=place, gap=_number(best - from_bits(behind)) if behind is not None else math.inf,
        listed=token in known, words=(token_words(truth, place), token_words(ours, place)),
    )


def _number(value: float) -> float:
    """NaN is no nearness."""
    return math.inf if math.isnan(value) else value
