# SPDX-License-Identifier: Apache-2.0
"""A real vLLM engine behind the ``Engine`` protocol (vllm.LLM, in process or with multiprocessing).

Exact hit counts are deltas of the scheduler's metrics; ``RequestOutput.num_cached_tokens`` is only what was promised at
admission and local + external in one (vllm/v1/outputs.py, vllm/v1/metrics/reader.py). Everything about the worker
(layout, strides, block tables, KV bytes) comes from the probe that runs inside it (``harness.plugin.probe``).
"""

from __future__ import annotations

import importlib
import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harness.connectors import FOLDER, LEG, PORT, PROCESS, Metric, adapter_of_class, filled
from harness.engines import Answer, Counters, Placement
from harness.engines.answers import answer_of
from harness.engines.own_folder import adapter_path, model_path
from harness.garbage import no_garbage_collected
from harness.records import DecodeSpec, Leg, Model, Resolved
from harness.server_restart import STORE_VARIABLE

PROBE = "harness.plugin.probe.Probe"

#: What vLLM calls the state of a request whose load is under way.
LOADING = "WAITING_FOR_REMOTE_KVS"

#: Port of the server that the connector talks to (``harness.servers``); stands for ``PORT`` there.
SERVER_PORT = "KVPARITY_SERVER_PORT"

#: Arguments that the harness sets beside the scenario's; a scenario may override each.
DEFAULTS: dict[str, Any] = {
    "enforce_eager": True,
    "skip_tokenizer_init": True,
    "enable_prefix_caching": True,
    "seed": 0,
}


def open_engine(leg: Leg, stage: Callable[[str], None]) -> VllmEngine:
    """Import vLLM and start the engine that ``leg`` describes; refusals come through in vLLM's words."""
    stage("import")
    llm, sampling = preload()
    stage("load")
    return VllmEngine(llm, sampling, leg)


#: What an engine on a CPU host imports while it starts, beside ``vllm.LLM``; none of it reads a late variable.
CPU_MODULES = (
    "vllm.v1.engine.core_client",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.worker.cpu_worker",
    "vllm.model_executor.models.qwen3",
    "vllm.model_executor.layers.quantization.online.base",
    "vllm.entrypoints.launchers.cli_args",
    "vllm.v1.attention.backends.cpu_attn",
)


def preload(modules: Sequence[str] = ()) -> tuple[Any, Any]:
    """Import vLLM's engine: (``LLM``, ``SamplingParams``).

    By name, because vLLM imports its engine only when somebody asks for it, and that is most of the import's time.
    """
    from vllm import LLM, SamplingParams

    for name in modules:
        importlib.import_module(name)
    return LLM, SamplingParams


def configure_logging() -> None:
    """Set vLLM's loggers up as an engine would when it starts; an engine of this process then finds it done.

    It asks each of several hundred loggers to forget what all the others know, most of a second.
    """
    from vllm.config.logging import LoggingConfig
    from vllm.logger import configure_logging_if_needed

    configure_logging_if_needed(LoggingConfig())


class VllmEngine:
    """One ``vllm.LLM`` and its probe; ``kv_role`` replaces that of the leg's connector."""

    def __init__(self, llm: Any, sampling: Any, leg: Leg, kv_role: str | None = None) -> None:
        self._sampling = sampling
        arguments = {**DEFAULTS, **leg.engine}
        if leg.kv_transfer_config is not None:
            words = {
                PROCESS: str(os.getpid()),
                LEG: leg.digest,
                FOLDER: os.environ.get(STORE_VARIABLE, ""),
                PORT: os.environ.get(SERVER_PORT, ""),
            }
            arguments["kv_transfer_config"] = filled(leg.kv_transfer_config, words)
            if kv_role is not None:
                arguments["kv_transfer_config"]["kv_role"] = kv_role
        #: What every request carries beside its prompt, as ``LLM.generate`` takes it.
        self._salt = {"cache_salt": leg.request["cache_salt"]} if "cache_salt" in leg.request else {}
        self._adapter = _adapter(leg.request.get("lora"), leg.model)
        self._llm = llm(model=model_path(leg), worker_extension_cls=PROBE, disable_log_stats=False, **arguments)
        adapter = adapter_of_class((leg.kv_transfer_config or {}).get("kv_connector"))
        self._bytes = adapter.bytes_moved if adapter is not None else None
        self._call("kvparity_watch")
        self._numbers = itertools.count()
        #: Internal request id -> (local, external) tokens of its first admission.
        self._promises: dict[str, tuple[int, int]] = {}
        #: Internal request id -> what it carried.
        self._carried: dict[str, dict[str, str]] = {}
        self._remember_promises(self._llm.llm_engine.engine_core)
        self._remember_carried(self._llm.llm_engine.engine_core)

    def _remember_promises(self, core: Any) -> None:
        """A request's hits by source pass by once, in the engine core's outputs (vllm/v1/engine: EngineCoreOutput)."""
        get_output = core.get_output

        def remembering() -> Any:
            outputs = get_output()
            for output in outputs.outputs:
                if (stats := output.prefill_stats) is not None:
                    self._promises[output.request_id] = (
                        stats.num_local_cached_tokens, stats.num_external_cached_tokens,
                    )
            return outputs

        core.get_output = remembering

    def _remember_carried(self, core: Any) -> None:
        """What a request carries is believed as the engine core is given it (vllm/v1/engine: EngineCoreRequest)."""
        add_request = core.add_request

        def remembering(request: Any, *arguments: Any, **named: Any) -> Any:
            carried = {"cache_salt": request.cache_salt, "lora": getattr(request.lora_request, "lora_name", None)}
            self._carried[request.request_id] = {name: value for name, value in carried.items() if value}
            return add_request(request, *arguments, **named)

        core.add_request = remembering

    def _call(self, name: str, *arguments: Any) -> Any:
        """Call the probe in every worker; they hold different shards, and rank 0 speaks for them."""
        return self._llm.collective_rpc(name, args=arguments)[0]

    def resolved(self) -> Resolved:
        answer = self._call("kvparity_resolved")
        return Resolved(**{key: tuple(value) if isinstance(value, list) else value for key, value in answer.items()})

    def generate(self, prompts: Sequence[Sequence[int]], decode: DecodeSpec) -> list[Answer]:
        found = self.outputs(prompts, decode, [None] * len(prompts))
        carried = {name.rpartition("-")[0]: value for name, value in self._carried.items()}
        return [answer_of(output, hits, carried.get(output.request_id)) for output, hits in found]

    def outputs(
        self, prompts: Sequence[Sequence[int]], decode: DecodeSpec, transfers: Sequence[Mapping[str, Any] | None]
    ) -> list[tuple[Any, tuple[int | None, int | None]]]:
        """vLLM's own output of each prompt, and its (local, external) hit tokens.

        ``transfers`` has what each request tells the connector (``kv_transfer_params``), None for nothing.
        """
        self._carried.clear()
        more = {} if self._adapter is None else {"lora_request": self._adapter}
        requests = [
            ({"prompt_token_ids": list(prompt), **self._salt}, self._parameters(decode, transfer))
            for prompt, transfer in zip(prompts, transfers, strict=True)
        ]
        batches = [requests] if decode.submit == "together" else [[request] for request in requests]
        found = [
            output
            for batch in batches
            for output in self._llm.generate(
                [one for one, _ in batch], [one for _, one in batch], use_tqdm=False, **more
            )
        ]
        # vLLM appends a random part to the name of each request.
        promises = {name.rpartition("-")[0]: hits for name, hits in self._promises.items()}
        self._promises.clear()
        return [(output, promises.get(output.request_id, (None, None))) for output in found]

    def _parameters(self, decode: DecodeSpec, transfer: Mapping[str, Any] | None) -> Any:
        return self._sampling(
            temperature=0.0,
            max_tokens=decode.max_tokens,
            logprobs=decode.logprobs,
            ignore_eos=True,
            detokenize=False,
            extra_args=None if transfer is None else {"kv_transfer_params": dict(transfer)},
        )

    def abort_load(self, prompt: Sequence[int]) -> bool:
        """As asked, in process; another process's scheduler cannot be looked at between two of its steps.

        A request waits in a state of its own while its load is under way (vllm/v1/request.py: RequestStatus).
        """
        engine = self._llm.llm_engine
        core = getattr(engine.engine_core, "engine_core", None)
        if core is None:
            return False
        parameters = self._sampling(temperature=0.0, max_tokens=1, ignore_eos=True, detokenize=False)
        name = engine.add_request(f"abort-{next(self._numbers)}", {"prompt_token_ids": list(prompt)}, parameters)
        while engine.has_unfinished_requests():
            request = core.scheduler.requests.get(name)
            if request is not None and request.status.name == LOADING:
                engine.abort_request([name], internal=True)
                return True
            engine.step()
        return False

    def counters(self) -> Counters:
        totals: dict[str, int] = {}
        loaded = stored = None
        if self._bytes is not None:
            # A connector's metric appears with the first transfer.
            loaded, stored = 0, None if self._bytes.stored is None else 0
        for metric in self._llm.get_metrics():
            # A histogram of sizes counts as their sum.
            value = getattr(metric, "value", getattr(metric, "sum", None))
            if isinstance(value, int | float):
                totals[metric.name] = totals.get(metric.name, 0) + int(value)
                if self._bytes is not None:
                    loaded += int(value) * _is(metric, self._bytes.loaded)
                    if stored is not None:
                        stored += int(value) * _is(metric, self._bytes.stored)
        moved = self._call("kvparity_transfer")
        return Counters(
            local_tokens=totals.get("vllm:prefix_cache_hits", 0),
            external_tokens=totals.get("vllm:external_prefix_cache_hits", 0),
            delivered_tokens=moved.get("delivered_tokens"),
            loaded_bytes=moved.get("loaded_bytes", loaded),
            stored_bytes=moved.get("stored_bytes", stored),
            preemptions=totals.get("vllm:num_preemptions", 0),
        )

    def placements(self) -> list[Placement]:
        return [
            Placement(
                tokens=tuple(entry["prompt_token_ids"]), blocks=tuple(entry["blocks"]), reused=entry["reused"],
                prefill_steps=entry["prefill_steps"],
            )
            for entry in self._call("kvparity_take_blocks")
        ]

    def digests(self, blocks: Sequence[int]) -> list[str]:
        return self._call("kvparity_digests", list(blocks))

    def reset(self, deadline_s: float) -> bool:
        """``LLM.reset_prefix_cache`` until it says True: blocks stay held while stores are unfinished.

        In process, stores finish only when the engine core steps; with multiprocessing it steps by itself.
        """
        end = time.monotonic() + deadline_s
        while not self._llm.reset_prefix_cache():
            if time.monotonic() > end:
                return False
            self._step_idle()
        return True

    def _step_idle(self) -> None:
        core = getattr(self._llm.llm_engine.engine_core, "engine_core", None)
        if core is not None and core.scheduler.has_requests():
            core.step_fn()
        else:
            time.sleep(0.01)

    def zero(self) -> tuple[int, int]:
        answer = self._call("kvparity_zero")
        return answer["zeroed_bytes"], answer["nonzero_after"]

    def close(self) -> None:
        shutdown = getattr(self._llm.llm_engine.engine_core, "shutdown", None)
        if shutdown is not None:
            with no_garbage_collected():
                shutdown()


def _adapter(name: str | None, model: Model) -> Any:
    """vLLM's request for an adapter of that name, made here and now; None for none."""
    if name is None:
        return None
    from vllm.lora.request import LoRARequest

    return LoRARequest(lora_name=name, lora_int_id=1, lora_path=adapter_path(name, model))


def _is(metric: Any, asked: Metric) -> bool:
    return metric.name == asked.name and all(metric.labels.get(key) == word for key, word in asked.labels.items())
