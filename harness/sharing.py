# SPDX-License-Identifier: Apache-2.0
"""Sharing: in what the engine that fills a store may differ from the one that reads it, and what may come back then.

The cell's own configuration reads; a difference says what the filling engine has otherwise. Its rule follows from what
a block's KV depends on: where the KV is another one, or where vLLM promises to keep requests apart, a store must give
nothing; where it may be the same, a store may give what it likes, and every bit of it is held against the reader's own
recompute. ``DIFFERENCES`` is the whole knowledge; plan, scenario check and comparator ask it or the records it makes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from harness.records import SHARING_PHASES, Filling, Leg, Model, Rule, Scenario, Sharing
from harness.wire import named

#: The value of ``differs`` that differs in nothing: without its full hit, absence of hits elsewhere says nothing.
CONTROL = "nothing"

#: Model of a scenario -> the one of the same architecture with other weights.
OTHER_WEIGHTS: Mapping[str, str] = {"tiny": "tiny-other"}

#: Backend of a cell -> the filling engine's, where the backend differs.
OTHER_BACKEND: Mapping[str, str] = {
    "REFERENCE": "REFERENCE_SHUFFLE", "REFERENCE_SHUFFLE": "REFERENCE", "CPU_ATTN": "REFERENCE",
}

#: Name under which both engines find their models where the models' names must not differ.
SAME_NAME = "model"

#: Engine arguments of every leg of a cell whose filling engine uses an adapter.
LORA_ENGINE: Mapping[str, Any] = {"enable_lora": True, "max_loras": 1, "max_lora_rank": 8}

_TENSOR = ("shape", "strides", "layout_by_strides")


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One way in which the filling engine differs from the reading one.

    Attributes:
        rule: what may come back.
        why: the rule's reason, one sentence.
        fill: (the reading leg, the other model or None) -> what the filling engine has otherwise.
        shows: settings that must differ: fields of ``Resolved``, its ``settings``, or ``request`` with a key.
        brings: settings that may differ with them.
        alters: whether the two compute different KV for certain.
        engine: further engine arguments of both engines, and of the oracle.
        model: whether the filling engine loads another model.
        model_name: name under which both find their models, None for the models' own.
    """

    rule: Rule
    why: str
    fill: Callable[[Leg, Model | None], Filling]
    shows: tuple[str, ...] = ()
    brings: tuple[str, ...] = ()
    alters: bool = False
    engine: Mapping[str, Any] = field(default_factory=dict)
    model: bool = False
    model_name: str | None = None


def _engine(**arguments: Any) -> Callable[[Leg, Model | None], Filling]:
    return lambda leg, other: Filling(engine={**leg.engine, **arguments})


def _env(**variables: str) -> Callable[[Leg, Model | None], Filling]:
    return lambda leg, other: Filling(env={**leg.env, **variables})


def _request(**carried: str) -> Callable[[Leg, Model | None], Filling]:
    return lambda leg, other: Filling(request={**leg.request, **carried})


def _layout(leg: Leg, other: Model | None) -> Filling:
    layout = "LBHNC" if leg.layout == "BHLNC" else "BHLNC"
    return Filling(layout=layout, env={**leg.env, "VLLM_KV_CACHE_LAYOUT": layout})


def _backend(leg: Leg, other: Model | None) -> Filling:
    backend = OTHER_BACKEND[leg.backend]
    return Filling(backend=backend, env={**leg.env, "KVPARITY_BACKEND": backend})


def _batch_invariance(leg: Leg, other: Model | None) -> Filling:
    value = not leg.batch_invariant
    return Filling(batch_invariant=value, env={**leg.env, "VLLM_BATCH_INVARIANT": str(int(value))})


def _block_size(leg: Leg, other: Model | None) -> Filling:
    return Filling(engine={**leg.engine, "block_size": 2 * int(leg.engine["block_size"])})


#: Value of the axis ``differs`` -> what it means.
DIFFERENCES: Mapping[str, Difference] = {
    CONTROL: Difference(
        rule=Rule.MUST_HIT, why="a new engine of the same configuration finds everything",
        fill=lambda leg, other: Filling(),
    ),
    "weights": Difference(
        rule=Rule.MUST_NOT_HIT, why="KV is computed from the weights; the two folders have different names",
        fill=lambda leg, other: Filling(model=other), shows=("model", "weights"), alters=True, model=True,
    ),
    "weights_same_name": Difference(
        rule=Rule.MUST_NOT_HIT, why="KV is computed from the weights; the folder was given other ones in place",
        fill=lambda leg, other: Filling(model=other), shows=("weights",), alters=True, model=True,
        model_name=SAME_NAME,
    ),
    "revision": Difference(
        rule=Rule.MAY_HIT, why="a folder's files do not change with the revision that is asked for",
        fill=_engine(revision="filled"), shows=("revision",),
    ),
    "dtype": Difference(
        rule=Rule.MUST_NOT_HIT, why="KV of another dtype has other values and another size",
        fill=_engine(dtype="float32"), shows=("model dtype", "dtype"), brings=("weights", *_TENSOR), alters=True,
    ),
    "kv_cache_dtype": Difference(
        rule=Rule.MUST_NOT_HIT, why="KV that was rounded to another dtype has other values and another size",
        fill=_engine(kv_cache_dtype="fp8"), shows=("kv cache dtype", "dtype"), brings=_TENSOR, alters=True,
    ),
    "block_size": Difference(
        rule=Rule.MAY_HIT, why="a token's KV does not depend on the block that it lies in",
        fill=_block_size, shows=("block_size",), brings=("kernel_block_size", *_TENSOR),
    ),
    "layout": Difference(
        rule=Rule.MAY_HIT, why="a layout places the same values elsewhere",
        fill=_layout, shows=("layout",), brings=("layout_by_strides", "strides"),
    ),
    "backend": Difference(
        rule=Rule.MAY_HIT, why="two kernels may compute the same bits, and may not",
        fill=_backend, shows=("backend", "backend_class"), brings=("kernel_block_size", *_TENSOR),
    ),
    "batch_invariance": Difference(
        rule=Rule.MAY_HIT, why="products of other shapes may round to the same bits, and may not",
        fill=_batch_invariance, shows=("batch_invariant",),
    ),
    "lora": Difference(
        rule=Rule.MUST_NOT_HIT, why="an adapter changes the KV of the requests that use it",
        fill=_request(lora="filled"), shows=("request lora",), alters=True, engine=LORA_ENGINE,
    ),
    "cache_salt": Difference(
        rule=Rule.MUST_NOT_HIT, why="a salt keeps requests apart although their KV is the same",
        fill=_request(cache_salt="filled"), shows=("request cache_salt",),
    ),
    "hash_seed": Difference(
        rule=Rule.MAY_HIT, why="PYTHONHASHSEED changes vLLM's block hashes and no KV",
        fill=_env(PYTHONHASHSEED="1"), shows=("hash seed",),
    ),
    "threads": Difference(
        rule=Rule.MAY_HIT, why="sums that are split otherwise may round to the same bits, and may not",
        fill=_env(OMP_NUM_THREADS="2", VLLM_CPU_OMP_THREADS_BIND="0-1"), shows=("threads",),
    ),
}


def models_of(scenario: Scenario) -> tuple[str, ...]:
    """The scenario's model, and the one with other weights where a store is filled with that."""
    other = any(DIFFERENCES[value].model for value in scenario.axes.get("differs", ()))
    return (scenario.model, OTHER_WEIGHTS[scenario.model]) if other else (scenario.model,)


def shared_legs(leg: Leg, name: str, other: Model | None) -> tuple[Leg, Leg | None, Sharing]:
    """(the leg whose store is filled under what differs, the one that differs in nothing, what the cell says of them).

    Args:
        leg: the subject under the cell's own configuration, which goes on in a new process before its restores.
        name: what differs; for the control the second leg is None, since it is the first.
        other: the model with other weights, for the differences that need it.
    """
    difference = DIFFERENCES[name]
    control = named(replace(leg, phases=SHARING_PHASES, model_name=difference.model_name))
    own = name == CONTROL
    sharing = Sharing(
        difference=name, rule=difference.rule, shows=difference.shows, brings=difference.brings,
        alters=difference.alters, control=None if own else control.digest,
    )
    if own:
        return control, None, sharing
    return named(replace(control, filling=difference.fill(control, other))), control, sharing
