# SPDX-License-Identifier: Apache-2.0
"""Source overlays: a connector's upstream files from elsewhere than the installed vLLM.

``DIR`` mirrors vLLM's tree (a checkout), ``git:REPO@REF`` takes the folder as it is at that commit, ``wheel:vllm==X``
downloads that wheel with pip and keeps the folder alone. The files are copied, unmodified, into a folder of the cache
that is named by their digest, so a checkout may be edited while a run is on. Nothing of them is part of this
repository; what puts the folder into an engine is ``harness.plugin.overlay``.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from harness.errors import HarnessError
from harness.models import cache_folder

#: The connector's folder, relative to the parent of the ``vllm`` package.
FOLDER = "vllm/distributed/kv_transfer/kv_connector/v1/umbp"

#: Names the connector of the installed vLLM.
INSTALLED = "installed"

#: Files without which a folder is not that connector.
NEEDED = ("__init__.py", "connector.py", "runtime/base.py", "runtime/factory.py")

#: The wheel that has the connector, for those who have none.
EXAMPLE = "wheel:vllm==0.33.0"

#: Platforms whose vLLM wheels are looked for: the connector is plain Python, so any of them will do.
WHEEL_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_31_x86_64", "manylinux_2_35_x86_64", "manylinux1_x86_64",
                   "manylinux2014_x86_64")

#: Seconds for the download of a wheel of several hundred megabytes, and for a git command.
DOWNLOAD_S, GIT_S = 1800.0, 120.0


class OverlayError(HarnessError):
    """An overlay cannot be had or is none; the cells that need it are unavailable."""


@dataclass(frozen=True, kw_only=True)
class Overlay:
    """A connector's files, ready to be imported.

    Attributes:
        origin: where they come from, as the user named it, with the commit of a git reference.
        digest: of their names and bytes, 16 hex digits.
        path: folder that mirrors vLLM's tree; None for the installed vLLM's own.
        has_runtime: it has an embedded runtime of its own (``runtime/embedded.py``), which wants MORI.
    """

    origin: str
    digest: str
    path: Path | None
    has_runtime: bool


def find_overlay(spec: str | None, *, cache: Path | None = None) -> Overlay:
    """The overlay that ``spec`` names; without one, the connector of the installed vLLM.

    Args:
        spec: ``DIR``, ``git:REPO@REF``, ``wheel:vllm==VERSION``, ``wheel:FILE.whl`` or ``installed``.
        cache: folder for the copies; default ``overlays`` in the cache folder of ``harness.models``.

    Raises:
        OverlayError: one sentence: no such folder, reference or wheel, or a tree without the connector.
    """
    cache = (cache or cache_folder()) / "overlays"
    if not spec or spec == INSTALLED:
        return _installed()
    scheme, _, rest = spec.partition(":")
    try:
        if scheme == "wheel":
            return _wheel(spec, rest, cache)
        if scheme == "git":
            return _git(spec, rest, cache)
        return _kept(spec, _directory_files(spec), cache)
    except OSError as error:
        raise OverlayError(f"overlay {spec}: {error.strerror or error} ({error.filename or cache})") from error


def kept_wheel(spec: str, *, cache: Path | None = None) -> Overlay | None:
    """The overlay of ``wheel:NAME==VERSION`` if it has been downloaded before and is whole; asks nobody."""
    cache = (cache or cache_folder()) / "overlays"
    name, _, version = spec.removeprefix("wheel:").partition("==")
    memory = cache / f"{name.strip()}-{version.strip()}.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        kept = cache / json.loads(memory.read_text(encoding="utf-8"))["digest"]
        files = _read_folder(kept / FOLDER)
        if digest_of(files) == kept.name:
            return _overlay(spec, files, kept)
    return None


# --- where the files come from ------------------------------------------------------------------------------------


def _installed() -> Overlay:
    spec = importlib.util.find_spec("vllm")
    folder = Path(spec.origin).parent.parent if spec and spec.origin else None
    if folder is None or not (folder / FOLDER / "connector.py").is_file():
        raise OverlayError(
            f"the installed vLLM has no UMBP connector; take it from elsewhere with `overlay: \"{EXAMPLE}\"`, "
            "`overlay: \"git:REPO@REF\"` or the directory of a vLLM checkout"
        )
    files = _read_folder(folder / FOLDER)
    return _overlay("installed vLLM", files, None)


def _overlay(origin: str, files: Mapping[str, bytes], path: Path | None) -> Overlay:
    return Overlay(origin=origin, digest=digest_of(files), path=path, has_runtime="runtime/embedded.py" in files)


def _directory_files(spec: str) -> dict[str, bytes]:
    folder = Path(spec).expanduser()
    if not folder.is_dir():
        raise OverlayError(
            f"overlay {spec}: no such directory; valid: a directory that mirrors vLLM's tree, git:REPO@REF, "
            "wheel:vllm==VERSION"
        )
    return _read_folder(folder / FOLDER) if (folder / FOLDER).is_dir() else {}


def _read_folder(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.py"))}


def _git(spec: str, rest: str, cache: Path) -> Overlay:
    repository, at, reference = rest.rpartition("@")
    if not at or not repository or not reference:
        raise OverlayError(f"overlay {spec}: a git overlay is written git:REPO@REF")
    folder = Path(repository).expanduser()
    if not folder.is_dir():
        raise OverlayError(f"overlay {spec}: {repository} is not a directory")
    commit = _run_git(spec, folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{reference}^{{commit}}")
    name = commit.decode().strip()
    listed = _run_git(spec, folder, "ls-tree", "-r", "--name-only", name, "--", FOLDER)
    files: dict[str, bytes] = {}
    if listed.strip():
        archive = _run_git(spec, folder, "archive", "--format=tar", name, "--", FOLDER)
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            for member in tar:
                if member.isfile() and member.name.endswith(".py"):
                    files[member.name.removeprefix(f"{FOLDER}/")] = tar.extractfile(member).read()
    return _kept(spec, files, cache, origin=f"{spec} ({name[:12]})")


def _run_git(spec: str, folder: Path, *arguments: str) -> bytes:
    command = ["git", "-C", str(folder), *arguments]
    try:
        result = subprocess.run(command, capture_output=True, timeout=GIT_S, check=False)
    except FileNotFoundError:
        raise OverlayError(f"overlay {spec}: git is not installed") from None
    except subprocess.TimeoutExpired:
        raise OverlayError(f"overlay {spec}: git {arguments[0]} took more than {GIT_S:.0f} s") from None
    if result.returncode:
        words = result.stderr.decode(errors="replace").strip().splitlines()
        why = words[-1] if words else "no such commit, branch or tag"
        raise OverlayError(f"overlay {spec}: git cannot find it in {folder} ({why})")
    return result.stdout


def _wheel(spec: str, rest: str, cache: Path) -> Overlay:
    if rest.endswith(".whl"):
        return _kept(spec, _wheel_files(spec, Path(rest).expanduser()), cache)
    name, equals, version = rest.partition("==")
    if not equals or not name.strip() or not version.strip():
        raise OverlayError(f"overlay {spec}: a wheel is written wheel:NAME==VERSION, or wheel:FILE.whl")
    # One download for ever, and one at a time: what a version holds does not change.
    memory = cache / f"{name.strip()}-{version.strip()}.json"
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(memory.with_suffix(".lock")):
        if kept := kept_wheel(spec, cache=cache.parent):
            return kept
        with tempfile.TemporaryDirectory(dir=cache, prefix=".download.") as folder:
            overlay = _kept(spec, _wheel_files(spec, _download(spec, rest, Path(folder))), cache)
        memory.write_text(json.dumps({"origin": spec, "digest": overlay.digest}), encoding="utf-8")
    return overlay


def _download(spec: str, requirement: str, folder: Path) -> Path:
    print(f"overlay: downloading {requirement} with pip, once; only {FOLDER} is kept", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
               "--no-cache-dir", "--only-binary=:all:", "--python-version=3.12", "--abi=abi3", "--abi=cp38",
               *(f"--platform={name}" for name in WHEEL_PLATFORMS), "--dest", str(folder), requirement]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_S, check=False)
    except subprocess.TimeoutExpired:
        raise OverlayError(f"overlay {spec}: the download took more than {DOWNLOAD_S:.0f} s") from None
    found = sorted(folder.glob("*.whl"))
    if result.returncode or not found:
        errors = [line.strip() for line in result.stderr.splitlines() if "ERROR" in line or "No module" in line]
        why = errors[-1].removeprefix("ERROR: ") if errors else "pip gave no reason"
        raise OverlayError(
            f"overlay {spec}: pip cannot download it ({why}); with a wheel at hand, write wheel:FILE.whl"
        )
    return found[0]


def _wheel_files(spec: str, path: Path) -> dict[str, bytes]:
    if not path.is_file():
        raise OverlayError(f"overlay {spec}: no such wheel")
    try:
        with zipfile.ZipFile(path) as wheel:
            names = [name for name in wheel.namelist() if name.startswith(f"{FOLDER}/") and name.endswith(".py")]
            return {name.removeprefix(f"{FOLDER}/"): wheel.read(name) for name in names}
    except zipfile.BadZipFile:
        raise OverlayError(f"overlay {spec}: {path.name} is no wheel (not a zip file)") from None


# --- keeping them -------------------------------------------------------------------------------------------------


def digest_of(files: Mapping[str, bytes]) -> str:
    """Digest of the files' names and bytes."""
    state = hashlib.blake2b(digest_size=8)
    for name, content in sorted(files.items()):
        state.update(f"{name}\0{len(content)}\0".encode())
        state.update(content)
    return state.hexdigest()


def _kept(spec: str, files: Mapping[str, bytes], cache: Path, *, origin: str | None = None) -> Overlay:
    """Check the files and write them into the cache under their digest; whoever is second finds them there."""
    _check(spec, files)
    digest = digest_of(files)
    target = cache / digest
    if not target.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(dir=cache, prefix=f".{digest}."))
        for name, content in files.items():
            path = staging / FOLDER / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        try:
            os.rename(staging, target)
        except OSError:
            shutil.rmtree(staging, ignore_errors=True)
            if not target.is_dir():
                raise
    return _overlay(origin or spec, files, target)


def _check(spec: str, files: Iterable[str]) -> None:
    missing = [name for name in NEEDED if name not in set(files)]
    if missing:
        raise OverlayError(f"overlay {spec}: no UMBP connector in it, {FOLDER}/{missing[0]} is missing")
