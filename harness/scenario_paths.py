# SPDX-License-Identifier: Apache-2.0
"""Whether the way of restoring that a scenario asks for is one that its connectors have, and can be judged at all.

Asked of every cell of a scenario without another problem, as ``scenario_prompts`` is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from harness.axes import RESTORE_PATHS, effective, points, prompts_of, subject_of
from harness.connectors import ADAPTERS, adapter_of_class
from harness.errors import UsageError
from harness.prompt_sets import SETS, make_pass
from harness.records import PREFILL_DECODE, Edge, Scenario, SubjectSpec
from harness.scenario_prompts import ANY_VOCABULARY
from harness.yaml_lines import Document, Path, Problem


def check_paths(scenario: Scenario, document: Document) -> list[Problem]:
    """Problems of the cells, each once."""
    found: dict[Problem, None] = {}
    for axes in points(scenario.axes):
        for path, sentence in _cell(scenario, axes):
            found[Problem(document.line(path), sentence)] = None
    return list(found)


def paths_of(subject: SubjectSpec) -> tuple[str, ...]:
    """Values of the axis ``restore`` that a subject can have; every one of a connector that nobody described."""
    if subject.kv_transfer_config is None:
        adapter = ADAPTERS.get(subject.connector)
    else:
        adapter = adapter_of_class(subject.kv_transfer_config.get("kv_connector"))
    if adapter is None:
        return RESTORE_PATHS
    return tuple(path for path in adapter.paths if adapter.server is not None or path != "restarted_server")


def _cell(scenario: Scenario, axes: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    subject = subject_of(scenario, axes)
    name = subject.connector if subject.kv_transfer_config is None else subject.kv_transfer_config["kv_connector"]
    asked, valid = axes.get("restore", RESTORE_PATHS[0]), paths_of(subject)
    if asked not in valid:
        if "restore" in axes:
            yield ("axes", "restore"), (
                f"connector `{name}` cannot restore with `{asked}`; valid: {', '.join(valid)}."
            )
        else:
            at: Path = ("axes", "connector") if "connector" in axes else ("subject",)
            yield at, (
                f"connector `{name}` cannot restore with `{asked}`, which is meant without the axis `restore`; give"
                f" `restore: [{', '.join(valid)}]`."
            )
    elif asked == PREFILL_DECODE:
        yield from _pair(scenario, axes)


def _pair(scenario: Scenario, axes: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    engine, _ = effective(scenario, axes)
    spec = prompts_of(scenario, axes)
    named: Path = ("axes", "prompt_set") if "prompt_set" in axes else ("prompts",)
    if SETS[spec.set].edge is Edge.PREEMPTION:
        yield named, (
            f"prompt set `{spec.set}` cannot be restored with `{PREFILL_DECODE}`: the engine that prefills holds the"
            " blocks of all prompts until they are read, and its pool would be too small for that."
        )
        return
    by_local_hit = scenario.reference == "local_hit" or scenario.reference == "auto"
    if axes["batch_invariant"] or not by_local_hit:
        return
    size = engine["block_size"]
    try:
        lengths = sorted({len(prompt) for prompt in make_pass(spec, ANY_VOCABULARY, size).prompts})
    except UsageError:
        # Told by whoever checks the set itself.
        return
    if scenario.decode.submit != "alone":
        yield ("decode",), (
            f"`{PREFILL_DECODE}` without batch invariance needs `submit: alone`: which prompts are computed together"
            " depends on when their KV arrives."
        )
    if any(length % size != 1 for length in lengths):
        yield named, (
            f"`{PREFILL_DECODE}` without batch invariance needs prompts of one token more than whole blocks of {size},"
            f" got {', '.join(map(str, lengths))} tokens: only then a local hit computes as many tokens as a prompt"
            " that was handed over, which is one."
        )
