# SPDX-License-Identifier: Apache-2.0
"""The embedded store as a vLLM KV connector; load it with ``kv_connector_module_path: harness.kvstore.connector``.

Thin on purpose: the halves are `harness.kvstore.scheduler` and `harness.kvstore.worker`. The connector does not
declare hybrid memory support, so vLLM gives it one cache group in which every layer keeps all its blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorRole
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from harness.kvstore.faults import scheduler_class, worker_class
from harness.kvstore.messages import Hello, Orders, Report
from harness.kvstore.metrics import Changes, StoreProm, StoreStats
from harness.kvstore.scheduler import StoreScheduler
from harness.kvstore.settings import Settings
from harness.kvstore.worker import StoreWorker

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.base import (
        KVConnectorHandshakeMetadata,
        KVConnectorMetadata,
    )
    from vllm.forward_context import ForwardContext
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request


class EmbeddedStoreConnector(KVConnectorBase_V1):
    """KV blocks in host memory of the worker process, for all six KV cache layouts."""

    _cache_hit_source = CacheHitSource.HOST

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        """
        Raises:
            ValueError: settings or an engine configuration that the store does not support.
        """
        super().__init__(vllm_config, role, kv_cache_config)
        settings = Settings.of(self._kv_transfer_config.kv_connector_extra_config)
        _refuse_unsupported(vllm_config, kv_cache_config)
        self._changes = Changes()
        self.scheduler: StoreScheduler | None = None
        self.worker: StoreWorker | None = None
        if role == KVConnectorRole.SCHEDULER:
            block_size = kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size
            half = scheduler_class(settings.fault, outlives=settings.file is not None)
            self.scheduler = half(block_size, settings.load == "async", settings.file)
        else:
            worker = worker_class(settings.fault, outlives=settings.file is not None)
            self.worker = worker(vllm_config, kv_cache_config, settings)

    @property
    def requires_kv_delivery(self) -> bool:
        # A cache: what is not stored is recomputed.
        return False

    def evidence(self) -> dict[str, int]:
        """Cumulative counts of this half.

        Worker: delivered_tokens, loaded_bytes, stored_bytes, loaded_blocks, stored_blocks, evicted_blocks,
        failed_loads.
        Scheduler: promised_tokens, objects, slots, evicted_objects, running_loads.
        """
        return dict((self.worker or self._scheduler).evidence())

    def get_kv_connector_stats(self) -> StoreStats | None:
        return self._changes.since(self.evidence())

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> StoreStats:
        return StoreStats(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: VllmConfig, metric_types: Any, labelnames: list[str], per_engine_labelvalues: Any
    ) -> StoreProm:
        return StoreProm(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    # Worker half

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self._worker.register(kv_caches)

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        return self._worker.hello()

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        self._worker.start_loads(self._orders())

    def wait_for_layer_load(self, layer_name: str) -> None:
        # Sync loads are complete before the forward pass, async ones before the request is scheduled.
        return

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        # Whole blocks of all layers are stored together after the forward pass.
        return

    def wait_for_save(self) -> None:
        self._worker.store(self._orders())

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        return None, self._worker.finished_loads() or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._worker.take_failed_blocks()

    def build_connector_worker_meta(self) -> Report:
        return self._worker.take_report()

    def shutdown(self) -> None:
        if self.worker is not None:
            self.worker.close()

    # Scheduler half

    def set_xfer_handshake_metadata(self, metadata: dict[int, KVConnectorHandshakeMetadata]) -> None:
        self._scheduler.greet([hello for hello in metadata.values() if isinstance(hello, Hello)])

    def on_new_request(self, request: Request) -> None:
        self._scheduler.track(request)

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        return self._scheduler.match(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        self._scheduler.allocated(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        return self._scheduler.orders(scheduler_output)

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        self._scheduler.reported(connector_output)

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, Mapping[str, Any] | None]:
        self._scheduler.forget(request.request_id)
        return False, None

    def reset_cache(self) -> bool | None:
        return self._scheduler.reset()

    # Private

    @property
    def _worker(self) -> StoreWorker:
        assert self.worker is not None, "the scheduler's half has no worker"
        return self.worker

    @property
    def _scheduler(self) -> StoreScheduler:
        assert self.scheduler is not None, "the worker's half has no scheduler"
        return self.scheduler

    def _orders(self) -> Orders:
        orders = self._get_connector_metadata()
        assert isinstance(orders, Orders)
        return orders


def _refuse_unsupported(config: VllmConfig, kv_cache_config: KVCacheConfig) -> None:
    groups = kv_cache_config.kv_cache_groups
    parallel = config.parallel_config
    if len(groups) != 1:
        layers = [group.layer_names[0] for group in groups]
        raise ValueError(
            f"The embedded store takes one KV cache group, but the model has {len(groups)} (first layers {layers})."
        )
    if config.speculative_config is not None:
        raise ValueError(
            "The embedded store does not support speculative decoding: draft tokens' KV may be rejected later."
        )
    if (
        parallel.pipeline_parallel_size > 1
        or parallel.decode_context_parallel_size > 1
        or (parallel.prefill_context_parallel_size > 1)
    ):
        raise ValueError(
            "The embedded store supports tensor parallel ranks only, no pipeline or context parallel ranks."
        )
    block_size = groups[0].kv_cache_spec.block_size
    unit = kv_cache_config.hash_block_size or block_size
    if unit != block_size:
        raise ValueError(
            f"The embedded store needs one hash per block, but hashes cover {unit} tokens and blocks {block_size}."
        )
