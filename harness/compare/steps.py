# SPDX-License-Identifier: Apache-2.0
"""Two token sequences side by side: where they part, and how far their logprobs are apart until there.

Behind the first differing token the two sides continue different texts, so nothing is compared there; the step of that
token itself still has equal contexts on both sides and is compared. All positions count from 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest

from harness.bits import difference, from_bits
from harness.records import PromptResult, Step


@dataclass(frozen=True, kw_only=True)
class Likeness:
    """How alike two sequences are.

    Attributes:
        tokens: positions that at least one side has.
        before: equal tokens before the first difference; ``tokens`` when there is none.
        steps, steps_equal: steps with equal contexts, and those whose logprobs are all bitwise equal.
        logprobs, logprobs_equal: logprob values (the selected token's and each candidate's) in those steps.
        largest: largest absolute difference of a token's logprob, nat.
        first_unequal: first step with an unequal logprob, None without.
    """

    tokens: int
    before: int
    steps: int
    steps_equal: int
    logprobs: int
    logprobs_equal: int
    largest: float
    first_unequal: int | None

    @property
    def same_tokens(self) -> bool:
        return self.before == self.tokens

    def summary(self) -> str:
        """``16 tokens equal before; logprobs bitwise equal in 0/17 steps, max abs diff 3.1e-02 nat``."""
        tokens = f"all {self.tokens} tokens equal" if self.same_tokens else f"{self.before} tokens equal before"
        return (
            f"{tokens}; logprobs bitwise equal in {self.steps_equal}/{self.steps} steps,"
            f" max abs diff {self.largest:.1e} nat"
        )


def compare_steps(left: tuple[Step, ...], right: tuple[Step, ...]) -> Likeness:
    """Likeness of two answers to the same prompt."""
    tokens = max(len(left), len(right))
    shared = list(zip(left, right, strict=False))  # a missing step is a difference: ``tokens`` counts the longer side
    before = next((place for place, (one, two) in enumerate(shared) if one.token != two.token), len(shared))
    values = [compare_step(one, two) for one, two in shared[: before + 1]]
    unequal = [place for place, (count, equal, _) in enumerate(values) if equal != count]
    return Likeness(
        tokens=tokens,
        before=before,
        steps=len(values),
        steps_equal=len(values) - len(unequal),
        logprobs=sum(count for count, _, _ in values),
        logprobs_equal=sum(equal for _, equal, _ in values),
        largest=max((largest for _, _, largest in values), default=0.0),
        first_unequal=unequal[0] if unequal else None,
    )


def compare_step(left: Step, right: Step) -> tuple[int, int, float]:
    """(values compared, bitwise equal ones, largest difference); a side without logprobs has nothing to compare."""
    if left == right:
        # Nearly every step of nearly every cell; equal bits differ by nothing, NaN's included.
        same = (left.bits is not None) + len(left.top)
        return same, same, 0.0
    count, equal, largest = 0, 0, 0.0
    if left.token == right.token and left.bits is not None and right.bits is not None:
        count += 1
        equal += left.bits == right.bits
        largest = difference(left.bits, right.bits)
    if left.top and right.top:
        ranks = list(zip_longest(left.top, right.top))
        count += len(ranks)
        equal += sum(one == two for one, two in ranks)
        others = dict(right.top)
        largest = max(
            [largest, *(difference(bits, others[token]) for token, bits in left.top if token in others)]
        )
    return count, equal, largest


def token_words(prompt: PromptResult, place: int) -> str:
    """``4821 (-0.6931)``, or how the answer ended before that place."""
    if place >= len(prompt.steps):
        return f"nothing (finished: {prompt.finish_reason})"
    step = prompt.steps[place]
    return f"{step.token} ({'no logprob' if step.bits is None else f'{from_bits(step.bits):.4f}'})"


def rank_words(oracle: PromptResult, subject: PromptResult, place: int) -> str:
    """Where the subject's token stands among the oracle's candidates; empty when one side has no such step."""
    if place >= min(len(oracle.steps), len(subject.steps)):
        return ""
    candidates = [token for token, _ in oracle.steps[place].top]
    if not candidates:
        return ""
    token = subject.steps[place].token
    rank = f"is rank {candidates.index(token) + 1}" if token in candidates else "is not"
    return f"; the subject's token {rank} in the oracle's top {len(candidates)}"
