# SPDX-License-Identifier: Apache-2.0
"""Runs legs in child processes: spawn, deadlines, endings, and nothing left behind.

Every child is the leader of its own session, so that whatever it started dies with it (``killpg``). There is always an
Observation afterwards: the child's own, or one that says how the child was lost.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import psutil

from harness import wire
from harness.archive import RunFolder
from harness.child_env import child_environment
from harness.device import Lease, lease
from harness.endings import Lost, child_observation, completed
from harness.errors import WireError
from harness.parts import joined, parts
from harness.records import SCHEMA_VERSION, Cell, Ending, Failure, Leg, Observation
from harness.servers import ServerError, Servers, needed_by
from harness.warm import WarmChild, WarmError, WarmProcesses
from harness.warm import wanted as warm_wanted

#: Seconds a stage may take before the leg counts as hung; a stage not named here has ``PHASE_DEADLINE_S``.
DEADLINES_S: Mapping[str, float] = {"spawn": 120.0, "import": 300.0, "load": 900.0, "close": 120.0}
PHASE_DEADLINE_S = 900.0

#: The same for ``load`` where a connector talks to a server.
SERVED_LOAD_S = 300.0

#: How often a running child is looked at, seconds.
POLL_S = 0.25

#: How long a hung child has for writing its stacks before it is killed, seconds.
STACKS_S = 5.0

#: Names the folder that a leg's connector may keep files in (``harness.engines.vllm``).
STORE_VARIABLE = "KVPARITY_STORE"


class Runner:
    """Runs the legs of one run folder."""

    def __init__(self, folder: RunFolder, *, deadlines: Mapping[str, float] = DEADLINES_S) -> None:
        self._folder = folder
        self._deadlines = deadlines
        self._warm = WarmProcesses()
        self._servers = Servers(folder.path / "servers")

    def close(self) -> None:
        """End what was kept warm for the next leg, and the servers that legs shared."""
        self._warm.close()
        self._servers.close()

    def ensure(self, leg: Leg) -> Observation:
        """The leg's observation: read when it has ended in this folder, otherwise run here and now.

        Several processes may ask for the same leg at once; one runs it, the others wait for it.
        """
        with self._folder.claim(leg):
            observation = self._read(leg)
            if observation is None:
                with lease(leg) as device:
                    observation = self._run_served(leg, device)
                self._folder.write_observation(observation)
            return observation

    def ensure_pair(self, oracle: Leg, subject: Leg) -> tuple[Observation | None, Observation]:
        """(oracle's, subject's) observation; the oracle's is None where the subject did not come up.

        The subject goes first: when the engine refuses it there is nothing that an oracle could be compared with.
        """
        answer = self.ensure(subject)
        return (self.ensure(oracle) if answer.ending is Ending.OK else None), answer

    def ensure_cell(self, cell: Cell, legs: Mapping[str, Leg]) -> tuple[Observation | None, Observation, dict]:
        """``ensure_pair``'s, and by digest what the cell's further legs saw, where its own two lived."""
        oracle, subject = self.ensure_pair(legs[cell.oracle], legs[cell.subject])
        further = cell.further if oracle is not None and oracle.ending is Ending.OK else ()
        return oracle, subject, {digest: self.ensure(legs[digest]) for digest in further}

    def _read(self, leg: Leg) -> Observation | None:
        try:
            return self._folder.read_observation(leg.digest)
        except WireError:
            # Half a file is no observation; the leg runs again and replaces it.
            return None

    def _start(
        self, leg: Leg, paths: tuple[Path, Path, Path], environment: Mapping[str, str], log: int, stage: int
    ) -> Process:
        if leg.engine_name in ("vllm", "faulty", "unit") and warm_wanted(environment):
            # Without a warm process the leg only takes longer to start.
            with contextlib.suppress(WarmError):
                return self._warm.start_leg([str(path) for path in paths], environment, log, stage)
        return _spawn(paths, environment, log, stage)

    def _run_served(self, leg: Leg, device: Lease) -> Observation:
        """Run the leg with the servers that its connector needs; one that fails is the leg's crash, in its words."""
        config = None if leg.engine_name == "unavailable" else leg.kv_transfer_config
        # What a leg leaves whose server never came up.
        observation = Observation(
            schema=SCHEMA_VERSION, leg=leg.digest, ending=Ending.CRASHED, resolved=None, phases=(), failure=None,
            environment={}, seconds={}, peak_bytes=0,
        )
        try:
            with self._servers.serving(config) as environment:
                observation = self._run(leg, device, environment)
        except ServerError as error:
            failure = Failure(stage="server", kind="ServerError", message=str(error))
            return replace(observation, ending=Ending.CRASHED, failure=failure)
        return observation

    def _run(self, leg: Leg, device: Lease, served: Mapping[str, str]) -> Observation:
        """Run the leg's processes one after the other, over one store folder."""
        store_path = self._folder.store_path(leg.digest)
        # What a killed run left behind is not this leg's.
        shutil.rmtree(store_path, ignore_errors=True)
        store_path.mkdir()
        environment = {**child_environment(leg, device, os.environ), **served}
        environment[STORE_VARIABLE] = str(store_path.resolve())
        try:
            first, *others = parts(leg)
            observation = self._run_part(first, environment, "wb")
            for part in others:
                if observation.ending is Ending.OK:
                    observation = joined(observation, self._run_part(part, environment, "ab"))
            return observation
        finally:
            shutil.rmtree(store_path, ignore_errors=True)

    def _deadlines_of(self, leg: Leg) -> Mapping[str, float]:
        """A client that waits for its server in vain does so while the engine loads, and some wait for ever."""
        if not needed_by(leg.kv_transfer_config):
            return self._deadlines
        return {**self._deadlines, "load": min(SERVED_LOAD_S, self._deadlines.get("load", PHASE_DEADLINE_S))}

    def _run_part(self, leg: Leg, environment: Mapping[str, str], log_mode: str) -> Observation:
        legs = self._folder.legs
        leg_path = legs / f"{leg.digest}.leg.json"
        child_path = legs / f"{leg.digest}.child.json"
        log_path = self._folder.log_path(leg.digest)
        child_path.unlink(missing_ok=True)
        wire.write(leg_path, leg)
        reader, writer = os.pipe()
        started = time.monotonic()
        try:
            with log_path.open(log_mode) as log:
                process = self._start(leg, (leg_path, child_path, log_path), environment, log.fileno(), writer)
        finally:
            os.close(writer)
        watch = _Watch(process, reader, self._folder.stage_path(leg.digest), self._deadlines_of(leg))
        try:
            hung = watch.until_end()
        finally:
            _kill_group(process)
            os.close(reader)
            self._folder.stage_path(leg.digest).unlink(missing_ok=True)
            leg_path.unlink(missing_ok=True)
        lost = Lost(
            digest=leg.digest, stage=watch.stage, peak_bytes=watch.peak_bytes, hung=hung, code=process.returncode,
            seconds=time.monotonic() - started,
        )
        observation = child_observation(child_path, lost)
        child_path.unlink(missing_ok=True)
        return completed(observation, watch.peak_bytes, log_path, self._folder.path)


def _spawn(
    paths: tuple[Path, Path, Path], environment: Mapping[str, str], log: int, stage: int
) -> subprocess.Popen[bytes]:
    leg, out, path = map(str, paths)
    return subprocess.Popen(
        [sys.executable, "-m", "harness.worker", leg, out, str(stage), path],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        pass_fds=(stage,),
        start_new_session=True,
        env=dict(environment),
    )


#: A leg's process, however it was started.
Process = subprocess.Popen[bytes] | WarmChild


class _Watch:
    """Follows one child through its stages."""

    def __init__(
        self, process: Process, reader: int, stage_path: Path, deadlines: Mapping[str, float]
    ) -> None:
        self._process = process
        self._reader = reader
        self._stage_path = stage_path
        self._deadlines = deadlines
        self.peak_bytes = 0
        self.stage = ""
        self._enter("spawn")

    def _enter(self, stage: str) -> None:
        self.stage = stage
        self._until = time.monotonic() + self._deadlines.get(stage, PHASE_DEADLINE_S)
        # For the progress line only; a full disk must not end the leg.
        with contextlib.suppress(OSError):
            self._stage_path.write_text(stage)

    def until_end(self) -> bool:
        """Wait for the child to end; True when a stage outlived its deadline (its stacks are in the log then)."""
        buffer = b""
        while True:
            ready, _, _ = select.select([self._reader], [], [], POLL_S)
            chunk = os.read(self._reader, 4096) if ready else b""
            buffer += chunk
            *stages, buffer = buffer.split(b"\n")
            for stage in stages:
                self._enter(stage.decode(errors="replace"))
            self._sample_memory()
            if self._process.poll() is not None:
                self._drain(buffer)
                return False
            if ready and not chunk:
                # The child closed its end: it is ending, or has become something else.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(self._deadlines.get("close", PHASE_DEADLINE_S))
                return self._process.poll() is None and self._dump_stacks()
            if time.monotonic() > self._until:
                return self._dump_stacks()

    def _drain(self, buffer: bytes) -> None:
        """Read what the child still said before it ended, so that the stage it died in is the last one it entered."""
        while select.select([self._reader], [], [], 0)[0] and (chunk := os.read(self._reader, 4096)):
            buffer += chunk
        for stage in buffer.split(b"\n")[:-1]:
            self._enter(stage.decode(errors="replace"))

    def _dump_stacks(self) -> bool:
        """Ask for the stacks of all threads (faulthandler listens on SIGUSR1 from the child's first line on)."""
        if self.stage != "spawn":
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGUSR1)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STACKS_S)
        return True

    def _sample_memory(self) -> None:
        with contextlib.suppress(psutil.Error):
            tree = psutil.Process(self._process.pid)
            total = sum(process.memory_info().rss for process in [tree, *tree.children(recursive=True)])
            self.peak_bytes = max(self.peak_bytes, total)


def _kill_group(process: Process) -> None:
    """Kill the child's whole session; the child itself may be gone while what it started lives on."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
