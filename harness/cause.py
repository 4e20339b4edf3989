# SPDX-License-Identifier: Apache-2.0
"""Why a leg's engine failed: what it refused, what it lacked, and which of its processes died.

vLLM says the same thing in other words, and with other exceptions, depending on the process that says it and on the
moment at which it notices. One cause has one name here.
"""

from __future__ import annotations

import re
import signal
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path

from harness.connectors import refusals_of_class
from harness.offspring import Offspring
from harness.records import Ending, Failure, Leg

#: Exception classes with which vLLM and its connectors refuse a configuration on purpose.
REFUSALS = (ValueError, NotImplementedError)

#: From here on a connector describes or holds the engine's KV tensors, whose layout had been resolved: the
#: configuration was accepted (vLLM's call, and UMBP's ``data.py: KVLayoutPlanner``, which comes earlier).
ACCEPTED_AT = ("register_kv_caches", "from_kv_cache_config")

#: What torch and vLLM's workers (vllm/v1/worker/cpu_worker.py, utils.py) say when memory is short; vLLM as ValueError.
NO_MEMORY = ("can't allocate memory", "Available memory on node", "Free memory on device")

#: What the drivers say when another process holds a device.
DEVICE_BUSY = ("busy or unavailable", "Device or resource busy", "device is busy", "hipErrorContextAlreadyInUse")

#: The engine core, whose front end this process is, could not start; ``EngineDeadError`` says it of a later moment.
NO_CORE = "Engine core initialization failed"
DEAD = "EngineDeadError"

#: How an engine core tells of a worker that has died (vllm/v1/executor/multiproc_executor.py: monitor_workers).
_DEAD_WORKER = re.compile(r"Worker proc (\S+) died unexpectedly(?: \(exit code: (-?\d+))?")

#: How vLLM marks what its front end logs beside the engine core.
FRONT_END = "(MainProcess "

#: Longest piece of a log that is looked at as one line.
_LINE_BYTES = 8192

_ROOT_CAUSE = re.compile(r"(?:^|\s)(\w+(?:Error|Exception)): (.+)$")


def refusals_of(leg: Leg) -> tuple[str, ...]:
    """Texts with which the leg's connector says that it cannot run on this platform."""
    return refusals_of_class((leg.kv_transfer_config or {}).get("kv_connector"))


def classify(
    error: BaseException,
    stage: str,
    *,
    accepted: bool,
    log: Path,
    since: int = 0,
    refusals: tuple[str, ...] = (),
    offspring: Offspring | None = None,
) -> tuple[Ending, Failure]:
    """Tell a refusal from a crash and from a lack of memory.

    Refused: one of ``refusals``, or a ``ValueError`` or ``NotImplementedError`` before the KV tensors were handed to a
    connector. With multiprocessing the front end knows only that the engine core died; its log has the words.

    A process of the engine that died is the cause, whatever vLLM made of it: a worker's death ends as
    ``EngineDeadError``, as vLLM calls it when it has the time to, and that of the engine core as its signal.

    Args:
        since: size of ``log`` when the engine began; what stands before that is of an engine that the leg had earlier.
    """
    trace = "".join(traceback.format_exception(error))
    kind, message = type(error).__name__, str(error)
    handed = handed_over(trace)
    refusal = isinstance(error, REFUSALS)
    died = _death(kind, message, _log_lines(log, since), offspring)
    if died is not None:
        return Ending.CRASHED, Failure(stage=stage, kind=died[0], message=died[1], trace=trace)
    if NO_CORE in message:
        kind, message, handed = _root_cause(_log_lines(log, since), kind, message)
        refusal = kind in {"ValueError", "NotImplementedError", "ValidationError"}
    failure = Failure(stage=stage, kind=kind, message=message, trace=trace)
    if kind in {"MemoryError", "OutOfMemoryError"} or any(words in message for words in NO_MEMORY):
        return Ending.OUT_OF_MEMORY, failure
    if kind == "UnavailableError":
        return Ending.UNAVAILABLE, failure
    if any(words in message for words in DEVICE_BUSY):
        return Ending.CRASHED, failure
    if not accepted and any(text in message for text in refusals):
        return Ending.REFUSED, failure
    if refusal and not accepted and not handed:
        return Ending.REFUSED, failure
    return Ending.CRASHED, failure


def _death(kind: str, message: str, said: Iterable[str], offspring: Offspring | None) -> tuple[str, str] | None:
    """Kind and words for the death of one of the engine's processes, the first that died."""
    for line in said:
        found = _DEAD_WORKER.search(line)
        if found:
            return DEAD, f"worker {found[1]} died{_how(found[2])}"
    if offspring is not None and (NO_CORE in message or kind == DEAD):
        name = offspring.killed_by()
        return (name, f"engine core died of {name}") if name else None
    return None


def _how(code: str | None) -> str:
    """Of what a worker died; nothing where vLLM looked before there was an exit code."""
    if code is None:
        return ""
    return f" of {signal.Signals(-int(code)).name}" if int(code) < 0 else f" with exit code {code}"


def handed_over(text: str) -> bool:
    """Whether a traceback goes through the place where a connector has the engine's KV tensors."""
    return any(name in text for name in ACCEPTED_AT)


def _root_cause(said: Iterable[str], kind: str, message: str) -> tuple[str, str, bool]:
    """The engine core's own exception: the first one that the log ends a traceback of it or of its workers with."""
    cause, handed = None, False
    for line in said:
        if line.startswith(FRONT_END):
            continue
        handed = handed or handed_over(line)
        found = _ROOT_CAUSE.search(line) if cause is None else None
        if found and found[1] not in {"RuntimeError"}:
            cause = found[1], found[2]
    return (*(cause or (kind, message)), handed)


def _log_lines(log: Path, since: int) -> Iterator[str]:
    """The lines of a log from that byte on, however long it or they are, without holding it."""
    try:
        with log.open("rb") as stream:
            stream.seek(since)
            while line := stream.readline(_LINE_BYTES):
                yield line.decode("utf-8", errors="replace").rstrip("\n")
    except OSError:
        return
