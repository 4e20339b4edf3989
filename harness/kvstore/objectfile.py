# SPDX-License-Identifier: Apache-2.0
"""A store that outlives its engine: its objects in a file that a later engine opens.

The first engine writes the file, later ones only read it and keep what they store themselves in memory. Keys are those
of any other store (``harness.kvstore.keys``), so an engine finds what another one of the same identity computed, and
nothing else. The file is the setting ``file``, or what ``KVPARITY_SHARED_STORE`` names for the faults of keys.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from harness.kvstore.messages import Hello, Orders
from harness.kvstore.pool import Pool
from harness.kvstore.scheduler import StoreScheduler
from harness.kvstore.worker import StoreWorker

#: Variable with the file's path where the settings have none.
VARIABLE = "KVPARITY_SHARED_STORE"


def read(file: str | None, object_bytes: int) -> list[tuple[bytes, bytes]]:
    """(key, object) by slot; empty for the first engine. Objects of another size are another configuration's."""
    path = Path(file or os.environ[VARIABLE])
    held = pickle.loads(path.read_bytes()) if path.exists() else []
    return [(key, row) for key, row in held if len(row) == object_bytes]


def written(file: str | None) -> bool:
    """Whether an earlier engine has written the file."""
    return Path(file or os.environ[VARIABLE]).exists()


def write(file: str | None, pool: Pool) -> None:
    """Everything that the pool holds, in slot order."""
    held = [(key, pool.data[slot].numpy().tobytes()) for slot, key in enumerate(pool.keys) if key is not None]
    path = Path(file or os.environ[VARIABLE])
    staging = path.with_suffix(".part")
    staging.write_bytes(pickle.dumps(held))
    os.replace(staging, path)


class FileWorker(StoreWorker):
    """Begins with the objects of the file; writes it where it was not there."""

    def register(self, kv_caches: Mapping[str, torch.Tensor]) -> None:
        super().register(kv_caches)
        self._first = not written(self._settings.file)
        for slot, (key, row) in enumerate(read(self._settings.file, self.pool.object_bytes)):
            self.pool.data[slot] = torch.frombuffer(bytearray(row), dtype=torch.uint8)
            self.pool.complete(slot, key)

    def store(self, orders: Orders) -> None:
        super().store(orders)
        if orders.stores and self._first:
            write(self._settings.file, self.pool)


class FileScheduler(StoreScheduler):
    """Knows the objects of the file."""

    def greet(self, hellos: Sequence[Hello]) -> None:
        super().greet(hellos)
        # Slots are given in order, so each key gets the slot that the worker put its object into.
        for slot, (key, _) in enumerate(read(self._file, hellos[0].object_bytes)):
            if self.index.reserve(key) != slot:
                raise ValueError(f"The file's object in slot {slot} did not get that slot.")
            self.index.complete(key)
