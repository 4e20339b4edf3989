# SPDX-License-Identifier: Apache-2.0
"""Sixth check: token ids and logprobs of the restore against the reference, bitwise; and NaN anywhere.

The subject's other answers are held against the oracle's as well: a store must not change what is computed while it
stores, nor what the local prefix cache gives.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.bits import is_nan
from harness.compare.pair import Pair, finding, matched
from harness.compare.steps import Likeness, compare_steps, rank_words, token_words
from harness.records import Compared, Finding, FindingKind, Phase, PhaseRecord, PromptResult, Role


def check_nan(pair: Pair) -> Iterator[Finding]:
    """One finding per phase that holds a NaN logprob; equal NaNs on both sides are no agreement."""
    for role in Role:
        for phase in pair.cell.phases_of(role):
            record = pair.record(role, phase)
            places = [
                (prompt.index, place)
                for prompt in (record.prompts if record else ())
                for place, step in enumerate(prompt.steps)
                if any(is_nan(bits) for bits in (step.bits, *(bits for _, bits in step.top)) if bits is not None)
            ]
            if places:
                prompt, place = places[0]
                yield finding(
                    FindingKind.NAN,
                    f"{role} {phase}: NaN logprobs at {len(places)} tokens, first at prompt {prompt}, token {place}",
                    place=f"{role} {phase}, prompt {prompt}, token {place}", size=f"{len(places)} tokens", limit="0",
                )


def compare_values(pair: Pair) -> tuple[list[Finding], Compared]:
    """Findings about tokens, then about logprobs, and how much was compared."""
    reference = pair.record(Role.ORACLE, pair.reference_phase)
    restore = pair.record(Role.SUBJECT, Phase.RESTORE)
    if reference is None or restore is None:
        return [], Compared()
    both = matched(reference.prompts, restore.prompts)
    pairs = [(one, two, compare_steps(one.steps, two.steps)) for one, two in both]
    findings = [
        *(_token_finding(one, two, like) for one, two, like in pairs if not like.same_tokens),
        *(_logprob_finding(one, two, like) for one, two, like in pairs if like.first_unequal is not None),
    ]
    if not pair.repeats:
        findings += compare_phases(pair, Phase.RESTORE_AGAIN)
    likes = [like for _, _, like in pairs]
    return findings, Compared(
        prompts=len(pairs),
        tokens=sum(like.tokens for like in likes),
        tokens_equal=sum(like.before for like in likes),
        logprobs=sum(like.logprobs for like in likes),
        logprobs_equal=sum(like.logprobs_equal for like in likes),
        max_logprob_difference=max((like.largest for like in likes), default=0.0),
    )


def compare_phases(pair: Pair, *phases: Phase) -> Iterator[Finding]:
    """At most one finding for each of these phases of the subject: the first answer that is not its reference's."""
    held = pair.references()
    for phase in phases:
        record, other = pair.record(Role.SUBJECT, phase), held.get((Role.SUBJECT, phase))
        reference = pair.record(*other) if other else None
        if reference is not None and record is not None:
            yield from _first_difference(reference, record, phase)


def _first_difference(reference: PhaseRecord, record: PhaseRecord, phase: Phase) -> Iterator[Finding]:
    for one, two in matched(reference.prompts, record.prompts):
        like = compare_steps(one.steps, two.steps)
        if not like.same_tokens or like.first_unequal is not None:
            make = _token_finding if like.first_unequal is None else _logprob_finding
            yield make(one, two, like, phase)
            return


def _place(phase: Phase, prompt: PromptResult, token: int) -> tuple[str, str]:
    """(with the phase, for the message: the restore goes without saying)."""
    where = f"prompt {prompt.index}, token {token}"
    return f"subject {phase}, {where}", where if phase is Phase.RESTORE else f"subject {phase}, {where}"


def _token_finding(
    oracle: PromptResult, subject: PromptResult, like: Likeness, phase: Phase = Phase.RESTORE
) -> Finding:
    place, left, right = like.before, token_words(oracle, like.before), token_words(subject, like.before)
    whole, where = _place(phase, oracle, place)
    # A filling engine's own answers are no oracle's.
    rank = "" if phase is Phase.OWN_RESTORE else rank_words(oracle, subject, place)
    return finding(
        FindingKind.TOKENS, f"{where}: {left} vs {right}{rank}",
        place=whole, left=left, right=right, size=like.summary(), limit="0",
    )


def _logprob_finding(
    oracle: PromptResult, subject: PromptResult, like: Likeness, phase: Phase = Phase.RESTORE
) -> Finding:
    place = like.first_unequal
    assert place is not None
    left, right = token_words(oracle, place), token_words(subject, place)
    whole, where = _place(phase, oracle, place)
    # The selected token's logprob may be equal where a candidate's is not: then say so instead of printing twins.
    what = f"{left} vs {right}" if left != right else f"{left} on both sides to 4 digits, other bits or candidates"
    return finding(
        FindingKind.LOGPROBS,
        f"{where}: {what}; logprobs bitwise equal in {like.steps_equal}/{like.steps} steps",
        place=whole, left=left, right=right, size=like.summary(), limit="0",
    )


def nothing_compared(compared: Compared) -> Iterator[Finding]:
    """An A/B over nothing is no pass."""
    for name, count in (("prompt", compared.prompts), ("token", compared.tokens), ("logprob", compared.logprobs)):
        if count == 0:
            yield finding(
                FindingKind.NOTHING_COMPARED, f"not one {name} of the restore was compared with the reference",
                place="subject restore", left="more than 0", right="0",
            )
            return


def no_block_compared() -> Iterator[Finding]:
    """Where no token is generated the KV blocks are the answer."""
    yield finding(
        FindingKind.NOTHING_COMPARED, "no token was to be generated, and not one KV block of the restore was compared",
        place="subject restore", left="more than 0", right="0",
    )
