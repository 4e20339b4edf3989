# SPDX-License-Identifier: Apache-2.0
"""Fixtures that more than one folder of tests uses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from harness.overlay import OverlayError, find_overlay
from harness.records import (
    ROLE_PHASES,
    DecodeSpec,
    Leg,
    Model,
    PromptSpec,
    Role,
)
from tests.quick import Quick

# Examples are the same in every run, so that a change is judged by what it changed; ``--hypothesis-profile explore``
# draws others.
settings.register_profile("repeatable", derandomize=True)
settings.register_profile("explore", max_examples=2000)
settings.load_profile("repeatable")


@pytest.fixture
def quick(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Quick:
    """Makes run folders of the fake engine in a folder of its own, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return Quick(tmp_path, capsys)


@pytest.fixture
def model() -> Model:
    """A model that no test loads."""
    return Model(
        alias="tiny", path="/nowhere", source="stand-in", digest="0" * 16, num_layers=2, num_kv_heads=2, head_dim=8,
        vocab_size=1024,
    )


@pytest.fixture
def make_leg(model: Model):
    """A leg of the fake engine: two prompts of 40 tokens in blocks of 16, four new tokens."""

    def make(role: Role = Role.SUBJECT, digest: str = "ab" * 8, **changes: Any) -> Leg:
        fields: dict[str, Any] = {
            "digest": digest,
            "role": role,
            "layout": "LBHNC",
            "backend": "REFERENCE",
            "batch_invariant": True,
            "model": model,
            "engine": {"block_size": 16},
            "env": {},
            "kv_transfer_config": None if role is Role.ORACLE else {"kv_connector": "X"},
            "prompts": PromptSpec(count=2, prefix_tokens=32, tail_tokens=8),
            "decode": DecodeSpec(max_tokens=4, logprobs=3),
            "phases": ROLE_PHASES[role],
            "identity": {},
            "engine_name": "fake",
            "fake": {},
        }
        return Leg(**{**fields, **changes})

    return make


@pytest.fixture(scope="session")
def upstream_umbp() -> Path:
    """The folder of vLLM 0.33.0's UMBP connector, as it is published."""
    try:
        return find_overlay("wheel:vllm==0.33.0").path
    except OverlayError as error:
        pytest.skip(str(error))
