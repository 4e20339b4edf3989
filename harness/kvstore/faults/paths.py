# SPDX-License-Identifier: Apache-2.0
"""Transfer paths with a fault: each wraps a right one and moves the wrong bytes, or the right ones at a wrong time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from harness.kvstore.faults.pages import DAMAGES, Pages
from harness.kvstore.transfer import TransferPath


class DamagedPath:
    """Loads rightly, then puts into the blocks what the fault makes of their pages."""

    def __init__(self, inner: TransferPath, kv_caches: Mapping[str, torch.Tensor], damage: str) -> None:
        """
        Args:
            inner: the right path.
            kv_caches: the layers in order, [B, H, N, C], B in manager blocks.
            damage: one of ``DAMAGES``.
        """
        self._inner = inner
        self._layers = tuple(kv_caches.values())
        self._damage = DAMAGES[damage]

    def store(self, blocks: Sequence[int], slots: Sequence[int]) -> None:
        self._inner.store(blocks, slots)

    def load(self, blocks: Sequence[int], slots: Sequence[int]) -> None:
        places = list(blocks)
        before = [layer[places] for layer in self._layers]
        self._inner.load(blocks, slots)
        for number, layer in enumerate(self._layers):
            layer[places] = self._damage(Pages(number, len(self._layers), before[number], layer[places]))


class LosingPath:
    """Zeroes the last block of a store on the device, as a store does that moves blocks instead of copying them."""

    def __init__(self, inner: TransferPath, kv_caches: Mapping[str, torch.Tensor]) -> None:
        """
        Args:
            inner: the right path.
            kv_caches: [B, H, N, C] of every layer, B in manager blocks.
        """
        self._inner = inner
        self._layers = tuple(kv_caches.values())

    def store(self, blocks: Sequence[int], slots: Sequence[int]) -> None:
        self._inner.store(blocks, slots)
        for layer in self._layers:
            layer[blocks[-1]] = 0

    def load(self, blocks: Sequence[int], slots: Sequence[int]) -> None:
        self._inner.load(blocks, slots)


class _Remembering:
    """What several faults need to know: the pool's rows, and what was stored so far, oldest first."""

    def __init__(self, inner: TransferPath, pool: torch.Tensor) -> None:
        """
        Args:
            inner: the right path.
            pool: uint8 ``[slots, object_bytes]``.
        """
        self._inner = inner
        self._pool = pool
        self._stored: dict[int, int] = {}

    def store(self, blocks: Sequence[int], slots: Sequence[int]) -> None:
        self._inner.store(blocks, slots)
        self._stored.update(zip(slots, blocks, strict=True))

    def load(self, blocks: Sequence[int], slots: Sequence[int]) -> None:
        self._inner.load(blocks, slots)


class StalePath(_Remembering):
    """Loads other slots than it was told: the objects that were stored before they were given to the right keys."""

    def load(self, blocks: Sequence[int], slots: Sequence[int]) -> None:
        others = [slot for slot in self._stored if slot not in slots] or list(slots)
        self._inner.load(blocks, [others[index % len(others)] for index in range(len(slots))])


class EvictingPath(_Remembering):
    """The last slot of a load is written with the oldest object's bytes before the load gets to it."""

    def load(self, blocks: Sequence[int], slots: Sequence[int]) -> None:
        self._inner.load(blocks[:-1], slots[:-1])
        self._pool[slots[-1]] = self._pool[next(iter(self._stored))]
        self._inner.load(blocks[-1:], slots[-1:])


class OverwrittenPath(_Remembering):
    """The last block of a store holds another request's bytes by the time it is read: those of the first block ever."""

    def store(self, blocks: Sequence[int], slots: Sequence[int]) -> None:
        first = next(iter(self._stored.values()), blocks[0])
        self._inner.store([*blocks[:-1], first], slots)
        self._stored.update(zip(slots, blocks, strict=True))


class ReadOncePath(_Remembering):
    """Reading an object destroys it."""

    def load(self, blocks: Sequence[int], slots: Sequence[int]) -> None:
        self._inner.load(blocks, slots)
        self._pool[list(slots)] = 0


class LatePath(_Remembering):
    """Loads when it is told to ``catch_up``, after the forward pass."""

    def __init__(self, inner: TransferPath, pool: torch.Tensor) -> None:
        super().__init__(inner, pool)
        self._late: list[tuple[Sequence[int], Sequence[int]]] = []

    def load(self, blocks: Sequence[int], slots: Sequence[int]) -> None:
        self._late.append((blocks, slots))

    def catch_up(self) -> None:
        for blocks, slots in self._late:
            self._inner.load(blocks, slots)
        self._late.clear()


#: Fault -> path that has it, made of (right path, pool).
POOL_FAULTS: Mapping[str, Callable[[TransferPath, torch.Tensor], TransferPath]] = {
    "stale_object": StalePath,
    "evicted_during_load": EvictingPath,
    "overwritten_before_stored": OverwrittenPath,
    "read_once": ReadOncePath,
    "restored_late": LatePath,
}


def faulty_path(
    fault: str, inner: TransferPath, kv_caches: Mapping[str, torch.Tensor], pool: torch.Tensor
) -> TransferPath:
    """The path with the fault; ``inner`` itself where the fault is not one of a path."""
    if fault in DAMAGES:
        return DamagedPath(inner, kv_caches, fault)
    if fault == "block_lost_on_store":
        return LosingPath(inner, kv_caches)
    return POOL_FAULTS[fault](inner, pool) if fault in POOL_FAULTS else inner
