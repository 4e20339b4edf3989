# SPDX-License-Identifier: Apache-2.0
"""Whether a scenario's settings make sense: model, subject, engine arguments, environment, lengths.

As in ``scenario_sense``, what already has the wrong type for ``scenario_model`` is passed over.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from harness.backends import ALIAS_ENV
from harness.records import DecodeSpec, PromptSpec
from harness.scenario_model import HARNESS_ENGINE_KEYS, HARNESS_ENV_KEYS, Option
from harness.yaml_lines import Document, Path, choices

#: vLLM refuses a request for more logprobs than this unless the engine is told otherwise (``max_logprobs``).
VLLM_MAX_LOGPROBS = 20

#: Backends that can stand in a cell without an engine: their classes only say how head slots are published.
UNIT_BACKENDS = ("REFERENCE", "REFERENCE_SHUFFLE")

_COUNTS = ("block_size", "max_model_len", "max_num_batched_tokens", "num_gpu_blocks_override")


def is_whole_number(value: object) -> bool:
    """Python counts ``True`` among the integers; a scenario does not."""
    return isinstance(value, int) and not isinstance(value, bool)


def check_model(document: Document, models: Collection[str]) -> None:
    """A model without a slash is an alias."""
    model = document.value.get("model")
    if isinstance(model, str) and model and "/" not in model and model not in models:
        document.complain(("model",), f"`{model}` is no known alias; {choices(model, models, 'aliases')} "
                          "A directory has a slash in it, for example `./weights`.")


def check_subject(
    document: Document, connectors: Mapping[str, Mapping[str, Option]]
) -> Mapping[str, Option]:
    """Check the subject; returns the options of its alias, none where it has no known alias."""
    subject = document.value.get("subject")
    if isinstance(subject, str):
        return _alias(document, ("subject",), subject, connectors)
    if not isinstance(subject, dict):
        return {}
    for whole in ("kv_transfer_config", "connector"):
        # `connector` may hold a whole configuration too.
        if whole in subject and (whole == "kv_transfer_config" or isinstance(subject[whole], dict)):
            _whole(document, ("subject", whole), subject[whole])
            for name in subject:
                if name != whole:
                    document.complain(("subject", name), f"cannot stand beside `{whole}`, which is the whole subject "
                                      "here.")
            return {}
    path: Path = ("subject", "connector")
    connector = subject.get("connector")
    if "connector" not in subject:
        document.complain(("subject",), "missing key `connector`; give a connector's alias "
                          f"({', '.join(connectors)}) or a whole `kv_transfer_config`.")
    elif not isinstance(connector, str):
        document.complain(path, f"must be an alias or a mapping, got {document.got(path, connector)}.")
    else:
        options = _alias(document, path, connector, connectors)
        if connector in connectors:
            for name, value in subject.items():
                if name != "connector":
                    _option(document, name, value, options)
        return options
    return {}


def check_level(document: Document, axes: Mapping[str, tuple[Any, ...]], platforms: Collection[str]) -> None:
    """Without an engine there are no kernels: what only an engine can show cannot be asked for."""
    subject = document.value.get("subject")
    if not isinstance(subject, dict) or subject.get("level") != "unit":
        return
    path: Path = ("subject", "level")
    if set(platforms) != {"cpu"}:
        document.complain(path, "`unit` uses tensors in main memory; give `platforms: [cpu]`.")
    for backend in axes.get("backend", ()):
        if backend not in UNIT_BACKENDS:
            document.complain(path, f"`unit` runs no attention kernel, so {backend} would prove nothing; valid "
                              f"backends: {', '.join(UNIT_BACKENDS)}.")
    if False in axes.get("batch_invariant", ()):
        document.complain(path, "`unit` writes bytes that follow from the tokens; give `batch_invariant: [true]`.")
    for name in ("load", "fault"):
        if name in axes or name in subject:
            document.complain(path, f"`unit` has no `{name}`: that is the connector's, which needs an engine.")


def _alias(
    document: Document, path: Path, alias: str, connectors: Mapping[str, Mapping[str, Option]]
) -> Mapping[str, Option]:
    if alias not in connectors:
        document.complain(path, f"`{alias}` is no known connector; {choices(alias, connectors, 'aliases')} "
                          "Any other is given whole, as `kv_transfer_config: {kv_connector: ..., ...}`.")
    return connectors.get(alias, {})


def _whole(document: Document, path: Path, config: Any) -> None:
    if not isinstance(config, dict):
        document.complain(path, f"must be a mapping, got {document.got(path, config)}.")
    elif not isinstance(config.get("kv_connector"), str):
        document.complain(path, "needs `kv_connector`, the name of vLLM's connector, as text.")


def _option(document: Document, name: str, value: Any, options: Mapping[str, Option]) -> None:
    path: Path = ("subject", name)
    option = options.get(name)
    if option is None:
        document.complain(path, f"unknown key; {choices(name, ('connector', *options), 'keys')}")
    elif option.text:
        if not isinstance(value, str) or not value:
            document.complain(path, f"must be text, got {document.got(path, value)}.")
    elif option.values:
        if value not in option.values and not (name == "fault" and value is None):
            document.complain(path, f"cannot be {document.got(path, value)}; {choices(value, option.values)}")
    elif not is_whole_number(value) or value < option.at_least:
        document.complain(path, f"must be a whole number of at least {option.at_least}, got "
                          f"{document.got(path, value)}.")


def check_engine(document: Document, path: Path, engine: Any) -> None:
    """Engine arguments are vLLM's to judge, except those that the harness sets or reckons with."""
    if not isinstance(engine, dict):
        return
    for name, value in engine.items():
        where = (*path, name)
        if name in HARNESS_ENGINE_KEYS:
            document.complain(where, f"cannot be set here: {HARNESS_ENGINE_KEYS[name]}.")
        elif name == "attention_config" and isinstance(value, dict) and "backend" in value:
            document.complain((*where, "backend"), f"cannot be set here: {HARNESS_ENGINE_KEYS['attention_backend']}.")
        elif name in _COUNTS and (not is_whole_number(value) or value < 1):
            document.complain(where, f"must be a whole number of at least 1, got {document.got(where, value)}.")


def check_env(document: Document, path: Path, env: Any) -> None:
    """Environment variables: text only, and none of those that an axis makes."""
    if not isinstance(env, dict):
        return
    for name, value in env.items():
        where = (*path, name)
        if name in HARNESS_ENV_KEYS:
            document.complain(where, f"cannot be set here: {HARNESS_ENV_KEYS[name]}.")
        elif name in ALIAS_ENV:
            document.complain(where, "cannot be set here: it is part of a backend's alias, so name that backend in "
                              "the axis `backend`.")
        elif not isinstance(value, str):
            written = document.written.get(where)
            hint = f"; quote it: \"{written}\"" if written else ""
            document.complain(where, f"must be text, got {document.got(where, value)}{hint}.")
        elif not name or "=" in name or "\0" in name + value:
            document.complain(where, "is no name or value that an environment variable can have.")


def check_lengths(document: Document) -> None:
    """Requests that the engine would refuse one by one, after minutes of loading."""
    prompts, decode = document.value.get("prompts", {}), document.value.get("decode", {})
    if not isinstance(prompts, dict) or not isinstance(decode, dict):
        return
    parts = [prompts.get("prefix_tokens", PromptSpec().prefix_tokens),
             prompts.get("tail_tokens", PromptSpec().tail_tokens),
             decode.get("max_tokens", DecodeSpec().max_tokens)]
    for path, engine in _engines(document.value):
        limit = engine.get("max_model_len")
        if all(map(is_whole_number, (*parts, limit))) and 1 <= limit < sum(parts):
            document.complain((*path, "max_model_len"), f"{limit} tokens are too few for a prompt of {parts[0]} + "
                              f"{parts[1]} and {parts[2]} new tokens.")
    logprobs = decode.get("logprobs", 0)
    limits = [engine["max_logprobs"] for _, engine in _engines(document.value) if "max_logprobs" in engine]
    if not limits and is_whole_number(logprobs) and logprobs > VLLM_MAX_LOGPROBS:
        document.complain(("decode", "logprobs"), f"vLLM gives at most {VLLM_MAX_LOGPROBS}, got {logprobs}; raise "
                          "`engine.max_logprobs` with it.")


def _engines(data: Mapping[str, Any]) -> list[tuple[Path, dict[str, Any]]]:
    overrides = data.get("overrides")
    pairs: list[tuple[Path, Any]] = [(("engine",), data.get("engine"))]
    for index, entry in enumerate(overrides if isinstance(overrides, list) else []):
        pairs.append((("overrides", index, "engine"), entry.get("engine") if isinstance(entry, dict) else None))
    return [(path, engine) for path, engine in pairs if isinstance(engine, dict)]
