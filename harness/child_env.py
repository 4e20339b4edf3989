# SPDX-License-Identifier: Apache-2.0
"""The environment in which a leg's child runs: the caller's, without what could change an answer, then the leg's."""

from __future__ import annotations

from collections.abc import Mapping

from harness.device import Lease
from harness.footprint import TOKEN
from harness.records import Leg

#: Variables that are let through although they begin like vLLM's or ours; every other one that begins so comes from the
#: scenario or the runner alone, so that a forgotten export cannot change what a cell means.
LET_THROUGH = frozenset({
    TOKEN, "VLLM_CACHE_ROOT", "VLLM_CONFIG_ROOT", "VLLM_ASSETS_CACHE", "VLLM_TARGET_DEVICE", "VLLM_LOGGING_LEVEL",
    "VLLM_WORKER_MULTIPROC_METHOD", "VLLM_NCCL_SO_PATH", "VLLM_CUDART_SO_PATH",
})
STRIPPED_PREFIXES = (
    "VLLM_", "AITER_", "KVPARITY_", "OMP_", "KMP_", "MKL_", "PYTEST_", "COV_", "MOONCAKE_", "MC_", "LMCACHE_",
    "NIXL_", "UCX_",
)


def child_environment(leg: Leg, device: Lease, outside: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of a leg's child: the caller's without what could change an answer, then the leg's."""
    return {**without_settings(outside), **device.environment, **leg.env}


def without_settings(outside: Mapping[str, str]) -> dict[str, str]:
    """A caller's environment without what would set something of vLLM's, of ours or of a store's."""
    return {
        name: value
        for name, value in outside.items()
        if name in LET_THROUGH or not name.startswith(STRIPPED_PREFIXES)
    }
