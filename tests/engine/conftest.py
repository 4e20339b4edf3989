# SPDX-License-Identifier: Apache-2.0
"""Legs of the tiny model for tests that start real vLLM engines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness import host
from harness.archive import RunFolder
from harness.models import find_model
from harness.plan import make_plan
from harness.records import Plan
from harness.scenario import read_scenario
from tests.engine.plugin_engines import Engines

ROOT = Path(__file__).resolve().parents[2]

STORE_CHILD = str(Path(__file__).with_name("store_child.py"))
#: Environment of the embedded store's engines.
ENVIRONMENT = {
    "TORCH_COMPILE_DISABLE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_KV_CACHE_LAYOUT": "LBHNC",
    "VLLM_LOGGING_LEVEL": "WARNING",
}
MULTIPROCESS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "0",
}
#: Group -> scenarios and environment of its process.
GROUPS: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "cpu": (
        (
            "restore", "restore_ranges", "restore_async", "limits", "missing_sync", "missing_async", "missing_fail",
            "pressure", "eviction", "abort", "bad_setting",
        ),
        {},
    ),
    "multiprocess": (("restore",), MULTIPROCESS),
    "LHBNC": (("restore", "single_span"), {"KVPARITY_BACKEND": "REFERENCE", "VLLM_KV_CACHE_LAYOUT": "LHBNC"}),
    "BHLNC": (("restore", "single_span"), {"KVPARITY_BACKEND": "REFERENCE", "VLLM_KV_CACHE_LAYOUT": "BHLNC"}),
}  # fmt: skip


@pytest.fixture(scope="session")
def smoke_plan() -> Plan:
    """The plan of scenarios/smoke.yaml on a CPU host."""
    scenario = read_scenario(ROOT / "scenarios" / "smoke.yaml")
    return make_plan([scenario], platform="cpu", find_model=find_model, identity=host.identity())


@pytest.fixture
def run_folder(tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path / "run")
    made.prepare()
    return made


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a seeded tiny Qwen3 and the entry point of an installed kvparity."""
    folder = tmp_path_factory.mktemp("plugin")
    installed = folder / "site" / "kvparity-0.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: kvparity\nVersion: 0.0\n")
    (installed / "entry_points.txt").write_text("[vllm.general_plugins]\nkvparity = harness.plugin:register\n")
    script = """
import sys, torch
from transformers import Qwen3Config, Qwen3ForCausalLM
torch.manual_seed(0)
model = Qwen3ForCausalLM(Qwen3Config(
    vocab_size=1024, hidden_size=128, intermediate_size=256, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, head_dim=32, max_position_embeddings=1024, tie_word_embeddings=False))
for name, parameter in model.named_parameters():
    if "norm" not in name:
        torch.nn.init.normal_(parameter, std=0.08)
    elif "q_norm" in name:
        parameter.data.mul_(3)
model.to(torch.bfloat16).save_pretrained(sys.argv[1])
"""
    subprocess.run([sys.executable, "-c", script, str(folder / "model")], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="session")
def engines(place: Path) -> Engines:
    return Engines(place)


@pytest.fixture(scope="session")
def store_model(tmp_path_factory):
    """A random Qwen3 of 4 layers, 2 KV heads and head_dim 32, whose logprobs depend on its KV cache."""
    torch = pytest.importorskip("torch", reason="needs torch")
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    pytest.importorskip("vllm", reason="needs vLLM")
    config = transformers.Qwen3Config(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        initializer_range=0.08,
    )
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("model")
    transformers.Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def child(store_model, tmp_path_factory):
    """child(group, scenario) -> the scenario's result; a group's scenarios share one process and run once."""
    results: dict[str, dict] = {}

    def run(group: str) -> dict:
        scenarios, env = GROUPS[group]
        folder = tmp_path_factory.mktemp("child")
        result = folder / "result.json"
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        done = subprocess.run(
            [sys.executable, STORE_CHILD, ",".join(scenarios), str(store_model), str(result)],
            env={**os.environ, **ENVIRONMENT, "PYTHONPATH": path, **env},
            capture_output=True,
            text=True,
            timeout=600,
            cwd=folder,
        )
        assert result.is_file(), done.stderr[-4000:]
        return json.loads(result.read_text())

    def seen(group: str, scenario: str) -> dict:
        if group not in results:
            results[group] = run(group)
        answer = results[group][scenario]
        assert "error" not in answer, answer["error"]
        return answer

    return seen
