# SPDX-License-Identifier: Apache-2.0
"""Speed of both transfer paths on Qwen3-0.6B's dimensions, as a ratio to plain memcpy of the same bytes."""

from __future__ import annotations

import ctypes
import random
import resource
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from vllm.v1.kv_cache_layout import KVCacheLayout

from harness.kvstore.placement import LAYOUTS, placements
from harness.kvstore.pool import Pool
from harness.kvstore.runs import plan_group
from harness.kvstore.synthetic import qwen3
from harness.kvstore.transfer import PATHS, TransferPath
from harness.kvstore.verify import verify

#: Rounds; memcpy, store and load take turns in each, and the fastest of each counts.
ROUNDS = 5


def run(blocks: int = 64, layouts: Sequence[str] = LAYOUTS) -> list[dict[str, Any]]:
    """Store and load ``blocks`` scattered blocks of each layout through each path, on one thread.

    Returns:
        One row per layout and path: layout, path, runs_per_block, minimum_runs_per_block (what the tensors' bytes
        need), store_gbps, load_gbps (10^9 bytes a second), store_ratio, load_ratio (to a memcpy of the same bytes in
        this process), memcpy_gbps, extra_mib (peak memory beyond KV tensors and pool, MiB).
    """
    with _one_thread():
        return [row for layout in layouts for row in _layout(layout, blocks)]


def minimum_runs(kv_caches: Mapping[str, torch.Tensor], block: int = 0) -> int:
    """Maximal contiguous pieces of one block's bytes over all layers, counted from the tensors alone."""
    pieces = []
    for tensor in kv_caches.values():
        item, (_, heads, states, content) = tensor.element_size(), tensor.shape
        start = tensor.data_ptr() + block * tensor.stride(0) * item
        pieces += [
            (start + (head * tensor.stride(1) + state * tensor.stride(2)) * item, content * item)
            for head in range(heads)
            for state in range(states)
        ]
    pieces.sort()
    return 1 + sum(left[0] + left[1] != right[0] for left, right in zip(pieces, pieces[1:], strict=False))


def _layout(layout: str, blocks: int) -> Iterator[dict[str, Any]]:
    config, kv_caches = qwen3(layout, 2 * blocks)
    plan = plan_group(config, 0, KVCacheLayout[layout])
    storage = verify(placements(config, 0, KVCacheLayout[layout]), plan, kv_caches)
    pool = Pool(blocks * plan.object_bytes, plan.object_bytes)
    storage.fill_(1)
    pool.data.fill_(2)
    order = random.Random(0)
    source, target, slots = (order.sample(range(limit), blocks) for limit in (2 * blocks, 2 * blocks, blocks))
    total = blocks * plan.object_bytes
    for name, kind in PATHS.items():
        path: TransferPath = kind(plan, storage, pool.data)
        jobs: dict[str, Callable[[], Any]] = {
            "memcpy": lambda: ctypes.memmove(pool.data.data_ptr(), storage.data_ptr(), total),
            "store": lambda path=path: path.store(source, slots),
            "load": lambda path=path: path.load(target, slots),
        }
        _forget_peak()
        before = _peak_bytes()
        best = dict.fromkeys(jobs, float("inf"))
        for _ in range(ROUNDS):
            for job, call in jobs.items():
                start = time.perf_counter()
                call()
                best[job] = min(best[job], time.perf_counter() - start)
        yield {
            "layout": layout,
            "path": name,
            "runs_per_block": len(plan.runs),
            "minimum_runs_per_block": minimum_runs(kv_caches),
            "store_gbps": total / best["store"] / 1e9,
            "load_gbps": total / best["load"] / 1e9,
            "store_ratio": best["memcpy"] / best["store"],
            "load_ratio": best["memcpy"] / best["load"],
            "memcpy_gbps": total / best["memcpy"] / 1e9,
            "extra_mib": max(0, _peak_bytes() - before) / 2**20,
        }


@contextmanager
def _one_thread() -> Iterator[None]:
    """memcpy has one thread, so the copies get one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _forget_peak() -> None:
    """Set the kernel's record of peak memory back to the present, where it can be."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def _peak_bytes() -> int:
    """Peak resident memory; the kernel's resettable record, or the process's lifetime peak elsewhere."""
    status = Path("/proc/self/status")
    if status.is_file():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
