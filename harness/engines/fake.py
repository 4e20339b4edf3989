# SPDX-License-Identifier: Apache-2.0
"""A deterministic engine without vLLM, for endings and damage that a real engine cannot produce on demand.

It goes through the same door as the real one: a child process, the same phases, the same observation file. Its answers
are a hash of the prompt, so an unplanted pair of legs agrees bit for bit. ``Leg.fake`` says what to plant:

``resolved``: field of ``Resolved`` -> value. ``stages``: stage -> one of ``ENDINGS``. ``phases``: phase -> any of
``local_tokens``, ``external_tokens`` (added to the right count), ``reset_ok``, ``nonzero``, ``same_blocks``,
``no_logprobs``, ``nan``, ``drop_prompt`` (the last one), ``reverse`` (answers in another order), ``tokens`` and
``bits`` and ``kv`` ([prompt, step or block] to damage), ``undelivered``.
"""

from __future__ import annotations

import atexit
import base64
import hashlib
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import resource_tracker, shared_memory
from pathlib import Path
from typing import Any

from harness.engines import Answer, Counters, Placement
from harness.hits import Caches
from harness.records import DecodeSpec, Leg, Resolved, Step

#: float32 NaN.
NAN_BITS = 0x7FC00000

SHAPE_LAYERS, SHAPE_HEADS = 2, 2


class FakeRefusal(ValueError):
    """The planted refusal."""


def _refuse() -> None:
    raise FakeRefusal("planted refusal: VLLM_KV_CACHE_LAYOUT does not satisfy every supported set")


def _raise() -> None:
    raise RuntimeError("planted crash")


def _no_memory() -> None:
    raise MemoryError("planted lack of memory")


def _hang() -> None:
    signal.pause()


def _pause() -> None:
    """Go on after a while in which whoever watches has looked (harness.progress looks twice a second)."""
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 2.0)
    signal.pause()


def _busy() -> None:
    raise RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable")


def _exhaust() -> None:
    """Ask for more and more memory under a limit of this process's own, until there is none."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + EXHAUST_BYTES, resource.RLIM_INFINITY))
    kept = []
    while True:
        kept.append(bytearray(EXHAUST_BYTES // 8))


def _flood() -> None:
    """Fill the log, then die."""
    line = b"x" * 1023 + b"\n"
    for _ in range(FLOOD_BYTES // len(line) // 1024):
        os.write(1, line * 1024)
    raise RuntimeError("planted crash after a flood")


def _litter() -> None:
    """Leave a child in this session and a daemon outside it, a socket and files, and shared memory; then be killed."""
    script = "import signal; print('up', flush=True); signal.pause()"
    below = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, start_new_session=own)
        for own in (False, True)
    ]
    for process in below:
        process.stdout.readline()
    shared = shared_memory.SharedMemory(create=True, size=4096)
    resource_tracker.unregister(shared._name, "shared_memory")
    Path(tempfile.gettempdir(), "litter").write_text(shared.name)
    socket.socket(socket.AF_UNIX).bind(os.path.join(tempfile.gettempdir(), "socket"))
    print("littered", tempfile.gettempdir(), shared.name, *(process.pid for process in below), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def _lie() -> None:
    """Replace the exit code at the very end."""
    atexit.register(os._exit, 3)


#: How much a process that exhausts its memory may have beside what it has, and how long a flood is, bytes.
EXHAUST_BYTES, FLOOD_BYTES = 64 * 2**20, 100 * 2**20

#: What a stage can be made to do.
ENDINGS: Mapping[str, Callable[[], None]] = {
    "refuse": _refuse,
    "raise": _raise,
    "memory": _no_memory,
    "hang": _hang,
    "pause": _pause,
    "busy": _busy,
    "exhaust": _exhaust,
    "flood": _flood,
    "litter": _litter,
    "lie": _lie,
    "sigstop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "sigkill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "sigsegv": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "exit0": lambda: os._exit(0),
    "sysexit": lambda: sys.exit(0),
}


def open_engine(leg: Leg, stage: Callable[[str], None]) -> FakeEngine:
    """The engine for ``leg``; stages ``import`` and ``load`` happen here as they do for vLLM."""
    engine = FakeEngine(leg, stage)
    for name in ("import", "load"):
        stage(name)
        engine.end_if_planted(name)
    return engine


class FakeEngine:
    """Keeps just enough state to count hits exactly as vLLM would: a local cache and a store of prompts."""

    def __init__(self, leg: Leg, stage: Any) -> None:
        self._leg = leg
        self._stage = stage
        self._block_size = int(leg.engine.get("block_size", 16))
        self._caches = Caches(self._block_size, store=leg.kv_transfer_config is not None)
        self._totals = {"local": 0, "external": 0, "delivered": 0, "stored": 0}
        self._placements: list[Placement] = []
        self._next_block = 1

    def end_if_planted(self, stage: str) -> None:
        ending = self._leg.fake.get("stages", {}).get(stage)
        if ending is None:
            return
        if mark := self._leg.fake.get("once"):
            # A file that outlives the process: the planted ending comes in the first attempt alone.
            if os.path.exists(mark):
                return
            open(mark, "x").close()
        ENDINGS[ending]()

    def _planted(self) -> Mapping[str, Any]:
        return self._leg.fake.get("phases", {}).get(self._stage.current.partition(".")[0], {})

    def resolved(self) -> Resolved:
        connector = None if self._leg.kv_transfer_config is None else "EmbeddedStoreConnector"
        dtype = str(self._leg.engine.get("dtype", "auto"))
        facts: dict[str, Any] = {
            "layout": self._leg.layout,
            "layout_by_strides": (self._leg.layout,),
            "shape": (64, SHAPE_HEADS, self._block_size, 8),
            "strides": (1, 1, 1, 1, 1),
            "dtype": {"auto": "bfloat16"}.get(dtype, dtype),
            "num_layers": SHAPE_LAYERS,
            "backend": self._leg.backend,
            "backend_class": (f"fake.{self._leg.backend}",),
            "batch_invariant": self._leg.batch_invariant,
            "block_size": self._block_size,
            "kernel_block_size": self._block_size,
            "num_blocks": 64,
            "threads": 1,
            "connector": connector,
        }
        facts.update(self._leg.fake.get("resolved", {}))
        return Resolved(**{key: tuple(value) if isinstance(value, list) else value for key, value in facts.items()})

    def generate(self, prompts: Sequence[Sequence[int]], decode: DecodeSpec) -> list[Answer]:
        self.end_if_planted(self._stage.current)
        planted = self._planted()
        answers = [self._answer(index, tuple(prompt), decode, planted) for index, prompt in enumerate(prompts)]
        if len(prompts) > 1:
            # The filler prompt that shifts the free blocks is no part of a phase.
            self._totals["local"] += planted.get("local_tokens", 0)
            self._totals["external"] += planted.get("external_tokens", 0)
            if planted.get("drop_prompt"):
                answers.pop()
            if planted.get("reverse"):
                answers.reverse()
        return answers

    def _answer(self, index: int, prompt: tuple[int, ...], decode: DecodeSpec, planted: Mapping[str, Any]) -> Answer:
        local, external = self._caches.find(prompt)
        self._totals["local"] += local
        self._totals["external"] += external
        self._totals["delivered"] += 0 if planted.get("undelivered") else external
        before = len(self._caches.stored_prefixes)
        self._caches.keep(prompt)
        self._totals["stored"] += (len(self._caches.stored_prefixes) - before) * self._block_size
        self._place(prompt, planted)
        steps = tuple(_step(prompt, number, decode, index, planted) for number in range(decode.max_tokens))
        return Answer(
            steps=steps, cached_tokens=local + external, finish_reason="length", local_tokens=local,
            external_tokens=external,
        )

    def _place(self, prompt: tuple[int, ...], planted: Mapping[str, Any]) -> None:
        count = len(prompt) // self._block_size
        first = 1 if planted.get("same_blocks") else self._next_block
        self._placements.append(Placement(tokens=prompt, blocks=tuple(range(first, first + count)), reused=False))
        self._next_block += count

    def counters(self) -> Counters:
        moved = self._leg.kv_transfer_config is not None
        return Counters(
            local_tokens=self._totals["local"],
            external_tokens=self._totals["external"],
            delivered_tokens=self._totals["delivered"] if moved else None,
            loaded_bytes=self._totals["delivered"] * 64 if moved else None,
            stored_bytes=self._totals["stored"] * 64 if moved else None,
        )

    def placements(self) -> list[Placement]:
        taken, self._placements = self._placements, []
        self._last = taken
        return taken

    def abort_load(self, prompt: Sequence[int]) -> bool:
        return bool(self._planted().get("abort_load", True))

    def digests(self, blocks: Sequence[int]) -> list[str]:
        place = next(place for place in self._last if place.blocks[: len(blocks)] == tuple(blocks))
        prompts = [placement.tokens for placement in self._last if len(placement.blocks) == len(place.blocks)]
        damaged = [tuple(pair) for pair in self._planted().get("kv", [])]
        index = prompts.index(place.tokens)
        return [_digest(place.tokens, block, (index, block) in damaged) for block in range(len(blocks))]

    def reset(self, deadline_s: float) -> bool:
        self.end_if_planted(self._stage.current)
        if self._planted().get("reset_ok") is False:
            return False
        self._caches.reset()
        return True

    def zero(self) -> tuple[int, int]:
        return 4096, int(self._planted().get("nonzero", 0))

    def close(self) -> None:
        self.end_if_planted("close")


def _hash(*parts: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=4).digest(), "little")


def _step(prompt: tuple[int, ...], number: int, decode: DecodeSpec, index: int, planted: Mapping[str, Any]) -> Step:
    damaged = [index, number]
    token = 10 + _hash(prompt, number) % 900 + (1 if damaged in planted.get("tokens", []) else 0)
    if planted.get("no_logprobs"):
        return Step(token=token, bits=None, top=())
    # Bit patterns of floats in (-2, -1]: exponent 127, sign set.
    bits = [0xBF800000 | _hash(prompt, number, rank) % 0x800000 for rank in range(decode.logprobs)]
    if damaged in planted.get("bits", []):
        bits[0] ^= 1
    if planted.get("nan"):
        bits[0] = NAN_BITS
    top = tuple((token if rank == 0 else 1000 + rank, value) for rank, value in enumerate(bits))
    return Step(token=token, bits=bits[0], top=top)


def _digest(prompt: tuple[int, ...], block: int, damaged: bool) -> str:
    parts = []
    for layer in range(SHAPE_LAYERS):
        for head in range(SHAPE_HEADS):
            for half in ("K", "V"):
                what = (prompt, block, layer, head, half, damaged and (layer, head, half) == (1, 0, "K"))
                parts.append(hashlib.blake2b(repr(what).encode(), digest_size=8).digest())
    return base64.b64encode(b"".join(parts)).decode()
