# SPDX-License-Identifier: Apache-2.0
"""A real vLLM engine that is wrong on purpose, for ``python -m harness controls``.

``Leg.fake["fault"]`` names one of ``FAULTS``. What vLLM resolves is changed through the variables that decide it, so
the engine really runs another layout or backend; what the runner sees is changed in its answers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from harness.engines import Answer
from harness.engines.faults import FAULTS, PAIR_FAULTS
from harness.engines.prefill_decode import Handed, PrefillDecode
from harness.engines.prefill_decode import open_engine as open_pair
from harness.engines.vllm import VllmEngine
from harness.engines.vllm import open_engine as open_vllm
from harness.plugin import rowwise
from harness.prompt_sets import make_pass
from harness.records import DecodeSpec, Leg, Resolved

#: Faults that are set in the environment before vLLM reads it.
ENVIRONMENT: Mapping[str, Mapping[str, str]] = {
    "other_layout": {"VLLM_KV_CACHE_LAYOUT": "BLNHC"},
    "layout_in_name_only": {"VLLM_KV_CACHE_LAYOUT": "BLNHC"},
    "other_backend": {"KVPARITY_BACKEND": "REFERENCE_SHUFFLE"},
    "batch_invariance_off": {"VLLM_BATCH_INVARIANT": "0"},
}

#: Position of the token that ``token_forgotten`` forgets.
FORGOTTEN = 10


def open_engine(leg: Leg, stage: Callable[[str], None]) -> FaultyEngine | PrefillDecode:
    """The engine that the leg describes, or its two engines, with the fault it names.

    Raises:
        KeyError: no such fault.
    """
    fault = leg.fake["fault"]
    if fault not in FAULTS:
        raise KeyError(f"Unknown fault {fault!r} of the engine; valid: {', '.join(FAULTS)}.")
    if fault in PAIR_FAULTS:
        return _faulty_pair(open_pair(leg, stage), leg, fault)
    os.environ.update(ENVIRONMENT.get(fault, {}))
    engine = FaultyEngine(open_vllm(leg, stage), leg, fault)
    if fault == "other_threads":
        # vLLM replaces torch's own name for it, so that nobody does this by accident.
        torch._C.set_num_threads(2)
    elif fault == "answers_before":
        engine.generate(make_pass(leg.prompts, leg.model.vocab_size, int(leg.engine["block_size"])).prompts, leg.decode)
    return engine


class FaultyEngine:
    """Hands everything to the right engine but what the fault is about."""

    def __init__(self, inner: VllmEngine, leg: Leg, fault: str) -> None:
        self._inner = inner
        self._leg = leg
        self._fault = fault
        self._passes = 0
        self._nudged = False
        if fault == "one_ulp":
            self._nudge_logits()
        elif fault == "token_forgotten":
            rowwise.attend = _forgetful(rowwise.attend)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def resolved(self) -> Resolved:
        resolved = self._inner.resolved()
        return replace(resolved, layout=self._leg.layout) if self._fault == "layout_in_name_only" else resolved

    def generate(self, prompts: Sequence[Sequence[int]], decode: DecodeSpec) -> list[Answer]:
        if len(prompts) == 1:
            # The filler prompt that shifts the free blocks.
            return self._inner.generate(prompts, decode)
        self._passes += 1
        self._nudged = self._passes % 2 == 0
        answers = self._inner.generate(prompts, decode)
        if self._fault == "answers_reordered":
            answers.reverse()
        elif self._fault == "last_answer_missing":
            answers.pop()
        elif self._fault == "answers_cut_short":
            answers = [replace(answer, steps=answer.steps[: decode.max_tokens // 2]) for answer in answers]
        elif self._fault == "logprobs_missing":
            answers = [
                replace(answer, steps=tuple(replace(step, bits=None, top=()) for step in answer.steps))
                for answer in answers
            ]
        return answers

    def placements(self) -> list:
        known = self._inner.placements()
        return [] if self._fault == "block_tables_unknown" else known

    def reset(self, deadline_s: float) -> bool:
        if self._fault == "reset_ignored":
            return True
        if self._fault == "reset_refused":
            return False
        done = self._inner.reset(deadline_s)
        if self._fault == "blocks_in_order":
            pool = self._core().scheduler.kv_cache_manager.block_pool
            free = sorted(pool.free_block_queue.get_all_free_blocks(), key=lambda block: block.block_id)
            pool.free_block_queue = type(pool.free_block_queue)(free)
        return done

    def zero(self) -> tuple[int, int]:
        return (0, 0) if self._fault == "not_zeroed" else self._inner.zero()

    def _core(self) -> Any:
        """The engine core, in process."""
        return self._inner._llm.llm_engine.engine_core.engine_core

    def _nudge_logits(self) -> None:
        """Raise the first row's best logit to the next larger number whenever ``_nudged`` is set."""
        model = self._core().model_executor.driver_worker.worker.model_runner.model
        right = model.compute_logits

        def compute_logits(*arguments: Any, **named: Any) -> torch.Tensor:
            logits = right(*arguments, **named)
            if self._nudged and logits is not None and len(logits):
                best = int(logits[0].argmax())
                logits[0, best] = torch.nextafter(logits[0, best], torch.full_like(logits[0, best], float("inf")))
            return logits

        model.compute_logits = compute_logits


def _faulty_pair(pair: PrefillDecode, leg: Leg, fault: str) -> PrefillDecode:
    """The pair with a hand-over that goes wrong."""
    right = pair.hand_over

    def hand_over(prompts: Sequence[Sequence[int]], decode: DecodeSpec) -> list[Handed]:
        if fault == "handovers_exchanged":
            handed = right(prompts, decode)
            return handed[1:] + handed[:1]
        # Of the same lengths, so that nothing but their KV is wrong.
        spec = replace(leg.prompts, seed=leg.prompts.seed + 1)
        way = make_pass(spec, leg.model.vocab_size, int(leg.engine["block_size"]))
        return right([way.prompts[index] for index in way.hit_order], decode)

    pair.hand_over = hand_over  # type: ignore[method-assign]
    return pair


def _forgetful(attend: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """``rowwise.attend`` in which no query sees the token at ``FORGOTTEN`` but that token itself and those before it.

    Each row stays a function of its position and context alone, so such an engine is batch invariant and repeats
    itself: a restore agrees with recompute bit for bit.
    """

    def forget(
        query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, length: int, scale: float
    ) -> torch.Tensor:
        attended = attend(query, keys, values, length, scale)
        behind = min(len(query), length - 1 - FORGOTTEN)
        if behind > 0:
            keys, values = _without(keys), _without(values)
            attended[-behind:] = attend(query[-behind:], keys, values, length - 1, scale)
        return attended

    return forget


def _without(content: torch.Tensor) -> torch.Tensor:
    """[KV heads, padded length, D] without the forgotten position; a zero row at the end keeps the length."""
    rows = (content[:, :FORGOTTEN], content[:, FORGOTTEN + 1 :], torch.zeros_like(content[:, :1]))
    return torch.cat(rows, dim=1)
