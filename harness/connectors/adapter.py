# SPDX-License-Identifier: Apache-2.0
"""What the harness has to know of one connector: the protocol that every file beside this one fills in.

An adapter is plain data and pure functions. It imports neither vLLM nor the connector, so that a plan can be made, and
a missing package named, on any machine.
"""

from __future__ import annotations

import ctypes.util
import importlib.util
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.records import SubjectSpec

#: What the store runs in: a whole engine, or its planner and worker alone (``harness.unit``).
LEVELS = ("engine", "unit")

#: Stands for the number of the engine's process in a connector's configuration.
PROCESS = "{process}"

#: Stands for the leg's name, which is the same in each of its processes and no other leg's.
LEG = "{leg}"

#: Stands for the leg's own folder, which is empty when the leg starts and removed when it has ended.
FOLDER = "{folder}"

#: Stands for the port of the server that the connector talks to.
PORT = "{port}"


#: Ways of restoring out of a store that outlives the request, and perhaps the engine or a server of its own.
ONE_STORE = ("same_engine", "new_engine", "partial", "restarted_server")


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option of a connector alias, as a key beside ``connector``.

    Attributes:
        values: the valid words; empty for a whole number, or for any text.
        at_least: smallest valid number.
        text: any text is valid.
    """

    values: tuple[str, ...] = ()
    at_least: int = 1
    text: bool = False


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A counter among ``LLM.get_metrics()``: its name, without ``_total``, and the labels that it must have."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Bytes:
    """Where a connector's own counts of the bytes that it moved come from, by direction; None where it has none."""

    loaded: Metric
    stored: Metric | None = None


@dataclass(frozen=True, kw_only=True)
class Need:
    """Something that must be installed: a module, a program or a library.

    Attributes:
        name: what to call it, with the version that was tried.
        module: Python module that shows it is there.
        program: its name on PATH.
        library: its name for the dynamic linker, without ``lib`` and ``.so``.
        hint: how to get it.
    """

    name: str
    module: str | None = None
    program: str | None = None
    library: str | None = None
    hint: str = ""

    def met(self) -> bool:
        if self.module is not None:
            return importlib.util.find_spec(self.module) is not None
        if self.library is not None:
            return ctypes.util.find_library(self.library) is not None
        return self.program is not None and shutil.which(self.program) is not None


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """One connector under one alias.

    Attributes:
        alias: its name in a scenario.
        connector: class that the worker reports.
        configure: subject -> ``kv_transfer_config``; texts in it may hold the placeholders above.
        options: keys that a scenario may give beside ``connector``.
        restores: False for a connector that gives nothing back: its cells say what merely having one changes.
        bytes_moved: the connector's own byte counts; None where it has none, or where its worker half answers
            ``evidence()`` with them.
        evidence: one sentence on what stands behind a pass, for people.
        drain: one sentence on when its stores are complete. The engine steps until ``reset_prefix_cache`` answers True,
            which leaves the store alone (``VllmEngine.reset``), and an unrelated prompt runs before each restore.
        refusals: texts with which it dies where it cannot run. They count as a refusal of the configuration although
            they are no ValueError, or come late.
        survives_restart: whether a new process finds what an earlier one stored.
        leaves: where the full block of a prompt's last token comes back too, the tokens that its hit leaves out: 1, or
            0 when it counts a token that is computed all the same. None where that block is computed whole.
        env: environment variables of its legs.
        needs: what must be installed beside vLLM.
        server: name of the server that it talks to (``harness.servers``); None for none.
        paths: values of the axis ``restore`` that it can have.
    """

    alias: str
    connector: str
    configure: Callable[[SubjectSpec], dict[str, Any]]
    evidence: str
    drain: str
    options: Mapping[str, Option] = field(default_factory=dict)
    restores: bool = True
    bytes_moved: Bytes | None = None
    refusals: tuple[str, ...] = ()
    survives_restart: bool = False
    leaves: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    needs: tuple[Need, ...] = ()
    server: str | None = None
    paths: tuple[str, ...] = ONE_STORE

    def missing(self) -> str | None:
        """One sentence on what is not installed; None when everything is."""
        lacking = [need for need in self.needs if not need.met()]
        if not lacking:
            return None
        names = ", ".join(need.name for need in lacking)
        hints = " ".join(dict.fromkeys(need.hint for need in lacking if need.hint))
        return f"connector {self.alias}: {names} not installed here. {hints}".rstrip()


def transfer(connector: str, options: Mapping[str, Any] | None = None, *, module: str | None = None) -> dict[str, Any]:
    """A ``kv_transfer_config`` with which one engine stores and loads.

    Args:
        connector: its class.
        options: what it takes as ``kv_connector_extra_config``.
        module: where the class is, for one that vLLM's registry does not have.
    """
    config: dict[str, Any] = {"kv_connector": connector, "kv_role": "kv_both"}
    if module is not None:
        config["kv_connector_module_path"] = module
    if options is not None:
        config["kv_connector_extra_config"] = dict(options)
    return config


def filled(value: Any, words: Mapping[str, str]) -> Any:
    """``value`` with every placeholder in its texts, at any depth, replaced by its word.

    Args:
        value: a configuration: mappings, lists, texts and other plain values.
        words: placeholder -> text.
    """
    if isinstance(value, str):
        for placeholder, word in words.items():
            value = value.replace(placeholder, word)
        return value
    if isinstance(value, Mapping):
        return {name: filled(item, words) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [filled(item, words) for item in value]
    return value


def nested(config: Any) -> Iterator[Mapping[str, Any]]:
    """Every mapping in a ``kv_transfer_config``, outermost first; a MultiConnector's children are among them."""
    if isinstance(config, Mapping):
        yield config
        config = config.values()
    elif not isinstance(config, list | tuple):
        return
    for value in config:
        yield from nested(value)
