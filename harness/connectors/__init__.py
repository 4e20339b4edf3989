# SPDX-License-Identifier: Apache-2.0
"""The connectors that a scenario can name, one adapter each."""

from __future__ import annotations

from collections.abc import Mapping

from harness.connectors import (
    decode_bench,
    embedded,
    example,
    lmcache,
    mooncake_store,
    multi,
    nixl,
    noop,
    offloading,
    simple_cpu_offload,
    umbp,
)
from harness.connectors.adapter import FOLDER, LEG, PORT, PROCESS, Adapter, Bytes, Metric, Need, Option, filled, nested

__all__ = [
    "ADAPTERS", "FOLDER", "LEG", "PORT", "PROCESS", "Adapter", "Bytes", "Metric", "Need", "Option", "adapter_of_class",
    "filled", "nested", "refusals_of_class",
]

#: Alias -> adapter, in the order in which messages and reports name them.
ADAPTERS: Mapping[str, Adapter] = {
    adapter.alias: adapter
    for adapter in (
        embedded.ADAPTER,
        embedded.FILE,
        umbp.ADAPTER,
        example.ADAPTER,
        multi.ADAPTER,
        offloading.ADAPTER,
        offloading.CPU_TIER,
        offloading.FS_TIER,
        simple_cpu_offload.ADAPTER,
        mooncake_store.ADAPTER,
        lmcache.MP,
        lmcache.IN_PROCESS,
        nixl.ADAPTER,
        decode_bench.ADAPTER,
        noop.ADAPTER,
    )
}


def refusals_of_class(name: str | None) -> tuple[str, ...]:
    """Texts with which a connector of this class says that it cannot run here."""
    return tuple(text for one in ADAPTERS.values() if one.connector == name for text in one.refusals)


def adapter_of_class(name: str | None) -> Adapter | None:
    """The first adapter whose connector class has this name; None for a connector that nobody described."""
    return next((adapter for adapter in ADAPTERS.values() if adapter.connector == name), None)
