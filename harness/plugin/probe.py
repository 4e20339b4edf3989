# SPDX-License-Identifier: Apache-2.0
"""The probe: what a worker really uses and holds, asked through ``LLM.collective_rpc``.

Use: ``LLM(..., worker_extension_cls="harness.plugin.probe.Probe")``, then ``llm.collective_rpc("kvparity_resolved")``,
one answer per worker. Every answer consists of plain values. The names are prefixed because vLLM refuses an extension
whose attributes collide with the worker's (vllm/v1/worker/worker_base.py: WorkerWrapperBase.init_worker).
"""

from __future__ import annotations

import hashlib
from functools import wraps
from typing import Any

import torch

from harness.plugin import batch_invariant, kvtensors
from harness.plugin.watch import BlockWatch

#: Elements of a parameter that its digest covers.
SAMPLE = 1024


class Probe:
    """Mixed into vLLM's worker class, whose ``vllm_config`` and ``model_runner`` it reads."""

    def kvparity_resolved(self) -> dict[str, Any]:
        """The fields of ``harness.records.Resolved``; sequences as lists.

        ``backend`` joins the names with ``+`` where groups of layers use different backends. ``shape``, ``strides``,
        ``dtype`` and ``kernel_block_size`` are those of the first set of layers; ``layout_by_strides`` holds for all.
        """
        backends = [group.backend for groups in self.model_runner.attn_groups for group in groups]
        sets = self._kvparity_layer_sets()
        first = sets[0]
        tensor = first.tensors[0]
        try:
            strides = list(first.strides)
        except ValueError:  # no single distance between layers: layout_by_strides is empty then
            strides = [0, *tensor.stride()]
        connector = _connector()
        common = [name for name in first.layouts() if all(name in layers.layouts() for layers in sets)]
        return {
            "layout": self.vllm_config.cache_config.kv_cache_layout,
            "layout_by_strides": common,
            "shape": list(tensor.shape),
            "strides": strides,
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "num_layers": sum(len(layers.tensors) for layers in sets),
            "backend": "+".join(_distinct(_alias(backend) for backend in backends)),
            "backend_class": _distinct(f"{backend.__module__}.{backend.__qualname__}" for backend in backends),
            "batch_invariant": _batch_invariant() and all(backend.supports_batch_invariance() for backend in backends),
            "block_size": first.spec.block_size,
            "kernel_block_size": first.spec.block_size // first.split,
            "num_blocks": first.num_blocks,
            "threads": torch.get_num_threads(),
            "connector": None if connector is None else type(connector).__name__,
            "settings": self._kvparity_settings(),
        }

    def _kvparity_settings(self) -> dict[str, str]:
        """What else can tell two engines' KV apart, as this worker has it; see ``harness.records.Resolved``."""
        from vllm.v1.core import kv_cache_utils

        model, cache = self.vllm_config.model_config, self.vllm_config.cache_config
        return {
            "model": model.model,
            "revision": str(model.revision),
            "weights": _weights(self.model_runner.model),
            "model dtype": str(model.dtype).removeprefix("torch."),
            "kv cache dtype": str(cache.cache_dtype),
            # Made where block hashes are; a worker in a process of its own has none.
            "hash seed": getattr(kv_cache_utils, "NONE_HASH", b"").hex(),
        }

    def kvparity_watch(self) -> None:
        """Start to record block tables, or start anew."""
        watch = BlockWatch(self._kvparity_layer_sets()[0].spec.block_size)
        running = hasattr(self, "kvparity_block_watch")
        self.kvparity_block_watch = watch
        if running:
            return
        execute = self.model_runner.execute_model

        @wraps(execute)
        def watched(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            self.kvparity_block_watch.see(scheduler_output)
            return execute(scheduler_output, *args, **kwargs)

        self.model_runner.execute_model = watched

    def kvparity_take_blocks(self) -> list[dict[str, Any]]:
        """What is known of each request since the last call; see ``BlockWatch.take``.

        Raises:
            RuntimeError: ``kvparity_watch`` was not called.
        """
        if not hasattr(self, "kvparity_block_watch"):
            raise RuntimeError("Block tables are recorded only after kvparity_watch().")
        return self.kvparity_block_watch.take()

    def kvparity_zero(self) -> dict[str, int]:
        """Zero the KV cache's whole storage: ``zeroed_bytes`` and ``nonzero_after``."""
        zeroed, nonzero = kvtensors.zero(self._kvparity_layer_sets())
        return {"zeroed_bytes": zeroed, "nonzero_after": nonzero}

    def kvparity_digests(self, block_ids: list[int]) -> list[str]:
        """Digests of manager blocks in logical order, one string each; see ``kvtensors.block_digests``.

        The content is split in two halves: K and V of a head slot; of a spec that keeps K and V in head slots of
        their own, the first and the second half of the KV heads.

        Raises:
            NotImplementedError: the model has several KV cache groups, whose block ids mean different layers.
            ValueError: a block id outside the pool.
        """
        return kvtensors.block_digests(self._kvparity_layer_sets(), block_ids)

    def kvparity_transfer(self) -> dict[str, int]:
        """What the worker's KV connector counts (its ``evidence()``); empty without connector or counter."""
        evidence = getattr(_connector(), "evidence", None)
        return {} if evidence is None else dict(evidence())

    def _kvparity_layer_sets(self) -> tuple[kvtensors.LayerSet, ...]:
        config = self.model_runner.kv_cache_config
        if len(config.kv_cache_groups) != 1:
            raise NotImplementedError(
                f"The probe knows one KV cache group, this model has {len(config.kv_cache_groups)}."
            )
        context = self.vllm_config.compilation_config.static_forward_context
        tensors = {
            name: layer.kv_cache
            for name, layer in context.items()
            if isinstance(getattr(layer, "kv_cache", None), torch.Tensor) and layer.kv_cache.dim() == 4
        }
        return kvtensors.layer_sets(config, tensors)


def _connector() -> Any:
    """This worker's KV connector, None without."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group

    return get_kv_transfer_group() if has_kv_transfer_group() else None


def _weights(model: torch.nn.Module) -> str:
    """Digest of the first elements of each loaded parameter."""
    digest = hashlib.blake2b(digest_size=8)
    for name, parameter in model.named_parameters():
        if parameter.numel() and parameter.is_contiguous():
            sample = parameter.detach().flatten()[:SAMPLE].cpu().view(torch.uint8)
            digest.update(f"{name}\0".encode() + sample.numpy().tobytes())
    return digest.hexdigest()


def _alias(backend: type) -> str:
    return getattr(backend, "kvparity_alias", None) or backend.get_name()


def _distinct(names: Any) -> list[str]:
    return list(dict.fromkeys(names))


def _batch_invariant() -> bool:
    from vllm import envs
    from vllm.platforms import current_platform

    return bool(envs.VLLM_BATCH_INVARIANT) and (batch_invariant.active() or not current_platform.is_cpu())
