# SPDX-License-Identifier: Apache-2.0
"""A scenario as it is read from its file: what is asked, and what is expected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.records.names import DEADLINES_S, FindingKind, Outcome


@dataclass(frozen=True, kw_only=True)
class PromptSpec:
    """A seeded set of token-id prompts. Lengths in tokens; ``harness.prompt_sets`` says what each set makes of them."""

    set: str = "partial"
    count: int = 3
    prefix_tokens: int = 192
    tail_tokens: int = 8
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class DecodeSpec:
    """Greedy decoding: ``max_tokens`` new tokens each, ``logprobs`` top candidates at every step.

    ``submit`` is ``together`` (all prompts in one batch) or ``alone`` (one after another).
    """

    max_tokens: int = 16
    logprobs: int = 5
    submit: str = "together"


@dataclass(frozen=True, kw_only=True)
class EvidenceSpec:
    """What is taken down beside the answers; ``digests`` are those of the KV blocks."""

    digests: bool = True


@dataclass(frozen=True, kw_only=True)
class SubjectSpec:
    """The store under test: an alias, or a whole ``kv_transfer_config`` of the user's own.

    Attributes:
        connector: alias (``embedded``, ...) or ``custom`` when ``kv_transfer_config`` is given whole.
        fault: planted fault of the embedded store, None for none.
        options: further keys for the alias, e.g. ``capacity_mib`` or ``transfer`` of the embedded store.
        kv_transfer_config: as vLLM takes it; None when an alias makes it.
    """

    connector: str
    fault: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    kv_transfer_config: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How far a recompute may be from the ground truth, nat; the defaults are measured in ``docs/findings.md``.

    Attributes:
        largest: of any candidate's logprob at a step with equal contexts.
        median: of all those differences.
        near_tie: where greedy tokens differ, how far the engine's token may be behind the truth's own, in the truth.
    """

    largest: float = 0.4
    median: float = 0.1
    near_tie: float = 0.2


@dataclass(frozen=True, kw_only=True)
class Override:
    """Changes for the cells that ``when`` matches: axis name -> allowed values."""

    when: Mapping[str, tuple[Any, ...]]
    engine: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    line: int = 0


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """A strict statement about the cells that ``when`` matches.

    Attributes:
        when: axis name -> allowed values; empty matches every cell.
        outcome: the outcome these cells must have.
        match: text that must occur in the finding's words (a plain substring), None for any text.
        finding: finding kind that must be among the cell's findings, None for any.
        issue: where the known problem is tracked.
        line: line in the scenario file.
    """

    when: Mapping[str, tuple[Any, ...]]
    outcome: Outcome
    match: str | None = None
    finding: FindingKind | None = None
    issue: str | None = None
    line: int = 0


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One scenario file, read and checked.

    Attributes:
        name: ``name`` of the file.
        path: the file as the user named it.
        platforms: platforms it is made for.
        model: alias or directory.
        subject: the store under test.
        axes: axis name -> values, in file order; always has ``layout``, ``backend`` and ``batch_invariant``.
        axis_lines: axis name -> line in the file.
        reference: ``auto``, ``recompute`` or ``local_hit``.
        engine: arguments passed through to vLLM's engine.
        env: environment variables of the engine.
        deadlines: a key of ``DEADLINES_S`` -> seconds; all of them.
        digest: digest of the file's bytes.
        ground_truth: limits of the comparison with the ground truth, None for no such comparison.
    """

    name: str
    path: str
    platforms: tuple[str, ...]
    model: str
    subject: SubjectSpec
    axes: Mapping[str, tuple[Any, ...]]
    axis_lines: Mapping[str, int]
    reference: str
    prompts: PromptSpec
    decode: DecodeSpec
    engine: Mapping[str, Any]
    env: Mapping[str, str]
    overrides: tuple[Override, ...]
    expect: tuple[Expectation, ...]
    digest: str
    ground_truth: Limits | None = None
    evidence: EvidenceSpec = EvidenceSpec()
    deadlines: Mapping[str, float] = field(default_factory=lambda: DEADLINES_S)
