# SPDX-License-Identifier: Apache-2.0
"""Last check: digests of the restored KV blocks, and the smallest words for where they differ.

Outputs alone cannot show every damage: attention does not see the order of fully visible blocks, nor bytes that no
later token reads. Where the engine is batch invariant the oracle's recompute is the truth; elsewhere recomputed KV may
differ by rounding, so the restored blocks are held against the same blocks as the subject computed and stored them.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from harness.compare.localise import BlockPlace, DigestShape, describe
from harness.compare.pair import Pair, finding, matched
from harness.records import RESTORES, Compared, Edge, Finding, FindingKind, Phase, PhaseRecord, Resolved, Role

#: Bytes of one digest inside a block's base64 string.
DIGEST_BYTES = 8


def compare_digests(pair: Pair, compared: Compared, stable: bool) -> tuple[list[Finding], Compared]:
    """Findings about KV digests, and ``compared`` with the first restore's blocks added.

    Both restores are held against the reference: a store that breaks what it is read from shows in the second only. An
    unstable pair is held against its own populate only: that the store changed bytes is no A/B claim.
    """
    sharing = pair.cell.sharing is not None
    if sharing and not stable:
        # What was stored is another configuration's, and so no reference.
        return [], compared
    # A recompute has the batches of a pass that fills a store, so its KV is that of a store's own configuration.
    against_oracle = (pair.cell.batch_invariant or not pair.cell.restores or sharing) and stable
    role, phase = (Role.ORACLE, Phase.RECOMPUTE) if against_oracle else (Role.SUBJECT, Phase.POPULATE)
    reference = pair.record(role, phase)
    if reference is None or pair.cell.expected_blocks <= 0 or not pair.subject_leg.digests:
        return [], compared
    findings: list[Finding] = []
    first: Damage | None = None
    for restore in RESTORES:
        record = pair.record(Role.SUBJECT, restore)
        if record is None:
            continue
        blocks = restored_blocks(pair, reference, record)
        unequal = {place: unequal_digests(*sides) for place, sides in blocks.items() if sides[0] != sides[1]}
        damage = Damage(len(blocks), unequal)
        if restore is Phase.RESTORE:
            compared = replace(compared, blocks=len(blocks), blocks_equal=len(blocks) - len(unequal))
        # What the second restore repeats needs no second line.
        if stable and (first is None or damage.known != first.known):
            findings += _missing(pair, f"{role} {phase}", restore, len(blocks))
        if unequal and (first is None or damage.unequal != first.unequal):
            shape = digest_shape(pair, blocks)
            damaged = sum(len(places) for places in unequal.values())
            pages = sum(len({shape.place(position)[0] for position in places}) for places in unequal.values())
            findings.append(finding(
                FindingKind.KV_DIGESTS,
                f"{'restored KV' if restore is Phase.RESTORE else 'KV restored again'} is not that of {role} {phase}:"
                f" {describe(unequal, set(blocks), shape)}",
                place=f"subject {restore}", left=f"{role} {phase}", right=f"subject {restore}",
                size=f"{damaged} of {len(blocks) * shape.count} digests in {pages} of {len(blocks) * shape.layers} "
                     f"pages, {len(unequal)} of {len(blocks)} blocks",
                limit="0",
            ))
        first = first or damage
    return findings, compared


class Damage(NamedTuple):
    """How many restored blocks have digests on both sides, and which of those differ where."""

    known: int
    unequal: Mapping[BlockPlace, frozenset[int]]


def _missing(pair: Pair, reference: str, restore: Phase, known: int) -> list[Finding]:
    """A pass says that every restored block is equal; one that nobody looked at is not.

    In a small pool blocks are given to others before the pass ends: what is left is compared, if there is any.
    """
    expected = 1 if pair.cell.edge is Edge.PREEMPTION else pair.cell.expected_blocks
    if known >= expected:
        return []
    return [finding(
        FindingKind.DIGESTS_MISSING,
        f"{known} of {expected} restored blocks have a KV digest in both {reference} and subject {restore}",
        place=f"subject {restore}", left=f"{expected} blocks", right=f"{known} blocks",
    )]


def restored_blocks(
    pair: Pair, reference: PhaseRecord, restore: PhaseRecord
) -> Mapping[BlockPlace, tuple[str, str]]:
    """(prompt, block) -> digests of both sides, for the blocks that came from the store and have both.

    Those of a local hit in a restore are among them: the local cache was empty before, so they came from the store too.
    Blocks beyond a prompt's hits were recomputed and say nothing about the store.
    """
    # What gives nothing back is held to what a store would have given.
    # Of a store that another configuration filled nobody knows how much it gives: given or computed, all is compared.
    claims = pair.cell.restores and pair.cell.sharing is None
    hits = pair.cell.hits_of(*((Role.SUBJECT, restore.phase) if claims else pair.cell.given_back))
    wanted = {}
    for prompt in restore.prompts:
        known = [prompt.num_tokens // pair.cell.block_size, pair.cell.blocks_of(hits, prompt.index) if hits else 0]
        if prompt.cached_tokens is not None and claims:
            known.append(prompt.cached_tokens // pair.cell.block_size)
        wanted[prompt.index] = min(known)
    resolved = pair.subject.resolved if pair.subject else None
    return digested_blocks(reference, restore, wanted, resolved)


def digested_blocks(
    left: PhaseRecord, right: PhaseRecord, wanted: Mapping[int, int], resolved: Resolved | None
) -> Mapping[BlockPlace, tuple[str, str]]:
    """(prompt, block) -> digests of both phases, for the blocks that have both, of each prompt's first ``wanted``."""
    return {
        (two.index, block): sides
        for one, two in matched(left.prompts, right.prompts)
        for block, sides in enumerate(zip(one.kv, two.kv, strict=False))
        if block < wanted.get(two.index, 0) and digested(*sides, resolved)
    }


def digested(left: str | None, right: str | None, resolved: Resolved | None) -> bool:
    """Whether both sides of a block were looked at; equal ones only when every layer's K and V have a digest there."""
    if not left or not right:
        return False
    # Padding ends base64, so that this may be a byte or two too many, never a digest.
    count = len(left) * 3 // 4 // DIGEST_BYTES
    return left != right or count >= 2 * (resolved.num_layers if resolved is not None else 1)


def unequal_digests(left: str, right: str) -> frozenset[int]:
    """Positions of unequal digests; every position when the two strings do not have the same shape."""
    one, two = split_digests(left), split_digests(right)
    count = max(len(one), len(two), 1)
    if len(one) != len(two):
        return frozenset(range(count))
    # Strings that differ only in undecodable bytes are unequal as a whole.
    return frozenset(place for place in range(len(one)) if one[place] != two[place]) or frozenset(range(count))


def split_digests(text: str) -> tuple[bytes, ...]:
    """One block's digests in order; empty when the text is not base64 of whole digests."""
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return ()
    if len(raw) % DIGEST_BYTES:
        return ()
    return tuple(raw[start : start + DIGEST_BYTES] for start in range(0, len(raw), DIGEST_BYTES))


def digest_shape(pair: Pair, blocks: Mapping[BlockPlace, tuple[str, str]]) -> DigestShape:
    """Layers, head slots and halves of one block's digests, as far as the count fits what the worker resolved."""
    count = max(len(split_digests(side)) for sides in blocks.values() for side in sides) or 1
    resolved = pair.subject.resolved if pair.subject else None
    if resolved is not None and len(resolved.shape) > 1:
        layers, slots = resolved.num_layers, resolved.shape[1]
        for halves in (2, 1):
            if layers * slots * halves == count:
                return DigestShape(layers, slots, halves)
    return DigestShape(1, count, 1)
