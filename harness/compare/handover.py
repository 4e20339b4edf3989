# SPDX-License-Identifier: Apache-2.0
"""Evidence of a restore between two live engines: what the one held ready for each prompt, and the bytes that moved."""

from __future__ import annotations

from collections.abc import Iterator

from harness.compare.pair import Pair, finding
from harness.records import Finding, FindingKind, PhaseHits, PhaseRecord, PromptResult, Resolved, Role

#: Bytes of one element of a KV tensor, by torch's name of its type; others are not counted.
ELEMENT_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "uint8": 1, "int8": 1}


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
    assert pair.subject is not None
    each = _block_bytes(pair.subject.resolved, pair.cell.block_size)
    if record.loaded_bytes is None or each is None:
        return
    blocks = sum(-(-external // pair.cell.block_size) for external in hits.external)
    if record.loaded_bytes != blocks * each:
        place = f"subject {record.phase}"
        yield finding(
            FindingKind.NOTHING_DELIVERED,
            f"{place}: the connector read {record.loaded_bytes} bytes, {blocks} blocks are {blocks * each}",
            place=place, left=f"{blocks * each} bytes", right=f"{record.loaded_bytes} bytes", limit="0",
        )


def _block_bytes(resolved: Resolved | None, block_size: int) -> int | None:
    """Bytes of one block of all layers."""
    if resolved is None or resolved.dtype not in ELEMENT_BYTES:
        return None
    _, slots, _, content = resolved.shape
    return resolved.num_layers * slots * content * block_size * ELEMENT_BYTES[resolved.dtype]
