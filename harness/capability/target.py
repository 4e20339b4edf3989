# SPDX-License-Identifier: Apache-2.0
"""The platform that is asked about: the machine's own, or another's module imported beside it."""

from __future__ import annotations

import sys
import types
from typing import Any
from unittest import mock

#: Compiled extensions that vLLM's platform modules import; the CPU wheel's would fail or kill the process.
EXTENSIONS = (
    "vllm._C", "vllm._rocm_C", "vllm._C_stable_libtorch", "vllm._qutlass_C",
    "vllm.vllm_flash_attn._vllm_fa2_C", "vllm.vllm_flash_attn._vllm_fa3_C",
)

#: Platform -> what is taken for granted where the question is asked elsewhere.
ASSUMED = {
    "rocm": "an MI350X (gfx950) with AITER installed",
    "cuda": "a device of compute capability 9.0 with FlashAttention built",
    "cpu": "a CPU",
}

_CAPABILITY = {"rocm": (9, 5), "cuda": (9, 0)}


def platform_of(target: str, foreign: bool) -> Any:
    """The target's platform class, made vLLM's current one where this machine is another."""
    if not foreign:
        from vllm.platforms import current_platform

        return type(current_platform)
    for name in EXTENSIONS:
        sys.modules.setdefault(name, types.ModuleType(name))
    import vllm.platforms

    found = _class_of(target)
    if target in _CAPABILITY:
        from vllm.platforms.interface import DeviceCapability

        capability = DeviceCapability(*_CAPABILITY[target])
        found.get_device_capability = classmethod(lambda cls, device_id=0: capability)
    # Before any backend module is imported: each binds the current platform by name.
    vllm.platforms._current_platform = found()
    if target == "rocm":
        import vllm._aiter_ops

        vllm._aiter_ops.IS_AITER_FOUND = True
    return found


def _class_of(target: str) -> Any:
    if target == "rocm":
        import torch

        # Without amdsmi the module asks torch for the architecture as it is imported.
        properties = types.SimpleNamespace(gcnArchName="gfx950")
        with mock.patch.object(torch.cuda, "get_device_properties", lambda *_: properties):
            from vllm.platforms.rocm import RocmPlatform
        return RocmPlatform
    if target == "cuda":
        from vllm.platforms.cuda import NonNvmlCudaPlatform

        return NonNvmlCudaPlatform
    from vllm.platforms.cpu import CpuPlatform

    return CpuPlatform
