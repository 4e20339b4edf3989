# SPDX-License-Identifier: Apache-2.0
"""Scenarios to a plan: cells in a stable order, and the legs they need, each leg once.

A leg's digest covers everything that can change its answer, so two cells whose oracle would do the same work share it,
and a resumed run knows which of its observations still hold.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from harness.axes import cell_id, effective, points, prompts_of, subject_of
from harness.backends import BACKENDS
from harness.expect import expectation_for
from harness.hits import expected_hits, shared_hits
from harness.host import PACKAGES
from harness.overlay import Overlay, OverlayError, find_overlay
from harness.prompt_sets import SETS, make_pass
from harness.records import (
    PREFILL_DECODE,
    ROLE_PHASES,
    SCHEMA_VERSION,
    Cell,
    DecodeSpec,
    Edge,
    Leg,
    Model,
    Phase,
    Plan,
    Reference,
    Role,
    Scenario,
    SubjectSpec,
)
from harness.sharing import DIFFERENCES, OTHER_WEIGHTS, models_of, shared_legs
from harness.sources import NOT_FOUND, module_digest, modules_of
from harness.subjects import kv_transfer_config, leaves, loads_late, restores, source_of
from harness.truth import with_ground_truth
from harness.wire import named

#: Environment of every leg; a scenario's ``env`` may override each.
COMMON_ENV: Mapping[str, str] = {
    # In process: hit counts, block tables and tracebacks come first hand, and start-up is several times faster.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # vLLM's block hashes start from it; two processes that share a store must agree.
    "PYTHONHASHSEED": "0",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "TOKENIZERS_PARALLELISM": "false",
}

#: On a CPU host thread counts change bits, so both legs of a cell run with one; compiling buys nothing.
CPU_ENV: Mapping[str, str] = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "0",
    "TORCH_COMPILE_DISABLE": "1",
    # Only the harness's plugin may change vLLM here; it is inert without KVPARITY_BACKEND.
    "VLLM_PLUGINS": "kvparity",
}

#: Packages that a leg's identity holds whatever the connector: file by file, numpy by its version.
COVERED = (*PACKAGES, "harness", "numpy")

#: Key in a leg's identity: digest of a connector's own module follows.
CONNECTOR_FILES = "connector_files:"

#: Engine arguments on a CPU host; an explicit KV cache size, because vLLM would take a share of all memory.
CPU_ENGINE: Mapping[str, Any] = {"kv_cache_memory_bytes": 512 * 2**20}


def make_plan(
    scenarios: Iterable[Scenario],
    *,
    platform: str,
    find_model: Callable[[str], Model],
    identity: Mapping[str, str],
    fake: Mapping[str, Mapping[str, Any]] | None = None,
) -> Plan:
    """All cells of ``scenarios`` that are made for ``platform``, and their legs.

    Cells come in the order of the files and of each file's axes. ``find_model`` turns a scenario's ``model`` into a
    directory; it is asked once per name. With ``fake``, every leg is the fake engine's: cell id -> role -> what to
    plant (``harness.engines.fake``).
    """
    cells: list[Cell] = []
    legs: dict[str, Leg] = {}
    models: dict[str, Model] = {}
    overlays = _remembering(find_overlay)
    connectors = functools.cache(functools.partial(module_digest, covered=COVERED))
    for scenario in scenarios:
        if platform not in scenario.platforms:
            continue
        for name in models_of(scenario):
            if name not in models:
                models[name] = find_model(name)
        own: list[Cell] = []
        for axes in points(scenario.axes):
            cell, needed = _cell(scenario, axes, platform, models, identity, fake, overlays, connectors)
            own.append(cell)
            legs.update({leg.digest: _patient(leg, legs.get(leg.digest)) for leg in needed})
        own, truths = with_ground_truth(scenario, own, legs, fake)
        cells += own
        legs.update({leg.digest: _patient(leg, legs.get(leg.digest)) for leg in truths})
    return Plan(schema=SCHEMA_VERSION, cells=tuple(cells), legs=tuple(legs.values()))


def _patient(leg: Leg, twin: Leg | None) -> Leg:
    """The leg with the longer deadlines of the two; scenarios that share a leg may differ in them."""
    if twin is None:
        return leg
    return replace(leg, deadlines={name: max(value, twin.deadlines[name]) for name, value in leg.deadlines.items()})


def _remembering(find: Callable[[str | None], Overlay]) -> Callable[[str | None], Overlay]:
    """``find`` asked once per overlay; a wheel that cannot be downloaded is not tried again for each cell."""
    known: dict[str | None, Overlay | OverlayError] = {}

    def found(spec: str | None) -> Overlay:
        if spec not in known:
            try:
                known[spec] = find(spec)
            except OverlayError as error:
                known[spec] = error
        answer = known[spec]
        if isinstance(answer, OverlayError):
            raise answer
        return answer

    return found


def missing_modules(plan: Plan) -> list[str]:
    """One sentence for each module of a connector that Python does not find, so that no digest stands for it."""
    names = {
        key.removeprefix(CONNECTOR_FILES): None
        for leg in plan.legs
        for key, digest in leg.identity.items()
        if key.startswith(CONNECTOR_FILES) and digest == NOT_FOUND
    }
    return [f"connector module {name} is not on Python's path here; its cells will not come up" for name in names]


def select(plan: Plan, names: Iterable[str]) -> Plan:
    """The plan of some of its cells, by ``Cell.name``, with only the legs that they need."""
    wanted = set(names)
    cells = tuple(cell for cell in plan.cells if cell.name in wanted)
    needed = {digest for cell in cells for digest in (cell.oracle, cell.subject, *cell.further)}
    return replace(plan, cells=cells, legs=tuple(leg for leg in plan.legs if leg.digest in needed))


def _cell(
    scenario: Scenario,
    axes: Mapping[str, Any],
    platform: str,
    models: Mapping[str, Model],
    identity: Mapping[str, str],
    fake: Mapping[str, Mapping[str, Any]] | None,
    overlays: Callable[[str | None], Overlay],
    connectors: Callable[..., str],
) -> tuple[Cell, tuple[Leg, ...]]:
    model = models[scenario.model]
    difference = DIFFERENCES[axes["differs"]] if "differs" in axes else None
    engine, env = effective(scenario, axes)
    if difference is not None:
        engine = {**engine, **difference.engine}
    prompts = prompts_of(scenario, axes)
    batch_invariant = bool(axes["batch_invariant"])
    backend = BACKENDS[axes["backend"]]
    engine, env = _for_platform(platform, backend.alias, backend.vllm_name, engine, env)
    common: dict[str, Any] = {
        "layout": axes["layout"],
        "backend": backend.alias,
        "batch_invariant": batch_invariant,
        "model": model,
        "engine": engine,
        "env": {
            **env,
            "VLLM_KV_CACHE_LAYOUT": axes["layout"],
            "VLLM_BATCH_INVARIANT": str(int(batch_invariant)),
        },
        "prompts": prompts,
        "decode": scenario.decode,
        "digests": scenario.evidence.digests,
        "deadlines": dict(scenario.deadlines),
        "identity": dict(identity),
    }
    planted: dict[Role, Mapping[str, Any]] = {}
    if fake is not None:
        common["engine_name"] = "fake"
        planted = {role: fake.get(cell_id(axes), {}).get(role.value, {}) for role in Role}
    spec = subject_of(scenario, axes)
    if spec.options.get("level") == "unit" and fake is None:
        # Without a model nothing is generated: the KV blocks are the answer.
        common |= {"engine_name": "unit", "decode": DecodeSpec(max_tokens=0, logprobs=0)}
    oracle = _leg(Role.ORACLE, None, {**common, "fake": planted.get(Role.ORACLE, {})})
    hands_over = axes.get("restore") == PREFILL_DECODE
    two = {"engine_name": "prefill_decode" if fake is None else "fake_pair"} if hands_over else {}
    sourced = {**common, **two}
    if fake is None:
        sourced = _with_source(sourced, spec, overlays)
    connector = kv_transfer_config(spec)
    modules = {
        f"{CONNECTOR_FILES}{name}": connectors(name, path=env.get("PYTHONPATH"))
        for name in modules_of(connector)
        if name.partition(".")[0] not in COVERED
    }
    subject = _leg(Role.SUBJECT, connector, {
        **sourced, "identity": {**sourced["identity"], **modules}, "fake": planted.get(Role.SUBJECT, {}),
        "restarts_before": Phase.RESTORE if difference or axes.get("restore") == "new_engine" else None,
        "server_restarts_before": Phase.RESTORE if axes.get("restore") == "restarted_server" else None,
    })
    needed: tuple[Leg, ...] = (oracle, subject)
    sharing = None
    if difference is not None:
        other = models.get(OTHER_WEIGHTS.get(scenario.model))
        subject, control, sharing = shared_legs(subject, axes["differs"], other)
        needed = (oracle, subject) if control is None else (oracle, subject, control)
    block_size = int(engine["block_size"])
    gives = restores(spec)
    chosen, together = SETS[prompts.set], scenario.decode.submit == "together"
    cell = Cell(
        scenario=scenario.name,
        id=cell_id(axes),
        path=scenario.path,
        line=scenario.axis_lines.get("layout", 0),
        axes=dict(axes),
        # A subject that gives nothing back recomputes, in batches of the same size as the oracle's.
        reference=_reference(scenario.reference, batch_invariant) if gives else Reference.RECOMPUTE,
        oracle=oracle.digest,
        subject=subject.digest,
        block_size=block_size,
        hits=shared_hits(
            make_pass(prompts, model.vocab_size, block_size),
            block_size,
            int(subject.filler.engine["block_size"]),
            difference.rule,
            leaves=leaves(spec),
        ) if difference else expected_hits(
            make_pass(prompts, model.vocab_size, block_size),
            block_size,
            gives=gives,
            late_loads=together and bool(loads_late(spec)),
            small_pool=chosen.edge is Edge.PREEMPTION,
            leaves=leaves(spec),
            hands_over=hands_over,
        ),
        edge=chosen.edge,
        expectation=expectation_for(axes, scenario.expect),
        restores=gives,
        sharing=sharing,
    )
    return cell, needed


def _with_source(
    common: Mapping[str, Any], spec: SubjectSpec, overlays: Callable[[str | None], Overlay]
) -> dict[str, Any]:
    """A leg's fields with the source of its connector; one whose source is missing starts no engine."""
    source = source_of(spec, overlays)
    engine_name = {} if source.missing is None else {"engine_name": "unavailable"}
    return {
        **common,
        **engine_name,
        "env": {**common["env"], **source.env},
        "identity": {**common["identity"], **source.identity},
    }


def _for_platform(
    platform: str, alias: str, vllm_name: str, engine: Mapping[str, Any], env: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Engine arguments and environment with the platform's way of asking for a backend.

    vLLM on CPU ignores a requested backend; the plugin reads it from KVPARITY_BACKEND and is as strict as the selector
    of the other platforms, which take ``attention_backend``.
    """
    if platform == "cpu":
        return {**CPU_ENGINE, **engine}, {**COMMON_ENV, **CPU_ENV, **env, "KVPARITY_BACKEND": alias}
    return {**engine, "attention_backend": vllm_name}, {**COMMON_ENV, **env}


def _reference(asked: str, batch_invariant: bool) -> Reference:
    if asked == "auto":
        return Reference.RECOMPUTE if batch_invariant else Reference.LOCAL_HIT
    return Reference(asked)


def _leg(role: Role, connector: Mapping[str, Any] | None, common: Mapping[str, Any]) -> Leg:
    return named(Leg(digest="", role=role, kv_transfer_config=connector, phases=ROLE_PHASES[role], **common))
