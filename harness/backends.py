# SPDX-License-Identifier: Apache-2.0
"""The attention backends a scenario can name: what vLLM calls each, where it runs, and the environment it needs.

An alias stands for everything that selects one piece of attention code. AITER's FA backend reads and writes two
different caches depending on a variable that only it looks at, so that variable belongs to the alias: loose in a
scenario's ``env`` it would change nothing under another backend and still look tested.
What a backend supports (layouts, batch invariance, a connector) is not repeated here; vLLM's classes say it
themselves (``harness.capability``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

_AITER = {"VLLM_ROCM_USE_AITER": "1"}
_SHUFFLE = {**_AITER, "VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT": "1"}


@dataclass(frozen=True, kw_only=True)
class Backend:
    """One alias.

    Attributes:
        alias: name in scenarios, cells and reports.
        vllm_name: member of vLLM's ``AttentionBackendEnum`` to ask for (vllm/v1/attention/backends/registry.py).
        platforms: platforms whose vLLM can select it.
        env: environment variables without which vLLM would not select it, or would run other code under its name.
        note: one sentence for reports and docs.
    """

    alias: str
    vllm_name: str
    platforms: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


_TABLE = (
    Backend(alias="REFERENCE", vllm_name="CUSTOM", platforms=("cpu",),
            note="The harness's plain torch attention: strides only, all six layouts, batch invariant."),
    Backend(alias="REFERENCE_SHUFFLE", vllm_name="CUSTOM", platforms=("cpu",),
            note="The same with K and V published as two head slots, as AITER's shuffled cache does."),
    Backend(alias="CPU_ATTN", vllm_name="CPU_ATTN", platforms=("cpu",),
            note="vLLM's own CPU kernel, untouched; its block size is a multiple of 32."),
    Backend(alias="TRITON_ATTN", vllm_name="TRITON_ATTN", platforms=("rocm", "cuda"),
            note="vLLM's Triton kernels."),
    Backend(alias="ROCM_AITER_FA", vllm_name="ROCM_AITER_FA", platforms=("rocm",), env=_AITER,
            note="AITER's flash attention on the plain cache."),
    Backend(alias="ROCM_AITER_FA_SHUFFLE", vllm_name="ROCM_AITER_FA", platforms=("rocm",), env=_SHUFFLE,
            note="AITER's flash attention on the shuffled cache: two head slots, K and V."),
    Backend(alias="ROCM_AITER_UNIFIED_ATTN", vllm_name="ROCM_AITER_UNIFIED_ATTN", platforms=("rocm",), env=_AITER,
            note="AITER's unified attention."),
    Backend(alias="ROCM_ATTN", vllm_name="ROCM_ATTN", platforms=("rocm",),
            note="vLLM's ROCm paged attention; does not take a KV connector."),
    Backend(alias="FLASH_ATTN", vllm_name="FLASH_ATTN", platforms=("cuda",), note="FlashAttention."),
    Backend(alias="FLASHINFER", vllm_name="FLASHINFER", platforms=("cuda",), note="FlashInfer."),
    Backend(alias="FLEX_ATTENTION", vllm_name="FLEX_ATTENTION", platforms=("cuda",), note="torch's FlexAttention."),
)

#: alias -> backend, in the order in which docs and error texts list them.
BACKENDS: Mapping[str, Backend] = MappingProxyType({backend.alias: backend for backend in _TABLE})

#: Variables that belong to an alias and therefore cannot be set by a scenario's ``env``.
ALIAS_ENV = frozenset(name for backend in _TABLE for name in backend.env)


def choosable(platforms: Iterable[str]) -> tuple[str, ...]:
    """Aliases that a scenario for ``platforms`` may name.

    A scenario for a CPU host may name every backend: one of another platform must then be refused at start, which is
    a control worth having. Elsewhere a foreign alias is a slip of the pen.
    """
    wanted = set(platforms)
    if "cpu" in wanted:
        return tuple(BACKENDS)
    return tuple(alias for alias, backend in BACKENDS.items() if wanted & set(backend.platforms))
