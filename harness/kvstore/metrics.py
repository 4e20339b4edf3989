# SPDX-License-Identifier: Apache-2.0
"""The halves' counts as vLLM connector statistics, and as Prometheus metrics ``vllm:embedded_store_*``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

#: Cumulative counts, summed over ranks.
COUNTERS: dict[str, str] = {
    "promised_tokens": "Prompt tokens that the scheduler took from the store.",
    "delivered_tokens": "Prompt tokens whose KV the workers loaded.",
    "loaded_blocks": "Blocks loaded.",
    "loaded_bytes": "Bytes loaded.",
    "stored_blocks": "Blocks stored.",
    "stored_bytes": "Bytes stored.",
    "evicted_blocks": "Blocks overwritten by others.",
    "failed_loads": "Promised blocks that the pool did not hold.",
}
#: Present values, known to the scheduler.
GAUGES: dict[str, str] = {
    "objects": "Complete blocks in the store.",
    "slots": "Blocks that fit into the store.",
    "running_loads": "Loads that have not ended.",
}


class StoreStats(KVConnectorStats):
    """``data``: name -> increase since the last report (counters) or present value (gauges)."""

    def reset(self) -> None:
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> StoreStats:
        for name, value in other.data.items():
            self.data[name] = value + (self.data.get(name, 0) if name in COUNTERS else 0)
        return self

    def reduce(self) -> dict[str, int | float]:
        return dict(self.data)

    def is_empty(self) -> bool:
        return not self.data


class Changes:
    """Turns one half's cumulative evidence into what changed since the last question."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def since(self, evidence: Mapping[str, int]) -> StoreStats | None:
        """None when nothing changed."""
        changed = {
            name: value - (self._last.get(name, 0) if name in COUNTERS else 0)
            for name, value in evidence.items()
            if value != self._last.get(name, 0) and (name in COUNTERS or name in GAUGES)
        }
        self._last = dict(evidence)
        return StoreStats(data=changed) if changed else None


class StoreProm(KVConnectorPromMetrics):
    """Counters ``vllm:embedded_store_<name>_total`` and gauges ``vllm:embedded_store_<name>``."""

    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: Any) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._counters = {
            name: self._counter_cls(name=f"vllm:embedded_store_{name}_total", documentation=text, labelnames=labelnames)
            for name, text in COUNTERS.items()
        }
        self._gauges = {
            name: self._gauge_cls(
                name=f"vllm:embedded_store_{name}",
                documentation=text,
                labelnames=labelnames,
                multiprocess_mode="mostrecent",
            )
            for name, text in GAUGES.items()
        }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        labels = self.per_engine_labelvalues[engine_idx]
        for name, value in transfer_stats_data.items():
            if name in self._counters:
                self._counters[name].labels(*labels).inc(value)
            elif name in self._gauges:
                self._gauges[name].labels(*labels).set(value)
