# SPDX-License-Identifier: Apache-2.0
"""Runs legs in child processes: once each, with what they may see, and with nothing left behind.

Every child is the leader of its own session. There is always an Observation afterwards: the child's own, or one that
says how the child was lost. ``harness.watch`` follows it, ``harness.footprint`` ends it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from harness import footprint, server_restart, wire
from harness.archive import RunFolder
from harness.beside import beside
from harness.cause import DEVICE_BUSY, handed_over
from harness.child_env import child_environment
from harness.device import Lease, lease
from harness.endings import child_observation, completed, unwritten
from harness.errors import CalledOff, WireError
from harness.footprint import Footprint
from harness.parts import joined, parts
from harness.records import SCHEMA_VERSION, Cell, Ending, Failure, Leg, Observation, Outcome
from harness.server_restart import STORE_VARIABLE
from harness.servers import ServerError, Servers, needed_by
from harness.warm import WarmError, WarmProcesses
from harness.warm import wanted as warm_wanted
from harness.watch import Process, Watch

#: The longest ``load`` where a connector talks to a server.
SERVED_LOAD_S = 300.0

#: Stages in which a lack of memory or a busy device says nothing of what the leg was to show.
STARTING = ("spawn", "import", "load")

#: Seconds before the second attempt, in which whoever held the device or the memory may let go of it.
RETRY_AFTER_S = 5.0


#: Expected outcomes of a subject that does not live to be compared.
WITHOUT_ORACLE = (Outcome.UNAVAILABLE, Outcome.REJECTED, Outcome.CRASHED)


class Runner:
    """Runs the legs of one run folder.

    Args:
        folder: the run folder.
        deadlines: in place of a leg's own; keys of ``DEADLINES_S``, or names of single stages.
        retry_after_s: pause before a second attempt.
        pairs: whether a cell's oracle may run beside its subject (``harness.beside``).
    """

    def __init__(
        self,
        folder: RunFolder,
        *,
        deadlines: Mapping[str, float] | None = None,
        retry_after_s: float = RETRY_AFTER_S,
        pairs: bool = False,
    ) -> None:
        self._folder = folder
        self._deadlines = deadlines or {}
        self._retry_after_s = retry_after_s
        self._warm = WarmProcesses()
        self._servers = Servers(folder.path / "servers")
        self._called_off = threading.Event()
        # Shared memory of ended legs that a server still maps.
        self._held: dict[str, int] = {}
        # Runs oracles beside this one's subjects, and keeps a warm process of its own.
        self._second = Runner(folder, deadlines=deadlines, retry_after_s=retry_after_s) if pairs else None
        footprint.sweep()

    def close(self) -> None:
        """End what was kept warm for the next leg, and the servers that legs shared."""
        if self._second is not None:
            self._second.close()
        self._warm.close()
        self._servers.close()
        footprint.unlink_unmapped(self._held)

    def ensure(self, leg: Leg) -> Observation:
        """The leg's observation: read when it has ended in this folder, otherwise run here and now.

        Several processes may ask for the same leg at once; one runs it, the others wait for it. A folder that cannot
        be written (a full disk) costs this leg, not the run.
        """
        started = time.monotonic()
        try:
            with self._folder.claim(leg, self._called_off.is_set) as held:
                if not held:
                    raise CalledOff
                observation = self._read(leg)
                if observation is None:
                    observation = self._attempts(leg)
                    self._folder.write_observation(observation)
                return observation
        except OSError as error:
            return unwritten(leg, error, time.monotonic() - started)

    def ensure_pair(
        self, oracle: Leg, subject: Leg, *, likely: bool = True
    ) -> tuple[Observation | None, Observation]:
        """(oracle's, subject's) observation; the oracle's is None where the subject did not come up.

        The subject goes first: when the engine refuses it there is nothing that an oracle could be compared with. It
        has the oracle beside it where there is room for both and the subject is ``likely`` to come up.
        """
        if self._second is None or not likely:
            if likely and self._folder.is_claimed(subject):
                # Somebody helps with the subject; the oracle is what is left to do meanwhile.
                self._run_if_free(oracle)
            answer = self.ensure(subject)
        else:
            second, called_off = self._second, self._second._called_off
            called_off.clear()
            with beside(lambda: second.ensure(oracle), called_off):
                answer = self.ensure(subject)
                if answer.ending is not Ending.OK:
                    called_off.set()
        return (self.ensure(oracle) if answer.ending is Ending.OK else None), answer

    def ensure_cell(self, cell: Cell, legs: Mapping[str, Leg]) -> tuple[Observation | None, Observation, dict]:
        """``ensure_pair``'s, and by digest what the cell's further legs saw, where its own two lived."""
        oracle, subject = self.ensure_pair(legs[cell.oracle], legs[cell.subject], likely=_likely(cell))
        further = cell.further if oracle is not None and oracle.ending is Ending.OK else ()
        return oracle, subject, {digest: self.ensure(legs[digest]) for digest in further}

    def help(self, cell: Cell, legs: Mapping[str, Leg]) -> None:
        """Run those of the cell's two legs that nobody has; the oracle only where it is likely to be needed."""
        self._run_if_free(legs[cell.subject])
        subject = self._read(legs[cell.subject])
        if subject.ending is Ending.OK if subject is not None else _likely(cell):
            self._run_if_free(legs[cell.oracle])

    def _run_if_free(self, leg: Leg) -> None:
        """Run the leg unless it has ended or is claimed. Of a folder that cannot be written ``ensure`` will tell."""
        with contextlib.suppress(OSError), self._folder.claim_free(leg) as held:
            if held and self._read(leg) is None:
                self._folder.write_observation(self._attempts(leg))

    def _read(self, leg: Leg) -> Observation | None:
        try:
            return self._folder.read_observation(leg.digest)
        except WireError:
            # Half a file is no observation; the leg runs again and replaces it.
            return None

    def _attempts(self, leg: Leg) -> Observation:
        """Run the leg; once more where what it ran on failed it. An answer of any kind is never asked for again."""
        with lease(leg, self._called_off) as device:
            first = self._run_served(leg, device)
        if not infrastructure_failed(first):
            return first
        if self._called_off.wait(self._retry_after_s):
            raise CalledOff
        with lease(leg, self._called_off) as device:
            second = self._run_served(leg, device)
        assert first.failure is not None
        return replace(second, attempts=2, earlier=(first.failure,))

    def _start(self, leg: Leg, paths: _Paths, environment: Mapping[str, str], log: int, stage: int) -> Process:
        names = [str(path) for path in (paths.leg, paths.result, paths.log)]
        if leg.engine_name in ("vllm", "prefill_decode", "faulty", "unit") and warm_wanted(environment):
            # Without a warm process the leg only takes longer to start.
            with contextlib.suppress(WarmError):
                return self._warm.start_leg(names, environment, log, stage)
        return _spawn(names, environment, log, stage)

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
        finally:
            self._held = footprint.unlink_unmapped(self._held)
        return observation

    def _run(self, leg: Leg, device: Lease, served: Mapping[str, str]) -> Observation:
        """Run the leg's processes one after the other, over one store folder and one log."""
        paths = _Paths(self._folder, leg.digest)
        # What a killed run left behind is not this leg's.
        shutil.rmtree(paths.store, ignore_errors=True)
        paths.kept.mkdir(parents=True)
        paths.log.unlink(missing_ok=True)
        environment = {**served, STORE_VARIABLE: str(paths.kept.resolve())}
        try:
            first, *others = parts(leg)
            observation = self._run_part(first, device, environment, paths)
            for part in others:
                if observation.ending is Ending.OK:
                    observation = replace(observation, left_bytes=_bytes_below(paths.kept))
                    second = self._run_part(part, device, environment, paths)
                    observation = joined(observation, second, filling=leg.filling is not None)
            return observation
        finally:
            shutil.rmtree(paths.store, ignore_errors=True)

    def _deadlines_of(self, leg: Leg) -> dict[str, float]:
        """A client that waits for its server in vain does so while the engine loads, and some wait for ever."""
        deadlines = {**leg.deadlines, **self._deadlines}
        if needed_by(leg.kv_transfer_config):
            deadlines["load"] = min(SERVED_LOAD_S, deadlines["load"])
        return deadlines

    def _run_part(self, leg: Leg, device: Lease, served: Mapping[str, str], paths: _Paths) -> Observation:
        paths.result.unlink(missing_ok=True)
        wire.write(paths.leg, leg)
        trace = Footprint(leg)
        reader, writer = os.pipe()
        process, started, left = None, time.monotonic(), []
        try:
            try:
                # Appending: the stacks of a hang are written by several processes.
                with paths.log.open("ab") as log:
                    outside = {**os.environ, **trace.environment()}
                    environment = {**child_environment(leg, device, outside), **served}
                    process = self._start(leg, paths, environment, log.fileno(), writer)
            finally:
                os.close(writer)
            trace.begin(process)
            watch = Watch(
                process, trace, reader=reader, deadlines=self._deadlines_of(leg),
                stage_path=paths.stage, result=paths.result, log=paths.log, called_off=self._called_off,
                tend=lambda: server_restart.answer(paths.kept, self._servers.restart),
            )
            watch.until_end()
        finally:
            left = trace.end(process)
            self._held |= trace.held
            os.close(reader)
            paths.stage.unlink(missing_ok=True)
            paths.leg.unlink(missing_ok=True)
        observation = child_observation(paths.result, watch.lost(leg.digest, time.monotonic() - started))
        paths.result.unlink(missing_ok=True)
        return completed(observation, watch.peak_bytes, paths.log, self._folder.path, left)


def _likely(cell: Cell) -> bool:
    """Whether the cell's subject is expected to live, so that its oracle will be needed."""
    return cell.expectation is None or cell.expectation.outcome not in WITHOUT_ORACLE


class _Paths:
    """Files of one leg in the run folder, while it runs."""

    def __init__(self, folder: RunFolder, digest: str) -> None:
        self.leg = folder.legs / f"{digest}.leg.json"
        self.result = folder.legs / f"{digest}.child.json"
        self.log = folder.log_path(digest)
        self.stage = folder.stage_path(digest)
        self.store = folder.store_path(digest)
        #: The connector's part of it; the rest is the engine's own.
        self.kept = self.store / "kv"


def _bytes_below(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


def infrastructure_failed(observation: Observation) -> bool:
    """Whether a leg never came up because memory was short or its device busy: nothing that it was asked shows it."""
    failure = observation.failure
    if failure is None or failure.stage not in STARTING or observation.phases:
        return False
    if handed_over(failure.trace):
        # The connector was at work already, and a store that fails now and then must not look as if it never did.
        return False
    busy = any(words in failure.message for words in DEVICE_BUSY)
    return observation.ending is Ending.OUT_OF_MEMORY or (observation.ending is Ending.CRASHED and busy)


def _spawn(names: list[str], environment: Mapping[str, str], log: int, stage: int) -> subprocess.Popen[bytes]:
    leg, out, path = names
    return subprocess.Popen(
        [sys.executable, "-m", "harness.worker", leg, out, str(stage), path],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        pass_fds=(stage,),
        start_new_session=True,
        env=dict(environment),
    )
