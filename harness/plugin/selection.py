# SPDX-License-Identifier: Apache-2.0
"""Backend selection on CPU as strict as vLLM's selector is on ROCm and CUDA.

vLLM's CPU platform answers every request for a backend with CPU_ATTN and validates nothing (vllm/platforms/cpu.py:
CpuPlatform.get_attn_backend_cls). Here the backend that was asked for runs, or the engine refuses to start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.v1.attention.selector import AttentionSelectorConfig

#: Alias -> class path of the backends that run on a CPU.
CPU_BACKENDS = {
    "REFERENCE": "harness.plugin.reference.ReferenceBackend",
    "REFERENCE_SHUFFLE": "harness.plugin.reference.ShuffleBackend",
    "CPU_ATTN": "vllm.v1.attention.backends.cpu_attn.CPUAttentionBackend",
}


def select(asked: str, config: AttentionSelectorConfig) -> str:
    """Class path of the backend that was asked for.

    Args:
        asked: alias or vLLM's name of a backend.
        config: what vLLM's selector knows of the layer.

    Raises:
        ValueError: the backend does not run on a CPU, or not with this configuration; names backend and reason.
    """
    from vllm.config import get_current_vllm_config
    from vllm.utils.import_utils import resolve_obj_by_qualname

    from harness.plugin import batch_invariant

    path = CPU_BACKENDS.get(asked)
    if path is None:
        raise ValueError(
            f"Selected backend {asked} is not available on CPU; valid backends: {', '.join(CPU_BACKENDS)}."
        )
    reasons = resolve_obj_by_qualname(path).validate_configuration(
        device_capability=None,  # a CPU has none, and no CPU backend asks for it
        **config._asdict(),
    )
    if config.use_batch_invariant:
        reasons += batch_invariant.uncovered(get_current_vllm_config())
    if reasons:
        raise ValueError(f"Selected backend {asked} is not valid for this configuration. Reason: {reasons}")
    return path


def install(asked: str) -> None:
    """Replace the selection of ``CpuPlatform``, and register our class for the name ``CUSTOM``; safe to call again."""
    from vllm.platforms.cpu import CpuPlatform
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    if asked.startswith("REFERENCE") and asked in CPU_BACKENDS:
        register_backend(AttentionBackendEnum.CUSTOM, CPU_BACKENDS[asked])

    def get_attn_backend_cls(cls, selected_backend, attn_selector_config, num_heads=None) -> str:
        return select(asked, attn_selector_config)

    CpuPlatform.get_attn_backend_cls = classmethod(get_attn_backend_cls)
