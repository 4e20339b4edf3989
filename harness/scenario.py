# SPDX-License-Identifier: Apache-2.0
"""Scenario files to records: everything wrong with them at once, each with file and line.

Format: ``docs/scenarios.md``. Four passes over one file: YAML with lines (``yaml_lines``), shape (``scenario_model``),
sense (``scenario_sense``), and, of a scenario without a problem so far, prompt sets and ways of restoring
(``scenario_prompts``, ``scenario_paths``). The middle two also run over a file in which an earlier one found something,
as far as it can be read at all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from harness.errors import ScenarioError
from harness.records import (
    DecodeSpec,
    EvidenceSpec,
    Expectation,
    FindingKind,
    Limits,
    Outcome,
    Override,
    PromptSpec,
    Scenario,
    SubjectSpec,
)
from harness.scenario_model import KNOWN_CONNECTORS, KNOWN_MODELS, Option, ScenarioFile, check_shape
from harness.scenario_paths import check_paths
from harness.scenario_prompts import check_prompt_sets
from harness.scenario_sense import as_values, check_sense
from harness.yaml_lines import Document, Problem, parse

__all__ = ["KNOWN_CONNECTORS", "KNOWN_MODELS", "read_scenario", "read_scenarios"]


def read_scenario(
    path: str | Path,
    *,
    connectors: Mapping[str, Mapping[str, Option]] = KNOWN_CONNECTORS,
    models: Collection[str] = KNOWN_MODELS,
) -> Scenario:
    """Read and check one file.

    Args:
        path: the file; error texts name it as given here.
        connectors: connector alias -> the options it takes.
        models: model aliases; anything else must be written as a path or a hub name, with a slash.

    Raises:
        ScenarioError: with every problem of the file, by line.
    """
    scenario, problems = _read(path, connectors, models)
    if problems or scenario is None:
        raise ScenarioError(problems)
    return scenario


def read_scenarios(
    paths: Iterable[str | Path],
    *,
    connectors: Mapping[str, Mapping[str, Option]] = KNOWN_CONNECTORS,
    models: Collection[str] = KNOWN_MODELS,
) -> tuple[Scenario, ...]:
    """Read several files, in the order given; names must differ, since cells are called ``scenario::cell``.

    Raises:
        ScenarioError: with every problem of every file.
    """
    scenarios: list[Scenario] = []
    problems: list[str] = []
    for path in paths:
        scenario, found = _read(path, connectors, models)
        problems.extend(found)
        if scenario is None:
            continue
        twin = next((other for other in scenarios if other.name == scenario.name), None)
        if twin is not None:
            problems.append(f"{scenario.path}:1: name `{scenario.name}` is already the name of {twin.path}; scenarios "
                            "that run together need different names.")
        scenarios.append(scenario)
    if problems:
        raise ScenarioError(tuple(problems))
    return tuple(scenarios)


def _read(
    path: str | Path, connectors: Mapping[str, Mapping[str, Option]], models: Collection[str]
) -> tuple[Scenario | None, tuple[str, ...]]:
    try:
        data = Path(path).read_bytes()
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return None, (f"{path}:{line}: the file is not UTF-8 text.",)
    except OSError as error:
        return None, (f"{path}:1: the scenario file cannot be read ({error.strerror}).",)
    document = parse(text)
    file: ScenarioFile | None = None
    if not document.broken and document.value is None:
        document.problems.append(Problem(1, "the file is empty; a scenario needs name, model, subject and axes."))
    elif not document.broken:
        file = check_shape(document)
        if isinstance(document.value, dict):
            check_sense(document, connectors, models)
    scenario = None
    if file is not None and not document.problems:
        scenario = _scenario(file, document, str(path), data)
        document.problems.extend(check_prompt_sets(scenario, document))
        document.problems.extend(check_paths(scenario, document))
    problems = tuple(f"{path}:{line}: {sentence}" for line, sentence in _by_line(document.problems))
    return (None if problems else scenario), problems


def _by_line(problems: Iterable[Problem]) -> list[Problem]:
    return sorted(dict.fromkeys(problems), key=lambda problem: problem.line)


def _scenario(file: ScenarioFile, document: Document, path: str, data: bytes) -> Scenario:
    return Scenario(
        name=file.name,
        path=path,
        platforms=tuple(file.platforms),
        model=file.model,
        subject=_subject(file.subject),
        axes={name: tuple(values) for name, values in file.axes.items()},
        axis_lines={name: document.line(("axes", name)) for name in file.axes},
        reference=file.reference,
        prompts=PromptSpec(**file.prompts.model_dump()),
        decode=DecodeSpec(**file.decode.model_dump()),
        evidence=EvidenceSpec(**file.evidence.model_dump()),
        engine=_frozen(file.engine),
        env=dict(file.env),
        deadlines=file.deadlines.model_dump(),
        overrides=tuple(
            Override(when=_when(entry.when), engine=_frozen(entry.engine), env=dict(entry.env),
                     line=document.line(("overrides", index)))
            for index, entry in enumerate(file.overrides)
        ),
        expect=tuple(
            Expectation(when=_when(entry.when), outcome=Outcome(entry.outcome), match=entry.match,
                        finding=FindingKind(entry.finding) if entry.finding else None, issue=entry.issue,
                        line=document.line(("expect", index)))
            for index, entry in enumerate(file.expect)
        ),
        ground_truth=Limits(**file.ground_truth.model_dump()) if file.ground_truth else None,
        digest=hashlib.blake2b(data, digest_size=16).hexdigest(),
    )


def _subject(subject: Mapping[str, Any] | str) -> SubjectSpec:
    if isinstance(subject, str):
        return SubjectSpec(connector=subject)
    whole = subject.get("kv_transfer_config", subject.get("connector"))
    if not isinstance(whole, str):
        return SubjectSpec(connector="custom", kv_transfer_config=_frozen(whole))
    options = {name: value for name, value in subject.items() if name not in ("connector", "fault")}
    return SubjectSpec(connector=whole, fault=subject.get("fault"), options=options)


def _when(when: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    return {name: as_values(values) for name, values in when.items()}


def _frozen(value: Any) -> Any:
    """Lists to tuples, all the way down: records hold no lists."""
    if isinstance(value, dict):
        return {name: _frozen(item) for name, item in value.items()}
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value
