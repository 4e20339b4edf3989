# SPDX-License-Identifier: Apache-2.0
"""From what a scenario calls its model to a directory that an engine can load, and where it came from.

Nothing here imports torch, transformers or vllm. The cache folder is ``$KVPARITY_CACHE``, else
``$XDG_CACHE_HOME/kvparity``, else ``~/.cache/kvparity``; it holds the stand-ins and remembered digests.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from harness import hub, standin
from harness.errors import UsageError
from harness.records import Model

#: What ``model:`` of a scenario may say beside a directory; value: repository on the hub, None for stand-ins only.
ALIASES: dict[str, str | None] = {"qwen3-0.6b": "Qwen/Qwen3-0.6B", "tiny": None, "tiny-other": None}

#: Environment variable that names a model directory, as MODEL= of the Makefile does.
MODEL_VARIABLE = "KVPARITY_MODEL"
CACHE_VARIABLE = "KVPARITY_CACHE"


def find_model(alias_or_path: str, *, given: str | None = None, cache: Path | None = None, build: bool = True) -> Model:
    """Find the model that a scenario asks for, or make it.

    ``qwen3-0.6b`` is, in this order: ``given`` or ``$KVPARITY_MODEL``; the Hugging Face cache or hub; the seeded
    stand-in of its shape. ``tiny`` is always the stand-in. Anything else is a model directory of any architecture.

    Args:
        alias_or_path: a key of ``ALIASES`` or a directory.
        given: a directory to use for ``qwen3-0.6b`` (MODEL=).
        cache: the cache folder; default see above.
        build: False downloads and builds nothing. The answer is the one that a run would get without a hub; its
            directory may not exist yet.

    Raises:
        UsageError: an unknown alias; a directory without config.json or safetensors, or whose config.json lacks a
            size; a stand-in that cannot be written.
    """
    cache = cache or cache_folder()
    if alias_or_path not in ALIASES:
        return _read(alias_or_path, _directory(alias_or_path), "given", cache)
    repository = ALIASES[alias_or_path]
    if repository is not None:
        if asked := given or os.environ.get(MODEL_VARIABLE):
            source = "MODEL=" if given else f"{MODEL_VARIABLE}="
            return _read(alias_or_path, _checked(Path(asked).expanduser(), f"{source}{asked}"), "given", cache)
        if found := hub.find(repository, cache, download=build):
            return _read(alias_or_path, found, "hub", cache)
    return _stand_in(alias_or_path, cache, build)


def cache_folder() -> Path:
    """The cache folder of this user; it need not exist."""
    if own := os.environ.get(CACHE_VARIABLE):
        return Path(own).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache").absolute() / "kvparity"


def stamp(stat: os.stat_result) -> list[int]:
    """What a file has under other bytes no longer: size, and both times of change in ns.

    The second time is the kernel's own. Programs that copy, unpack or download set the first one as they like.
    """
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]


def digest_of(directory: Path, cache: Path) -> str:
    """Digest of config and weights, 32 hex digits; remembered in ``cache`` by path, size and times of every file."""
    files = [directory / "config.json", *sorted(directory.glob("*.safetensors"))]
    state = [[path.name, *stamp(path.stat())] for path in files]
    name = hashlib.blake2b(str(directory.resolve()).encode(), digest_size=8).hexdigest()
    memory = cache / "digests" / f"{name}.json"
    try:
        remembered = json.loads(memory.read_text(encoding="utf-8"))
        if remembered["files"] == state:
            return remembered["digest"]
    except (OSError, ValueError, KeyError, TypeError):
        pass  # nothing remembered, or not by this code
    digest = standin.digest_of(directory)
    _remember(memory, {"path": str(directory), "files": state, "digest": digest})
    return digest


def _remember(memory: Path, value: dict[str, Any]) -> None:
    """Write a small JSON file into the cache; a cache that cannot be written costs time, not the run."""
    try:
        memory.parent.mkdir(parents=True, exist_ok=True)
        staging = memory.with_suffix(f".{os.getpid()}")
        staging.write_text(json.dumps(value), encoding="utf-8")
        os.replace(staging, memory)
    except OSError:
        pass


def _directory(name: str) -> Path:
    path = Path(name).expanduser()
    if not path.exists() and os.sep not in name:
        close = difflib.get_close_matches(name, ALIASES, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise UsageError(f"model {name!r} is neither an alias ({', '.join(ALIASES)}) nor a directory{hint}")
    return _checked(path, f"model {name!r}")


def _checked(path: Path, asked: str) -> Path:
    """``path``, absolute, if it looks like a model directory; ``asked`` names it as the user did."""
    expected = "a model directory holds config.json and *.safetensors"
    if not path.is_dir():
        raise UsageError(f"{asked} is {'not a directory' if path.exists() else 'not there'}: {expected}")
    if not (path / "config.json").is_file():
        raise UsageError(f"{asked} has no config.json: {expected}")
    if not any(path.glob("*.safetensors")):
        raise UsageError(f"{asked} has no weights: {expected}")
    if missing := hub.missing_shards(path):
        raise UsageError(f"{asked} lacks {missing[0]}, which its index names: {expected}")
    return path.absolute()


def _read(alias: str, directory: Path, source: str, cache: Path) -> Model:
    try:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{directory / 'config.json'} cannot be read as JSON: {error}") from error
    if not isinstance(config, dict):
        raise UsageError(f"{directory / 'config.json'} holds {type(config).__name__}, expected an object")
    try:
        digest = digest_of(directory, cache)
    except OSError as error:
        raise UsageError(f"the weights in {directory} cannot be read: {error}") from error
    return _model(alias, directory, source, digest, config)


def _model(alias: str, directory: Path, source: str, digest: str, config: dict[str, Any]) -> Model:
    # Multimodal models keep the sizes of the language model one level down.
    config = {**config, **(config.get("text_config") or {})}
    where = directory / "config.json"
    heads = _size(config, "num_attention_heads", where)
    kv_heads = _size(config, "num_key_value_heads", where) if config.get("num_key_value_heads") is not None else heads
    if config.get("head_dim") is not None:
        head_dim = _size(config, "head_dim", where)
    else:
        head_dim = _size(config, "hidden_size", where) // heads
    return Model(
        alias=alias,
        path=str(directory),
        source=source,
        digest=digest,
        num_layers=_size(config, "num_hidden_layers", where),
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=_size(config, "vocab_size", where),
    )


def _size(config: dict[str, Any], key: str, where: Path) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UsageError(f"{where} has {key} {value!r}, expected a positive whole number")
    return value


def _stand_in(alias: str, cache: Path, build: bool) -> Model:
    directory = cache / "models" / standin.directory_name(alias)
    digest = standin.DIGESTS[alias]
    if build:
        standin.build(alias, directory, accept=lambda found: _whole(found, digest, cache))
    return _model(alias, directory, "stand-in", digest, standin.config(standin.SHAPES[alias]))


def _whole(directory: Path, digest: str, cache: Path) -> bool:
    try:
        return digest_of(directory, cache) == digest
    except OSError:
        return False
