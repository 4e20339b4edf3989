# SPDX-License-Identifier: Apache-2.0
"""Evidence of a restore between two live engines: what the one held ready for each prompt, and the bytes that moved."""

from __future__ import annotations

from collections.abc import Iterator

from harness.compare.pair import Pair, finding
from harness.records import Finding, FindingKind, PhaseHits, PhaseRecord, PromptResult, Role


def check_handover(pair: Pair, record: PhaseRecord) -> Iterator[Finding]:
    """Findings about one restore; nothing where one engine does everything."""
    hits = pair.cell.hits_of(Role.SUBJECT, record.phase)
    if not pair.cell.hands_over or hits is None:
        return
    for prompt in record.prompts:
        yield from _check_prompt(pair, f"subject {record.phase}, prompt {prompt.index}", prompt, hits)
    yield from _check_bytes(pair, record, hits)


def _check_prompt(pair: Pair, place: str, prompt: PromptResult, hits: PhaseHits) -> Iterator[Finding]:
    handed = prompt.handover
    if handed is None:
        yield finding(
            FindingKind.EXTERNAL_HITS, f"{place}: nothing says that another engine held its KV ready",
            place=place, left="handed over", right="unknown",
        )
        return
    size = pair.cell.block_size
    wanted = prompt.num_tokens, -(-prompt.num_tokens // size)
    got = handed.tokens, len(handed.blocks)
    if got != wanted:
        left, right = (f"{tokens} tokens in {blocks} blocks" for tokens, blocks in (wanted, got))
        yield finding(
            FindingKind.EXTERNAL_HITS, f"{place}: the prefill engine held {right} ready, exactly {left} expected",
            place=place, left=left, right=right, limit="0",
        )
    found = hits.prefill[prompt.index] if prompt.index < len(hits.prefill) else 0
    if handed.cached_tokens != found:
        yield finding(
            FindingKind.LOCAL_HITS,
            f"{place}: the prefill engine found {handed.cached_tokens} of its tokens in its own cache, exactly {found}"
            " expected",
            place=place, left=f"{found} tokens", right=f"{handed.cached_tokens} tokens", limit="0",
        )


def _check_bytes(pair: Pair, record: PhaseRecord, hits: PhaseHits) -> Iterator[Finding]:
    """Whole blocks are read: every one that the decode engine did not have itself, and no other."""
    each, got = pair.token_bytes(), record.loaded_bytes
    if got is None or each is None:
        return
    blocks = sum(-(-external // pair.cell.block_size) for external in hits.external)
    wanted = blocks * pair.cell.block_size * each
    if got != wanted:
        place = f"subject {record.phase}"
        yield finding(
            FindingKind.OVERRUN if got > wanted else FindingKind.NOTHING_DELIVERED,
            f"{place}: the connector read {got} bytes, {blocks} blocks have {wanted}",
            place=place, left=f"{wanted} bytes", right=f"{got} bytes", size=f"{got - wanted:+d} bytes", limit="0",
        )
