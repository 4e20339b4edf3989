# SPDX-License-Identifier: Apache-2.0
"""Real vLLM engines with the plugin, one child process each (``plugin_child.py``)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CHILD = str(Path(__file__).with_name("plugin_child.py"))
LAYOUTS = ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC")
BLOCK = 16
#: Prompt lengths: partial last block, whole blocks, shorter than a block, and five more for batches of eight.
LENGTHS = (72, 64, 9, 33, 50, 17, 70, 41)


class Engines:
    """Runs children, each distinct one once."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._done: dict[str, dict[str, Any]] = {}

    def run(
        self,
        backend: str | None,
        layout: str | None = None,
        *,
        invariant: bool = False,
        count: int = 3,
        alone: tuple[int, ...] = (),
        planted: bool = False,
        multiprocessing: bool = False,
        **engine: Any,
    ) -> dict[str, Any]:
        prompts = [
            [(13 + i * 7 + j * 131 + i * i * (j + 1)) % 1000 for i in range(length)]
            for j, length in enumerate(LENGTHS[:count])
        ]
        task = {
            "model": str(self._place / "model"),
            "engine": {"block_size": BLOCK, "dtype": "bfloat16"} | engine,
            "prompts": prompts,
            "alone": alone,
            "planted": planted,
        }
        extra = {
            "OMP_NUM_THREADS": "1",
            "TORCH_COMPILE_DISABLE": "1",
            "HF_HUB_OFFLINE": "1",
            "VLLM_ENABLE_V1_MULTIPROCESSING": str(int(multiprocessing)),
            "VLLM_BATCH_INVARIANT": str(int(invariant)),
            "VLLM_LOGGING_LEVEL": "ERROR",
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(self._place / "site")]),
        }
        if multiprocessing:
            extra["VLLM_CPU_OMP_THREADS_BIND"] = "0"
        if backend is not None:
            extra["KVPARITY_BACKEND"] = backend
        if layout is not None:
            extra["VLLM_KV_CACHE_LAYOUT"] = layout
        key = json.dumps([task, extra], sort_keys=True)
        if key not in self._done:
            dropped = ("KVPARITY_", "VLLM_")
            environment = {name: value for name, value in os.environ.items() if not name.startswith(dropped)} | extra
            number = len(self._done)
            paths = [self._place / f"{kind}{number}.json" for kind in ("task", "said")]
            paths[0].write_text(json.dumps(task))
            ran = subprocess.run(
                [sys.executable, CHILD, *map(str, paths)], env=environment, capture_output=True, text=True
            )
            assert paths[1].exists(), ran.stderr[-3000:]
            self._done[key] = json.loads(paths[1].read_text())
        return self._done[key]


def values(results: list[dict[str, Any]]) -> list[tuple[Any, Any]]:
    return [(result["tokens"], result["bits"]) for result in results]
