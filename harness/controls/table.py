# SPDX-License-Identifier: Apache-2.0
"""The table: which fault, on which cell, and what it must lead to.

A control holds when the cell has the expected outcome, the expected finding is among its findings, and every other
finding is one that the fault brings along (``also``). So a fault that is seen by luck, through another check, does not
count as caught.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.compare import OUTCOME_OF
from harness.connectors import ADAPTERS
from harness.engines.faults import FAULTS as ENGINE_FAULTS
from harness.kvstore.faults import FAULTS as STORE_FAULTS
from harness.records import FindingKind as Kind
from harness.records import Outcome, Role

#: Where a fault is planted.
STORE, ENGINE, RUNNER = "store", "engine", "runner"
BOTH = (Role.ORACLE, Role.SUBJECT)
#: The connector between two engines.
PAIR: Mapping[str, Any] = {"nixl": {}}
SUBJECT = (Role.SUBJECT,)
ORACLE = (Role.ORACLE,)

#: What wrong KV shows beside its digests, by chance of the prompt: tokens may survive, logprobs hardly ever.
VALUES = (Kind.TOKENS, Kind.LOGPROBS)


@dataclass(frozen=True, kw_only=True)
class Control:
    """One planted fault.

    Attributes:
        fault: its name.
        where: ``store``, ``engine`` or ``runner``.
        sentence: what is wrong.
        finding: the kind that must be found.
        outcome: what the cell must come to.
        also: further kinds that come with the fault; any other one means that it was caught for a wrong reason.
        must: further kinds that have to be there.
        layout, backend, batch_invariant: the cell.
        load: when the store loads.
        prompts: the prompt set.
        connector: the subject's, where it is not the embedded store: alias and options.
        roles: legs that have the fault, of those of the engine.
        leg: fields of the faulty legs that differ.
        fake: what the fake engine plants, for endings that a real one does not have on demand.
        differs: in what the engine that fills the store differs, with a store that outlives it.
        before: axes of the cell whose engine runs before, with the same store.
        ground_truth: whether the cell is held against the ground truth.
    """

    fault: str
    where: str
    sentence: str
    finding: Kind
    outcome: Outcome
    also: tuple[Kind, ...] = ()
    must: tuple[Kind, ...] = ()
    layout: str = "LHBNC"
    backend: str = "REFERENCE"
    batch_invariant: bool = True
    load: str = "sync"
    prompts: str = "partial"
    connector: Mapping[str, Any] | None = None
    roles: tuple[Role, ...] = SUBJECT
    leg: Mapping[str, Any] = field(default_factory=dict)
    fake: Mapping[str, Any] | None = None
    differs: str | None = None
    before: Mapping[str, Any] | None = None
    ground_truth: bool = False

    @property
    def missing(self) -> str | None:
        """One sentence on what its connector needs and is not installed here; None when everything is."""
        sentences = (ADAPTERS[alias].missing() for alias in self.connector or ())
        return next((sentence for sentence in sentences if sentence), None)


def _store(fault: str, finding: Kind, outcome: Outcome = Outcome.FAIL, **more: Any) -> Control:
    sentence = f"the store {STORE_FAULTS[fault]}"
    return Control(fault=fault, where=STORE, sentence=sentence, finding=finding, outcome=outcome, **more)


def _damage(fault: str, **more: Any) -> Control:
    """A store that restores wrong bytes: the digests must say so, whatever the outputs show."""
    more = {"also": VALUES, **more}
    return _store(fault, Kind.KV_DIGESTS, **more)


def _engine(fault: str, finding: Kind, outcome: Outcome | None = None, **more: Any) -> Control:
    sentence = f"the engine {ENGINE_FAULTS[fault]}"
    return Control(
        fault=fault, where=ENGINE, sentence=sentence, finding=finding, outcome=outcome or OUTCOME_OF[finding], **more
    )


def _runner(fault: str, sentence: str, finding: Kind, **more: Any) -> Control:
    return Control(
        fault=fault, where=RUNNER, sentence=sentence, finding=finding, outcome=OUTCOME_OF[finding], **more
    )


def _ending(fault: str, sentence: str, finding: Kind, stage: str, ending: str) -> Control:
    return _runner(fault, sentence, finding, fake={"stages": {stage: ending}})


CONTROLS: tuple[Control, ...] = (
    # The store: what comes back.
    _damage("single_span", layout="BHLNC", batch_invariant=False, must=(Kind.LOGPROBS,)),
    _damage("head_slots_swapped", must=(Kind.LOGPROBS,)),
    _damage("k_v_swapped", layout="BHLNC", batch_invariant=False, must=(Kind.LOGPROBS,)),
    _damage("block_off_by_one", must=(Kind.LOGPROBS,)),
    _damage("token_off_by_one", layout="BHLNC", batch_invariant=False, must=(Kind.LOGPROBS,)),
    # Attention does not see the order of whole blocks; what the outputs show of it is rounding.
    _damage("blocks_exchanged"),
    _damage("layer_skipped", layout="BHLNC", batch_invariant=False, must=(Kind.LOGPROBS,)),
    _damage("head_slot_skipped", must=(Kind.LOGPROBS,)),
    _damage("bit_flipped"),
    _damage("zeros_restored", must=(Kind.LOGPROBS,)),
    _store("nan_restored", Kind.NAN, also=(*VALUES, Kind.KV_DIGESTS), must=(Kind.KV_DIGESTS,)),
    _damage("load_dropped", must=(Kind.LOGPROBS,)),
    _damage("layer_skipped", load="async", must=(Kind.LOGPROBS,)),
    _damage("bit_flipped", layout="BHLNC", batch_invariant=False, load="async"),
    _damage("stale_object", load="async", must=(Kind.LOGPROBS,)),
    _damage("stale_object", layout="BHLNC", batch_invariant=False, must=(Kind.LOGPROBS,)),
    _damage("evicted_during_load", must=(Kind.LOGPROBS,)),
    _damage("overwritten_before_stored", layout="BHLNC", batch_invariant=False, must=(Kind.LOGPROBS,)),
    # The bytes are right by the time they are digested: only the outputs tell that they came too late.
    _store("restored_late", Kind.LOGPROBS, also=(*VALUES, Kind.KV_DIGESTS)),
    # What is stored and restored is right; the engine computed with something else meanwhile.
    _store("block_lost_on_store", Kind.LOGPROBS, also=VALUES),
    _store("read_once", Kind.SUBJECT_UNSTABLE, Outcome.FAIL, must=(Kind.KV_DIGESTS,)),
    # The store: what it claims.
    _store("partial_block_claimed", Kind.EXTERNAL_HITS, also=(*VALUES, Kind.NOTHING_DELIVERED)),
    # Before its own load a request's blocks are nobody's: no answer shows what was written into them.
    _store("spilled_over", Kind.OVERRUN),
    _store("promise_not_delivered", Kind.NOTHING_DELIVERED, Outcome.VACUOUS,
           leg={"kv_transfer_config": {"kv_load_failure_policy": "recompute"}}),
    _store("key_without_layout", Kind.POPULATE_NOT_COLD, Outcome.FAIL, before={"layout": "BHLNC"},
           also=(*VALUES, Kind.KV_DIGESTS)),
    _store("key_without_dtype", Kind.POPULATE_NOT_COLD, Outcome.FAIL, before={"dtype": "float16"},
           also=(*VALUES, Kind.KV_DIGESTS)),
    _store("key_without_batch_invariance", Kind.POPULATE_NOT_COLD, Outcome.VACUOUS,
           before={"batch_invariant": False}),
    _store("key_without_weights", Kind.FORBIDDEN_HITS, differs="weights", connector={"embedded_file": {}},
           must=(Kind.KV_DIGESTS, Kind.LOGPROBS), also=VALUES),
    # The engine: not what was asked for.
    _engine("other_layout", Kind.LAYOUT_NOT_AS_ASKED, roles=BOTH, also=(Kind.STRIDES_NOT_AS_LAYOUT,)),
    _engine("layout_in_name_only", Kind.STRIDES_NOT_AS_LAYOUT, roles=BOTH),
    _engine("other_backend", Kind.BACKEND_NOT_AS_ASKED, roles=BOTH, batch_invariant=False),
    _engine("batch_invariance_off", Kind.BATCH_INVARIANCE_NOT_AS_ASKED, roles=BOTH),
    _engine("other_threads", Kind.LEGS_RESOLVED_DIFFERENTLY),
    # The engine: the path was not taken.
    _engine("answers_before", Kind.POPULATE_NOT_COLD),
    _engine("answers_before", Kind.RECOMPUTE_NOT_COLD, roles=ORACLE),
    # The local hits are those of zeroed tensors, so the values are wrong as well.
    _engine("reset_ignored", Kind.LOCAL_HITS, Outcome.FAIL, must=(Kind.EXTERNAL_HITS, Kind.LOGPROBS),
            also=(Kind.TOKENS, Kind.KV_DIGESTS, Kind.SAME_BLOCKS, Kind.NOTHING_DELIVERED)),
    _engine("reset_refused", Kind.RESET_FAILED),
    _engine("not_zeroed", Kind.NOT_ZEROED),
    _engine("blocks_in_order", Kind.SAME_BLOCKS),
    # Oracle and subject agree bit for bit: only another implementation can tell.
    _engine("token_forgotten", Kind.GROUND_TRUTH, roles=BOTH, ground_truth=True),
    # The engine: its answers.
    _engine("one_ulp", Kind.ORACLE_UNSTABLE, roles=ORACLE),
    _engine("one_ulp", Kind.SUBJECT_UNSTABLE),
    _engine("answers_reordered", Kind.TOKENS, also=VALUES),
    # With a prompt missing, what the others hit cannot add up either.
    _engine("last_answer_missing", Kind.PROMPTS_DIFFER,
            also=(Kind.LOCAL_HITS, Kind.EXTERNAL_HITS, Kind.DIGESTS_MISSING)),
    _engine("answers_cut_short", Kind.NOTHING_COMPARED, roles=BOTH),
    _engine("logprobs_missing", Kind.LOGPROBS_MISSING, roles=BOTH),
    _engine("block_tables_unknown", Kind.DIGESTS_MISSING, must=(Kind.SAME_BLOCKS,)),
    # Two engines: what goes from one to the other. Prompts that were never populated are not in the first one's cache.
    _engine("other_prompts_handed_over", Kind.KV_DIGESTS, connector=PAIR, must=(Kind.LOGPROBS, Kind.LOCAL_HITS),
            also=VALUES),
    _engine("handovers_exchanged", Kind.KV_DIGESTS, connector=PAIR, must=(Kind.LOGPROBS,), also=VALUES),
    # The runner: what it keeps and compares.
    _runner("other_prompts", "the subject answered another prompt set than the oracle", Kind.PROMPTS_DIFFER,
            also=(Kind.NOTHING_COMPARED, Kind.DIGESTS_MISSING)),
    _runner("phase_missing", "the subject ended without its A/A control", Kind.PHASE_MISSING),
    _runner("older_result", "the subject's result is that of an older leg", Kind.STALE_OBSERVATION),
    _runner("pool_too_large", "the pool holds all prompts of a set that is made for preemption", Kind.EDGE_NOT_REACHED,
            prompts="many"),
    _runner("difference_not_taken", "the store is filled under the configuration that reads it",
            Kind.DIFFERENCE_NOT_TAKEN, differs="hash_seed", connector={"embedded_file": {}}),
    # How a leg ends.
    _runner("source_missing", "the connector's source is not on this machine", Kind.UNAVAILABLE,
            connector={"umbp": {"overlay": "/nowhere/no-such-tree"}}),
    _ending("refused", "the engine refuses the configuration", Kind.REJECTED, "load", "refuse"),
    _ending("killed", "the child is killed in a restore", Kind.CRASHED, "restore", "sigkill"),
    _ending("silent_exit", "the child ends with exit code 0 and without a result", Kind.NO_OBSERVATION, "restore",
            "exit0"),
    _ending("no_memory", "the machine has too little memory", Kind.OUT_OF_MEMORY, "populate", "memory"),
    _ending("hang", "a restore never returns", Kind.HUNG, "restore", "hang"),
)
