# SPDX-License-Identifier: Apache-2.0
"""A small suite in a folder of its own, run by the real pytest with the fake engine.

What several processes share (verdicts, exit codes, resume, progress) is run twice, without pytest-xdist and with two
workers: what a run says must not depend on that.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pandas as pd
import pytest

SCENARIO = """\
name: small
platforms: [cpu]
model: qwen3-0.6b
subject: {connector: embedded}
axes:
  layout: [LHBNC]
  backend: [REFERENCE]
  batch_invariant: [false, true]
prompts: {count: 2, prefix_tokens: 32, tail_tokens: 8}
decode: {max_tokens: 4, logprobs: 3}
engine: {block_size: 16}
"""

CELLS = ["LHBNC-REFERENCE-bi0", "LHBNC-REFERENCE-bi1"]


class Suite:
    """Runs ``pytest scenarios`` with the fake engine and reads what it left."""

    def __init__(self, pytester: pytest.Pytester, workers: list[str]) -> None:
        self._pytester = pytester
        self.workers = workers
        self.root: Path = pytester.path
        pytester.makeconftest('pytest_plugins = ["harness.pytest_plugin"]')
        (self.root / "scenarios").mkdir()
        self.scenario(SCENARIO)
        model = self.root / "model"
        model.mkdir()
        (model / "config.json").write_text(json.dumps({
            "architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 2, "num_key_value_heads": 2,
            "num_attention_heads": 2, "hidden_size": 16, "head_dim": 8, "vocab_size": 1024,
        }))
        (model / "model.safetensors").write_bytes(b"weights")

    def scenario(self, text: str, name: str = "small.yaml") -> None:
        (self.root / "scenarios" / name).write_text(text)

    def run(self, *arguments: str, fake: dict | None = None, paths: tuple[str, ...] = ("scenarios",)):
        plants = self.root / "fake.json"
        plants.write_text(json.dumps(fake or {}))
        return self._pytester.run(
            sys.executable, "-m", "pytest", *paths, "--kvparity-fake", str(plants),
            "--kvparity-model", str(self.root / "model"), *self.workers, *arguments,
        )

    @property
    def folder(self) -> Path:
        return self.root / "results" / "latest"

    def frame(self) -> pd.DataFrame:
        return pd.read_csv(self.folder / "frame.csv").set_index("cell")

    def outcomes(self) -> dict[str, str]:
        return dict(self.frame()["verdict"])


@pytest.fixture(params=[["-p", "no:xdist"], ["-n", "2"]], ids=["alone", "two-workers"])
def suite(request: pytest.FixtureRequest, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Suite:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    return Suite(pytester, request.param)


@pytest.fixture
def alone(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Suite:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    return Suite(pytester, ["-p", "no:xdist"])
