# SPDX-License-Identifier: Apache-2.0
"""vLLM's offloading on a CPU host, through its hook for specs from outside the tree (kv_offload/factory.py).

Everything that decides what is copied where is vLLM's: scheduler, manager, tiers, the canonical view of the KV cache
and the copy descriptors (kv_offload/cpu/gpu_worker.py: ``transfer_async``). Replaced is what needs a device: streams
and events, which on a host have always finished, and the batched copy, which becomes one ``memmove`` per descriptor.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from vllm.v1.kv_offload.base import CanonicalKVCaches, OffloadingWorker
from vllm.v1.kv_offload.cpu import gpu_worker
from vllm.v1.kv_offload.cpu import spec as cpu_spec
from vllm.v1.kv_offload.tiering import spec as tiering_spec


class HostStream:
    """A stream whose work is done as soon as it was asked for."""

    def wait_stream(self, other: Any) -> None:
        return

    def wait_event(self, event: Any) -> None:
        return


class HostEvent:
    """An event that has happened. ``elapsed_time`` is in milliseconds; a rate needs a time that is not zero."""

    def __init__(self, **kwargs: Any) -> None:
        return

    def record(self, stream: Any = None) -> None:
        return

    def synchronize(self) -> None:
        return

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: HostEvent) -> float:
        return 1.0


class _HostPlatform:
    """vLLM's platform, with streams that a host can have."""

    def __init__(self, platform: Any) -> None:
        self._platform = platform

    def __getattr__(self, name: str) -> Any:
        return getattr(self._platform, name)

    def Stream(self) -> HostStream:
        return HostStream()

    def current_stream(self) -> HostStream:
        return HostStream()

    def stream(self, stream: HostStream) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


def copy_batch(src: torch.Tensor, dst: torch.Tensor, sizes: torch.Tensor, **kwargs: Any) -> None:
    """Copy ``sizes[i]`` bytes from address ``src[i]`` to ``dst[i]``; int64 tensors of equal length."""
    for source, destination, size in zip(src.tolist(), dst.tolist(), sizes.tolist(), strict=True):
        ctypes.memmove(destination, source, size)


class HostHandler(gpu_worker.SingleDirectionOffloadingHandler):
    """One direction. vLLM's constructor insists on device tensors, so this one fills the fields by itself."""

    def __init__(
        self,
        gpu_tensors: list[torch.Tensor],
        cpu_tensors: list[torch.Tensor],
        blocks_per_chunk: int,
        layer_refs_per_group: Any,
        gpu_to_cpu: bool,
        canonical_layout: bool = False,
        host_memory_is_pinned: bool = False,
    ) -> None:
        """
        Raises:
            NotImplementedError: the canonical layout was asked for.
        """
        if canonical_layout:
            raise NotImplementedError("the host's offloading spec has no canonical_layout; leave it out")
        self.src_tensors, self.dst_tensors = (
            (gpu_tensors, cpu_tensors) if gpu_to_cpu else (cpu_tensors, gpu_tensors)
        )
        self.gpu_to_cpu = gpu_to_cpu
        self.layer_refs_per_group = layer_refs_per_group
        self._swap_blocks_batch = copy_batch
        self.src_blocks_per_chunk = 1 if gpu_to_cpu else blocks_per_chunk
        self.dst_blocks_per_chunk = blocks_per_chunk if gpu_to_cpu else 1
        self._canonical_copy_plans = None
        self._fill_group_ops = self._fill_direct_ops
        self._transfer_events: dict[int, HostEvent] = {}
        self._transfers: deque[Any] = deque()
        self._stream_pool: list[HostStream] = []
        self._event_pool: list[HostEvent] = []
        self._buffer_pool: list[Any] = []

    def transfer_async(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        with host_device():
            return super().transfer_async(job_id, src_spec, dst_spec)


@contextlib.contextmanager
def host_device() -> Iterator[None]:
    """The worker's module with a host's streams and events in place of a device's."""
    changes = [
        (gpu_worker, "current_platform", _HostPlatform(gpu_worker.current_platform)),
        (gpu_worker, "SingleDirectionOffloadingHandler", HostHandler),
        (torch, "Event", HostEvent),
    ]
    before = [getattr(module, name) for module, name, _ in changes]
    try:
        for module, name, value in changes:
            setattr(module, name, value)
        yield
    finally:
        for (module, name, _), value in zip(changes, before, strict=True):
            setattr(module, name, value)


class HostOffloadingSpec(cpu_spec.CPUOffloadingSpec):
    """vLLM's CPU tier."""

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        if self._worker is None:
            with host_device():
                self._worker = self.create_worker(kv_caches)
        return self._worker


class HostTieringSpec(tiering_spec.TieringOffloadingSpec):
    """vLLM's CPU tier with further tiers below it."""

    get_worker = HostOffloadingSpec.get_worker
