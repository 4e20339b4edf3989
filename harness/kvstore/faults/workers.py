# SPDX-License-Identifier: Apache-2.0
"""Worker halves with a fault."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from harness.kvstore.faults import shared
from harness.kvstore.faults.paths import LatePath, faulty_path
from harness.kvstore.messages import Move, Orders
from harness.kvstore.objectfile import FileWorker
from harness.kvstore.worker import StoreWorker


class FaultyWorker(StoreWorker):
    """A worker whose transfer path has the fault of the settings."""

    def register(self, kv_caches: Mapping[str, torch.Tensor]) -> None:
        """As the right worker's.

        Raises:
            ValueError: kernel blocks smaller than manager blocks; the planted faults speak of manager blocks.
        """
        super().register(kv_caches)
        for name, tensor in kv_caches.items():
            if tensor.shape[0] != self._kv_cache_config.num_blocks:
                raise ValueError(
                    f"Layer {name}: planted faults need one kernel block per block, it has {tensor.shape[0]} kernel "
                    f"blocks in {self._kv_cache_config.num_blocks}."
                )
        self.path = faulty_path(str(self._settings.fault), self.path, kv_caches, self.pool.data)

    def store(self, orders: Orders) -> None:
        if isinstance(self.path, LatePath):
            self.path.catch_up()
        super().store(orders)


class ForgettingWorker(StoreWorker):
    """Lost the objects that the scheduler promised, and says so: the engine recomputes or fails the request."""

    def _load(self, move: Move) -> tuple[set[int], set[bytes]]:
        for slot in move.slots:
            self.pool.forget(slot)
        return super()._load(move)


class SpillingWorker(StoreWorker):
    """Moves more than it was asked to, and counts what it moved: whose block it hits is a matter of luck."""

    def _load(self, move: Move) -> tuple[set[int], set[bytes]]:
        answer = super()._load(move)
        if move.blocks[-1] + 1 < self._kv_cache_config.num_blocks:
            self.path.load([move.blocks[-1] + 1], move.slots[-1:])
            self._counts["loaded_bytes"] += self.plan.object_bytes
        return answer


class SharingWorker(FileWorker):
    """Shares its objects with other engines by a file, under keys that do not tell their cells apart."""

    def register(self, kv_caches: Mapping[str, torch.Tensor]) -> None:
        super().register(kv_caches)
        self.identity = shared.reduced(self.identity, str(self._settings.fault))


def worker_with(fault: str) -> type[StoreWorker]:
    """The worker half that has the fault."""
    if fault.startswith("key_without_"):
        return SharingWorker
    own = {"promise_not_delivered": ForgettingWorker, "spilled_over": SpillingWorker}
    return own.get(fault, FaultyWorker)
