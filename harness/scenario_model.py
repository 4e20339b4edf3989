# SPDX-License-Identifier: Apache-2.0
"""The shape of a scenario file: keys, types, limits and defaults, and pydantic's complaints in the house's words.

Shape only: whether an axis, a backend or a ``when`` makes sense beside the rest is ``harness.scenario``'s business.
Values are never converted (strict mode): ``"3"`` is no number and ``1`` no boolean.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from harness.connectors import ADAPTERS, Option
from harness.kvstore.faults import FAULTS
from harness.prompt_sets import SETS
from harness.records import (
    DEADLINES_S,
    PLATFORMS,
    DecodeSpec,
    EvidenceSpec,
    FindingKind,
    Limits,
    Outcome,
    PromptSpec,
)
from harness.yaml_lines import Document, Path, choices, describe, name_of

#: Planted faults of the embedded store.
KNOWN_FAULTS = tuple(FAULTS)

#: Options of the embedded store, as keys beside ``connector``.
EMBEDDED_OPTIONS: Mapping[str, Option] = ADAPTERS["embedded"].options

#: Connector alias -> its options.
KNOWN_CONNECTORS: Mapping[str, Mapping[str, Option]] = {
    alias: adapter.options for alias, adapter in ADAPTERS.items()
}

#: Model aliases (``harness.models``); anything else has a slash in it: a directory.
KNOWN_MODELS = ("qwen3-0.6b", "tiny", "tiny-other")

#: Environment variables that the harness sets itself, and from what.
HARNESS_ENV_KEYS: Mapping[str, str] = {
    "VLLM_KV_CACHE_LAYOUT": "the axis `layout` makes it",
    "VLLM_BATCH_INVARIANT": "the axis `batch_invariant` makes it",
    "KVPARITY_BACKEND": "the axis `backend` makes it",
    "KVPARITY_OVERLAY": "`subject.overlay` makes it",
}

#: Engine arguments that the harness sets itself, and from what.
HARNESS_ENGINE_KEYS: Mapping[str, str] = {
    "model": "`model` at the top of the scenario chooses it",
    "kv_transfer_config": "`subject` makes it, and the oracle has none",
    "attention_backend": "the axis `backend` makes it",
    "worker_extension_cls": "the harness's probe stands there",
    "disable_log_stats": "hit counts are read from these statistics",
}

_DEFAULT_PROMPTS, _DEFAULT_DECODE, _DEFAULT_LIMITS = PromptSpec(), DecodeSpec(), Limits()
_DEFAULT_EVIDENCE = EvidenceSpec()

# What a cell can be expected to come to: neither of the two that only speak about expectations.
_OUTCOMES = tuple(str(outcome) for outcome in Outcome if outcome is not Outcome.EXPECTED)
_FINDINGS = tuple(str(kind) for kind in FindingKind if kind is not FindingKind.EXPECTATION_UNMET)

Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
Limit = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Seconds = Annotated[float, Field(gt=0)]
Text = Annotated[str, Field(min_length=1)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Prompts(_Section):
    """``prompts``: lengths in tokens."""

    set: Literal[tuple(SETS)] = _DEFAULT_PROMPTS.set
    count: Count = _DEFAULT_PROMPTS.count
    prefix_tokens: Count = _DEFAULT_PROMPTS.prefix_tokens
    tail_tokens: Natural = _DEFAULT_PROMPTS.tail_tokens
    seed: Natural = _DEFAULT_PROMPTS.seed


class Decode(_Section):
    """``decode``: greedy decoding."""

    max_tokens: Count = _DEFAULT_DECODE.max_tokens
    logprobs: Natural = _DEFAULT_DECODE.logprobs
    submit: Literal["together", "alone"] = "together"


class GroundTruth(_Section):
    """``ground_truth``: limits in nat."""

    largest: Limit = _DEFAULT_LIMITS.largest
    median: Limit = _DEFAULT_LIMITS.median
    near_tie: Limit = _DEFAULT_LIMITS.near_tie


class Evidence(_Section):
    """``evidence``: what is taken down beside the answers."""

    digests: bool = _DEFAULT_EVIDENCE.digests


#: ``deadlines``: seconds. Made by call, since one of its keys is a word of Python.
Deadlines = create_model(
    "Deadlines", __base__=_Section, **{name: (Seconds, default) for name, default in DEADLINES_S.items()}
)


class OverrideEntry(_Section):
    """One entry of ``overrides``."""

    when: dict[str, Any]
    engine: dict[str, Any] = {}
    env: dict[str, Any] = {}


class ExpectEntry(_Section):
    """One entry of ``expect``."""

    when: dict[str, Any]
    outcome: Literal[_OUTCOMES]
    match: Text | None = None
    finding: Literal[_FINDINGS] | None = None
    issue: Text | None = None


class ScenarioFile(_Section):
    """The whole file."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
    platforms: Annotated[list[Literal[PLATFORMS]], Field(min_length=1)] = list(PLATFORMS)
    model: Text
    subject: dict[str, Any] | str
    axes: dict[str, Any]
    reference: Literal["auto", "recompute", "local_hit"] = "auto"
    prompts: Prompts = Prompts()
    decode: Decode = Decode()
    ground_truth: GroundTruth | None = None
    evidence: Evidence = Evidence()
    engine: dict[str, Any] = {}
    env: dict[str, Any] = {}
    deadlines: Deadlines = Deadlines()
    overrides: list[OverrideEntry] = []
    expect: list[ExpectEntry] = []


#: Path of a section, list positions left out -> its model.
SECTIONS: Mapping[tuple[str, ...], type[BaseModel]] = {
    (): ScenarioFile,
    ("prompts",): Prompts,
    ("decode",): Decode,
    ("ground_truth",): GroundTruth,
    ("evidence",): Evidence,
    ("deadlines",): Deadlines,
    ("overrides",): OverrideEntry,
    ("expect",): ExpectEntry,
}

_WANTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "list_type": "a list, for example `[a, b]`",
    "dict_type": "a mapping of keys to values",
    "model_type": "a mapping of keys to values",
    "bool_type": "true or false without quotes",
}


def check_shape(document: Document) -> ScenarioFile | None:
    """Validate the document; complaints go into it. None when there were any."""
    try:
        return ScenarioFile.model_validate(document.value)
    except ValidationError as error:
        # A union reports once per member, each with the member's name at the end of the path.
        seen: set[Path] = set()
        for item in error.errors(include_url=False):
            path = _path(item["loc"])
            if path not in seen:
                seen.add(path)
                document.report(path, _sentence(item, path, document))
        return None


def _path(loc: tuple[int | str, ...]) -> Path:
    return ("subject",) if loc[:1] == ("subject",) else loc


def _sentence(item: Mapping[str, Any], path: Path, document: Document) -> str:
    kind, context, got = item["type"], item.get("ctx", {}), item["input"]
    name = name_of(path)
    words = describe(got, document.written.get(path))
    if kind == "extra_forbidden":
        where = name_of(path[:-1]) if path[:-1] else "a scenario"
        return f"unknown key `{path[-1]}` in {where}; {choices(path[-1], _keys(path[:-1]), 'keys')}"
    if kind == "missing":
        where = f" in {name_of(path[:-1])}" if path[:-1] else ""
        hint = "; `when: {}` means every cell" if path[-1] == "when" else ""
        return f"missing key `{path[-1]}`{where}{hint}."
    if path == ("subject",):
        return f"subject must be a connector's alias or a mapping, got {words}."
    if kind == "literal_error":
        valid = _literals(path)
        return f"{name} cannot be {words}; {choices(got, valid)}"
    if kind == "greater_than_equal":
        return f"{name} must be at least {context['ge']}, got {got}."
    if kind == "greater_than":
        return f"{name} must be more than {context['gt']:g}, got {got}."
    if kind == "string_pattern_mismatch":
        return f"{name} must be letters, digits, `_`, `-` and `.`, starting with a letter or digit, got {words}."
    if kind in ("too_short", "string_too_short"):
        return f"{name} must not be empty."
    if kind in _WANTED:
        quote = "; quote it" if kind == "string_type" and not isinstance(got, (list, dict, type(None))) else ""
        return f"{name} must be {_WANTED[kind]}, got {words}{quote}."
    return f"{name}: {item['msg']}, got {words}."


def _keys(path: Path) -> tuple[str, ...]:
    return tuple(SECTIONS[tuple(part for part in path if isinstance(part, str))].model_fields)


def _literals(path: Path) -> tuple[str, ...]:
    """Valid words of a field, read from the model itself (pydantic's own text quotes them differently)."""
    parts = [part for part in path if isinstance(part, str)]
    schema = SECTIONS[tuple(parts[:-1])].model_json_schema()["properties"][parts[-1]]
    schema = next((member for member in schema.get("anyOf", []) if "enum" in member), schema)
    return tuple(schema.get("items", schema)["enum"])
