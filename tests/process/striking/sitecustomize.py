# SPDX-License-Identifier: Apache-2.0
"""Runs in every Python of a leg under test: sends a signal to one of the leg's processes at a moment that is exact.

The order is a file (``KVPARITY_STRIKE``): stage, depth of the process below the leg's own, signal number, and the step
of the engine within the stage before which it strikes; 0 is when the stage begins, and -1 as soon as there is such a
process. A strike from outside comes some hundred milliseconds late on a busy machine, and hits another stage.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

#: How the processes that ``multiprocessing`` spawns are called, and how vLLM calls them once they run: no resource
#: tracker, and no fork that is about to become one.
ENGINES_OWN = ("multiprocessing.spawn", "VLLM::")

write = os.write


def strike(depth: int, number: int) -> None:
    """Wait for the process to be there, then send it the signal."""
    import psutil

    tick = threading.Event()
    while True:
        with contextlib.suppress(psutil.Error):
            chain = [psutil.Process()]
            for _ in range(depth):
                chain += [one for one in chain[-1].children() if _is_engines(one)][:1]
            if len(chain) > depth:
                os.kill(chain[depth].pid, number)
                return
        tick.wait(0.02)


def _is_engines(process: Any) -> bool:
    command = " ".join(process.cmdline())
    return any(words in command for words in ENGINES_OWN)


def writing(descriptor: int, data: bytes) -> int:
    """``os.write``; the leg tells its parent with it which stage begins."""
    count = write(descriptor, data)
    path = Path(os.environ["KVPARITY_STRIKE"])
    if data.endswith(b"\n") and path.exists():
        stage, depth, number, step = json.loads(path.read_text())
        if data == f"{stage}\n".encode():
            path.unlink()
            if step < 0:
                threading.Thread(target=strike, args=(depth, number), daemon=True).start()
            elif step == 0:
                strike(depth, number)
            else:
                _strike_before(step, depth, number)
    return count


def _strike_before(step: int, depth: int, number: int) -> None:
    engine = sys.modules["vllm.v1.engine.llm_engine"].LLMEngine
    real, taken = engine.step, 0

    def counted(self: Any) -> Any:
        nonlocal taken
        taken += 1
        if taken == step:
            strike(depth, number)
        return real(self)

    engine.step = counted


if "KVPARITY_STRIKE" in os.environ:
    os.write = writing
