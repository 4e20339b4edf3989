# SPDX-License-Identifier: Apache-2.0
"""YAML text to plain values, with the line of each of them and every problem found on the way.

PyYAML's safe loader forgets lines, keeps the last of two equal keys and reads ``no``, ``on`` and ``2026-11-30`` as
booleans and dates (YAML 1.1). Walking its node tree instead keeps the lines and the text as it was written, so that
a message can name both.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import yaml

#: Where a value stands: keys and list positions from the top of the file.
Path = tuple[str | int, ...]

#: Aliases can blow a small file up to millions of values; no scenario comes near this many.
MAX_VALUES = 100_000


class Problem(NamedTuple):
    """One thing wrong with a file: 1-based line and one sentence, without the file's name."""

    line: int
    text: str


@dataclass(kw_only=True)
class Document:
    """A file's values, their lines, the scalars as written, and what was wrong.

    Attributes:
        value: None, bool, int, float, str, list and dict with text keys; nothing else.
        lines: path -> 1-based line; of the key for a mapping's entry, of the item for a list's.
        written: path of a scalar -> its text in the file, without quotes.
        problems: in the order in which they were found.
        broken: whether the text is no YAML at all, so that ``value`` means nothing.
    """

    value: Any = None
    lines: dict[Path, int] = field(default_factory=dict)
    written: dict[Path, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    broken: bool = False

    def line(self, path: Path) -> int:
        """Line of ``path``, or of its nearest ancestor that stands in the file."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)

    def report(self, path: Path, text: str) -> None:
        self.problems.append(Problem(self.line(path), text))

    def complain(self, path: Path, text: str) -> None:
        """Report with the path's name in front."""
        self.report(path, f"{name_of(path)}: {text}")

    def got(self, path: Path, value: object) -> str:
        """The value at ``path`` in words, as written where YAML read it as something else."""
        return describe(value, self.written.get(path))


def parse(text: str) -> Document:
    """Read one YAML document; problems are collected in the result, nothing is raised."""
    document = Document()
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is not None:
            document.lines[()] = node.start_mark.line + 1
            document.value = _Walk(loader, document).value(node, (), ())
    except yaml.MarkedYAMLError as error:
        _broken(document, _mark_line(error.problem_mark or error.context_mark), _words(error))
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        _broken(document, line, f"{error.reason} (character {error.character:#06x})")
    except RecursionError:
        _broken(document, 1, "values are nested too deeply")
    return document


def _broken(document: Document, line: int, words: str) -> None:
    document.value, document.broken = None, True
    document.problems.append(Problem(line, f"broken YAML: {words}"))


def _mark_line(mark: yaml.Mark | None) -> int:
    return mark.line + 1 if mark else 1


def _words(error: yaml.MarkedYAMLError) -> str:
    words = error.problem or str(error)
    if error.problem_mark:
        words += f" (column {error.problem_mark.column + 1})"
    if error.context:
        words += f", {error.context}"
        if error.context_mark and _mark_line(error.context_mark) != _mark_line(error.problem_mark):
            words += f" that begins on line {_mark_line(error.context_mark)}"
    return words


class _Walk:
    """One walk over a node tree; collects lines and problems in its document."""

    def __init__(self, loader: yaml.SafeLoader, document: Document) -> None:
        self.loader = loader
        self.document = document
        self.count = 0

    def value(self, node: yaml.Node, path: Path, above: tuple[int, ...]) -> Any:
        self.count += 1
        if self.count > MAX_VALUES:
            raise yaml.MarkedYAMLError(problem=f"more than {MAX_VALUES} values", problem_mark=node.start_mark)
        if id(node) in above:
            self.document.complain(path, "the alias contains itself.")
            return None
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path, (*above, id(node)))
        if isinstance(node, yaml.SequenceNode):
            items = []
            for index, item in enumerate(node.value):
                self.document.lines[(*path, index)] = item.start_mark.line + 1
                items.append(self.value(item, (*path, index), (*above, id(node))))
            return items
        return self._scalar(node, path)

    def _mapping(self, node: yaml.MappingNode, path: Path, above: tuple[int, ...]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            written = key_node.value if isinstance(key_node, yaml.ScalarNode) else "?"
            if key_node.tag not in ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge", "tag:yaml.org,2002:value"):
                kind = key_node.tag.rsplit(":", 1)[-1]
                self.document.problems.append(
                    Problem(line, f"{name_of((*path, written))}: the key reads as {kind} in YAML 1.1; quote it."))
                continue
            if written in result:
                first = self.document.lines[(*path, written)]
                self.document.problems.append(
                    Problem(line, f"{name_of((*path, written))}: duplicate key, first given on line {first}."))
                continue
            self.document.lines[(*path, written)] = line
            result[written] = self.value(value_node, (*path, written), above)
        return result

    def _scalar(self, node: yaml.ScalarNode, path: Path) -> Any:
        self.document.written[path] = node.value
        try:
            value = self.loader.construct_object(node)
        except (yaml.YAMLError, ValueError, LookupError) as error:
            reason = error.problem if isinstance(error, yaml.MarkedYAMLError) else str(error)
            self.document.complain(path, f"`{node.value}` cannot be read ({reason}); quote it.")
            return node.value
        if value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value)):
            return value
        self.document.complain(path, f"`{node.value}` reads as {type(value).__name__} in YAML 1.1; "
                             "plain values are text, numbers, true, false, null, lists and mappings, so quote it.")
        return node.value


def name_of(path: Path) -> str:
    """``('expect', 0, 'when')`` -> ``expect[0].when``; the empty path is ``the file``."""
    name = ""
    for part in path:
        name += f"[{part}]" if isinstance(part, int) else f".{part}" if name else part
    return name or "the file"


def choices(word: object, valid: Iterable[object], noun: str = "choices") -> str:
    """End of a sentence about an unknown word: a did-you-mean where one is near, and all valid words."""
    words = [spell(item) for item in valid]
    if not words:
        return f"there are no valid {noun}."
    lowered = {item.lower(): item for item in words}
    asked = str(word).lower()
    near = difflib.get_close_matches(asked, lowered, n=1, cutoff=0.6)
    if not near and len(asked) > 2:
        near = [item for item in lowered if item.startswith(asked)]
    guess = f"did you mean `{lowered[near[0]]}`? Valid" if near else "valid"
    return f"{guess} {noun}: {', '.join(words)}."


def spell(value: object) -> str:
    """A plain value as YAML spells it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


def describe(value: object, written: str | None = None) -> str:
    """A value in words for the `got ...` half of a message."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        text = spell(value)
        return text if written is None or written.lower() == text else f"`{written}`, which YAML 1.1 reads as {text}"
    if isinstance(value, (int, float)):
        return f"the number {written or value}"
    if isinstance(value, str):
        return f"the text `{value}`"
    return "a list" if isinstance(value, (list, tuple)) else "a mapping"
