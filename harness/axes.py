# SPDX-License-Identifier: Apache-2.0
"""A scenario's axes: which exist, the points they span, and what one point makes of the scenario's settings.

Everything here is a pure function of records; ``axes`` is always one point, axis name -> value.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from harness.backends import BACKENDS
from harness.records import PREFILL_DECODE, PromptSpec, Scenario, SubjectSpec

#: Axes that every scenario has.
REQUIRED_AXES = ("layout", "backend", "batch_invariant")

#: Axes that a scenario may add, in the order in which they follow in a cell's id. ``connector`` replaces the subject's
#: alias, ``restore`` is one of ``RESTORE_PATHS``, ``differs`` one of ``harness.sharing.DIFFERENCES``, ``prompt_set``
#: and ``seed`` replace ``prompts.set`` and ``prompts.seed``; the others replace the embedded store's setting of the
#: same name.
FURTHER_AXES = ("connector", "restore", "differs", "prompt_set", "seed", "transfer", "load", "fault")

#: Who restores, and what: the engine that stored (meant where nothing is said); a new one in a process of its own that
#: finds the same store; the engine that stored, with a part of each prompt in its local cache (``PATH_SETS``); the
#: engine that stored, whose connector's server was restarted in between; an engine that lives beside the one that
#: computes the prompts, and gets their KV from it.
RESTORE_PATHS = ("same_engine", "new_engine", "partial", "restarted_server", PREFILL_DECODE)

#: Restore path -> the prompt set that makes it; a path that is not here goes with any set.
PATH_SETS: Mapping[str, str] = {"partial": "local_then_external"}

#: Tokens of one block where a scenario does not say.
DEFAULT_BLOCK_SIZE = 16


def points(axes: Mapping[str, tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    """Every combination of the axes' values, the last axis changing fastest."""
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def same(left: object, right: object) -> bool:
    """Equality that tells ``1`` from ``true``."""
    return type(left) is type(right) and left == right


def matches(when: Mapping[str, tuple[Any, ...]], axes: Mapping[str, Any]) -> bool:
    """Whether a point is one that ``when`` means: each named axis has one of the listed values.

    An empty ``when`` means every point; an axis that the point does not have matches nothing.
    """
    return all(name in axes and any(same(axes[name], value) for value in values) for name, values in when.items())


def cell_id(axes: Mapping[str, Any]) -> str:
    """Name of a point, unique in its scenario: ``LBHNC-REFERENCE-bi1``, then ``-many-seed3-ranges-async-fault=none``"""
    parts = [str(axes["layout"]), str(axes["backend"]), f"bi{int(axes['batch_invariant'])}"]
    for name in FURTHER_AXES:
        if name not in axes:
            continue
        value = axes[name]
        if name == "seed":
            parts.append(f"seed{value}")
        elif name == "fault":
            parts.append(f"fault={'none' if value is None else value}")
        else:
            parts.append(str(value))
    return "-".join(parts)


def effective(scenario: Scenario, axes: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Engine arguments and environment of one point.

    Later wins: the block size default and the backend alias's variables, the scenario's ``engine`` and ``env``, then
    each matching override in file order. Values are replaced whole, never merged.
    """
    engine: dict[str, Any] = {"block_size": DEFAULT_BLOCK_SIZE, **scenario.engine}
    backend = BACKENDS.get(axes["backend"])
    env: dict[str, str] = {**(backend.env if backend else {}), **scenario.env}
    for override in scenario.overrides:
        if matches(override.when, axes):
            engine.update(override.engine)
            env.update(override.env)
    return engine, env


def prompts_of(scenario: Scenario, axes: Mapping[str, Any]) -> PromptSpec:
    """Prompts of one point: the scenario's, with its axes ``prompt_set``, ``seed`` and ``restore``."""
    named = {"prompt_set": "set", "seed": "seed"}
    prompts = replace(scenario.prompts, **{field: axes[axis] for axis, field in named.items() if axis in axes})
    own = PATH_SETS.get(axes.get("restore", ""))
    return replace(prompts, set=own) if own else prompts


def subject_of(scenario: Scenario, axes: Mapping[str, Any]) -> SubjectSpec:
    """Subject of one point: the scenario's, with the axes ``connector``, ``transfer``, ``load`` and ``fault``."""
    subject = scenario.subject
    if "connector" in axes:
        subject = SubjectSpec(connector=axes["connector"])
    options = {name: axes[name] for name in ("transfer", "load") if name in axes}
    if options:
        subject = replace(subject, options={**subject.options, **options})
    return replace(subject, fault=axes["fault"]) if "fault" in axes else subject
