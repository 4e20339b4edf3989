# SPDX-License-Identifier: Apache-2.0
"""Look for a model in the Hugging Face cache, and on the hub where one is in reach, without ever hanging.

A run that cannot reach the hub must not notice: the attempt takes seconds, and its failure is remembered for the day.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from datetime import UTC, datetime
from pathlib import Path

#: Seconds for the first answer of the hub; name resolution has no timeout of its own, so a thread is waited for.
REACH_TIMEOUT = 5.0
#: Seconds for the whole download (1.5 GB for Qwen3-0.6B).
DOWNLOAD_TIMEOUT = 1800.0

#: What an engine needs; tokenizers are not used (prompts are token ids).
PATTERNS = ("config.json", "generation_config.json", "*.safetensors", "*.safetensors.index.json")

_DOWNLOAD = """
import sys
from huggingface_hub import snapshot_download
snapshot_download(sys.argv[1], allow_patterns=sys.argv[2:])
"""


def find(repository: str, cache: Path, *, download: bool = True) -> Path | None:
    """Directory of ``repository`` in the Hugging Face cache, downloaded first where possible; None otherwise.

    The hub is tried unless ``HF_HUB_OFFLINE`` or ``TRANSFORMERS_OFFLINE`` is set, ``download`` is False, or an
    attempt at the same endpoint failed today (UTC).
    """
    try:
        import huggingface_hub
        from huggingface_hub import constants
    except ImportError:
        return None
    if found := _cached(huggingface_hub, repository):
        return found
    if not download or _offline():
        return None
    failure = cache / "hub-unreachable.json"
    today = {"day": datetime.now(UTC).date().isoformat(), "endpoint": constants.ENDPOINT, "repository": repository}
    if _remembered(failure) == today:
        return None
    address = f"{constants.ENDPOINT}/{repository}/resolve/main/config.json"
    if _in_reach(address) and _downloaded(repository) and (found := _cached(huggingface_hub, repository)):
        return found
    try:
        cache.mkdir(parents=True, exist_ok=True)
        failure.write_text(json.dumps(today), encoding="utf-8")
    except OSError:
        pass  # the next run waits again, no more
    return None


def missing_shards(directory: Path) -> list[str]:
    """Weights files that an index of ``directory`` names and that are not there."""
    named: set[str] = set()
    for index in directory.glob("*.safetensors.index.json"):
        try:
            named.update(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # not an index that anything could read
    return sorted(name for name in named if not (directory / name).is_file())


def _cached(huggingface_hub, repository: str) -> Path | None:
    found = huggingface_hub.try_to_load_from_cache(repository, "config.json")
    if not isinstance(found, str | os.PathLike):
        return None
    directory = Path(found).parent
    # A download that was broken off leaves a snapshot with some of its files.
    if not any(path.is_file() for path in directory.glob("*.safetensors")) or missing_shards(directory):
        return None
    return directory


def _offline() -> bool:
    return any(
        os.environ.get(name, "").strip().upper() in {"1", "ON", "YES", "TRUE"}
        for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    )


def _remembered(failure: Path) -> dict[str, str] | None:
    try:
        return json.loads(failure.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _in_reach(address: str) -> bool:
    answers: list[bool] = []

    def ask() -> None:
        request = urllib.request.Request(address, method="HEAD")
        try:
            with urllib.request.urlopen(request, timeout=REACH_TIMEOUT) as answer:
                answers.append(answer.status < 400)
        except (OSError, ValueError, urllib.error.URLError):
            answers.append(False)

    thread = threading.Thread(target=ask, daemon=True, name="hub-in-reach")
    thread.start()
    thread.join(REACH_TIMEOUT + 1)
    return bool(answers) and answers[0]


def _downloaded(repository: str) -> bool:
    """Download in a child, so that a connection that stalls can be ended."""
    command = [sys.executable, "-c", _DOWNLOAD, repository, *PATTERNS]
    try:
        ended = subprocess.run(command, timeout=DOWNLOAD_TIMEOUT, capture_output=True, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return ended.returncode == 0
