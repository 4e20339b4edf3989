# SPDX-License-Identifier: Apache-2.0
"""The enums of the records, and the names that every stage uses."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

#: Version of what is written under ``results/``; a change of meaning of any record below raises it.
SCHEMA_VERSION = 2

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

#: Verdicts with which a cell is green.
GREEN = (Outcome.PASS, Outcome.EXPECTED)
#: Verdicts that make a run amber: no claim could be made, but nothing was shown to be wrong.
AMBER = (Outcome.UNAVAILABLE, Outcome.REJECTED, Outcome.UNSTABLE, Outcome.VACUOUS)
#: Verdicts that make it red.
RED = (Outcome.CRASHED, Outcome.FAIL)


class Change(StrEnum):
    """What became of a cell from one run to another, worst first."""

    NEWLY_FAILING = "newly failing"
    #: No claim can be made any more: vacuous, unstable, rejected or unavailable.
    NEWLY_AMBER = "newly without a claim"
    STILL_FAILING = "still failing"
    STILL_AMBER = "still without a claim"
    NOT_COMPARABLE = "not comparable"
    FIXED = "fixed"
    SAME = "same"


class Role(StrEnum):
    """Which side of a cell a leg serves."""

    #: The leg without the store; a ground truth's leg is one, too.
    ORACLE = "oracle"
    #: The leg whose KV comes from the store.
    SUBJECT = "subject"


class Reference(StrEnum):
    """What a restore is compared with; both comparisons are bitwise (the GEMM has the same number of rows in both)."""

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
    #: The engine that filled a store gets its own KV back, before another configuration reads the store.
    OWN_RESTORE = "own_restore"
    RESTORE = "restore"
    RESTORE_AGAIN = "restore_again"


#: The phases of each role. The oracle's first two are its A/A control, the subject's last two are its own.
ROLE_PHASES: Mapping[Role, tuple[Phase, ...]] = {
    Role.ORACLE: (Phase.RECOMPUTE, Phase.RECOMPUTE_AGAIN, Phase.LOCAL_HIT),
    Role.SUBJECT: (Phase.POPULATE, Phase.LOCAL_HIT, Phase.RESTORE, Phase.RESTORE_AGAIN),
}

#: Phases of a subject whose store is filled under one configuration and read under another.
SHARING_PHASES = (Phase.POPULATE, Phase.LOCAL_HIT, Phase.OWN_RESTORE, Phase.RESTORE, Phase.RESTORE_AGAIN)

#: The way of restoring in which two live engines share the subject's leg (axis ``restore``).
PREFILL_DECODE = "prefill_decode"

#: Phases whose prefix comes from the store and that a cell's claim rests on.
RESTORES = (Phase.RESTORE, Phase.RESTORE_AGAIN)


class Rule(StrEnum):
    """What a store may give across a difference between who filled it and who reads it (``harness.sharing``)."""

    #: Nothing differs: everything must come back.
    MUST_HIT = "must_hit"
    #: Its KV is another one's.
    MUST_NOT_HIT = "must_not_hit"
    #: As much as the store likes, as long as the KV is bitwise what the reader computes itself.
    MAY_HIT = "may_hit"


class Certainty(StrEnum):
    """How much of a phase's hits the rule determines (``harness.hits``)."""

    #: Local and external tokens of every prompt.
    SPLIT = "split"
    #: Their sum per prompt: what a small pool has evicted comes from the store.
    SUM = "sum"
    #: An upper limit per prompt: what a small pool has evicted is computed again.
    LIMIT = "limit"


class Edge(StrEnum):
    """What a prompt set exists for and what a phase must be seen to have done; without it the set shows nothing."""

    NONE = "none"
    #: Prompts longer than a step's token budget are computed in several steps.
    CHUNKS = "chunks"
    #: Requests are preempted in a small pool.
    PREEMPTION = "preemption"
    #: A request is aborted while its load is under way.
    ABORT = "abort"


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


#: What a scenario's ``deadlines`` names -> seconds after which a leg that is still there counts as hung. ``prefill``
#: bounds each phase that computes its prompts or finds them on the device, ``restore`` each that gets them from the
#: store. ``reset`` is how long unfinished stores may hold their blocks before the reset counts as failed.
DEADLINES_S: Mapping[str, float] = {
    "import": 300.0, "load": 900.0, "prefill": 900.0, "restore": 900.0, "reset": 60.0,
}


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
    OVERRUN = "overrun"
    EDGE_NOT_REACHED = "edge_not_reached"
    DIFFERENCE_NOT_TAKEN = "difference_not_taken"
    # A/A control
    ORACLE_UNSTABLE = "oracle_unstable"
    SUBJECT_UNSTABLE = "subject_unstable"
    # was there anything to compare?
    PROMPTS_DIFFER = "prompts_differ"
    NOTHING_COMPARED = "nothing_compared"
    LOGPROBS_MISSING = "logprobs_missing"
    DIGESTS_MISSING = "digests_missing"
    # values
    FORBIDDEN_HITS = "forbidden_hits"
    TOKENS = "tokens"
    LOGPROBS = "logprobs"
    NAN = "nan"
    KV_DIGESTS = "kv_digests"
    GROUND_TRUTH = "ground_truth"
    # expectations
    EXPECTATION_UNMET = "expectation_unmet"
