# SPDX-License-Identifier: Apache-2.0
"""Devices and their leases: one leg per GPU at a time, across every process of every run on the machine.

pytest-xdist's grouping cannot give exclusivity, so a lease is a file lock per device in a folder that all
runs of a user share. On a CPU host there is nothing to lease: legs pin their own thread count.
"""

from __future__ import annotations

import contextlib
import os
import platform
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from harness.errors import CalledOff
from harness.records import Leg

#: Memory that one Qwen3-0.6B leg of the CPU matrix needs at most, GiB; decides how many run side by side.
LEG_GIB = 4.5

#: Where leases lie. Not the caller's own folder for temporary files: two runs with different ones share the devices.
LEASES = Path("/tmp")

#: Variables that choose devices, the one that wins first. vLLM refuses to start where AMD's two differ
#: (vllm/platforms/rocm.py: _sync_hip_cuda_env_vars), so a lease sets both; their ids count what ``AMD_BELOW`` leaves.
NVIDIA, AMD, AMD_BELOW = (
    ("CUDA_VISIBLE_DEVICES",), ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"), ("ROCR_VISIBLE_DEVICES",),
)
SAME: Mapping[str, Sequence[str]] = {names[0]: names for names in (NVIDIA, AMD)}

#: Engines whose legs need no GPU.
NO_DEVICE = ("fake", "fake_pair", "transformers", "unavailable", "unit")

#: What is never set: nobody calls off a leg that is waited for.
NEVER = threading.Event()

#: How often a busy set of devices is asked again, seconds.
RETRY_S = 0.5


@dataclass(frozen=True)
class Lease:
    """One device, held. ``environment`` makes it the only one that the child sees."""

    device: str = "cpu"
    environment: Mapping[str, str] = field(default_factory=dict)


def gpus() -> tuple[str, list[str]]:
    """(visibility variable, device ids) of this machine, ids empty without a GPU.

    Asks neither torch nor vLLM, which would touch the device: AMD's nodes in the kernel's topology that have SIMDs,
    NVIDIA's folder in /proc. A visibility variable of the caller narrows the list.
    """
    if Path("/dev/kfd").exists():
        return AMD[0], _narrowed(AMD, len(_narrowed(AMD_BELOW, _amd_count())))
    nvidia = Path("/proc/driver/nvidia/gpus")
    if nvidia.is_dir():
        return NVIDIA[0], _narrowed(NVIDIA, len(list(nvidia.iterdir())))
    return "", []


def _amd_count() -> int:
    count = 0
    for properties in Path("/sys/class/kfd/kfd/topology/nodes").glob("*/properties"):
        with contextlib.suppress(OSError):
            facts = dict(line.split(maxsplit=1) for line in properties.read_text().splitlines() if " " in line)
            count += int(facts.get("simd_count", "0")) > 0
    return count


def _narrowed(variables: Sequence[str], count: int) -> list[str]:
    """Ids that the first of these variables leaves, which the caller has set; all of ``count`` without one."""
    for variable in variables:
        chosen = os.environ.get(variable)
        if chosen is not None:
            return [name.strip() for name in chosen.split(",") if name.strip()]
    return [str(number) for number in range(count)]


def processor() -> str:
    """Model name of the CPU; kernels are chosen by it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def gpu_names() -> list[str]:
    """Kinds of GPU in this machine, each once, from the kernel's tables; touches no device."""
    found = set()
    for path in Path("/sys/class/kfd/kfd/topology/nodes").glob("*/properties"):
        found |= {f"gfx {line.split()[1]}" for line in _lines(path) if line.startswith("gfx_target_version")}
    for path in Path("/proc/driver/nvidia/gpus").glob("*/information"):
        found |= {line.partition(":")[2].strip() for line in _lines(path) if line.startswith("Model:")}
    return sorted(found - {"gfx 0"})


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def slots() -> int:
    """How many legs may run side by side here: GPUs, or as many as cores and free memory allow; at least one."""
    _, devices = gpus()
    if devices:
        return len(devices)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = psutil.virtual_memory().available / 2**30
    return max(1, min(cores, int(memory // LEG_GIB)))


def room_for_pairs() -> bool:
    """Whether each process that runs cells (pytest-xdist's workers, or this one alone) can run two legs at a time."""
    return slots() >= 2 * int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))


@contextlib.contextmanager
def lease(leg: Leg, called_off: threading.Event = NEVER) -> Iterator[Lease]:
    """Hold a free device for ``leg``, waiting until there is one.

    Raises:
        CalledOff: ``called_off`` was set while it waited.
    """
    variable, devices = gpus()
    if not devices or leg.engine_name in NO_DEVICE:
        yield Lease()
        return
    folder = LEASES / f"kvparity-devices-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    while True:
        for device in devices:
            lock = FileLock(folder / f"{variable}-{device}.lock")
            try:
                lock.acquire(timeout=0)
            except Timeout:
                continue
            try:
                yield Lease(device=device, environment=dict.fromkeys(SAME[variable], device))
            finally:
                lock.release()
            return
        if called_off.wait(RETRY_S):
            raise CalledOff
