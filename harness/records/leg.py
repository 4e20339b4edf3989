# SPDX-License-Identifier: Apache-2.0
"""A leg: one engine process's work, and the model it loads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from harness.records.names import DEADLINES_S, Phase, Role
from harness.records.scenario import DecodeSpec, PromptSpec


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model directory that an engine can load, and where it came from.

    Attributes:
        alias: what the scenario asked for.
        path: directory with ``config.json`` and safetensors.
        source: ``given`` (MODEL= or the environment), ``hub`` (Hugging Face cache or hub) or ``stand-in`` (seeded).
        digest: digest of config and weights.
        num_layers, num_kv_heads, head_dim, vocab_size: shape, as in ``config.json``.
    """

    alias: str
    path: str
    source: str
    digest: str
    num_layers: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int


@dataclass(frozen=True, kw_only=True)
class Filling:
    """What the engine that fills a store has otherwise than the leg that reads it.

    Each field stands for the leg's field of the same name, whole; None: the leg's own.
    """

    layout: str | None = None
    backend: str | None = None
    batch_invariant: bool | None = None
    model: Model | None = None
    engine: Mapping[str, Any] | None = None
    env: Mapping[str, str] | None = None
    request: Mapping[str, str] | None = None


@dataclass(frozen=True, kw_only=True)
class Leg:
    """One engine process's work; what in it can change its answer is named by ``digest``.

    Attributes:
        digest: hex digest over every other field; of the deadlines over ``reset`` alone (``harness.wire.named``).
        role: oracle or subject.
        layout, backend, batch_invariant: what is asked for.
        model: the model to load.
        engine: keyword arguments for ``vllm.LLM``, beside those that the other fields make.
        env: environment variables the scenario or the backend's alias sets.
        kv_transfer_config: the connector's configuration, None for an oracle.
        prompts, decode: what is run.
        phases: in order.
        digests: whether KV blocks are digested.
        identity: versions and digests of software that can change the answer (vllm, torch, harness source, ...).
        restarts_before: phase before which the leg goes on in a new process with the same store; None for one process.
        server_restarts_before: phase before which the connector's server is stopped and started anew, while the engine
            lives; None for never.
        filling: what the process before that one has otherwise; None for nothing.
        request: what each request carries beside its prompt: ``cache_salt``, and as ``lora`` the name of an adapter
            that is made for the leg (``harness.adapter``).
        model_name: name under which the engine finds its model in a folder of the leg's own, whatever the model; None
            for the model's own path.
        engine_name: ``vllm``; ``prefill_decode`` for two engines; ``transformers`` for a ground truth; ``unit`` for a
            store without an engine; ``fake``, ``fake_pair`` and ``faulty`` for planted endings.
        fake: instructions for the fake engine, empty otherwise.
        deadlines: key of ``DEADLINES_S`` -> seconds.
    """

    digest: str
    role: Role
    layout: str
    backend: str
    batch_invariant: bool
    model: Model
    engine: Mapping[str, Any]
    env: Mapping[str, str]
    kv_transfer_config: Mapping[str, Any] | None
    prompts: PromptSpec
    decode: DecodeSpec
    phases: tuple[Phase, ...]
    identity: Mapping[str, str]
    digests: bool = True
    restarts_before: Phase | None = None
    server_restarts_before: Phase | None = None
    filling: Filling | None = None
    request: Mapping[str, str] = field(default_factory=dict)
    model_name: str | None = None
    engine_name: str = "vllm"
    fake: Mapping[str, Any] = field(default_factory=dict)
    deadlines: Mapping[str, float] = field(default_factory=lambda: DEADLINES_S)

    @property
    def level(self) -> str:
        """``engine``, or ``unit`` for a store alone, as a scenario says it."""
        return "unit" if self.engine_name == "unit" else "engine"

    @property
    def filler(self) -> Leg:
        """The leg under the configuration of the engine that fills its store."""
        if self.filling is None:
            return self
        given = {one.name: getattr(self.filling, one.name) for one in fields(self.filling)}
        return replace(self, filling=None, **{name: value for name, value in given.items() if value is not None})
