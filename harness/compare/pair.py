# SPDX-License-Identifier: Apache-2.0
"""What the checks share: the pair of legs under judgement, and the outcome of each finding kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from harness.records import (
    Cell,
    Finding,
    FindingKind,
    Leg,
    Observation,
    Outcome,
    Phase,
    PhaseRecord,
    PromptResult,
    Reference,
    Role,
    Rule,
)

#: The outcome that each kind of finding leads to; a cell's outcome is the worst of its findings'.
OUTCOME_OF: Mapping[FindingKind, Outcome] = {
    FindingKind.UNAVAILABLE: Outcome.UNAVAILABLE,
    FindingKind.REJECTED: Outcome.REJECTED,
    FindingKind.CRASHED: Outcome.CRASHED,
    FindingKind.HUNG: Outcome.CRASHED,
    FindingKind.OUT_OF_MEMORY: Outcome.CRASHED,
    FindingKind.NO_OBSERVATION: Outcome.CRASHED,
    FindingKind.LAYOUT_NOT_AS_ASKED: Outcome.VACUOUS,
    FindingKind.STRIDES_NOT_AS_LAYOUT: Outcome.VACUOUS,
    FindingKind.BACKEND_NOT_AS_ASKED: Outcome.VACUOUS,
    FindingKind.BATCH_INVARIANCE_NOT_AS_ASKED: Outcome.VACUOUS,
    FindingKind.LEGS_RESOLVED_DIFFERENTLY: Outcome.VACUOUS,
    FindingKind.STALE_OBSERVATION: Outcome.VACUOUS,
    FindingKind.PHASE_MISSING: Outcome.VACUOUS,
    FindingKind.POPULATE_NOT_COLD: Outcome.VACUOUS,
    FindingKind.RECOMPUTE_NOT_COLD: Outcome.VACUOUS,
    FindingKind.LOCAL_HITS: Outcome.VACUOUS,
    FindingKind.EXTERNAL_HITS: Outcome.VACUOUS,
    FindingKind.RESET_FAILED: Outcome.VACUOUS,
    FindingKind.NOT_ZEROED: Outcome.VACUOUS,
    FindingKind.SAME_BLOCKS: Outcome.VACUOUS,
    FindingKind.NOTHING_DELIVERED: Outcome.VACUOUS,
    FindingKind.OVERRUN: Outcome.FAIL,
    FindingKind.EDGE_NOT_REACHED: Outcome.VACUOUS,
    FindingKind.DIFFERENCE_NOT_TAKEN: Outcome.VACUOUS,
    FindingKind.ORACLE_UNSTABLE: Outcome.UNSTABLE,
    FindingKind.SUBJECT_UNSTABLE: Outcome.UNSTABLE,
    FindingKind.PROMPTS_DIFFER: Outcome.VACUOUS,
    FindingKind.NOTHING_COMPARED: Outcome.VACUOUS,
    FindingKind.LOGPROBS_MISSING: Outcome.VACUOUS,
    FindingKind.DIGESTS_MISSING: Outcome.VACUOUS,
    FindingKind.FORBIDDEN_HITS: Outcome.FAIL,
    FindingKind.TOKENS: Outcome.FAIL,
    FindingKind.LOGPROBS: Outcome.FAIL,
    FindingKind.NAN: Outcome.FAIL,
    FindingKind.KV_DIGESTS: Outcome.FAIL,
    FindingKind.GROUND_TRUTH: Outcome.FAIL,
    FindingKind.EXPECTATION_UNMET: Outcome.FAIL,
}


def finding(
    kind: FindingKind, message: str, *, place: str = "", left: str = "", right: str = "", size: str = "",
    limit: str = "",
) -> Finding:
    """A finding with the outcome that ``OUTCOME_OF`` gives its kind."""
    return Finding(
        kind=kind, outcome=OUTCOME_OF[kind], message=message, place=place, left=left, right=right, size=size,
        limit=limit,
    )


#: Bytes of one element of a KV tensor, by torch's name of its type; nothing is reckoned for another.
ITEM_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "float8_e4m3fn": 1, "float8_e5m2": 1, "uint8": 1, "int8": 1}


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One cell, its two legs and what each of them saw (None: nothing was written)."""

    cell: Cell
    legs: Mapping[str, Leg]
    oracle: Observation | None
    subject: Observation | None
    #: Digest -> what the legs saw that the cell is held against beside its own two.
    further: Mapping[str, Observation] = field(default_factory=dict)

    def sides(self) -> tuple[tuple[Role, Leg, Observation | None], ...]:
        """Both sides, oracle first."""
        return (
            (Role.ORACLE, self.legs[self.cell.oracle], self.oracle),
            (Role.SUBJECT, self.legs[self.cell.subject], self.subject),
        )

    @property
    def subject_leg(self) -> Leg:
        return self.legs[self.cell.subject]

    def token_bytes(self, *, filled: bool = False) -> int | None:
        """Bytes of one token's KV in all layers of the subject, or of who filled its store; None when unknown."""
        resolved = None
        if self.subject is not None:
            resolved = self.subject.filled if filled else self.subject.resolved
        size = ITEM_BYTES.get(resolved.dtype) if resolved is not None else None
        if resolved is None or size is None:
            return None
        _, slots, _, content = resolved.shape
        return resolved.num_layers * slots * content * size

    def record(self, role: Role, phase: Phase) -> PhaseRecord | None:
        """The record of a phase; None when it is missing or its reset failed, so that it holds no answers."""
        observation = self.oracle if role is Role.ORACLE else self.subject
        record = observation.phase(phase) if observation is not None else None
        return None if record is None or record.reset_ok is False else record

    @property
    def reference_phase(self) -> Phase:
        """The oracle's phase that the restore is compared with."""
        if self.cell.sharing is not None and self.hits_in(Phase.RESTORE) == 0:
            # What nobody gave back was computed, in batches of the recompute's size.
            return Phase.RECOMPUTE
        return Phase.RECOMPUTE if self.cell.reference is Reference.RECOMPUTE else Phase.LOCAL_HIT

    def hits_in(self, phase: Phase) -> int | None:
        """Prompt tokens that one of the subject's phases found in the store; None when it did not run."""
        record = self.record(Role.SUBJECT, phase)
        return None if record is None else record.external_tokens

    @property
    def repeats(self) -> bool:
        """Whether the subject's second restore must answer as its first.

        Not where a store gave the first one nothing, as it may between configurations, and the kernels round a hit
        otherwise than a recompute: the second restore then hits what the first one stored.
        """
        unequal = self.hits_in(Phase.RESTORE) != self.hits_in(Phase.RESTORE_AGAIN)
        return self.cell.sharing is None or self.cell.batch_invariant or not unequal

    def references(self) -> dict[tuple[Role, Phase], tuple[Role, Phase]]:
        """(role, phase) -> what its answers are held against; those that are held against nothing have no entry.

        The restore has its reference, a phase that must repeat another one that, what the subject computes itself the
        oracle's phase that did the same work: not where another configuration computed it, nor where other hits made
        other batches of it. What an engine gets back of a store that it filled is held against its own answers.
        """
        held = {
            (Role.ORACLE, Phase.RECOMPUTE_AGAIN): (Role.ORACLE, Phase.RECOMPUTE),
            (Role.SUBJECT, Phase.RESTORE): (Role.ORACLE, self.reference_phase),
            (Role.SUBJECT, Phase.RESTORE_AGAIN):
                (Role.SUBJECT, Phase.RESTORE) if self.repeats else (Role.ORACLE, Phase.LOCAL_HIT),
        }
        if self.cell.sharing is None or self.cell.sharing.rule is Rule.MUST_HIT:
            for phase, other in ((Phase.POPULATE, Phase.RECOMPUTE), (Phase.LOCAL_HIT, Phase.LOCAL_HIT)):
                if self._hits(Role.SUBJECT, phase) == self._hits(Role.ORACLE, other):
                    held[Role.SUBJECT, phase] = Role.ORACLE, other
        if self.cell.sharing is not None:
            fill = Phase.POPULATE if self.subject_leg.filler.batch_invariant else Phase.LOCAL_HIT
            # Whichever cache a hit is in, as many tokens are left to compute.
            cached = [self._hits(Role.SUBJECT, phase)[-1:] for phase in (fill, Phase.OWN_RESTORE)]
            if fill is Phase.POPULATE or cached[0] == cached[1]:
                held[Role.SUBJECT, Phase.OWN_RESTORE] = Role.SUBJECT, fill
        return held

    def _hits(self, role: Role, phase: Phase) -> tuple[object, ...]:
        """Hit tokens of a phase: local, external, and those of each prompt; empty when it did not run."""
        record = self.record(role, phase)
        if record is None:
            return ()
        return record.local_tokens, record.external_tokens, {one.index: one.cached_tokens for one in record.prompts}


def matched(
    left: tuple[PromptResult, ...], right: tuple[PromptResult, ...]
) -> tuple[tuple[PromptResult, PromptResult], ...]:
    """Prompts that both sides answered: the same position and the same token ids."""
    others = {(prompt.index, prompt.digest): prompt for prompt in right}
    return tuple(
        (prompt, others[prompt.index, prompt.digest])
        for prompt in left
        if (prompt.index, prompt.digest) in others
    )


def words(items: Iterable[object]) -> str:
    """``a, b, c``, or ``none``."""
    return ", ".join(str(item) for item in items) or "none"


def ranges(numbers: Iterable[int]) -> str:
    """``0-2, 5`` for 0, 1, 2, 5."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
