# SPDX-License-Identifier: Apache-2.0
"""Fifth check: did every phase answer the same prompts, in the same order, each with all the tokens asked for?"""

from __future__ import annotations

from collections.abc import Iterator

from harness.compare.pair import Pair, finding, words
from harness.records import Finding, FindingKind, Phase, PhaseRecord, Role


def check_prompts(pair: Pair) -> Iterator[Finding]:
    """Findings about answers that cannot be laid side by side, or are shorter than what was asked for."""
    records = [
        (f"{role} {phase}", record)
        for role in Role
        for phase in pair.cell.phases_of(role)
        if (record := pair.record(role, phase)) is not None
    ]
    reference = pair.record(Role.ORACLE, pair.reference_phase)
    if reference is not None:
        yield from _check_set(pair, f"oracle {pair.reference_phase}", reference)
        for place, record in records:
            if record is not reference:
                yield from _check_same(pair, place, record, reference)
    # Every phase's answers are compared with some other's, and what one side lacks would count as equal there.
    for place, record in records:
        yield from _check_steps(pair, place, record)
        yield from _check_logprobs(pair, place, record)


def _check_set(pair: Pair, place: str, record: PhaseRecord) -> Iterator[Finding]:
    hits = pair.cell.hits_of(Role.SUBJECT, Phase.RESTORE)
    asked, indices = len(hits.local) if hits else 0, [prompt.index for prompt in record.prompts]
    if indices != list(range(asked)):
        yield finding(
            FindingKind.PROMPTS_DIFFER, f"{place}: {asked} prompts were asked for, it answered {words(indices)}",
            place=place, left=words(range(asked)), right=words(indices),
        )


def _check_same(pair: Pair, place: str, record: PhaseRecord, reference: PhaseRecord) -> Iterator[Finding]:
    left, right = ([(prompt.index, prompt.digest, prompt.num_tokens) for prompt in one.prompts]
                   for one in (reference, record))
    if left == right:
        return
    name = f"oracle {pair.reference_phase}"
    if len(left) != len(right):
        message = f"{place} answered {len(right)} prompts, {name} {len(left)}"
    elif sorted(digest for _, digest, _ in left) == sorted(digest for _, digest, _ in right):
        message = f"{place} answered the prompts of {name} in another order"
    else:
        others = [one[0] for one, two in zip(left, right, strict=True) if one != two]
        message = f"{place} answered other prompts than {name} at {words(others)}"
    yield finding(
        FindingKind.PROMPTS_DIFFER, message, place=place, left=words(digest for _, digest, _ in left),
        right=words(digest for _, digest, _ in right),
    )


def _check_steps(pair: Pair, place: str, record: PhaseRecord) -> Iterator[Finding]:
    asked = pair.subject_leg.decode.max_tokens
    for prompt in record.prompts:
        got = len(prompt.steps)
        # A stop token may end an answer early; the token comparison sees to it that both sides stop alike.
        if got != asked and not (0 < got < asked and prompt.finish_reason == "stop"):
            yield finding(
                FindingKind.NOTHING_COMPARED,
                f"{place}, prompt {prompt.index}: {got} of {asked} tokens were generated"
                f" (finish reason {prompt.finish_reason})",
                place=f"{place}, prompt {prompt.index}", left=f"{asked} tokens", right=f"{got} tokens",
            )


def _check_logprobs(pair: Pair, place: str, record: PhaseRecord) -> Iterator[Finding]:
    asked = pair.subject_leg.decode.logprobs
    steps = [step for prompt in record.prompts for step in prompt.steps]
    missing = sum(step.bits is None or len(step.top) < asked for step in steps)
    if missing:
        yield finding(
            FindingKind.LOGPROBS_MISSING,
            f"{place}: {missing} of {len(steps)} tokens lack their logprob or some of the top {asked}",
            place=place, left=f"{len(steps)} tokens with logprobs", right=f"{len(steps) - missing} tokens",
        )
