# SPDX-License-Identifier: Apache-2.0
"""The index: which key lies in which slot, in the order of use.

It lives in the scheduler alone, so that a promise and an eviction can never race: the scheduler decides both, step by
step, and the workers carry them out in that order. A key is visible when every worker has reported its bytes
complete; it is pinned while a load runs; eviction takes the least recently used key that is visible and not pinned.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass


@dataclass
class Entry:
    """A key's slot, whether its bytes are complete, and how many loads read it."""

    slot: int
    complete: bool = False
    pins: int = 0
    doomed: bool = False


class ObjectIndex:
    """Least-recently-used index over a fixed number of slots."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.evicted = 0
        self._free = list(range(slots - 1, -1, -1))
        self._entries: OrderedDict[bytes, Entry] = OrderedDict()

    def __len__(self) -> int:
        """Keys that are complete."""
        return sum(entry.complete and not entry.doomed for entry in self._entries.values())

    def __contains__(self, key: bytes) -> bool:
        """Whether the key is complete or on its way."""
        entry = self._entries.get(key)
        return entry is not None and not entry.doomed

    def visible(self, key: bytes) -> bool:
        """Whether the key may be promised."""
        entry = self._entries.get(key)
        return entry is not None and entry.complete and not entry.doomed

    def reserve(self, key: bytes, keep: Collection[bytes] = ()) -> int | None:
        """Give the key a slot, evicting if need be.

        Args:
            key: not in the index yet.
            keep: keys that must not be evicted for it.

        Returns:
            The slot, or None when every slot is pinned, incomplete or to be kept.
        """
        if key in self._entries:
            return None
        if not self._free:
            victim = next(
                (old for old, entry in self._entries.items() if entry.complete and not entry.pins and old not in keep),
                None,
            )
            if victim is None:
                return None
            self.evicted += 1
            self._free.append(self._entries.pop(victim).slot)
        slot = self._free.pop()
        self._entries[key] = Entry(slot)
        return slot

    def complete(self, key: bytes) -> None:
        """The bytes are there."""
        if (entry := self._entries.get(key)) is not None:
            entry.complete = True
            self._settle(key, entry)

    def discard(self, key: bytes) -> None:
        """The key's bytes are wrong or missing: never promise it again; its slot is free once no load reads it."""
        if (entry := self._entries.get(key)) is not None:
            entry.complete, entry.doomed = True, True
            self._settle(key, entry)

    def pin(self, key: bytes) -> int:
        """Protect a visible key while a load reads it; returns its slot."""
        entry = self._entries[key]
        entry.pins += 1
        return entry.slot

    def unpin(self, key: bytes) -> None:
        if (entry := self._entries.get(key)) is not None:
            entry.pins -= 1
            self._settle(key, entry)

    def touch(self, keys: Iterable[bytes]) -> None:
        """Mark a chain as used; its first key becomes the most recent, because a prefix is worth more than its tail."""
        for key in reversed(list(keys)):
            if key in self._entries:
                self._entries.move_to_end(key)

    def clear(self) -> bool:
        """Drop every key; False when one is still being written or read and will go later."""
        for key in list(self._entries):
            entry = self._entries[key]
            entry.doomed = True
            self._settle(key, entry)
        return not self._entries

    def _settle(self, key: bytes, entry: Entry) -> None:
        if entry.doomed and entry.complete and not entry.pins:
            del self._entries[key]
            self._free.append(entry.slot)
