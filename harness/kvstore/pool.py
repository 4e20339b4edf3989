# SPDX-License-Identifier: Apache-2.0
"""The pool: host memory allocated once, cut into slots of one object each.

Which key gets which slot is decided by the scheduler (`harness.kvstore.index`). The pool keeps its own note of what
each slot really holds, so that a load that finds another key, or half a store, is a failure and never stale bytes.
"""

from __future__ import annotations

import torch


class Pool:
    """Slots of ``object_bytes`` each, at most ``capacity_bytes`` together.

    Attributes:
        data: uint8 ``[slots, object_bytes]``, pinned when the KV tensors are on an accelerator.
        evicted: objects that were overwritten by another key.
    """

    def __init__(self, capacity_bytes: int, object_bytes: int, pinned: bool = False) -> None:
        """
        Raises:
            ValueError: the capacity holds no object.
        """
        slots = capacity_bytes // object_bytes
        if slots < 1:
            raise ValueError(
                f"The store's capacity of {capacity_bytes} bytes holds no block of {object_bytes} bytes; "
                "raise capacity_mib."
            )
        self.object_bytes = object_bytes
        self.data = torch.empty((slots, object_bytes), dtype=torch.uint8, pin_memory=pinned)
        self.evicted = 0
        self._keys: list[bytes | None] = [None] * slots

    @property
    def slots(self) -> int:
        return len(self._keys)

    @property
    def keys(self) -> tuple[bytes | None, ...]:
        """Key of each slot's complete object, None without."""
        return tuple(self._keys)

    @property
    def used(self) -> int:
        """Slots that hold a complete object."""
        return sum(key is not None for key in self._keys)

    def begin(self, slot: int, key: bytes) -> None:
        """Make the slot's old object invisible; its bytes may change from here on."""
        old = self._keys[slot]
        if old is not None and old != key:
            self.evicted += 1
        self._keys[slot] = None

    def complete(self, slot: int, key: bytes) -> None:
        """Make the slot's new object visible: all its bytes are there."""
        self._keys[slot] = key

    def holds(self, slot: int, key: bytes) -> bool:
        return self._keys[slot] == key

    def forget(self, slot: int) -> None:
        """Lose the slot's object, as a store does whose memory or peer goes away."""
        self._keys[slot] = None
