# SPDX-License-Identifier: Apache-2.0
"""Records to JSON and back, canonical digests, and atomic writes.

A file that was written by another schema version, that is cut off, or that has a field too many is refused with a
``WireError`` that names the file; it is never read half.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import operator
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from harness import records
from harness.errors import SchemaError, WireError
from harness.records import SCHEMA_VERSION, Leg

R = TypeVar("R")

#: Bytes of a leg's or plan's digest; 16 hex digits are enough to name a few million legs.
DIGEST_BYTES = 8


@functools.cache
def _adapter(kind: type) -> TypeAdapter:
    _forbid_extra(kind)
    return TypeAdapter(kind)


def _forbid_extra(kind: type) -> None:
    """Make pydantic refuse unknown fields on every dataclass of ``harness.records``.

    Set here and not in ``records`` so that the records import nothing but the standard library.
    """
    for value in vars(records).values():
        if isinstance(value, type) and dataclasses.is_dataclass(value):
            value.__pydantic_config__ = ConfigDict(
                extra="forbid", strict=False, allow_inf_nan=True, ser_json_inf_nan="constants"
            )


def to_plain(record: Any) -> Any:
    """A record as plain JSON values: dicts, lists, strings, numbers, None."""
    if dataclasses.is_dataclass(record) and not isinstance(record, type):
        return {f.name: to_plain(getattr(record, f.name)) for f in dataclasses.fields(record)}
    if isinstance(record, Mapping):
        return {str(key): to_plain(value) for key, value in record.items()}
    if isinstance(record, list | tuple):
        return [to_plain(value) for value in record]
    if isinstance(record, str):
        return str(record)
    return record


def _shallow(record: Any) -> Any:
    """One level of ``to_plain``, for what json does not know by itself."""
    fields = _fields(type(record))
    if fields is not None:
        names, values = fields
        return dict(zip(names, values(record), strict=True))
    if isinstance(record, Mapping):
        return dict(record)
    raise TypeError(f"{type(record).__name__} has no place in JSON")


@functools.cache
def _fields(kind: type) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]] | None:
    """Names and values of a dataclass's fields; None for any other class."""
    if not dataclasses.is_dataclass(kind):
        return None
    names = tuple(field.name for field in dataclasses.fields(kind))
    # attrgetter gives a tuple only for two names or more.
    return names, operator.attrgetter(*names) if len(names) > 1 else lambda record: tuple(
        getattr(record, name) for name in names
    )


def to_json(record: Any, *, indent: int | None = None) -> str:
    """A record as JSON text; keys keep the order of the record's fields."""
    if indent is None and getattr(records, type(record).__name__, None) is type(record):
        # The same JSON without the blanks, several times faster.
        return _adapter(type(record)).dump_json(record, warnings=False).decode()
    return json.dumps(record, indent=indent, ensure_ascii=False, default=_shallow)


def from_plain(kind: type[R], plain: Any, *, where: str = "record") -> R:
    """The record of ``kind`` that ``plain`` describes.

    Raises:
        SchemaError: another schema version.
        WireError: unknown or missing fields, wrong types; all of them in one message.
    """
    if isinstance(plain, dict) and "schema" in plain and plain["schema"] != SCHEMA_VERSION:
        raise SchemaError(_other_schema(where, plain["schema"]))
    try:
        return _adapter(kind).validate_python(plain)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise WireError(f"{where}: not a {kind.__name__}: {problems}") from None


def _other_schema(where: str, schema: object) -> str:
    said = f"{where}: written with schema {schema}, this version reads {SCHEMA_VERSION}"
    if isinstance(schema, int) and schema > SCHEMA_VERSION:
        return f"{said}: update this checkout"
    # -S finds the commit that raised the version; the one before it is the last that reads the old one.
    old = f"git log -1 --format=%h -S'SCHEMA_VERSION = {schema}' -- harness/records/names.py"
    return (
        f"{said}: `compare` and `history` read its frame.csv, and its report.md is as it was; to judge its legs again, "
        f"use the version that wrote it: git worktree add ../kvparity-schema-{schema} $({old})^"
    )


def read(kind: type[R], path: Path) -> R:
    """Read one record from a file.

    Raises:
        WireError: the file is missing, cut off, not JSON, or not a ``kind``.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise WireError(f"{path}: no such file") from None
    with contextlib.suppress(ValidationError):
        record = _adapter(kind).validate_json(data)
        if getattr(record, "schema", SCHEMA_VERSION) == SCHEMA_VERSION:
            return record
    # Something is wrong; from here on it is about the words.
    try:
        plain = json.loads(data.decode("utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise WireError(f"{path}: not whole JSON ({error})") from None
    return from_plain(kind, plain, where=str(path))


#: Tell apart what is written at once: by threads of a process, and by processes of one number in different containers.
_NUMBERS = itertools.count()
_TOKEN = secrets.token_hex(4)


def write_text(path: Path, text: str) -> None:
    """Write a file so that it is either absent, the old one, or whole: temporary file, then rename.

    That holds however a process ends. It is not forced to the disk: after a power failure a file may be cut off, which
    every reader of a run folder notices, and waiting for the disk would be most of what a cell costs.
    """
    # Not tempfile: results are as readable as any file the caller makes, not the owner's alone.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{_TOKEN}.{next(_NUMBERS)}")
    try:
        try:
            stream = temporary.open("w", encoding="utf-8")
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            stream = temporary.open("w", encoding="utf-8")
        with stream:
            stream.write(text)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write(path: Path, record: Any, *, indent: int | None = None) -> None:
    """Write one record atomically."""
    write_text(path, to_json(record, indent=indent) + "\n")


def named(leg: Leg) -> Leg:
    """The leg with the digest of its other fields.

    Deadlines are not in it, since a leg that kept them answers the same under any others, and one that did not is run
    again anyway. ``reset`` is: a reset that comes too late ends the phases, and that is an answer.
    """
    lasting = {"reset": leg.deadlines["reset"]}
    return dataclasses.replace(leg, digest=digest(dataclasses.replace(leg, digest="", deadlines=lasting)))


def digest(value: Any) -> str:
    """Hex digest of a record or plain value, independent of mapping order."""
    canonical = json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"), default=_shallow)
    return hashlib.blake2b(canonical.encode(), digest_size=DIGEST_BYTES).hexdigest()
