# SPDX-License-Identifier: Apache-2.0
"""Every frozen record that crosses a border between two stages, and the enums they use.

Flow: ``Scenario -> Cell, Leg -> Observation -> Verdict``. Records hold plain values only (str, int, float, bool,
None, tuples, mappings of those), so that ``harness.wire`` can write and read each of them without loss.
Nothing here imports another module of the harness.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

#: Version of what is written under ``results/``; a change of meaning of any record below raises it.
SCHEMA_VERSION = 1

#: The six stride permutations of vLLM's logical [L, B, H, N, C] (vllm/v1/kv_cache_layout.py: KVCacheLayout).
LAYOUTS = ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC")

#: Platforms a scenario can name; the one in force is what vLLM reports.
PLATFORMS = ("cpu", "rocm", "cuda")


class Outcome(StrEnum):
    """What became of a cell, mildest first; ``OUTCOME_ORDER`` holds the order, the worst finding wins."""

    PASS = "pass"
    EXPECTED = "expected"
    UNAVAILABLE = "unavailable"
    REJECTED = "rejected"
    UNSTABLE = "unstable"
    VACUOUS = "vacuous"
    CRASHED = "crashed"
    FAIL = "fail"


OUTCOME_ORDER = tuple(Outcome)


class Role(StrEnum):
    """Which side of a cell a leg serves."""

    #: The leg without the store.
    ORACLE = "oracle"
    #: The leg whose KV comes from the store.
    SUBJECT = "subject"


class Reference(StrEnum):
    """What a restore is compared with; both comparisons are bitwise (FACTS: the GEMM's M is equal in both)."""

    #: The oracle's cold pass: right where the backend is batch invariant.
    RECOMPUTE = "recompute"
    #: The oracle's local prefix hit: right where it is not.
    LOCAL_HIT = "local_hit"


class Phase(StrEnum):
    """One pass over the prompts inside a leg, in the order in which a leg runs them."""

    RECOMPUTE = "recompute"
    RECOMPUTE_AGAIN = "recompute_again"
    POPULATE = "populate"
    LOCAL_HIT = "local_hit"
    RESTORE = "restore"
    RESTORE_AGAIN = "restore_again"


#: The phases of each role. The oracle's first two are its A/A control, the subject's last two are its own.
ROLE_PHASES: Mapping[Role, tuple[Phase, ...]] = {
    Role.ORACLE: (Phase.RECOMPUTE, Phase.RECOMPUTE_AGAIN, Phase.LOCAL_HIT),
    Role.SUBJECT: (Phase.POPULATE, Phase.LOCAL_HIT, Phase.RESTORE, Phase.RESTORE_AGAIN),
}


class Ending(StrEnum):
    """How a leg ended. There is an Observation for each of them."""

    #: All phases ran.
    OK = "ok"
    #: The engine refused the configuration before it had handed KV tensors to anyone.
    REFUSED = "refused"
    #: Accepted, then an exception or a signal.
    CRASHED = "crashed"
    #: Accepted or not: the machine had too little memory.
    OUT_OF_MEMORY = "out_of_memory"
    #: A phase outlived its deadline.
    HUNG = "hung"
    #: The child ended without renaming an observation into place, or left half of one.
    NO_OBSERVATION = "no_observation"
    #: What the leg needs is not on this machine (another platform, a missing package).
    UNAVAILABLE = "unavailable"


class FindingKind(StrEnum):
    """One fact against a cell. ``docs/findings.md`` says for each what it means, its causes and the next step."""

    # how a leg ended
    UNAVAILABLE = "unavailable"
    REJECTED = "rejected"
    CRASHED = "crashed"
    HUNG = "hung"
    OUT_OF_MEMORY = "out_of_memory"
    NO_OBSERVATION = "no_observation"
    # resolved as asked?
    LAYOUT_NOT_AS_ASKED = "layout_not_as_asked"
    STRIDES_NOT_AS_LAYOUT = "strides_not_as_layout"
    BACKEND_NOT_AS_ASKED = "backend_not_as_asked"
    BATCH_INVARIANCE_NOT_AS_ASKED = "batch_invariance_not_as_asked"
    LEGS_RESOLVED_DIFFERENTLY = "legs_resolved_differently"
    # evidence that the path was taken
    STALE_OBSERVATION = "stale_observation"
    PHASE_MISSING = "phase_missing"
    POPULATE_NOT_COLD = "populate_not_cold"
    RECOMPUTE_NOT_COLD = "recompute_not_cold"
    LOCAL_HITS = "local_hits"
    EXTERNAL_HITS = "external_hits"
    RESET_FAILED = "reset_failed"
    NOT_ZEROED = "not_zeroed"
    SAME_BLOCKS = "same_blocks"
    NOTHING_DELIVERED = "nothing_delivered"
    # A/A control
    ORACLE_UNSTABLE = "oracle_unstable"
    SUBJECT_UNSTABLE = "subject_unstable"
    # was there anything to compare?
    PROMPTS_DIFFER = "prompts_differ"
    NOTHING_COMPARED = "nothing_compared"
    LOGPROBS_MISSING = "logprobs_missing"
    DIGESTS_MISSING = "digests_missing"
    # values
    TOKENS = "tokens"
    LOGPROBS = "logprobs"
    NAN = "nan"
    KV_DIGESTS = "kv_digests"
    # expectations
    EXPECTATION_UNMET = "expectation_unmet"


# --- scenario -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PromptSpec:
    """A seeded set of token-id prompts. Lengths in tokens; every prompt is prefix + tail."""

    count: int = 3
    prefix_tokens: int = 192
    tail_tokens: int = 8
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class DecodeSpec:
    """Greedy decoding: ``max_tokens`` new tokens each, ``logprobs`` top candidates at every step.

    ``submit`` is ``together`` (all prompts in one batch) or ``alone`` (one after another).
    """

    max_tokens: int = 16
    logprobs: int = 5
    submit: str = "together"


@dataclass(frozen=True, kw_only=True)
class SubjectSpec:
    """The store under test: an alias, or a whole ``kv_transfer_config`` of the user's own.

    Attributes:
        connector: alias (``embedded``, ...) or ``custom`` when ``kv_transfer_config`` is given whole.
        fault: planted fault of the embedded store, None for none.
        options: further keys for the alias, e.g. ``capacity_mib`` or ``transfer`` of the embedded store.
        kv_transfer_config: as vLLM takes it; None when an alias makes it.
    """

    connector: str
    fault: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    kv_transfer_config: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Override:
    """Changes for the cells that ``when`` matches: axis name -> allowed values."""

    when: Mapping[str, tuple[Any, ...]]
    engine: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    line: int = 0


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """A strict statement about the cells that ``when`` matches.

    Attributes:
        when: axis name -> allowed values; empty matches every cell.
        outcome: the outcome these cells must have.
        match: text that must occur in the finding's words (a plain substring), None for any text.
        finding: finding kind that must be among the cell's findings, None for any.
        issue: where the known problem is tracked.
        line: line in the scenario file.
    """

    when: Mapping[str, tuple[Any, ...]]
    outcome: Outcome
    match: str | None = None
    finding: FindingKind | None = None
    issue: str | None = None
    line: int = 0


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One scenario file, read and checked.

    Attributes:
        name: ``name`` of the file.
        path: the file as the user named it.
        platforms: platforms it is made for.
        model: alias or directory.
        subject: the store under test.
        axes: axis name -> values, in file order; always has ``layout``, ``backend`` and ``batch_invariant``.
        axis_lines: axis name -> line in the file.
        reference: ``auto``, ``recompute`` or ``local_hit``.
        engine: arguments passed through to vLLM's engine.
        env: environment variables of the engine.
        digest: digest of the file's bytes.
    """

    name: str
    path: str
    platforms: tuple[str, ...]
    model: str
    subject: SubjectSpec
    axes: Mapping[str, tuple[Any, ...]]
    axis_lines: Mapping[str, int]
    reference: str
    prompts: PromptSpec
    decode: DecodeSpec
    engine: Mapping[str, Any]
    env: Mapping[str, str]
    overrides: tuple[Override, ...]
    expect: tuple[Expectation, ...]
    digest: str


# --- plan -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model directory that an engine can load, and where it came from.

    Attributes:
        alias: what the scenario asked for.
        path: directory with ``config.json`` and safetensors.
        source: ``given`` (MODEL= or the environment), ``hub`` (Hugging Face cache or hub) or ``stand-in`` (seeded).
        digest: digest of config and weights.
        num_layers, num_kv_heads, head_dim, vocab_size: shape, as in ``config.json``.
    """

    alias: str
    path: str
    source: str
    digest: str
    num_layers: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int


@dataclass(frozen=True, kw_only=True)
class Leg:
    """One engine process's work; everything in it can change its answer, and ``digest`` names all of it.

    Attributes:
        digest: hex digest over every other field.
        role: oracle or subject.
        layout, backend, batch_invariant: what is asked for.
        model: the model to load.
        engine: keyword arguments for ``vllm.LLM``, beside those that the other fields make.
        env: environment variables the scenario or the backend's alias sets.
        kv_transfer_config: the connector's configuration, None for an oracle.
        prompts, decode: what is run.
        phases: in order.
        identity: versions and digests of software that can change the answer (vllm, torch, harness source, ...).
        engine_name: ``vllm``, or ``fake`` for planted endings in tests.
        fake: instructions for the fake engine, empty otherwise.
    """

    digest: str
    role: Role
    layout: str
    backend: str
    batch_invariant: bool
    model: Model
    engine: Mapping[str, Any]
    env: Mapping[str, str]
    kv_transfer_config: Mapping[str, Any] | None
    prompts: PromptSpec
    decode: DecodeSpec
    phases: tuple[Phase, ...]
    identity: Mapping[str, str]
    engine_name: str = "vllm"
    fake: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One point of a scenario's axes: one pytest item, one row of the report.

    Attributes:
        scenario: the scenario's name.
        id: unique in the scenario, e.g. ``LBHNC-REFERENCE-bi1``.
        path, line: the scenario file and the line of its axes.
        axes: axis name -> this cell's value.
        reference: what the restore is compared with.
        oracle, subject: digests of the two legs.
        block_size: tokens of one block, as asked.
        expected_external_tokens: external hit tokens that each restore must have, summed over the prompts.
        expectation: what the scenario says of this cell, None when it must pass.
    """

    scenario: str
    id: str
    path: str
    line: int
    axes: Mapping[str, Any]
    reference: Reference
    oracle: str
    subject: str
    block_size: int
    expected_external_tokens: int
    expectation: Expectation | None

    @property
    def layout(self) -> str:
        return self.axes["layout"]

    @property
    def backend(self) -> str:
        return self.axes["backend"]

    @property
    def batch_invariant(self) -> bool:
        return self.axes["batch_invariant"]

    @property
    def name(self) -> str:
        """``scenario::cell``, unique in a run."""
        return f"{self.scenario}::{self.id}"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All cells of a run and the legs they need, each leg once."""

    schema: int
    cells: tuple[Cell, ...]
    legs: tuple[Leg, ...]

    def leg(self, digest: str) -> Leg:
        return next(leg for leg in self.legs if leg.digest == digest)


# --- observation ----------------------------------------------------------------------------------------------


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
class PromptResult:
    """One prompt's answer in one phase.

    Attributes:
        index: position in the prompt set.
        digest: digest of its token ids, so that two legs' prompts can be told equal.
        num_tokens: prompt length.
        steps: generated tokens.
        cached_tokens: ``RequestOutput.num_cached_tokens`` (local + external, promised at admission).
        finish_reason: as vLLM says.
        blocks: block ids that held its full prompt blocks, in order; empty when unknown.
        kv: per full prompt block one string: base64 of 8-byte digests, ordered [layer][head slot][K, V], of the
            block's bytes in LOGICAL order; None where not taken (digests off, block reused within the phase).
    """

    index: int
    digest: str
    num_tokens: int
    steps: tuple[Step, ...]
    cached_tokens: int | None
    finish_reason: str | None
    blocks: tuple[int, ...] = ()
    kv: tuple[str | None, ...] = ()


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
        seconds: duration of generation.
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
        resolved: None when the engine never came up.
        phases: phases that finished, in order.
        failure: None when ending is OK.
        environment: versions, CPU, thread count and the allow-listed environment variables of the child.
        seconds: stage -> duration.
        peak_bytes: peak resident memory of the child (with its children).
        log: path of the child's log, relative to the run folder.
        log_tail: its last lines, when ending is not OK.
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

    def phase(self, phase: Phase) -> PhaseRecord | None:
        return next((record for record in self.phases if record.phase is phase), None)


# --- verdict --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One fact against a cell.

    Attributes:
        kind: what kind of fact.
        outcome: the outcome it leads to.
        message: one sentence.
        place: where, e.g. ``subject restore, prompt 1, token 3``; empty when it is about the whole cell.
        left, right: both sides in words, reference or asked first.
        size: how large the difference is, in words.
        limit: what would have been allowed, in words.
    """

    kind: FindingKind
    outcome: Outcome
    message: str
    place: str = ""
    left: str = ""
    right: str = ""
    size: str = ""
    limit: str = ""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """How much was compared; zero of anything is vacuous."""

    prompts: int = 0
    tokens: int = 0
    tokens_equal: int = 0
    logprobs: int = 0
    logprobs_equal: int = 0
    blocks: int = 0
    blocks_equal: int = 0
    #: Largest absolute logprob difference over all compared candidates, nat.
    max_logprob_difference: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The judgement of one cell.

    Attributes:
        scenario, cell: the cell's scenario and id.
        outcome: the worst finding's outcome, whatever was expected; never ``expected``.
        verdict: ``expected`` when the outcome is the expected one (and not a plain pass), ``fail`` when an
            expectation was not met, otherwise the outcome.
        expected_outcome: what the scenario expects.
        findings: in judging order.
        compared: sizes.
    """

    SUMMARY_KEYS: ClassVar[tuple[str, ...]] = ("scenario", "cell", "outcome", "verdict")

    scenario: str
    cell: str
    outcome: Outcome
    verdict: Outcome
    expected_outcome: Outcome
    findings: tuple[Finding, ...]
    compared: Compared
