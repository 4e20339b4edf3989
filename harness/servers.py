# SPDX-License-Identifier: Apache-2.0
"""Servers that some connectors talk to, as fixtures of a run.

Each is started at the first leg that needs it, on free loopback ports and in a folder of its own below the run folder,
with its log in it. It is asked until it answers, leads a process group of its own, and that group is killed at the end
of the leg or of the run. The kernel kills the server too when the process that started it dies.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.child_env import without_settings
from harness.connectors import adapter_of_class, nested
from harness.errors import HarnessError
from harness.server_kinds import SERVERS, ServerSpec

#: Seconds within which a server must answer after it was started.
START_DEADLINE_S = 120.0

#: How often a starting server is asked, seconds.
ASK_S = 0.1

#: Seconds that a server has to end by itself before its group is killed.
END_S = 3.0

_PR_SET_PDEATHSIG = 1


class ServerError(HarnessError):
    """A server could not be started, or did not live as long as the leg that needed it."""


def needed_by(config: Any) -> tuple[str, ...]:
    """Names of the servers that a ``kv_transfer_config`` needs, those of a MultiConnector's children included."""
    adapters = (adapter_of_class(one.get("kv_connector")) for one in nested(config))
    return tuple(dict.fromkeys(adapter.server for adapter in adapters if adapter and adapter.server))


class Server:
    """One running server.

    Raises:
        ServerError: it could not be started, ended at once, or did not answer within the deadline.
    """

    def __init__(self, spec: ServerSpec, folder: Path, deadline_s: float = START_DEADLINE_S) -> None:
        self.name = spec.name
        self._spec, self._folder, self._deadline_s = spec, folder.resolve(), deadline_s
        self._log = folder / "log"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self._ports = free_ports(spec.ports)
        self._start()

    def _start(self) -> None:
        try:
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    self._spec.command(self._ports, self._folder), cwd=self._folder, stdin=subprocess.DEVNULL,
                    stdout=log, stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=_die_with_parent,
                    # As for a leg: what a caller has exported once must not decide what a store does.
                    env=without_settings(os.environ),
                )
        except OSError as error:
            raise ServerError(f"server {self.name} could not be started: {error}") from error
        try:
            self.env = self._spec.env(self._ports, self._folder)
            self._wait(self._spec.health(self._ports), self._deadline_s)
        except BaseException:
            self.stop()
            raise

    def restart(self) -> None:
        """Stop it and start it anew, at the same address.

        Raises:
            ServerError: as when it was started.
        """
        self.stop()
        self._start()

    def _wait(self, url: str, deadline_s: float) -> None:
        until = time.monotonic() + deadline_s
        while not _answers(url):
            self.check("before it answered")
            if time.monotonic() > until:
                raise ServerError(f"server {self.name} did not answer within {deadline_s:g} s; its log is {self._log}")
            time.sleep(ASK_S)

    def check(self, when: str) -> None:
        """
        Raises:
            ServerError: the server has ended.
        """
        code = self._process.poll()
        if code is not None:
            how = f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            raise ServerError(f"server {self.name} {how} {when}; its log is {self._log}")

    def stop(self) -> None:
        """End the server and whatever it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Servers:
    """The servers of one run, as far as this process started them.

    Args:
        folder: where each server gets a folder of its own.
        specs: name -> how to run it.
    """

    def __init__(self, folder: Path, specs: Mapping[str, ServerSpec] = SERVERS) -> None:
        self._folder = folder
        self._specs = specs
        self._shared: dict[str, Server] = {}
        self._serving: list[Server] = []
        self._count = 0

    @contextlib.contextmanager
    def serving(self, config: Any) -> Iterator[dict[str, str]]:
        """The servers that ``config`` needs, up while the context lasts; yields variables for the leg.

        Raises:
            ServerError: a server did not come up, or did not live until the end of the context.
        """
        with contextlib.ExitStack() as stack:
            servers = [self._one(self._specs[name], stack) for name in needed_by(config)]
            self._serving = servers
            stack.callback(self._serving.clear)
            yield {name: value for server in servers for name, value in server.env.items()}
            for server in servers:
                server.check("while the leg ran")

    def _one(self, spec: ServerSpec, stack: contextlib.ExitStack) -> Server:
        known = self._shared.get(spec.name)
        if known is not None:
            try:
                known.check("between two legs")
                return known
            except ServerError:
                # The next leg is not to blame for what happened before it.
                self._shared.pop(spec.name).stop()
        self._count += 1
        server = Server(spec, self._folder / f"{spec.name}-{os.getpid()}-{self._count}")
        if spec.shared:
            self._shared[spec.name] = server
        else:
            stack.callback(server.stop)
        return server

    def restart(self) -> None:
        """Restart the servers of the leg that runs now.

        Raises:
            ServerError: one did not come up again.
        """
        for server in self._serving:
            server.restart()

    def close(self) -> None:
        """Stop what is still up."""
        while self._shared:
            self._shared.popitem()[1].stop()


def free_ports(names: tuple[str, ...]) -> dict[str, int]:
    """Name -> a loopback port that was free a moment ago, all different."""
    with contextlib.ExitStack() as stack:
        ports = {}
        for name in names:
            held = stack.enter_context(socket.socket())
            held.bind(("127.0.0.1", 0))
            ports[name] = held.getsockname()[1]
        return ports


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2.0) as answer:
            return answer.status == 200
    except (OSError, urllib.error.URLError, ValueError):
        return False


def _die_with_parent() -> None:
    # Linux only; elsewhere a killed run leaves its servers to the caller.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
