# SPDX-License-Identifier: Apache-2.0
"""Names of the engine's planted faults (``harness.engines.faulty``), free of vLLM and torch."""

from __future__ import annotations

from collections.abc import Mapping

#: Fault -> what such an engine does.
FAULTS: Mapping[str, str] = {
    "other_layout": "resolves another KV cache layout than was asked for",
    "layout_in_name_only": "says that it has the layout, and allocates another",
    "other_backend": "resolves another attention backend than was asked for",
    "batch_invariance_off": "does not compute batch invariantly although it was asked to",
    "other_threads": "computes with two threads in one leg of the pair",
    "answers_before": "has answered the prompts before the first phase",
    "reset_ignored": "says that the prefix cache was reset, and keeps it",
    "reset_refused": "never gets the prefix cache reset, because blocks stay held",
    "not_zeroed": "does not zero the KV tensors before a restore",
    "blocks_in_order": "gives out blocks by number after a reset, so a restore gets those it was stored from",
    "answers_reordered": "gives its answers in another order than the prompts",
    "last_answer_missing": "drops the last prompt",
    "answers_cut_short": "generates half of the tokens",
    "logprobs_missing": "gives no logprobs",
    "block_tables_unknown": "does not know which blocks a prompt has",
    "token_forgotten": "has an attention that forgets one token of every context",
    "other_prompts_handed_over": "hands over the KV of other prompts than it was given, between two engines",
    "handovers_exchanged": "asks for each prompt's KV with what belongs to the next one, between two engines",
    "one_ulp": "moves one logit by one unit in the last place in every second pass",
}

#: Those of a pair of engines.
PAIR_FAULTS = ("other_prompts_handed_over", "handovers_exchanged")
