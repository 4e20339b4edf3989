# SPDX-License-Identifier: Apache-2.0
"""Third check: did the KV really come the way the cell claims?

Exact hit counts, resets that took effect, zeroed tensors, other blocks than before, and the connector's own counters.
A restore one token short of its hits is as vacuous as one without any.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.compare.pair import Pair, expected_hits, finding, local_hits, words
from harness.records import ROLE_PHASES, Finding, FindingKind, Phase, PhaseRecord, Role

#: Phases that compute everything themselves, and what to call it when they did not.
COLD = {
    Phase.RECOMPUTE: FindingKind.RECOMPUTE_NOT_COLD,
    Phase.RECOMPUTE_AGAIN: FindingKind.RECOMPUTE_NOT_COLD,
    Phase.POPULATE: FindingKind.POPULATE_NOT_COLD,
}

#: Phases whose prefix comes from the store.
RESTORES = (Phase.RESTORE, Phase.RESTORE_AGAIN)


def check_evidence(pair: Pair) -> Iterator[Finding]:
    """Findings about a path that was not taken; values are still compared after them."""
    if pair.cell.restores and pair.cell.expected_external_tokens <= 0:
        yield finding(
            FindingKind.NOTHING_COMPARED,
            "no prompt has a full block before its last token, so nothing can be restored",
            place="subject restore", left="at least one block", right="0 tokens",
        )
    for role, _, observation in pair.sides():
        assert observation is not None
        failed = next((record for record in observation.phases if record.reset_ok is False), None)
        yield from _check_phases(role, tuple(record.phase for record in observation.phases), failed)
        for record in observation.phases:
            if record is failed:
                break
            yield from _check_hits(pair, role, record)
            yield from _check_clearing(role, record)
            if record.phase in RESTORES:
                yield from _check_delivery(pair, role, record)
    if pair.cell.restores:
        yield from _check_blocks(pair)


def _check_phases(role: Role, phases: tuple[Phase, ...], failed: PhaseRecord | None) -> Iterator[Finding]:
    if failed is not None:
        # The leg stops here: later phases would hit the local cache. They are this finding's, not missing.
        yield finding(
            FindingKind.RESET_FAILED,
            f"{role} {failed.phase}: the prefix cache could not be reset before its deadline",
            place=f"{role} {failed.phase}", left="reset_prefix_cache: True", right="False",
        )
        return
    wanted = ROLE_PHASES[role]
    if phases != wanted:
        missing = [phase for phase in wanted if phase not in phases]
        message = f"{role}: missing {words(missing)}" if missing else f"{role}: phases ran as {words(phases)}"
        yield finding(
            FindingKind.PHASE_MISSING, message, place=role, left=words(wanted), right=words(phases),
        )


def _check_hits(pair: Pair, role: Role, record: PhaseRecord) -> Iterator[Finding]:
    """Sums exactly, then each prompt: one without hits must not hide behind another with twice its share."""
    place = f"{role} {record.phase}"
    total = pair.cell.expected_external_tokens
    local, external = record.local_tokens, record.external_tokens
    share: tuple[int, ...] | None
    if record.phase in COLD:
        kind, share = COLD[record.phase], (0,) * len(record.prompts)
        if local or external:
            yield finding(
                kind, f"{place} must compute every token, it had {local} local and {external} external hit tokens",
                place=place, left="0 local, 0 external", right=f"{local} local, {external} external", limit="0",
            )
            return
    else:
        restore = record.phase in RESTORES
        kind = FindingKind.EXTERNAL_HITS if restore else FindingKind.LOCAL_HITS
        share = expected_hits(pair.cell, record.prompts)
        if not restore and not pair.cell.restores:
            share = local_hits(pair.cell, record.prompts)
            total = sum(share)
        wanted_local, wanted_external = (0, total) if restore else (total, 0)
        wrong = []
        if external != wanted_external:
            wrong.append((FindingKind.EXTERNAL_HITS, "external", external, wanted_external))
        if local != wanted_local:
            wrong.append((FindingKind.LOCAL_HITS, "local", local, wanted_local))
        for wrong_kind, source, got, wanted in wrong:
            yield finding(
                wrong_kind, f"{place}: {got} {source} hit tokens, exactly {wanted} expected",
                place=place, left=f"{wanted} tokens", right=f"{got} tokens", size=f"{got - wanted:+d} tokens",
                limit="0",
            )
        if wrong:
            return
    yield from _check_prompt_hits(kind, place, record, share, local + external)


def _check_prompt_hits(
    kind: FindingKind, place: str, record: PhaseRecord, share: tuple[int, ...] | None, total: int
) -> Iterator[Finding]:
    cached = tuple(prompt.cached_tokens for prompt in record.prompts)
    if any(tokens is None for tokens in cached):
        left, right = "a count per prompt", words(cached)
    elif share is not None and cached != share:
        left, right = words(share), words(cached)
    elif sum(tokens for tokens in cached if tokens) != total:
        left, right = f"{total} in all", words(cached)
    else:
        return
    yield finding(
        kind, f"{place}: the prompts had {right} cached tokens, {left} expected", place=place, left=left, right=right,
        limit="0",
    )


def _check_clearing(role: Role, record: PhaseRecord) -> Iterator[Finding]:
    place = f"{role} {record.phase}"
    needed = record.phase in RESTORES
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
    if record.delivered_tokens is not None and record.delivered_tokens != record.external_tokens:
        yield finding(
            FindingKind.NOTHING_DELIVERED,
            f"{place}: the connector delivered {record.delivered_tokens} tokens,"
            f" the scheduler was promised {record.external_tokens}",
            place=place, left=f"{record.external_tokens} tokens", right=f"{record.delivered_tokens} tokens", limit="0",
        )
    if pair.cell.restores and record.loaded_bytes is not None and record.loaded_bytes <= 0:
        yield finding(
            FindingKind.NOTHING_DELIVERED, f"{place}: the connector loaded {record.loaded_bytes} bytes",
            place=place, left="more than 0 bytes", right=f"{record.loaded_bytes} bytes",
        )


def _check_blocks(pair: Pair) -> Iterator[Finding]:
    """A restore into the very block it was stored from would hide a load that goes to the wrong block."""
    populate, restore = pair.record(Role.SUBJECT, Phase.POPULATE), pair.record(Role.SUBJECT, Phase.RESTORE)
    if populate is None or restore is None:
        return
    share = expected_hits(pair.cell, restore.prompts)
    sources = {prompt.index: prompt.blocks for prompt in populate.prompts}
    for position, prompt in enumerate(restore.prompts):
        count = len(prompt.blocks) if share is None else share[position] // pair.cell.block_size
        pairs = list(zip(sources.get(prompt.index, ()), prompt.blocks[:count], strict=False))
        same = [source for source, destination in pairs if source == destination]
        if same:
            yield finding(
                FindingKind.SAME_BLOCKS,
                f"prompt {prompt.index}: {len(same)} of {len(pairs)} blocks were restored into the block they were"
                f" stored from: {words(same[:8])}{', ...' if len(same) > 8 else ''}",
                place=f"subject restore, prompt {prompt.index}", left="other block ids",
                right=f"{len(same)} of {len(pairs)} equal", limit="0",
            )
