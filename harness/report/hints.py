# SPDX-License-Identifier: Apache-2.0
"""What each finding kind says in one sentence, and the next step; ``docs/findings.md`` has the long form."""

from __future__ import annotations

from collections.abc import Mapping

from harness.records import FindingKind

#: Kind -> one sentence about the cell. ``{what}`` is what was held against something, ``{reference}`` against what.
SENTENCES: Mapping[FindingKind, str] = {
    FindingKind.UNAVAILABLE: "this machine lacks what the cell needs, so it was not run",
    FindingKind.REJECTED: "the engine refused this configuration at start",
    FindingKind.CRASHED: "the engine accepted the configuration and then died",
    FindingKind.HUNG: "a leg outlived its deadline and was ended",
    FindingKind.OUT_OF_MEMORY: "the machine had too little memory for a leg",
    FindingKind.NO_OBSERVATION: "a leg ended without leaving a result",
    FindingKind.LAYOUT_NOT_AS_ASKED: "the worker used another layout or block size than the cell asks for",
    FindingKind.STRIDES_NOT_AS_LAYOUT: "the KV tensors' strides are not those of the layout that was asked for",
    FindingKind.BACKEND_NOT_AS_ASKED: "another attention backend ran than the one that was asked for",
    FindingKind.BATCH_INVARIANCE_NOT_AS_ASKED: "batch invariance was not what the cell asks for",
    FindingKind.LEGS_RESOLVED_DIFFERENTLY: "oracle and subject ran different configurations",
    FindingKind.STALE_OBSERVATION: "an observation belongs to another leg or an older format",
    FindingKind.PHASE_MISSING: "a leg did not run all of its phases",
    FindingKind.POPULATE_NOT_COLD: "the populate phase found KV that should not have been there",
    FindingKind.RECOMPUTE_NOT_COLD: "the oracle's recompute found KV in a cache",
    FindingKind.LOCAL_HITS: "the local prefix cache served other tokens than it should",
    FindingKind.EXTERNAL_HITS: "the store served other prefix tokens than it should",
    FindingKind.RESET_FAILED: "the prefix cache was not reset before a phase",
    FindingKind.NOT_ZEROED: "stale KV was left on the device before a restore",
    FindingKind.SAME_BLOCKS: "KV was restored into the blocks that it was stored from",
    FindingKind.NOTHING_DELIVERED: "the connector delivered less than it promised",
    FindingKind.OVERRUN: "the connector loaded more bytes than the restored tokens have",
    FindingKind.EDGE_NOT_REACHED: "the prompts did not do to the engine what their set is made for",
    FindingKind.DIFFERENCE_NOT_TAKEN: "the store was not filled under the configuration that was to differ",
    FindingKind.ORACLE_UNSTABLE: "the engine without the store does not repeat itself bit for bit",
    FindingKind.SUBJECT_UNSTABLE: "two restores of the same KV do not give the same bits",
    FindingKind.PROMPTS_DIFFER: "the phases did not answer the same prompts",
    FindingKind.NOTHING_COMPARED: "nothing, or less than asked for, was there to compare",
    FindingKind.LOGPROBS_MISSING: "logprobs are missing, so bitwise equality was not shown",
    FindingKind.DIGESTS_MISSING: "no restored KV block could be compared",
    FindingKind.FORBIDDEN_HITS: "the store gave KV that was stored under another configuration",
    FindingKind.TOKENS: "{what} gives different tokens than {reference}",
    FindingKind.LOGPROBS: "{what} gives different logprobs than {reference}",
    FindingKind.NAN: "the engine gave NaN logprobs",
    FindingKind.KV_DIGESTS: "restored KV blocks are not the bytes they should be",
    FindingKind.GROUND_TRUTH: "the engine repeats itself, but does not compute what other code computes",
    FindingKind.EXPECTATION_UNMET: "the cell did not end as its scenario expects",
}

#: Kind -> what to do next, one sentence.
HINTS: Mapping[FindingKind, str] = {
    FindingKind.UNAVAILABLE: "Run the scenario on the platform it names, or install what the message names.",
    FindingKind.REJECTED: "If the refusal is right, declare it under `expect` with a part of its words; if not, compare"
                          " the words with what the backend class declares.",
    FindingKind.CRASHED: "Read the traceback in the leg's log; the oracle's log tells whether the store is involved.",
    FindingKind.HUNG: "Read the stacks at the end of the leg's log; then raise the deadline or look for a load that"
                      " is never reported finished.",
    FindingKind.OUT_OF_MEMORY: "Run fewer legs at once (N=1), a smaller pool, or a smaller model.",
    FindingKind.NO_OBSERVATION: "Read the end of the leg's log and the kernel's log: the child was probably killed.",
    FindingKind.LAYOUT_NOT_AS_ASKED: "Pin layout and block size in the scenario, and look for a variable or a connector"
                                     " preference that overrides them.",
    FindingKind.STRIDES_NOT_AS_LAYOUT: "Compare the strides in the observation with vLLM's layout: configuration and"
                                       " tensors disagree.",
    FindingKind.BACKEND_NOT_AS_ASKED: "Look for `Overriding with` or `Cannot use` in the leg's log: vLLM chose another"
                                      " backend.",
    FindingKind.BATCH_INVARIANCE_NOT_AS_ASKED: "Check VLLM_BATCH_INVARIANT in the leg's environment and whether the"
                                               " backend supports it.",
    FindingKind.LEGS_RESOLVED_DIFFERENTLY: "Pin the setting that differs in the scenario, so that only the store"
                                           " differs.",
    FindingKind.STALE_OBSERVATION: "Remove the leg's folder, or start a new run folder, and run again.",
    FindingKind.PHASE_MISSING: "Read the leg's log after its last phase.",
    FindingKind.POPULATE_NOT_COLD: "Give the store a namespace of its own, or clear it before the run.",
    FindingKind.RECOMPUTE_NOT_COLD: "Look for prompts that share a prefix, and for a reset that did nothing.",
    FindingKind.LOCAL_HITS: "Compare block size and prompt lengths with the hits expected; look for a prefix cache"
                            " that is off or was not reset.",
    FindingKind.EXTERNAL_HITS: "Compare the connector's lookups with the keys it stored: an eviction, a key that is not"
                               " stable, or an unfinished store.",
    FindingKind.RESET_FAILED: "Look for stores that never finish and hold their blocks.",
    FindingKind.NOT_ZEROED: "Check that the probe ran in every worker and saw every layer's tensor.",
    FindingKind.SAME_BLOCKS: "Enlarge the pool (num_gpu_blocks_override), so that a restore gets other blocks.",
    FindingKind.NOTHING_DELIVERED: "Look for failed loads in the subject's log: the hit was counted, the bytes did not"
                                   " come.",
    FindingKind.OVERRUN: "Compare the sizes of the connector's copies with the layout's runs: what lies beyond a block"
                         " was written, too.",
    FindingKind.EDGE_NOT_REACHED: "Make the pool smaller (many), or the steps' token budget (chunked).",
    FindingKind.DIFFERENCE_NOT_TAKEN: "Compare what both engines resolved with what was asked; the setting was not"
                                      " taken, or took another one with it.",
    FindingKind.ORACLE_UNSTABLE: "Pin threads and batch composition; without a stable oracle no store can be judged.",
    FindingKind.SUBJECT_UNSTABLE: "The oracle repeats itself or is listed above: look for loads that race with the"
                                  " first forward pass.",
    FindingKind.PROMPTS_DIFFER: "Compare the prompt digests of both observations.",
    FindingKind.NOTHING_COMPARED: "Lengthen the prefix to more than one block, or look for answers that ended early.",
    FindingKind.LOGPROBS_MISSING: "Ask for logprobs in the scenario, and check that the engine allows that many.",
    FindingKind.DIGESTS_MISSING: "Switch the digests on, or enlarge the pool so that no block is reused in a phase.",
    FindingKind.FORBIDDEN_HITS: "Look for the setting among the parts of the connector's keys; give stores that must"
                                " not be shared a namespace each.",
    FindingKind.TOKENS: "Read the KV localisation; if the KV is equal, the difference arose after the load.",
    FindingKind.LOGPROBS: "Differences below 0.06 nat with equal KV are rounding of an engine that is not batch"
                          " invariant; larger ones are wrong KV.",
    FindingKind.NAN: "Look for blocks that were read before they were written.",
    FindingKind.KV_DIGESTS: "The region named tells the cause: head slots but the first of every page: a page taken for"
                            " one run; K or V alone: halves mixed; a block: a key or an index.",
    FindingKind.GROUND_TRUTH: "The store is not involved: compare backends and layouts in the ground truth table;"
                              " one that differs alone has the error.",
    FindingKind.EXPECTATION_UNMET: "If the problem is solved, remove the expectation; otherwise correct it.",
}
