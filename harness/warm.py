# SPDX-License-Identifier: Apache-2.0
"""Warm processes: pay vLLM's import once per environment, then fork a child for each leg.

Importing vLLM's engine costs more than everything else that a small leg does. On a CPU host a process that has imported
it and nothing more (no device, no engine, one thread) can be forked safely; its children are as fresh as a new
interpreter in all that an answer depends on. A warm process belongs to one environment: only variables that vLLM reads
when an engine starts may differ between its children (``LATE_VARIABLES``). On other platforms legs are spawned.

Both sides are here: ``WarmProcesses`` in the runner, ``main`` in the warm process. They talk over a socket pair; one
message is one JSON object, file descriptors go beside it (SCM_RIGHTS). When the runner dies the socket closes, and the
warm process kills the leg's session and ends.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

#: Variables that vLLM and our plugin read when an engine starts, not when modules are imported.
#: The runner gives every leg a store folder, a folder for temporary files and its servers' addresses; with one of these
#: missing here, each leg would have a warm process of its own and pay the whole import.
LATE_VARIABLES = frozenset({
    "VLLM_KV_CACHE_LAYOUT", "KVPARITY_BACKEND", "KVPARITY_OVERLAY", "KVPARITY_SHARED_STORE", "KVPARITY_STORE",
    "KVPARITY_SERVER_PORT", "MOONCAKE_CONFIG_PATH", "MC_TCP_BIND_ADDRESS", "VLLM_HOST_IP", "LMCACHE_CHUNK_SIZE",
    "LMCACHE_LOCAL_CPU", "LMCACHE_MAX_LOCAL_CPU_SIZE", "VLLM_NIXL_SIDE_CHANNEL_HOST", "KVPARITY_KERNELS_FIRST",
    "KVPARITY_LEG", "TMPDIR",
})

#: ``KVPARITY_WARM=0`` turns warm processes off; every leg then gets an interpreter of its own.
SWITCH = "KVPARITY_WARM"

#: Seconds for a warm process to import vLLM.
START_DEADLINE_S = 300.0

#: Seconds for a warm process to end once its socket is closed.
END_S = 30.0

_MESSAGE_BYTES = 1 << 20


class WarmError(Exception):
    """No warm process could be had; the leg is spawned instead."""


class WarmChild:
    """A leg's process, child of a warm process: what ``subprocess.Popen`` offers, as far as the runner uses it."""

    def __init__(self, channel: socket.socket, pid: int) -> None:
        self._channel = channel
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Exit code, negative signal number, or None while it runs."""
        return self._receive(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """As ``Popen.wait``.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        if self._receive(timeout) is None:
            raise subprocess.TimeoutExpired("leg", timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def _receive(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            ready, _, _ = select.select([self._channel], [], [], timeout)
            if ready:
                message = self._channel.recv(_MESSAGE_BYTES)
                # An empty message: the warm process itself is gone, and the kernel tells nobody its children's codes.
                self.returncode = json.loads(message)["code"] if message else -signal.SIGKILL
        return self.returncode


class WarmProcesses:
    """The warm processes of one runner, one per environment, started when first needed."""

    def __init__(self) -> None:
        self._ready: dict[str, tuple[socket.socket, subprocess.Popen[bytes]]] = {}

    def start_leg(
        self, arguments: Sequence[str], environment: Mapping[str, str], log: int, stage: int
    ) -> WarmChild:
        """Fork a child that runs ``harness.worker`` with ``arguments`` followed by its stage descriptor and log path.

        Args:
            arguments: leg path, observation path, log path.
            environment: the child's whole environment.
            log, stage: descriptors for its output and for its stages.

        Raises:
            WarmError: the warm process could not be started or has died.
        """
        key, channel = self._channel(environment)
        message = json.dumps({"arguments": list(arguments), "environment": dict(environment)}).encode()
        try:
            socket.send_fds(channel, [message], [log, stage])
            answer = json.loads(channel.recv(_MESSAGE_BYTES) or b"{}")
        except (OSError, ValueError) as error:
            self._drop(key)
            raise WarmError(str(error)) from None
        if "pid" not in answer:
            # It has died, or still spoke of an earlier leg: whatever it has forked now must not run beside the spawned.
            self._drop(key)
            raise WarmError("the warm process died")
        return WarmChild(channel, answer["pid"])

    def _drop(self, key: str) -> None:
        """Close the warm process's socket; it ends then, with the leg that it may have started."""
        channel, process = self._ready.pop(key)
        channel.close()
        # A leg that hangs in a driver can keep it; it holds nothing that another one needs.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_S)

    def _channel(self, environment: Mapping[str, str]) -> tuple[str, socket.socket]:
        early = {name: value for name, value in environment.items() if name not in LATE_VARIABLES}
        key = json.dumps(early, sort_keys=True)
        if key in self._ready and self._ready[key][1].poll() is not None:
            self._ready.pop(key)[0].close()
        if key not in self._ready:
            self._ready[key] = self._start(early)
        return key, self._ready[key][0]

    def _start(self, environment: Mapping[str, str]) -> tuple[socket.socket, subprocess.Popen[bytes]]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MESSAGE_BYTES)
        process = subprocess.Popen(
            [sys.executable, "-m", "harness.warm", str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
            env=dict(environment),
        )
        theirs.close()
        ready, _, _ = select.select([ours], [], [], START_DEADLINE_S)
        answer = json.loads(ours.recv(_MESSAGE_BYTES) or b"{}") if ready else {}
        if answer.get("threads") != 1:
            # Forking a process that has more than one thread can leave a lock held for ever.
            process.kill()
            process.wait()
            ours.close()
            raise WarmError(f"the warm process has {answer.get('threads', 'no')} threads")
        return ours, process

    def close(self) -> None:
        """End the warm processes; each ends by itself when its socket closes."""
        while self._ready:
            self._drop(next(iter(self._ready)))


def wanted(environment: Mapping[str, str]) -> bool:
    """Whether a leg with this environment may come from a warm process: on a CPU host, unless switched off."""
    return "KVPARITY_BACKEND" in environment and os.environ.get(SWITCH, "1") != "0"


# --- inside the warm process ------------------------------------------------------------------------------------


def main(arguments: Sequence[str]) -> int:
    """Import, then fork one leg after another until the runner's end of the socket closes."""
    import harness.worker
    from harness.engines import vllm as engine

    started = time.perf_counter()
    engine.preload(engine.CPU_MODULES)
    engine.configure_logging()
    # Each engine collects garbage several times while it starts and ends; what the import left lives as long as its
    # process and need not be walked through each time (some 0.6 s). Untouched pages also stay shared with the children.
    gc.collect()
    gc.freeze()
    harness.worker.import_seconds = time.perf_counter() - started
    channel = socket.socket(fileno=int(arguments[0]))
    channel.send(json.dumps({"threads": len(os.listdir("/proc/self/task"))}).encode())
    while True:
        message, descriptors, _, _ = socket.recv_fds(channel, _MESSAGE_BYTES, 2)
        if not message:
            return 0
        order = json.loads(message)
        pid = os.fork()
        if pid == 0:
            channel.close()
            _become_leg(harness.worker.main, order, *descriptors)
        # The leg that waited for the import has it on its account, no other.
        harness.worker.import_seconds = 0.0
        for descriptor in descriptors:
            os.close(descriptor)
        channel.send(json.dumps({"pid": pid}).encode())
        if not _wait_for(pid, channel):
            return 0


def _become_leg(run: Callable[[list[str]], int], order: Mapping[str, Any], log: int, stage: int) -> NoReturn:
    os.setsid()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.environ.clear()
    os.environ.update(order["environment"])
    # Python remembers the folder that it found first.
    tempfile.tempdir = None
    leg, out, path = order["arguments"]
    code = 1
    try:
        code = run([leg, out, str(stage), path])
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    # The observation is written and the engine shut down. Taking the interpreter apart object by object would answer
    # nothing more, and what it might leave behind is the runner's to remove, as after any other end.
    os._exit(code)


def _wait_for(pid: int, channel: socket.socket) -> bool:
    """Report the child's exit; False when the runner went away first (the child's session is killed then)."""
    handle = os.pidfd_open(pid)
    try:
        ready, _, _ = select.select([handle, channel], [], [])
    finally:
        os.close(handle)
    alone = channel in ready
    if alone:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if alone:
        return False
    channel.send(json.dumps({"code": os.waitstatus_to_exitcode(status)}).encode())
    return True


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
