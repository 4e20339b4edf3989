# SPDX-License-Identifier: Apache-2.0
"""Two live engines of one leg: the one computes the prompts, the other decodes with the KV that it gets from the first.

For vLLM's connectors of that kind (``kv_connector/v1/nixl``): a request to the engine that prefills generates one token
and asks for a remote decode; its output says where the blocks lie; with that the same prompt goes to the other engine,
whose connector reads them. The blocks stay held until they were read, so every restore is handed over anew; what the
first engine had computed for ``populate`` it finds in its own prefix cache, and only the end of a prompt is computed
again. The engine that decodes is the leg's own process, the other one a process below it (``harness.engines.apart``).
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.engines import Answer
from harness.engines.answers import answer_of
from harness.engines.apart import Apart
from harness.engines.vllm import VllmEngine, preload
from harness.errors import LegError
from harness.records import DecodeSpec, Handover, Leg, Resolved

#: Where an engine tells others about its memory (vllm/envs.py); two engines of a host need two.
SIDE_CHANNEL = "VLLM_NIXL_SIDE_CHANNEL_PORT"

#: What a request to the engine that prefills says to its connector.
HAND_OVER: Mapping[str, Any] = {"do_remote_decode": True, "do_remote_prefill": False}


@dataclass(frozen=True, kw_only=True)
class Handed:
    """One prompt, handed over: what the other engine's request must say to its connector, and what is recorded."""

    parameters: Mapping[str, Any]
    record: Handover


class PrefillEngine(VllmEngine):
    """The engine that computes prompts for another one."""

    def hand_over(self, prompts: Sequence[Sequence[int]], decode: DecodeSpec) -> list[Handed]:
        """Compute the prompts, or find them, and hold their blocks for the other engine.

        Raises:
            LegError: the connector does not say where a prompt's blocks are.
        """
        one_token = replace(decode, max_tokens=1, logprobs=1)
        handed = []
        for output, (local, _) in self.outputs(prompts, one_token, [HAND_OVER] * len(prompts)):
            parameters = output.kv_transfer_params
            if not parameters or not parameters.get("remote_block_ids"):
                raise LegError(f"the prefill engine handed nothing over: its connector answered {parameters}")
            # One list of blocks per KV cache group; the probe knows one group.
            (blocks,) = parameters["remote_block_ids"]
            record = Handover(
                cached_tokens=local, tokens=int(parameters["remote_num_tokens"]), blocks=tuple(blocks),
            )
            handed.append(Handed(parameters=parameters, record=record))
        return handed

    def settle(self, deadline_s: float) -> bool:
        """Step until every block that was handed over is free again; False where one is held until the deadline.

        In process only; with multiprocessing the engine core steps by itself.
        """
        core = getattr(self._llm.llm_engine.engine_core, "engine_core", None)
        end = time.monotonic() + deadline_s
        while core is not None and core.scheduler.has_requests():
            if time.monotonic() > end:
                return False
            core.step_fn()
        return True


class DecodeEngine(VllmEngine):
    """The engine that decodes with KV of another one."""

    def generate_handed(
        self, prompts: Sequence[Sequence[int]], decode: DecodeSpec, handed: Sequence[Handed]
    ) -> list[Answer]:
        """Answers to prompts that were handed over.

        vLLM puts the other engine's cached tokens into ``num_cached_tokens`` (vllm/v1/engine/output_processor.py); what
        this engine was promised itself is the scheduler's count by source.
        """
        answers = []
        outputs = self.outputs(prompts, decode, [one.parameters for one in handed])
        for (output, hits), one in zip(outputs, handed, strict=True):
            own = None if None in hits else sum(hits)
            answers.append(replace(answer_of(output, hits), cached_tokens=own, handover=one.record))
        return answers


class PrefillDecode:
    """Both engines, and how a prompt gets from one to the other.

    Attributes:
        prefill: the engine in the process below.
        decode: the engine in this process.
    """

    def __init__(self, prefill: Apart, decode: DecodeEngine, patience_s: float) -> None:
        self.prefill, self.decode = prefill, decode
        self._patience_s = patience_s

    def resolved(self) -> Resolved:
        return self.decode.resolved()

    def restore(self, prompts: Sequence[Sequence[int]], decode: DecodeSpec) -> list[Answer]:
        """
        Raises:
            LegError: the engine that prefills is gone, handed nothing over, or still holds blocks that were read.
        """
        handed = self.hand_over(prompts, decode)
        answers = self.decode.generate_handed(prompts, decode, handed)
        if not self.prefill.call("settle", self._patience_s):
            raise LegError(f"the prefill engine held blocks {self._patience_s:g} s after they had been read")
        return answers

    def hand_over(self, prompts: Sequence[Sequence[int]], decode: DecodeSpec) -> list[Handed]:
        """What the engine that prefills holds ready for each prompt."""
        return self.prefill.call("hand_over", prompts, decode)

    def close(self) -> None:
        self.prefill.dismiss()
        try:
            self.decode.close()
        finally:
            self.prefill.close()


def open_engine(leg: Leg, stage: Callable[[str], None]) -> PrefillDecode:
    """Start both engines, at the same time; refusals of either come through in vLLM's words."""
    with contextlib.ExitStack() as stack:
        stage("import")
        held = [stack.enter_context(held_port()) for _ in range(2)]
        ports = [str(one.getsockname()[1]) for one in held]
        # A process that has imported vLLM by now was forked for it.
        warm = "vllm" in sys.modules and len(os.listdir("/proc/self/task")) == 1
        prefill = Apart("prefill", f"{__name__}:open_prefill", leg, {SIDE_CHANNEL: ports[0]}, fork=warm)
        stack.callback(prefill.close)
        llm, sampling = preload()
        stage("load")
        os.environ[SIDE_CHANNEL] = ports[1]
        decode = DecodeEngine(llm, sampling, leg, "kv_consumer")
        prefill.wait()
        stack.pop_all()
    return PrefillDecode(prefill, decode, leg.deadlines["reset"])


def open_prefill(leg: Leg, stage: Callable[[str], None]) -> PrefillEngine:
    """The engine that computes prompts, in its own process."""
    llm, sampling = preload()
    return PrefillEngine(llm, sampling, leg, "kv_producer")


def held_port() -> socket.socket:
    """A loopback port that nobody else is given while the socket lives, and that an engine can still listen on.

    An engine binds it with SO_REUSEADDR (as ZeroMQ does), which the kernel allows beside a socket that has it too and
    does not listen; a search for any free port passes it over.
    """
    held = socket.socket()
    held.bind(("127.0.0.1", 0))
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return held
