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

from harness.compare.localise import BlockPlace, DigestShape, describe
from harness.compare.pair import Pair, expected_hits, finding, local_hits, matched
from harness.records import Compared, Finding, FindingKind, Phase, PhaseRecord, Role

#: Bytes of one digest inside a block's base64 string.
DIGEST_BYTES = 8


def compare_digests(pair: Pair, compared: Compared, stable: bool) -> tuple[list[Finding], Compared]:
    """The finding about KV digests, if any, and ``compared`` with the blocks added.

    An unstable pair is held against its own populate only: that the store changed bytes is no A/B claim.
    """
    against_oracle = (pair.cell.batch_invariant or not pair.cell.restores) and stable
    role, phase = (Role.ORACLE, Phase.RECOMPUTE) if against_oracle else (Role.SUBJECT, Phase.POPULATE)
    reference, restore = pair.record(role, phase), pair.record(Role.SUBJECT, Phase.RESTORE)
    if reference is None or restore is None or (pair.cell.restores and pair.cell.expected_external_tokens <= 0):
        return [], compared
    blocks = restored_blocks(pair, reference, restore)
    unequal = {place: unequal_digests(*sides) for place, sides in blocks.items() if sides[0] != sides[1]}
    compared = replace(compared, blocks=len(blocks), blocks_equal=len(blocks) - len(unequal))
    name = f"{role} {phase}"
    findings = []
    expected = pair.cell.expected_external_tokens // pair.cell.block_size
    if not pair.cell.restores:
        expected = sum(local_hits(pair.cell, restore.prompts)) // pair.cell.block_size
    if stable and len(blocks) < expected:
        # A pass says that every restored block is equal; one that nobody looked at is not.
        findings.append(finding(
            FindingKind.DIGESTS_MISSING,
            f"{len(blocks)} of {expected} restored blocks have a KV digest in both {name} and subject restore",
            place="subject restore", left=f"{expected} blocks", right=f"{len(blocks)} blocks",
        ))
    if not unequal:
        return findings, compared
    shape = digest_shape(pair, blocks)
    damaged = sum(len(places) for places in unequal.values())
    findings.append(
        finding(
            FindingKind.KV_DIGESTS,
            f"restored KV is not that of {name}: {describe(unequal, set(blocks), shape)}",
            place="subject restore", left=name, right="subject restore",
            size=f"{damaged} of {len(blocks) * shape.count} digests in {len(unequal)} of {len(blocks)} blocks",
            limit="0",
        )
    )
    return findings, compared


def restored_blocks(
    pair: Pair, reference: PhaseRecord, restore: PhaseRecord
) -> Mapping[BlockPlace, tuple[str, str]]:
    """(prompt, block) -> digests of both sides, for the blocks that came from the store and have both.

    Blocks beyond a prompt's hits were recomputed and say nothing about the store.
    """
    share = _shares(pair, restore)
    wanted = {}
    for position, prompt in enumerate(restore.prompts):
        cached = prompt.cached_tokens if pair.cell.restores else None
        expected = cached if share is None else share[position]
        tokens = min(one for one in (cached, expected, prompt.num_tokens) if one is not None)
        wanted[prompt.index] = tokens // pair.cell.block_size
    blocks = {}
    for one, two in matched(reference.prompts, restore.prompts):
        for block, (left, right) in enumerate(zip(one.kv, two.kv, strict=False)):
            if block < wanted[two.index] and left is not None and right is not None:
                blocks[two.index, block] = (left, right)
    return blocks


def _shares(pair: Pair, restore: PhaseRecord) -> tuple[int, ...] | None:
    """Tokens of each prompt whose KV is compared: what came from the store, or what a store would have given."""
    share = expected_hits if pair.cell.restores else local_hits
    return share(pair.cell, restore.prompts)


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
