# SPDX-License-Identifier: Apache-2.0
"""A real vLLM engine with the embedded store, as the scenarios of ``store_child.py`` drive it."""

from __future__ import annotations

BLOCK = 32
PREFIX = 192
PAGE_BYTES = 2 * BLOCK * 2 * 32 * 2  # heads x tokens x (K, V) x head_dim x bf16
OBJECT_BYTES = 4 * PAGE_BYTES


def zero(worker) -> None:
    for layer in worker.vllm_config.compilation_config.static_forward_context.values():
        layer.kv_cache.zero_()


def evidence(worker) -> dict[str, int]:
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    return get_kv_transfer_group().evidence()


ENGINES: list[Engine] = []


class Engine:
    """A vLLM engine with the embedded store, and what the scenarios ask of it."""

    def __init__(self, model: str, extra: dict | None = None, policy: str = "recompute", **arguments) -> None:
        from vllm import LLM

        transfer = {
            "kv_connector": "EmbeddedStoreConnector",
            "kv_connector_module_path": "harness.kvstore.connector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"capacity_mib": 16, **(extra or {})},
            "kv_load_failure_policy": policy,
        }
        engine = {
            "skip_tokenizer_init": True,
            "enforce_eager": True,
            "max_model_len": 1024,
            "block_size": BLOCK,
            "num_gpu_blocks_override": 64,
            "disable_log_stats": False,
            "kv_cache_memory_bytes": 64 << 20,
            "dtype": "bfloat16",
        }
        self.llm = LLM(model=model, kv_transfer_config=transfer, **{**engine, **arguments})
        self.prompts = [
            [(3 + token * (7 + 2 * row) + token * token * row) % 500 for token in range(200)] for row in range(3)
        ]
        self.finish: list[str] = []
        ENGINES.append(self)

    def generate(self, prompts=None, max_tokens: int = 8, **sampling) -> list:
        from vllm import SamplingParams

        outputs = self.llm.generate(
            [{"prompt_token_ids": prompt} for prompt in prompts or self.prompts],
            SamplingParams(
                temperature=0, max_tokens=max_tokens, logprobs=5, ignore_eos=True, detokenize=False, **sampling
            ),
            use_tqdm=False,
        )
        self.finish = [output.outputs[0].finish_reason for output in outputs]
        return [
            [list(output.outputs[0].token_ids)]
            + [
                sorted((token, entry.logprob) for token, entry in step.items())
                for step in output.outputs[0].logprobs or ()
            ]
            for output in outputs
        ]

    def metric(self, name: str) -> int:
        return next((int(metric.value) for metric in self.llm.get_metrics() if metric.name == f"vllm:{name}"), 0)

    def counted(self, *arguments, **named) -> tuple[list, int, int]:
        """generate, and its local and external hit tokens."""
        local, external = self.metric("prefix_cache_hits"), self.metric("external_prefix_cache_hits")
        answer = self.generate(*arguments, **named)
        return (
            answer,
            self.metric("prefix_cache_hits") - local,
            self.metric("external_prefix_cache_hits") - external,
        )

    def clear(self) -> bool:
        done = self.llm.reset_prefix_cache()
        self.llm.collective_rpc(zero)
        return done

    def evidence(self) -> dict[str, int]:
        return self.llm.collective_rpc(evidence)[0]

    @property
    def core(self):
        return self.llm.llm_engine.engine_core.engine_core

    @property
    def scheduler(self):
        return self.core.scheduler.connector.scheduler

    @property
    def worker(self):
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        return get_kv_transfer_group().worker

    def lose(self, prompt: int, block: int) -> None:
        """Lose one stored block behind the scheduler's back."""
        scheduler, allocated = self.scheduler, self.scheduler.allocated

        def forget_then_allocate(request, blocks, tokens):
            allocated(request, blocks, tokens)
            if tokens and list(request.prompt_token_ids) == self.prompts[prompt]:
                self.worker.pool.forget(scheduler._loads[-1].slots[block])
                scheduler.allocated = allocated

        scheduler.allocated = forget_then_allocate
