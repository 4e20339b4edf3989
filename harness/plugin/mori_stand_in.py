# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the module ``mori.cpp``, for UMBP versions whose embedded runtime wants MORI, on a host without ROCm.

The part of MORI's client that UMBP's ``runtime/embedded.py`` calls: a pool in host memory that is filled from and
emptied into registered memory by pointer, size and offset in the object. Copies are done when they are asked for.
Memory that was not registered is refused with an exception, which UMBP turns into a failed job.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from enum import IntEnum
from types import ModuleType, SimpleNamespace
from typing import Any

#: Capacity where the configuration says nothing, bytes.
CAPACITY_BYTES = 256 * 2**20

#: Fill levels: above the first, the pool evicts until it is below the second.
HIGH_WATERMARK, LOW_WATERMARK = 1.0, 0.9


class MemoryLocationType(IntEnum):
    """Where registered memory lies."""

    CPU = 0
    GPU = 1


class UMBPConfig:
    """The client's configuration; only ``dram`` means anything here, the rest is kept as it is set."""

    def __init__(self) -> None:
        self.dram = SimpleNamespace(
            capacity_bytes=CAPACITY_BYTES, high_watermark=HIGH_WATERMARK, low_watermark=LOW_WATERMARK
        )


class UMBPClient:
    """Objects by key, least recently used first; every call holds one lock."""

    def __init__(self, config: UMBPConfig | None = None) -> None:
        dram = (config or UMBPConfig()).dram
        self._capacity = int(dram.capacity_bytes)
        self._high, self._low = float(dram.high_watermark), float(dram.low_watermark)
        self._objects: OrderedDict[str, ctypes.Array] = OrderedDict()
        self._used = 0
        self._memory: dict[int, int] = {}
        self._starts: list[int] = []
        self._lock = threading.Lock()

    # --- memory ---

    def register_memory(self, pointer: int, size: int, location: MemoryLocationType, device: int = -1) -> bool:
        """False for memory on an accelerator: the stand-in cannot read it."""
        if location != MemoryLocationType.CPU or not pointer or size <= 0:
            return False
        with self._lock:
            self._memory[pointer] = size
            self._starts = sorted(self._memory)
        return True

    def deregister_memory(self, pointer: int) -> bool:
        with self._lock:
            known = self._memory.pop(pointer, None) is not None
            self._starts = sorted(self._memory)
        return known

    def _check(self, pointer: int, size: int) -> None:
        place = bisect_right(self._starts, pointer) - 1
        start = self._starts[place] if place >= 0 else 0
        if place < 0 or size <= 0 or pointer + size > start + self._memory[start]:
            raise ValueError(f"{size} bytes at {pointer:#x} are not within registered memory")

    # --- objects ---

    def batch_put_ranges_from_ptr(
        self,
        keys: Sequence[str],
        object_sizes: Sequence[int],
        pointers: Sequence[Sequence[int]],
        sizes: Sequence[Sequence[int]],
        offsets: Sequence[Sequence[int]],
    ) -> list[bool]:
        """Write objects, each from its ranges; False for one that the pool cannot hold.

        Raises:
            ValueError: a range outside registered memory or outside its object.
        """
        with self._lock:
            rows = zip(keys, object_sizes, pointers, sizes, offsets, strict=True)
            return [self._put(key, size, _ranges(*ranges)) for key, size, *ranges in rows]

    def _put(self, key: str, size: int, ranges: list[tuple[int, int, int]]) -> bool:
        content = ctypes.create_string_buffer(size)
        for pointer, length, offset in ranges:
            self._check(pointer, length)
            _inside(key, offset, length, size)
            ctypes.memmove(ctypes.addressof(content) + offset, pointer, length)
        if size > self._capacity:
            return False
        self._drop(key)
        if self._used + size > self._high * self._capacity:
            while self._objects and self._used + size > self._low * self._capacity:
                self._drop(next(iter(self._objects)))
        self._objects[key] = content
        self._used += size
        return True

    def batch_get_ranges_into_ptr(
        self,
        keys: Sequence[str],
        pointers: Sequence[Sequence[int]],
        sizes: Sequence[Sequence[int]],
        offsets: Sequence[Sequence[int]],
    ) -> list[bool]:
        """Read objects into their ranges; False for one that is not there, whose memory is left as it is.

        Raises:
            ValueError: a range outside registered memory or outside its object.
        """
        with self._lock:
            rows = zip(keys, pointers, sizes, offsets, strict=True)
            return [self._get(key, _ranges(*ranges)) for key, *ranges in rows]

    def _get(self, key: str, ranges: list[tuple[int, int, int]]) -> bool:
        content = self._objects.get(key)
        if content is None:
            return False
        self._objects.move_to_end(key)
        for pointer, length, offset in ranges:
            self._check(pointer, length)
            _inside(key, offset, length, len(content))
            ctypes.memmove(pointer, ctypes.addressof(content) + offset, length)
        return True

    def batch_exists(self, keys: Sequence[str]) -> list[bool]:
        with self._lock:
            return [key in self._objects for key in keys]

    def clear(self) -> bool:
        with self._lock:
            self._objects.clear()
            self._used = 0
        return True

    def flush(self) -> bool:
        """Nothing is ever under way."""
        return True

    def close(self) -> None:
        self.clear()
        with self._lock:
            self._memory.clear()
            self._starts = []

    def _drop(self, key: str) -> None:
        content = self._objects.pop(key, None)
        if content is not None:
            self._used -= len(content)


def _ranges(
    pointers: Sequence[int], sizes: Sequence[int], offsets: Sequence[int]
) -> list[tuple[int, int, int]]:
    return list(zip(pointers, sizes, offsets, strict=True))


def _inside(key: str, offset: int, length: int, size: int) -> None:
    if offset < 0 or offset + length > size:
        raise ValueError(f"bytes {offset} to {offset + length} of object {key}, which has {size}")


def install() -> None:
    """Put the stand-in where ``mori.cpp`` is imported from; safe to call again."""
    current: Any = sys.modules.get("mori.cpp")
    if getattr(current, "UMBPClient", None) is UMBPClient:
        return
    package, module = ModuleType("mori"), ModuleType("mori.cpp")
    module.MemoryLocationType = MemoryLocationType
    module.UMBPConfig = UMBPConfig
    module.UMBPClient = UMBPClient
    package.cpp = module
    package.__path__ = []
    sys.modules["mori"], sys.modules["mori.cpp"] = package, module
