# SPDX-License-Identifier: Apache-2.0
"""The processes that vLLM starts in this one with multiprocessing, and which of them a signal ended.

vLLM's front end learns of an engine core's death when the core's pipe closes, a moment before the kernel has an exit
code for it (``vllm/v1/engine/utils.py: wait_for_engine_startup``). What it says then depends on that moment; the exit
code, once there is one, does not.
"""

from __future__ import annotations

import signal
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any

#: Seconds for the kernel to finish with a process whose pipe has closed: it may have gigabytes to free.
REAPED_S = 30.0


class Offspring:
    """Remembers, while it is entered, every process that multiprocessing starts here."""

    def __init__(self) -> None:
        self._started: list[BaseProcess] = []

    def __enter__(self) -> Offspring:
        self._real = real = BaseProcess.start
        started = self._started

        def start(process: BaseProcess, *arguments: Any, **named: Any) -> None:
            real(process, *arguments, **named)
            started.append(process)

        BaseProcess.start = start  # type: ignore[method-assign]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        BaseProcess.start = self._real  # type: ignore[method-assign]

    def killed_by(self) -> str | None:
        """Name of the signal that one of them died of, the first that was started; None where none did.

        SIGTERM does not count: that is how vLLM ends its own processes when it gives up.
        """
        for process in self._started:
            try:
                if not connection.wait([process.sentinel], timeout=0):
                    continue
                process.join(REAPED_S)
                code = process.exitcode
            except ValueError:
                # vLLM has closed it, and nobody can ask it any more.
                continue
            if code is not None and code < 0 and code != -signal.SIGTERM:
                return signal.Signals(-code).name
        return None
