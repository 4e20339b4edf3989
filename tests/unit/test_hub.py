# SPDX-License-Identifier: Apache-2.0
"""Models of the Hugging Face cache and hub: a hub that does not answer is given up, for a day."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from harness import hub, models
from tests.model_folders import make_directory

pytestmark = pytest.mark.usefixtures("no_model_of_the_user")


def cached_snapshot(tmp_path: Path, weights: tuple[str, ...] = ("model.safetensors",)) -> Path:
    folder = tmp_path / "huggingface" / "models--Qwen--Qwen3-0.6B"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("c" * 40, encoding="utf-8")
    return make_directory(folder / "snapshots" / ("c" * 40), weights=weights)


def test_the_hugging_face_cache_comes_before_the_stand_in(cache, tmp_path):
    snapshot = cached_snapshot(tmp_path)
    model = models.find_model("qwen3-0.6b", cache=cache)
    assert (model.source, model.path) == ("hub", str(snapshot))


def test_a_download_that_was_broken_off_is_no_model(cache, tmp_path):
    cached_snapshot(tmp_path, weights=())
    assert models.find_model("qwen3-0.6b", cache=cache, build=False).source == "stand-in"


def test_offline_asks_no_hub(cache, monkeypatch):
    monkeypatch.setattr(hub, "_in_reach", lambda address: pytest.fail("asked"))
    assert hub.find("Qwen/Qwen3-0.6B", cache) is None


@pytest.fixture
def silent_hub(monkeypatch):
    """A hub that takes connections and never answers."""
    from huggingface_hub import constants

    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(hub, "REACH_TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        yield


def test_a_silent_hub_is_given_up_and_not_asked_again_that_day(cache, silent_hub, monkeypatch):
    assert hub.find("Qwen/Qwen3-0.6B", cache) is None
    monkeypatch.setattr(hub, "_in_reach", lambda address: pytest.fail("asked again"))
    assert hub.find("Qwen/Qwen3-0.6B", cache) is None


def test_a_failure_of_another_day_is_forgotten(cache, silent_hub, monkeypatch):
    assert hub.find("Qwen/Qwen3-0.6B", cache) is None
    memory = cache / "hub-unreachable.json"
    memory.write_text(json.dumps({**json.loads(memory.read_text()), "day": "2020-01-01"}), encoding="utf-8")
    asked = []
    monkeypatch.setattr(hub, "_in_reach", lambda address: asked.append(address) or False)
    assert hub.find("Qwen/Qwen3-0.6B", cache) is None
    assert [address.rsplit("/", 5)[1:] for address in asked] == [
        ["Qwen", "Qwen3-0.6B", "resolve", "main", "config.json"]
    ]


def test_a_hub_in_reach_is_downloaded_from(cache, tmp_path, silent_hub, monkeypatch):
    monkeypatch.setattr(hub, "_in_reach", lambda address: True)
    monkeypatch.setattr(hub, "_downloaded", lambda repository: bool(cached_snapshot(tmp_path)))
    assert models.find_model("qwen3-0.6b", cache=cache).source == "hub"
