# SPDX-License-Identifier: Apache-2.0
"""Whether a scenario file makes sense: axes, backends, subject, ``when``, engine and environment beside each other.

Works on the plain values, not on the validated model, so that a file with a wrong type in one place still hears about
everything else. What has the wrong type is left alone here where ``scenario_model`` already complains.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from harness.axes import FURTHER_AXES, PATH_SETS, REQUIRED_AXES, RESTORE_PATHS, same
from harness.backends import choosable
from harness.connectors import ADAPTERS
from harness.expect import overlaps
from harness.prompt_sets import SETS
from harness.records import LAYOUTS, PLATFORMS, Expectation, Outcome
from harness.scenario_model import EMBEDDED_OPTIONS, Option
from harness.scenario_settings import (
    check_engine,
    check_env,
    check_lengths,
    check_level,
    check_model,
    check_subject,
    is_whole_number,
)
from harness.scenario_sharing import check_differs
from harness.sharing import DIFFERENCES
from harness.yaml_lines import Document, Path, Problem, choices, spell

#: Axes that are options of a subject's alias.
OPTION_AXES = ("transfer", "load", "fault")


def check_sense(
    document: Document, connectors: Mapping[str, Mapping[str, Option]], models: Collection[str]
) -> None:
    """Report everything that makes no sense; ``document.value`` is a mapping."""
    _Check(document, connectors, models).all()


def as_values(value: Any) -> tuple[Any, ...]:
    """The right-hand side of a ``when`` entry: one value or a list of them."""
    return tuple(value) if isinstance(value, list) else (value,)


class _Check:
    def __init__(
        self, document: Document, connectors: Mapping[str, Mapping[str, Option]], models: Collection[str]
    ) -> None:
        self.document = document
        self.data: dict[str, Any] = document.value
        self.connectors = connectors
        self.models = models
        #: Options of the subject's alias.
        self.options: Mapping[str, Option] = {}
        #: Axes without a problem; only their values can be held against a ``when``.
        self.sound_axes: dict[str, tuple[Any, ...]] = {}

    def all(self) -> None:
        document = self.document
        check_model(document, self.models)
        self.options = check_subject(document, self.connectors)
        self._axes()
        check_level(document, self.sound_axes, self._platforms())
        self._duplicates(("platforms",), self.data.get("platforms"))
        check_engine(document, ("engine",), self.data.get("engine"))
        check_env(document, ("env",), self.data.get("env"))
        for index, entry in self._entries("overrides"):
            path: Path = ("overrides", index)
            self._when((*path, "when"), entry.get("when"))
            check_engine(document, (*path, "engine"), entry.get("engine"))
            check_env(document, (*path, "env"), entry.get("env"))
            if not entry.get("engine") and not entry.get("env"):
                document.complain(path, "changes nothing; give `engine` or `env`.")
        self._expectations()
        check_lengths(document)

    # --- axes ------------------------------------------------------------------------------------------------

    def _axes(self) -> None:
        axes = self.data.get("axes")
        if not isinstance(axes, dict):
            return
        for name in REQUIRED_AXES:
            if name not in axes:
                self._complain(("axes",), f"missing axis `{name}`.")
        for name, values in axes.items():
            path: Path = ("axes", name)
            before = len(self.document.problems)
            if name not in REQUIRED_AXES + FURTHER_AXES:
                self._complain(path, f"unknown axis; {choices(name, REQUIRED_AXES + FURTHER_AXES, 'axes')}")
                continue
            if not isinstance(values, list):
                self._complain(path, f"must be a list, got {self._got(path, values)}; for one value write "
                             f"`[{self.document.written.get(path, '...')}]`.")
                continue
            if not values:
                self._complain(path, "the axis is empty; it needs at least one value.")
            for index, value in enumerate(values):
                self._axis_value(name, value, (*path, index))
            self._duplicates(path, values)
            if name in OPTION_AXES:
                self._option_axis(name, path)
            elif name == "connector":
                self._connector_axis(path)
            elif name == "prompt_set":
                self._prompt_axis(path)
            elif name == "restore":
                self._restore_axis(path, values)
            elif name == "differs":
                check_differs(self.document, self.connectors, self._platforms())
            if len(self.document.problems) == before:
                self.sound_axes[name] = tuple(values)

    def _axis_value(self, name: str, value: Any, path: Path) -> None:
        got = self._got(path, value)
        if name == "batch_invariant":
            if not isinstance(value, bool):
                self._complain(path, f"must be true or false without quotes, got {got}.")
        elif name == "seed":
            if not is_whole_number(value) or value < 0:
                self._complain(path, f"must be a whole number of at least 0, got {got}.")
        elif name == "fault" and value is None:
            return
        elif not isinstance(value, str):
            self._complain(path, f"must be text, got {got}; quote it if it is meant; "
                           f"{choices('', self._valid(name))}")
        elif value not in self._valid(name):
            nouns = {"layout": "KV cache layout", "prompt_set": "prompt set",
                     "backend": f"backend for {', '.join(self._platforms())}"}
            noun = nouns.get(name, name)
            self._complain(path, f"`{value}` is no {noun}; {choices(value, self._valid(name))}")

    def _valid(self, axis: str) -> tuple[Any, ...]:
        if axis == "layout":
            return LAYOUTS
        if axis == "backend":
            return choosable(self._platforms())
        if axis == "connector":
            return tuple(self.connectors)
        if axis == "restore":
            return RESTORE_PATHS
        if axis == "differs":
            return tuple(DIFFERENCES)
        if axis == "prompt_set":
            return tuple(SETS)
        values = self.options.get(axis, EMBEDDED_OPTIONS[axis]).values
        return (None, *values) if axis == "fault" else values

    def _platforms(self) -> tuple[str, ...]:
        """The scenario's platforms as far as they are known; all where that leaves none."""
        named = self.data.get("platforms")
        return tuple(item for item in named if item in PLATFORMS) or PLATFORMS if isinstance(named, list) else PLATFORMS

    def _option_axis(self, name: str, path: Path) -> None:
        if name not in self.options:
            having = [alias for alias, known in self.connectors.items() if name in known]
            self._complain(path, f"the axis needs a subject that has this option: {', '.join(having)}.")
        subject = self.data.get("subject")
        if isinstance(subject, dict) and name in subject:
            self._complain(path, f"given as an axis and as `subject.{name}` on line "
                         f"{self.document.line(('subject', name))}; keep one.")

    def _connector_axis(self, path: Path) -> None:
        subject, axes = self.data.get("subject"), self.data.get("axes", {})
        bare = isinstance(subject, str) or (isinstance(subject, dict) and list(subject) == ["connector"])
        if not bare or any(name in axes for name in OPTION_AXES):
            self._complain(path, "the axis replaces the whole subject, so `subject` must be an alias without options "
                         "and no axis may be an option of one.")

    def _prompt_axis(self, path: Path) -> None:
        prompts = self.data.get("prompts")
        if isinstance(prompts, dict) and "set" in prompts:
            self._complain(path, f"given as an axis and as `prompts.set` on line "
                         f"{self.document.line(('prompts', 'set'))}; keep one.")

    def _restore_axis(self, path: Path, values: list[Any]) -> None:
        prompts, axes, subject = self.data.get("prompts"), self.data.get("axes", {}), self.data.get("subject")
        alias = subject.get("connector") if isinstance(subject, dict) else subject
        aliases = axes["connector"] if isinstance(axes.get("connector"), list) else [alias]
        lone = [one for one in aliases if isinstance(one, str) and one in ADAPTERS and ADAPTERS[one].server is None]
        if "restarted_server" in values and lone:
            self._complain((*path, values.index("restarted_server")), f"{', '.join(lone)}: no server to restart.")
        named = "axes.prompt_set" if "prompt_set" in axes else "prompts.set"
        if named == "prompts.set" and not (isinstance(prompts, dict) and "set" in prompts):
            return
        for index, value in enumerate(values):
            if isinstance(value, str) and value in PATH_SETS:
                self._complain((*path, index), f"`{value}` runs with the prompt set `{PATH_SETS[value]}`, so `{named}` "
                             "cannot be given beside it.")

    def _duplicates(self, path: Path, values: Any) -> None:
        if not isinstance(values, list):
            return
        for index, value in enumerate(values):
            if any(same(value, earlier) for earlier in values[:index]):
                self._complain((*path, index), f"`{spell(value)}` is given twice.")

    # --- when ----------------------------------------------------------------------------------------------

    def _expectations(self) -> None:
        sound: list[Expectation] = []
        for index, entry in self._entries("expect"):
            when = entry.get("when")
            before = len(self.document.problems)
            self._when(("expect", index, "when"), when)
            if isinstance(when, dict) and len(self.document.problems) == before:
                sound.append(Expectation(when={name: as_values(values) for name, values in when.items()},
                                         outcome=Outcome.PASS, line=self.document.line(("expect", index))))
            if entry.get("outcome") == Outcome.PASS and (entry.get("match") or entry.get("finding")):
                self._complain(("expect", index), "a pass has no findings, so `match` and `finding` make no sense.")
        axes = self.data.get("axes")
        if isinstance(axes, dict) and self.sound_axes.keys() >= axes.keys() | set(REQUIRED_AXES):
            self.document.problems.extend(map(Problem._make, overlaps(self.sound_axes, sound)))

    def _when(self, path: Path, when: Any) -> None:
        axes = self.data.get("axes")
        if not isinstance(when, dict) or not isinstance(axes, dict):
            return
        for name, values in when.items():
            where = (*path, name)
            if name not in axes:
                self._complain(where, f"the scenario has no axis `{name}`, so it matched no cell; "
                             f"{choices(name, axes, 'axes')}")
                continue
            listed = as_values(values)
            if not listed:
                self._complain(where, "the list is empty, so it matched no cell.")
            self._duplicates(where, values)
            if name not in self.sound_axes:
                continue
            for index, value in enumerate(listed):
                if not any(same(value, known) for known in self.sound_axes[name]):
                    at = (*where, index) if isinstance(values, list) else where
                    self._complain(at, f"{self._got(at, value)} is no value of the axis `{name}`, so it matched no "
                                 f"cell; {choices(value, self.sound_axes[name], 'values')}")

    # --- helpers ---------------------------------------------------------------------------------------------

    def _entries(self, section: str) -> list[tuple[int, dict[str, Any]]]:
        entries = self.data.get(section)
        return [(index, entry) for index, entry in enumerate(entries if isinstance(entries, list) else [])
                if isinstance(entry, dict)]

    def _got(self, path: Path, value: Any) -> str:
        return self.document.got(path, value)

    def _complain(self, path: Path, text: str) -> None:
        self.document.complain(path, text)
