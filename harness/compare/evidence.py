# SPDX-License-Identifier: Apache-2.0
"""Third check: did the KV really come the way the cell claims?

Exact hit counts by the plan's rule, resets that took effect, zeroed tensors, other blocks than before, the connector's
own counters, and what a prompt set exists for.
A restore one token short of its hits is as vacuous as one without any.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from harness.compare.handover import check_handover
from harness.compare.pair import Pair, finding, words
from harness.compare.sharing import check_shared_hits
from harness.records import (
    RESTORES,
    Certainty,
    Edge,
    Finding,
    FindingKind,
    Phase,
    PhaseHits,
    PhaseRecord,
    Role,
)

#: Phases that find nothing but what the pass itself left, and what to call it when they found other than that.
COLD = {
    Phase.RECOMPUTE: FindingKind.RECOMPUTE_NOT_COLD,
    Phase.RECOMPUTE_AGAIN: FindingKind.RECOMPUTE_NOT_COLD,
    Phase.POPULATE: FindingKind.POPULATE_NOT_COLD,
}

#: Phases that get KV back into tensors that were cleared before.
CLEARED_RESTORES = (Phase.OWN_RESTORE, *RESTORES)


def check_evidence(pair: Pair) -> Iterator[Finding]:
    """Findings about a path that was not taken; values are still compared after them."""
    # What is handed over whole comes back even where no block of it is full; only the answers tell then.
    something = pair.cell.expected_external_tokens if pair.cell.hands_over else pair.cell.expected_blocks
    if pair.cell.restores and something <= 0:
        yield finding(
            FindingKind.NOTHING_COMPARED,
            "no prompt has a full block before its last token, so nothing can be restored",
            place="subject restore", left="at least one block", right="0 tokens",
        )
    for role, _, observation in pair.sides():
        assert observation is not None
        failed = next((record for record in observation.phases if record.reset_ok is False), None)
        wanted = pair.cell.phases_of(role)
        yield from _check_phases(role, wanted, tuple(record.phase for record in observation.phases), failed)
        for record in observation.phases:
            if record is failed:
                break
            yield from _check_hits(pair, role, record)
            yield from _check_clearing(role, record)
            if record.phase in CLEARED_RESTORES:
                yield from _check_delivery(pair, role, record)
                yield from check_handover(pair, record)
            yield from _check_edge(pair, role, record)
    if pair.cell.restores:
        yield from _check_blocks(pair)


def _check_phases(
    role: Role, wanted: tuple[Phase, ...], phases: tuple[Phase, ...], failed: PhaseRecord | None
) -> Iterator[Finding]:
    if failed is not None:
        # The leg stops here: later phases would hit the local cache. They are this finding's, not missing.
        yield finding(
            FindingKind.RESET_FAILED,
            f"{role} {failed.phase}: the prefix cache could not be reset before its deadline",
            place=f"{role} {failed.phase}", left="reset_prefix_cache: True", right="False",
        )
        return
    if phases != wanted:
        missing = [phase for phase in wanted if phase not in phases]
        message = f"{role}: missing {words(missing)}" if missing else f"{role}: phases ran as {words(phases)}"
        yield finding(
            FindingKind.PHASE_MISSING, message, place=role, left=words(wanted), right=words(phases),
        )


def _check_hits(pair: Pair, role: Role, record: PhaseRecord) -> Iterator[Finding]:
    """Sums exactly, then each prompt: one without hits must not hide behind another with twice its share."""
    hits = pair.cell.hits_of(role, record.phase)
    if hits is None:
        # No phase of this role; that it ran has a finding of its own.
        return
    place = f"{role} {record.phase}"
    wanted = {"local": sum(hits.local), "external": sum(hits.external)}
    got = {"local": record.local_tokens, "external": record.external_tokens}
    if pair.cell.sharing is not None and role is Role.SUBJECT and record.phase is Phase.RESTORE:
        found = list(check_shared_hits(pair, pair.cell.sharing, record, hits))
        yield from found
        if found:
            return
    if hits.certain is Certainty.SPLIT and got != wanted:
        yield from _wrong_sums(place, record.phase, got, wanted)
    elif hits.certain is Certainty.SUM and sum(got.values()) != sum(wanted.values()):
        left, right = sum(wanted.values()), sum(got.values())
        yield finding(
            _kind(record.phase, "local"), f"{place}: {right} local and external hit tokens, exactly {left} expected",
            place=place, left=f"{left} tokens", right=f"{right} tokens", size=f"{right - left:+d} tokens", limit="0",
        )
    else:
        yield from _check_prompt_hits(place, record, hits, sum(got.values()))


def _kind(phase: Phase, source: str) -> FindingKind:
    return COLD.get(phase, FindingKind.EXTERNAL_HITS if source == "external" else FindingKind.LOCAL_HITS)


def _wrong_sums(place: str, phase: Phase, got: dict[str, int], wanted: dict[str, int]) -> Iterator[Finding]:
    if phase in COLD:
        left, right = (", ".join(f"{count} {source}" for source, count in side.items()) for side in (wanted, got))
        own = "compute every token" if not any(wanted.values()) else f"hit {left} tokens of its own prompts"
        yield finding(
            COLD[phase], f"{place} must {own}, it had {got['local']} local and {got['external']} external hit tokens",
            place=place, left=left, right=right, limit="0",
        )
        return
    for source in ("external", "local"):
        if got[source] != wanted[source]:
            yield finding(
                _kind(phase, source),
                f"{place}: {got[source]} {source} hit tokens, exactly {wanted[source]} expected",
                place=place, left=f"{wanted[source]} tokens", right=f"{got[source]} tokens",
                size=f"{got[source] - wanted[source]:+d} tokens", limit="0",
            )


def _check_prompt_hits(place: str, record: PhaseRecord, hits: PhaseHits, total: int) -> Iterator[Finding]:
    kind = _kind(record.phase, "external" if record.phase in CLEARED_RESTORES else "local")
    cached = tuple(prompt.cached_tokens for prompt in record.prompts)
    share = tuple(sum(hits.of(prompt.index)) for prompt in record.prompts)
    if any(tokens is None for tokens in cached):
        left, right = "a count per prompt", words(cached)
    elif hits.certain is Certainty.LIMIT:
        if all(one <= most for one, most in zip(cached, share, strict=True)):
            return
        left, right = f"at most {words(share)}", words(cached)
    elif cached != share:
        left, right = words(share), words(cached)
    elif sum(cached) != total:
        left, right = f"{total} in all", words(cached)
    else:
        yield from _check_sources(kind, place, record, hits)
        return
    yield finding(
        kind, f"{place}: the prompts had {right} cached tokens, {left} expected", place=place, left=left, right=right,
        limit="0",
    )


def _check_sources(kind: FindingKind, place: str, record: PhaseRecord, hits: PhaseHits) -> Iterator[Finding]:
    """Each prompt's hits by source, where the engine tells them."""
    if hits.certain is not Certainty.SPLIT:
        return
    for prompt in record.prompts:
        got, wanted = (prompt.local_tokens, prompt.external_tokens), hits.of(prompt.index)
        if None not in got and got != wanted:
            left, right = (f"{local} local and {external} external" for local, external in (wanted, got))
            yield finding(
                kind, f"{place}, prompt {prompt.index}: {right} hit tokens, {left} expected",
                place=f"{place}, prompt {prompt.index}", left=left, right=right, limit="0",
            )


def _check_clearing(role: Role, record: PhaseRecord) -> Iterator[Finding]:
    place = f"{role} {record.phase}"
    needed = record.phase in CLEARED_RESTORES
    if needed and record.reset_ok is None:
        yield finding(
            FindingKind.RESET_FAILED, f"{place}: nothing says that the prefix cache was reset before it",
            place=place, left="reset_prefix_cache: True", right="not called",
        )
    zeroed, nonzero = record.zeroed_bytes, record.nonzero_after_zeroing
    if (needed and not zeroed) or (zeroed is not None and nonzero != 0):
        yield finding(
            FindingKind.NOT_ZEROED,
            f"{place}: {zeroed or 0} bytes of KV tensors were zeroed and"
            f" {'an unknown number' if nonzero is None else nonzero} of nonzero bytes left,"
            " so stale KV could stand in for a load",
            place=place, left="all bytes zero", right=f"{zeroed or 0} zeroed, {nonzero} nonzero", limit="0",
        )


def _check_delivery(pair: Pair, role: Role, record: PhaseRecord) -> Iterator[Finding]:
    place = f"{role} {record.phase}"
    delivered, promised = record.delivered_tokens, record.external_tokens
    # A preempted request is loaded again when it is resumed, and the scheduler counts its promises elsewhere; the load
    # of an aborted one may end within the phase.
    again = pair.cell.edge in (Edge.PREEMPTION, Edge.ABORT)
    if delivered is not None and (delivered < promised if again else delivered != promised):
        yield finding(
            FindingKind.NOTHING_DELIVERED,
            f"{place}: the connector delivered {delivered} tokens, the scheduler was promised {promised}",
            place=place, left=f"{promised} tokens", right=f"{delivered} tokens", limit="0",
        )
    yield from _check_overrun(pair, place, record, again)
    # Of a store that another configuration filled nobody knows how much it gives.
    expected = record.external_tokens if pair.cell.sharing else pair.cell.expected_external_tokens
    if record.loaded_bytes is not None and record.loaded_bytes <= 0 and expected > 0:
        yield finding(
            FindingKind.NOTHING_DELIVERED, f"{place}: the connector loaded {record.loaded_bytes} bytes",
            place=place, left="more than 0 bytes", right=f"{record.loaded_bytes} bytes",
        )


def _check_overrun(pair: Pair, place: str, record: PhaseRecord, again: bool) -> Iterator[Finding]:
    """More bytes than the promised tokens have were written outside of them, whether an answer shows it or not."""
    each = pair.token_bytes(filled=record.phase is Phase.OWN_RESTORE)
    # Between two engines whole blocks are read, and the bytes must be exactly theirs (check_handover).
    if each is None or record.loaded_bytes is None or again or pair.cell.hands_over:
        return
    # A store that was asked for fewer tokens than it should has a finding for that; of one that another configuration
    # filled nobody knows how much it gives, so what the scheduler was promised is all.
    tokens = record.external_tokens
    if pair.cell.sharing is None:
        tokens = max(tokens, pair.cell.expected_external_tokens)
    most = tokens * each
    if record.loaded_bytes > most:
        yield finding(
            FindingKind.OVERRUN,
            f"{place}: the connector loaded {record.loaded_bytes} bytes, the KV of {tokens} tokens has {most}",
            place=place, left=f"{most} bytes", right=f"{record.loaded_bytes} bytes",
            size=f"{record.loaded_bytes - most:+d} bytes", limit="0",
        )


def _check_edge(pair: Pair, role: Role, record: PhaseRecord) -> Iterator[Finding]:
    """What the prompt set exists for must be seen where the prompts are computed whole, and where they are restored."""
    place = f"{role} {record.phase}"
    if pair.cell.edge is Edge.PREEMPTION and record.phase in (*COLD, *RESTORES) and not record.preemptions:
        got = "an unknown number" if record.preemptions is None else record.preemptions
        yield finding(
            FindingKind.EDGE_NOT_REACHED,
            f"{place}: {got} of its requests were preempted, and the prompt set is made for that",
            place=place, left="at least 1 preemption", right=str(got),
        )
    if pair.cell.edge is Edge.ABORT and record.phase in RESTORES and not record.aborted_loads:
        yield finding(
            FindingKind.EDGE_NOT_REACHED,
            f"{place}: no request was seen while its load was under way, so none was aborted then, and the prompt set"
            " is made for that",
            place=place, left="at least 1 aborted load", right=str(record.aborted_loads or 0),
        )
    if pair.cell.edge is Edge.CHUNKS and record.phase in COLD:
        whole = [prompt.index for prompt in record.prompts if (prompt.prefill_steps or 0) < 2]
        if whole:
            yield finding(
                FindingKind.EDGE_NOT_REACHED,
                f"{place}: nothing says that prompts {words(whole)} were computed in more than one step, and the prompt"
                " set is made for that",
                place=place, left="at least 2 steps each", right=f"prompts {words(whole)}: fewer",
            )


def _check_blocks(pair: Pair) -> Iterator[Finding]:
    """A restore into the very block it was stored from would hide a load that goes to the wrong block.

    Not asked of a small pool, which has no other blocks to give. Where another configuration fills the store, the
    filling engine's own restore is asked: the other one has blocks of its own, and nobody knows how many it is given.
    """
    phase = Phase.RESTORE if pair.cell.sharing is None else Phase.OWN_RESTORE
    populate, restore = pair.record(Role.SUBJECT, Phase.POPULATE), pair.record(Role.SUBJECT, phase)
    hits = pair.cell.hits_of(Role.SUBJECT, phase)
    if populate is None or restore is None or hits is None or pair.cell.edge is Edge.PREEMPTION:
        return
    size = int(pair.subject_leg.filler.engine.get("block_size", pair.cell.block_size))
    sources = {prompt.index: prompt.blocks for prompt in populate.prompts}
    for prompt in restore.prompts:
        # Blocks of a local hit lie where the prompt before them was restored to, which has its own line.
        first, last = (tokens // size for tokens in accumulate(hits.of(prompt.index)))
        source = sources.get(prompt.index, ())
        pairs = list(zip(source[first:last], prompt.blocks[first:last], strict=False))
        # Where digests are taken, a restored block that nobody knows lacks its digest, and that says it; the digest of
        # the block it was stored from may be no reference, so that nobody would miss it.
        restored = last - first
        if len(source) < last or (len(pairs) < restored and not pair.subject_leg.digests):
            yield finding(
                FindingKind.SAME_BLOCKS,
                f"prompt {prompt.index}: where {restored - len(pairs)} of its {restored} blocks were stored from or"
                " restored to is unknown, so they may be the same",
                place=f"subject {phase}, prompt {prompt.index}", left="other block ids",
                right=f"{len(pairs)} of {restored} known", limit="0",
            )
        same = [stored for stored, destination in pairs if stored == destination]
        if same:
            yield finding(
                FindingKind.SAME_BLOCKS,
                f"prompt {prompt.index}: {len(same)} of {len(pairs)} blocks were restored into the block they were"
                f" stored from: {words(same[:8])}{', ...' if len(same) > 8 else ''}",
                place=f"subject {phase}, prompt {prompt.index}", left="other block ids",
                right=f"{len(same)} of {len(pairs)} equal", limit="0",
            )
