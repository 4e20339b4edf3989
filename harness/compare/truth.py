# SPDX-License-Identifier: Apache-2.0
"""Last check: does the oracle's recompute agree with an implementation that is not vLLM, and with the other backends?

Store and engine may agree bit for bit and both be wrong: what the attention computes wrongly it computes wrongly
twice. The ground truth's legs go through the order of every leg first: ending, resolved, evidence, A/A, prompts.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.compare.ending import check_side
from harness.compare.nearness import Nearness, Parting, nearness
from harness.compare.pair import Pair, finding, matched, words
from harness.compare.steps import compare_steps, token_words
from harness.records import (
    Agreement,
    Ending,
    Finding,
    FindingKind,
    Leg,
    Limits,
    Observation,
    Phase,
    PhaseRecord,
    Role,
)

#: What the recompute is called in an agreement.
OURS = "recompute"


def check_truth(pair: Pair) -> tuple[list[Finding], tuple[Agreement, ...]]:
    """Findings, and how near the recompute is to each of what it is held against, sound or not."""
    asked, recompute = pair.cell.ground_truth, pair.record(Role.ORACLE, Phase.RECOMPUTE)
    if asked is None or recompute is None:
        return [], ()
    findings: list[Finding] = []
    agreements: list[Agreement] = []
    truths: list[tuple[str, PhaseRecord]] = []
    for digest in asked.truths:
        wrong = list(_check_leg(pair, pair.legs[digest], pair.further.get(digest), recompute))
        findings += wrong
        if not wrong:
            truths.append(_named(pair.further[digest]))
    for name, record in truths:
        near = _near(recompute, record)
        agreements.append(near.agreement(OURS, name, asked.limits))
        findings += _judge(near, name, asked.limits, recompute, record)
    for name, record in _peers(pair):
        near = _near(recompute, record)
        agreements.append(near.agreement(OURS, name, asked.limits))
        # One that is itself far from the truth is its own cell's finding, not this one's.
        if all(_near(record, truth).within(asked.limits) for _, truth in truths):
            findings += _judge(near, name, asked.limits, recompute, record)
    if len(truths) == 2:
        # What the dtype alone does to another implementation: the measure for everything above.
        (left, rounded), (right, exact) = truths
        agreements.append(_near(rounded, exact).agreement(left, right, asked.limits))
    return findings, tuple(agreements)


def _named(observation: Observation) -> tuple[str, PhaseRecord]:
    assert observation.resolved is not None
    return f"{observation.resolved.backend.lower()} {observation.resolved.dtype}", observation.phases[0]


def _near(ours: PhaseRecord, truth: PhaseRecord) -> Nearness:
    return nearness(matched(ours.prompts, truth.prompts))


def _peers(pair: Pair) -> Iterator[tuple[str, PhaseRecord]]:
    """Other cells' recomputes, of those whose oracle lived; the others' own cells say what became of them."""
    assert pair.cell.ground_truth is not None
    for name, digest in pair.cell.ground_truth.peers.items():
        observation = pair.further.get(digest)
        record = observation.phase(Phase.RECOMPUTE) if observation else None
        if observation is not None and observation.ending is Ending.OK and record is not None:
            yield name, record


# --- is the truth's own leg sound? ------------------------------------------------------------------------------


def _check_leg(
    pair: Pair, leg: Leg, observation: Observation | None, recompute: PhaseRecord
) -> Iterator[Finding]:
    name = f"ground truth {leg.engine.get('dtype', '')}".strip()
    if observation is None:
        yield finding(
            FindingKind.NO_OBSERVATION, f"the leg {leg.digest} of the {name} left no observation at all", place=name
        )
        return
    dead = list(check_side(name, leg, observation))
    if dead:
        yield from dead
        return
    checks = (
        _check_resolved(pair, name, leg, observation), _check_cold(name, leg, observation),
        _check_repeats(name, observation), _check_answers(name, leg, observation, recompute),
    )
    for check in checks:
        yield from check


def _check_resolved(pair: Pair, name: str, leg: Leg, observation: Observation) -> Iterator[Finding]:
    resolved, oracle = observation.resolved, pair.oracle.resolved if pair.oracle else None
    if resolved is None or oracle is None:
        return
    # "auto" is the dtype that the engine under test resolved.
    asked = leg.engine.get("dtype")
    dtype = oracle.dtype if asked in (None, "auto") else asked
    if resolved.dtype != dtype:
        yield finding(
            FindingKind.LEGS_RESOLVED_DIFFERENTLY, f"{name}: it computes in {resolved.dtype}, {dtype} was asked for",
            place=name, left=str(dtype), right=resolved.dtype,
        )
    if resolved.backend != leg.backend:
        yield finding(
            FindingKind.BACKEND_NOT_AS_ASKED,
            f"{name}: backend {leg.backend} was asked for, it uses {resolved.backend}"
            f" ({words(resolved.backend_class)})", place=name, left=leg.backend, right=resolved.backend,
        )


def _check_cold(name: str, leg: Leg, observation: Observation) -> Iterator[Finding]:
    phases = tuple(record.phase for record in observation.phases)
    if phases != leg.phases:
        yield finding(
            FindingKind.PHASE_MISSING, f"{name}: phases ran as {words(phases)}", place=name, left=words(leg.phases),
            right=words(phases),
        )
    for record in observation.phases:
        hits = record.local_tokens + record.external_tokens + sum(one.cached_tokens or 0 for one in record.prompts)
        if hits:
            yield finding(
                FindingKind.RECOMPUTE_NOT_COLD,
                f"{name}, {record.phase}: it must compute every token, {hits} were hits", place=name,
                left="0 tokens", right=f"{hits} tokens", limit="0",
            )


def _check_repeats(name: str, observation: Observation) -> Iterator[Finding]:
    once, again = observation.phase(Phase.RECOMPUTE), observation.phase(Phase.RECOMPUTE_AGAIN)
    if once is None or again is None:
        return
    likes = [compare_steps(one.steps, two.steps) for one, two in matched(once.prompts, again.prompts)]
    unequal = sum(not like.same_tokens or like.first_unequal is not None for like in likes)
    if unequal or not likes:
        yield finding(
            FindingKind.ORACLE_UNSTABLE,
            f"the {name} does not repeat itself: {Phase.RECOMPUTE_AGAIN} differs from {Phase.RECOMPUTE} in {unequal} of"
            f" {len(likes)} prompts", place=name, size=f"{unequal} of {len(likes)} prompts", limit="bitwise equal",
        )


def _check_answers(
    name: str, leg: Leg, observation: Observation, recompute: PhaseRecord
) -> Iterator[Finding]:
    record = observation.phase(Phase.RECOMPUTE)
    if record is None:
        return
    left, right = ([(one.index, one.digest) for one in side.prompts] for side in (recompute, record))
    if left != right:
        yield finding(
            FindingKind.PROMPTS_DIFFER, f"{name} answered other prompts than oracle {recompute.phase}", place=name,
            left=words(digest for _, digest in left), right=words(digest for _, digest in right),
        )
    short = [one.index for one in record.prompts if len(one.steps) < leg.decode.max_tokens]
    if short or not record.prompts:
        yield finding(
            FindingKind.NOTHING_COMPARED,
            f"{name}: fewer than {leg.decode.max_tokens} tokens of prompts {words(short)}", place=name,
            left=f"{leg.decode.max_tokens} tokens",
        )
    missing = sum(step.bits is None or not step.top for one in record.prompts for step in one.steps)
    if missing:
        yield finding(
            FindingKind.LOGPROBS_MISSING, f"{name}: {missing} tokens lack their logprob or its candidates", place=name
        )


# --- near enough? -----------------------------------------------------------------------------------------------


def _judge(
    near: Nearness, name: str, limits: Limits, recompute: PhaseRecord, truth: PhaseRecord
) -> Iterator[Finding]:
    far = near.far(limits)
    if not far and (not near.differences or near.tokens == len(near.partings)):
        # Near ties everywhere at the first token: nothing shows that the two answered one question.
        yield finding(
            FindingKind.NOTHING_COMPARED, f"not one token of {OURS} equals that of {name}", place=f"oracle {OURS}",
            left="more than 0", right="0",
        )
        return
    if near.within(limits):
        return
    place, left, right = _place(near, far, recompute, truth)
    yield finding(
        FindingKind.GROUND_TRUTH,
        f"oracle {OURS} is not what {name} computes: {'; '.join(_reasons(near, far, limits))}",
        place=place, left=left, right=right,
        size=f"max {near.largest[0]:.3g} nat, median {near.median:.3g} nat, {len(far)} tokens that are no near tie",
        limit=f"max {limits.largest:g} nat, median {limits.median:g} nat, near ties of {limits.near_tie:g} nat",
    )


def _reasons(near: Nearness, far: list[Parting], limits: Limits) -> Iterator[str]:
    nat, prompt, token = near.largest
    if not nat <= limits.largest:
        yield f"a logprob of prompt {prompt}, token {token} differs by {nat:.3g} nat (limit {limits.largest:g})"
    if not near.median <= limits.median:
        yield f"the median difference is {near.median:.3g} nat (limit {limits.median:g})"
    if far:
        first = far[0]
        least = "" if first.listed else "at least "
        yield (
            f"{len(far)} of {near.prompts} prompts part where there is no near tie, first at prompt {first.prompt},"
            f" token {first.token}: {first.words[0]} vs {first.words[1]}, {least}{first.gap:.3g} nat behind"
            f" (limit {limits.near_tie:g})"
        )


def _place(
    near: Nearness, far: list[Parting], recompute: PhaseRecord, truth: PhaseRecord
) -> tuple[str, str, str]:
    """(where, the truth's token there, ours): the first parting, otherwise the largest difference."""
    if far:
        return f"oracle {OURS}, prompt {far[0].prompt}, token {far[0].token}", *far[0].words
    _, prompt, token = near.largest
    sides = {one.index: (two, one) for one, two in matched(recompute.prompts, truth.prompts)}
    left, right = (token_words(one, token) for one in sides[prompt])
    return f"oracle {OURS}, prompt {prompt}, token {token}", left, right
