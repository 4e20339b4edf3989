# SPDX-License-Identifier: Apache-2.0
"""The ground truth: Hugging Face transformers' own forward pass over the same weights and token ids, without vLLM.

It shares no attention code, no KV cache and no batching with the engine under test: one prompt at a time, transformers'
default attention, its own cache, one thread, on the CPU whatever the platform. ``Leg.engine["dtype"]`` is the weights'
and activations' type; logprobs are taken in float32 from the logits. The only module that imports transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from harness.bits import to_bits
from harness.engines import Answer, Counters, Placement
from harness.engines.unavailable import UnavailableError
from harness.records import DecodeSpec, Leg, Resolved, Step

#: What such a leg is called where an engine has the name of its backend.
BACKEND = "TRANSFORMERS"


def open_engine(leg: Leg, stage: Callable[[str], None]) -> TransformersEngine:
    """Load the leg's model in the dtype it asks for.

    Raises:
        UnavailableError: transformers or torch is not installed.
    """
    stage("import")
    try:
        import torch
        from transformers import AutoModelForCausalLM
    except ModuleNotFoundError as error:
        raise UnavailableError(f"the ground truth needs {error.name}, which is not installed") from None
    torch.set_num_threads(1)
    stage("load")
    model = AutoModelForCausalLM.from_pretrained(leg.model.path, dtype=leg.engine["dtype"], local_files_only=True)
    return TransformersEngine(torch, model.eval(), leg)


class TransformersEngine:
    """One model; every answer is computed from nothing, so there is no cache to hit, reset or zero."""

    def __init__(self, torch: Any, model: Any, leg: Leg) -> None:
        self._torch = torch
        self._model = model
        self._leg = leg

    def resolved(self) -> Resolved:
        """Without the fields of a paged KV cache: there is none."""
        config, kind = self._model.config, type(self._model)
        attention = config._attn_implementation
        return Resolved(
            layout=self._leg.layout,
            layout_by_strides=(),
            shape=(),
            strides=(),
            dtype=str(self._model.dtype).removeprefix("torch."),
            num_layers=config.num_hidden_layers,
            backend=BACKEND,
            backend_class=(f"{kind.__module__}.{kind.__qualname__} ({attention})",),
            batch_invariant=False,
            block_size=1,
            kernel_block_size=1,
            num_blocks=0,
            threads=self._torch.get_num_threads(),
            connector=None,
        )

    def generate(self, prompts: Sequence[Sequence[int]], decode: DecodeSpec) -> list[Answer]:
        return [self._answer(prompt, decode) for prompt in prompts]

    def _answer(self, prompt: Sequence[int], decode: DecodeSpec) -> Answer:
        torch, steps, cache = self._torch, [], None
        tokens = torch.tensor([list(prompt)])
        with torch.inference_mode():
            while len(steps) < decode.max_tokens:
                output = self._model(input_ids=tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
                cache = output.past_key_values
                logprobs = torch.log_softmax(output.logits[0, -1].float(), dim=-1)
                steps.append(_step(logprobs, max(decode.logprobs, 1)))
                tokens = torch.tensor([[steps[-1].token]])
        return Answer(steps=tuple(steps), cached_tokens=0, finish_reason="length")

    def counters(self) -> Counters:
        return Counters(local_tokens=0, external_tokens=0, delivered_tokens=None, loaded_bytes=None, stored_bytes=None)

    def placements(self) -> list[Placement]:
        return []

    def digests(self, blocks: Sequence[int]) -> list[str]:
        return []

    def reset(self, deadline_s: float) -> bool:
        return True

    def zero(self) -> tuple[int, int]:
        return 0, 0

    def close(self) -> None:
        pass


def _step(logprobs: Any, count: int) -> Step:
    """The greedy step of one row of logprobs: [vocabulary], float32."""
    values, tokens = logprobs.topk(min(count, len(logprobs)))
    top = tuple((int(token), to_bits(float(value))) for token, value in zip(tokens, values, strict=True))
    return Step(token=top[0][0], bits=top[0][1], top=top)
