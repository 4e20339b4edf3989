# SPDX-License-Identifier: Apache-2.0
"""Check of a store that one configuration fills and another reads: did they differ in that alone, and was it filled?

What came back is judged elsewhere: its amount with the hits, its bits with the values. Here is what makes either mean
something: both engines ran what they were told to, the difference took effect, the filling engine's KV was really
stored, right, and for an engine that differs in nothing it is still there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields

from harness.compare.digests import digested_blocks
from harness.compare.pair import Pair, finding, matched, words
from harness.compare.resolved import stride_order
from harness.compare.steps import compare_steps
from harness.records import (
    Ending,
    Finding,
    FindingKind,
    Leg,
    Observation,
    Phase,
    PhaseHits,
    PhaseRecord,
    Resolved,
    Role,
    Rule,
    Sharing,
)

#: Fields of ``Resolved`` that change no KV, or are taken apart.
ASIDE = ("num_blocks", "settings", "connector")

#: What precedes the name of a setting that requests carry and no engine has.
CARRIED = "request "

#: Engine argument -> the setting that says what came of it.
TOLD = {"dtype": "model dtype", "kv_cache_dtype": "kv cache dtype", "revision": "revision"}


def check_sharing(pair: Pair) -> Iterator[Finding]:
    """Findings about a difference that was not taken, or a fill that nobody can show; none for any other cell."""
    sharing, observation = pair.cell.sharing, pair.subject
    if sharing is None or observation is None:
        return
    if observation.filled is None or observation.resolved is None:
        yield finding(
            FindingKind.DIFFERENCE_NOT_TAKEN, "nothing says what the engine that filled the store resolved",
            place="subject", left="two engines", right="unknown",
        )
        return
    yield from _check_asked(pair.subject_leg, observation.filled, pair.record(Role.SUBJECT, Phase.POPULATE))
    yield from _check_difference(sharing, observation)
    if sharing.alters:
        yield from _check_alters(pair)
    yield from _check_fill(pair, observation)
    if sharing.control is not None:
        yield from _check_control(pair, sharing.control)


def check_shared_hits(pair: Pair, sharing: Sharing, record: PhaseRecord, hits: PhaseHits) -> Iterator[Finding]:
    """Findings about what the first restore got: hits that must not be, or ones that nothing can be held against."""
    place, full = f"subject {record.phase}", pair.cell.full_external_tokens
    local, got = record.local_tokens, record.external_tokens
    if sharing.rule is Rule.MUST_NOT_HIT and got:
        yield finding(
            FindingKind.FORBIDDEN_HITS,
            f"{place}: {got} of {full} tokens came from KV that was stored under another configuration"
            f" ({sharing.difference}), none may",
            place=place, left="0 tokens", right=f"{got} tokens", size=f"{got:+d} tokens", limit="0",
        )
    if sharing.rule is not Rule.MAY_HIT:
        return
    if local != sum(hits.local):
        yield finding(
            FindingKind.LOCAL_HITS, f"{place}: {local} local hit tokens, exactly {sum(hits.local)} expected",
            place=place, left=f"{sum(hits.local)} tokens", right=f"{local} tokens", limit="0",
        )
    cached = sum(prompt.cached_tokens or 0 for prompt in record.prompts)
    if cached != local + got:
        yield finding(
            FindingKind.EXTERNAL_HITS,
            f"{place}: the prompts had {cached} cached tokens in all, the scheduler counted {local} local and {got}"
            " external ones",
            place=place, left=f"{local + got} tokens", right=f"{cached} tokens", limit="0",
        )
    if not pair.cell.batch_invariant and got not in (0, full):
        yield finding(
            FindingKind.EXTERNAL_HITS,
            f"{place}: {got} of {full} tokens came from the store; where kernels are not batch invariant nothing is"
            " bitwise equal to a part of a hit",
            place=place, left=f"0 or {full} tokens", right=f"{got} tokens",
        )


def _check_asked(subject: Leg, filled: Resolved, populate: PhaseRecord | None) -> Iterator[Finding]:
    """The filling engine must have been the one that was asked for; the reading one is the cell's, checked as such."""
    leg = subject.filler
    asked: dict[str, tuple[object, object]] = {
        "layout": (leg.layout, filled.layout), "backend": (leg.backend, filled.backend),
        "batch invariance": (leg.batch_invariant, filled.batch_invariant),
        "block size": (int(leg.engine["block_size"]), filled.block_size),
        "what requests carry": (dict(leg.request), dict(populate.carried) if populate else {}),
    }
    if leg.model_name is None and "model" in filled.settings:
        asked["model"] = (leg.model.path, filled.settings["model"])
    for argument, name in TOLD.items():
        # What both engines are told alike may have several names (``auto``, ``half``), and must not differ anyhow.
        if argument in leg.engine and leg.engine[argument] != subject.engine.get(argument):
            asked[argument] = (str(leg.engine[argument]), filled.settings.get(name))
    if "OMP_NUM_THREADS" in leg.env:
        asked["threads"] = (int(leg.env["OMP_NUM_THREADS"]), filled.threads)
    for name, (wanted, got) in asked.items():
        if wanted != got:
            yield finding(
                FindingKind.DIFFERENCE_NOT_TAKEN,
                f"the store was to be filled with {name} {wanted}, the worker used {got}",
                place="subject populate", left=str(wanted), right=str(got),
            )
    if leg.layout not in filled.layout_by_strides:
        got = words(filled.layout_by_strides)
        yield finding(
            FindingKind.DIFFERENCE_NOT_TAKEN,
            f"the store was to be filled in {leg.layout}, the tensors' strides are those of {got}",
            place="subject populate", left=leg.layout, right=got,
        )
    if filled.connector is None:
        yield finding(
            FindingKind.DIFFERENCE_NOT_TAKEN, "the engine that was to fill the store had no KV connector",
            place="subject populate", left="a KV connector", right="none",
        )


def _check_difference(sharing: Sharing, observation: Observation) -> Iterator[Finding]:
    """The two engines must differ in what the cell says, and in nothing else."""
    unequal = differences(observation)
    filled, read = (_settings(observation, filling=filling) for filling in (True, False))
    for name in sharing.shows:
        # Requests that carry nothing are one side of such a difference; an engine that tells nothing is none.
        untold = [] if name.startswith(CARRIED) else [side.get(name) for side in (filled, read)]
        if any(value in (None, "") for value in untold):
            left, right = ("unknown" if value in (None, "") else str(value) for value in untold)
            yield finding(
                FindingKind.DIFFERENCE_NOT_TAKEN,
                f"{sharing.difference} was to differ, but {name} was {left} in the engine that filled the store and is"
                f" {right} in the one that reads it", place=name, left=left, right=right,
            )
        elif name not in unequal:
            value = str(read.get(name, "nothing"))
            yield finding(
                FindingKind.DIFFERENCE_NOT_TAKEN,
                f"{sharing.difference} was to differ, but {name} is {value} in both engines",
                place=name, left="two values", right=value,
            )
    for name in sorted({*unequal} - {*sharing.shows, *sharing.brings}):
        left, right = unequal[name]
        yield finding(
            FindingKind.DIFFERENCE_NOT_TAKEN,
            f"the engines were to differ in {sharing.difference} alone, but {name} was {left} and then {right}",
            place=name, left=left, right=right,
        )


def differences(observation: Observation) -> Mapping[str, tuple[str, str]]:
    """Setting -> (the filling engine's value, the reading one's), in words, where they are not equal."""
    if observation.filled is None or observation.resolved is None:
        return {}
    filled, read = _settings(observation, filling=True), _settings(observation, filling=False)
    return {
        name: (str(filled.get(name, "nothing")), str(read.get(name, "nothing")))
        for name in dict.fromkeys([*filled, *read]) if filled.get(name) != read.get(name)
    }


def _settings(observation: Observation, *, filling: bool) -> Mapping[str, object]:
    """Every setting of the filling engine or of the reading one, by name."""
    resolved = observation.filled if filling else observation.resolved
    record = observation.phase(Phase.POPULATE if filling else Phase.RESTORE)
    assert resolved is not None
    plain = {one.name: getattr(resolved, one.name) for one in fields(resolved) if one.name not in ASIDE}
    # The number of blocks in the pool changes no bit, and the strides themselves grow with it.
    plain["shape"], plain["strides"] = resolved.shape[1:], stride_order(resolved)
    carried = {f"{CARRIED}{name}": value for name, value in (record.carried if record else {}).items()}
    return {**plain, **resolved.settings, **carried}


def _check_alters(pair: Pair) -> Iterator[Finding]:
    """KV that must be another one gives other answers, or the difference never reached the model."""
    oracle, filled = pair.record(Role.ORACLE, Phase.RECOMPUTE), pair.record(Role.SUBJECT, Phase.POPULATE)
    if oracle is None or filled is None:
        return
    likes = [compare_steps(one.steps, two.steps) for one, two in matched(oracle.prompts, filled.prompts)]
    if all(like.same_tokens and like.first_unequal is None for like in likes):
        yield finding(
            FindingKind.DIFFERENCE_NOT_TAKEN,
            "the engine that filled the store answered bitwise as the reading one recomputes, so its KV was no other",
            place="subject populate", left="other answers", right=f"{len(likes)} of {len(likes)} prompts equal",
        )


def _check_fill(pair: Pair, observation: Observation) -> Iterator[Finding]:
    """What the filling engine got back must be what it had computed; that it got all of it is the hits' check."""
    stored, own = (pair.record(Role.SUBJECT, phase) for phase in (Phase.POPULATE, Phase.OWN_RESTORE))
    if observation.left_bytes == 0 and "{folder}" in str(pair.subject_leg.kv_transfer_config):
        yield finding(
            FindingKind.NOTHING_DELIVERED,
            "the engine that filled the store left no file in the leg's folder, so it stored nothing that outlives it",
            place="subject own_restore", left="more than 0 bytes", right="0 bytes",
        )
    if stored is None or own is None or not pair.subject_leg.digests:
        return
    hits = pair.cell.hits_of(Role.SUBJECT, Phase.OWN_RESTORE)
    size = int(pair.subject_leg.filler.engine["block_size"])
    wanted = {one.index: (hits.external[one.index] if hits else 0) // size for one in own.prompts}
    blocks = digested_blocks(stored, own, wanted, observation.filled)
    known, unequal = len(blocks), [place for place, (left, right) in blocks.items() if left != right]
    if known < sum(wanted.values()):
        yield finding(
            FindingKind.DIGESTS_MISSING,
            f"{known} of {sum(wanted.values())} blocks that the filling engine got back have a KV digest in both"
            " subject populate and subject own_restore",
            place="subject own_restore", left=f"{sum(wanted.values())} blocks", right=f"{known} blocks",
        )
    if unequal:
        yield finding(
            FindingKind.KV_DIGESTS,
            f"the filling engine's own KV came back wrong: {len(unequal)} of {known} blocks are not those of subject"
            f" populate, first block {unequal[0][1]} of prompt {unequal[0][0]}",
            place="subject own_restore", left="subject populate", right="subject own_restore",
            size=f"{len(unequal)} of {known} blocks", limit="0",
        )


def _check_control(pair: Pair, digest: str) -> Iterator[Finding]:
    """An engine that differs in nothing must have found everything."""
    observation = pair.further.get(digest)
    record = observation.phase(Phase.RESTORE) if observation and observation.ending is Ending.OK else None
    wanted, got = pair.cell.full_external_tokens, record.external_tokens if record else None
    if got != wanted:
        yield finding(
            FindingKind.EXTERNAL_HITS,
            f"the control, an engine that differs in nothing, hit {'an unknown number' if got is None else got} of"
            f" {wanted} tokens, so that what others hit or do not says nothing",
            place="control restore", left=f"{wanted} tokens", right=str(got), limit="0",
        )
