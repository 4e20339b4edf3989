# SPDX-License-Identifier: Apache-2.0
"""What a leg saw, as its child wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.records.names import Ending, Phase


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """What the WORKER really uses, read from its tensors and classes, never from the configuration that was asked for.

    Attributes:
        layout: resolved KV cache layout.
        layout_by_strides: layouts (names) whose strides equal those of the layers' tensors; several when shapes are
            degenerate (one layer, one head slot).
        shape: [B, H, N, C] of a layer's KV tensor (blocks, head slots, states, content elements).
        strides: of a layer's tensor in elements, same order, plus the distance between two layers' tensors in
            elements in front: [L, B, H, N, C].
        dtype: of the KV tensor.
        num_layers: layers with a KV cache.
        backend: alias by class (REFERENCE, REFERENCE_SHUFFLE) or vLLM's name of it.
        backend_class: module and class of every layer's backend (one when they agree).
        batch_invariant: whether the worker computes batch invariantly.
        block_size, kernel_block_size: tokens.
        num_blocks: blocks in the pool.
        threads: OpenMP threads of the worker.
        connector: class of the worker's KV connector, None without.
        settings: what else can tell two engines' KV apart, in words: ``model`` (its name there), ``revision``,
            ``weights`` (digest of a sample of the loaded ones), ``model dtype``, ``kv cache dtype``, ``hash seed`` (of
            vLLM's block hashes).
    """

    layout: str
    layout_by_strides: tuple[str, ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    num_layers: int
    backend: str
    backend_class: tuple[str, ...]
    batch_invariant: bool
    block_size: int
    kernel_block_size: int
    num_blocks: int
    threads: int
    connector: str | None
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Step:
    """One generated token: its id and the top candidates.

    Attributes:
        token: id of the greedy token.
        bits: float32 bit pattern of its logprob as an unsigned integer; None when the engine gave no logprob.
        top: (token id, float32 bits) by rank.
    """

    token: int
    bits: int | None
    top: tuple[tuple[int, int], ...]


@dataclass(frozen=True, kw_only=True)
class Handover:
    """What the engine that prefills did for one prompt of a restore, before the other engine asked it for the KV.

    Attributes:
        cached_tokens: prompt tokens that it found in its own prefix cache; it computed the others.
        tokens: prompt tokens whose KV it holds ready.
        blocks: ids of the blocks in which it holds them, in its own pool; the last one may be partial.
    """

    cached_tokens: int | None
    tokens: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class PromptResult:
    """One prompt's answer in one phase.

    Attributes:
        index: position in the prompt set.
        digest: digest of its token ids, so that two legs' prompts can be told equal.
        num_tokens: prompt length.
        steps: generated tokens.
        cached_tokens: ``RequestOutput.num_cached_tokens`` (local + external, promised at admission).
        finish_reason: as vLLM says.
        local_tokens, external_tokens: the same promise by source; None when the engine does not tell.
        prefill_steps: engine steps in which the prompt was computed, those after a preemption included; None when
            unknown.
        blocks: block ids that held its full prompt blocks, in order; empty when unknown.
        kv: per full prompt block one string: base64 of 8-byte digests, ordered [layer][head slot][K, V], of the
            block's bytes in LOGICAL order; None where not taken (digests off, block reused within the phase).
        handover: what another engine held ready for it; None where one engine does everything.
    """

    index: int
    digest: str
    num_tokens: int
    steps: tuple[Step, ...]
    cached_tokens: int | None
    finish_reason: str | None
    local_tokens: int | None = None
    external_tokens: int | None = None
    prefill_steps: int | None = None
    blocks: tuple[int, ...] = ()
    kv: tuple[str | None, ...] = ()
    handover: Handover | None = None


@dataclass(frozen=True, kw_only=True)
class PhaseRecord:
    """One phase of a leg. Counts are exact sums over the phase's prompts, deltas of the scheduler's metrics.

    Attributes:
        local_tokens: prompt tokens served by the local prefix cache.
        external_tokens: prompt tokens that the scheduler counted as coming from the connector.
        reset_ok: what ``reset_prefix_cache`` answered before the phase; None when the phase needs no reset.
        zeroed_bytes: bytes of KV tensors zeroed before the phase; None when the phase needs no zeroing.
        nonzero_after_zeroing: nonzero bytes found after that zeroing.
        delivered_tokens, loaded_bytes, stored_bytes: what the connector itself says it moved in this phase; None
            when it has no such counter.
        preemptions: requests that the scheduler preempted; None when the engine does not tell.
        carried: what its requests carried beside their prompts when they reached the engine core: ``cache_salt``,
            ``lora``.
        aborted_loads: requests that were aborted while their load was under way, before the phase; None when nobody
            tried.
        seconds: duration of generation.
        digest_seconds: duration of reading and digesting the KV blocks afterwards.
    """

    phase: Phase
    prompts: tuple[PromptResult, ...]
    local_tokens: int
    external_tokens: int
    reset_ok: bool | None
    zeroed_bytes: int | None
    nonzero_after_zeroing: int | None
    delivered_tokens: int | None
    loaded_bytes: int | None
    stored_bytes: int | None
    seconds: float
    preemptions: int | None = None
    aborted_loads: int | None = None
    digest_seconds: float = 0.0
    carried: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a leg did not end OK.

    Attributes:
        stage: ``spawn``, ``import``, ``load``, ``init`` or a phase's name.
        kind: exception class or signal name.
        message: vLLM's own words.
        trace: traceback or stacks, may be empty.
    """

    stage: str
    kind: str
    message: str
    trace: str = ""


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What a leg saw; there is one for every leg, also for one that died.

    Attributes:
        schema: ``SCHEMA_VERSION`` of the writer.
        leg: digest of the leg that this belongs to.
        ending: how it ended.
        resolved: None when the engine never came up; of the last process where there were several.
        filled: what the process before it resolved, which filled its store; None where one process did all.
        prefill: the same of the engine that prefills for it; None where one engine does everything.
        left_bytes: bytes of files that that process left in the leg's own folder; None where one process did all.
        phases: phases that finished, in order.
        failure: None when ending is OK.
        environment: versions, CPU, thread count and the allow-listed environment variables of the child.
        seconds: stage -> duration.
        peak_bytes: peak resident memory of the child (with its children).
        log: path of the child's log, relative to the run folder.
        log_tail: its last lines, when ending is not OK.
        attempts: how often the leg was started; a second time only where the first one found its device busy or too
            little memory to start.
        earlier: what became of the attempts before the last.
    """

    schema: int
    leg: str
    ending: Ending
    resolved: Resolved | None
    phases: tuple[PhaseRecord, ...]
    failure: Failure | None
    environment: Mapping[str, str]
    seconds: Mapping[str, float]
    peak_bytes: int
    log: str = ""
    log_tail: tuple[str, ...] = ()
    attempts: int = 1
    earlier: tuple[Failure, ...] = ()
    prefill: Resolved | None = None
    filled: Resolved | None = None
    left_bytes: int | None = None

    def phase(self, phase: Phase) -> PhaseRecord | None:
        return next((record for record in self.phases if record.phase is phase), None)
