# SPDX-License-Identifier: Apache-2.0
"""Fixtures of tests that read scenario files and look for models."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import models
from harness.errors import ScenarioError
from harness.scenario import read_scenario


@pytest.fixture
def problems(tmp_path):
    """Problems of a text, as (line, sentence)."""

    def read(text: str | bytes, **arguments) -> list[tuple[int, str]]:
        path = tmp_path / "s.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(ScenarioError) as caught:
            read_scenario(path, **arguments)
        assert str(caught.value) == "\n".join(caught.value.problems)
        split = [problem.removeprefix(f"{path}:").split(": ", 1) for problem in caught.value.problems]
        return [(int(line), sentence) for line, sentence in split]

    return read


@pytest.fixture
def scenario(tmp_path):
    def read(text: str, **arguments):
        path = tmp_path / "s.yaml"
        path.write_text(text)
        return read_scenario(path, **arguments)

    return read


@pytest.fixture
def no_model_of_the_user(monkeypatch, tmp_path):
    """Neither the user's variables nor their Hugging Face cache reach a test, and no test reaches the hub."""
    constants = pytest.importorskip("huggingface_hub.constants")
    for name in (models.MODEL_VARIABLE, models.CACHE_VARIABLE, "XDG_CACHE_HOME", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "huggingface"))


@pytest.fixture
def cache(tmp_path) -> Path:
    return tmp_path / "cache"
