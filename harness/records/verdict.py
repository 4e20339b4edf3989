# SPDX-License-Identifier: Apache-2.0
"""What became of a cell: findings and the verdict."""

from __future__ import annotations

from dataclasses import dataclass

from harness.records.names import FindingKind, Outcome


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One fact against a cell.

    Attributes:
        kind: what kind of fact.
        outcome: the outcome it leads to.
        message: one sentence.
        place: where, e.g. ``subject restore, prompt 1, token 3``; empty when it is about the whole cell.
        left, right: both sides in words, reference or asked first.
        size: how large the difference is, in words.
        limit: what would have been allowed, in words.
    """

    kind: FindingKind
    outcome: Outcome
    message: str
    place: str = ""
    left: str = ""
    right: str = ""
    size: str = ""
    limit: str = ""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """How much was compared; zero of anything is vacuous."""

    prompts: int = 0
    tokens: int = 0
    tokens_equal: int = 0
    logprobs: int = 0
    logprobs_equal: int = 0
    blocks: int = 0
    blocks_equal: int = 0
    #: Largest absolute logprob difference over all compared candidates, nat.
    max_logprob_difference: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How near two recomputes are that need not be bitwise equal.

    Attributes:
        left, right: what was compared, e.g. ``recompute`` and ``transformers float32``; the right one is the truth.
        tokens, tokens_equal: greedy tokens with equal contexts on both sides, and equal ones among them.
        near_ties: prompts whose tokens part where the truth has a near tie; nothing behind that is compared.
        logprobs, logprobs_equal: candidates compared, and bitwise equal ones.
        largest, median: of their absolute differences, nat.
        gap: largest lead of the truth's token over the other side's where they part, nat; 0 where none part.
        within: whether all of it is within the cell's limits.
    """

    left: str
    right: str
    prompts: int
    tokens: int
    tokens_equal: int
    near_ties: int
    logprobs: int
    logprobs_equal: int
    largest: float
    median: float
    gap: float
    within: bool


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The judgement of one cell.

    Attributes:
        scenario, cell: the cell's scenario and id.
        outcome: the worst finding's outcome, whatever was expected; never ``expected``.
        verdict: ``expected`` when the outcome is the expected one (and not a plain pass), ``fail`` when an
            expectation was not met, otherwise the outcome.
        expected_outcome: what the scenario expects.
        findings: in judging order.
        compared: sizes.
        agreements: the recompute against the ground truth, against other cells, and the truth's own rounding.
    """

    scenario: str
    cell: str
    outcome: Outcome
    verdict: Outcome
    expected_outcome: Outcome
    findings: tuple[Finding, ...]
    compared: Compared
    agreements: tuple[Agreement, ...] = ()

    @property
    def name(self) -> str:
        """``scenario::cell``, as the cell's own name."""
        return f"{self.scenario}::{self.cell}"
