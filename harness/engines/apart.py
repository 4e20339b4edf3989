# SPDX-License-Identifier: Apache-2.0
"""An engine in a process of its own, behind the ``Engine`` protocol: a second engine of a leg.

It is a child of the leg's process and belongs to its session, so it is bounded by the leg's deadlines, its stacks are
in the leg's log, and it ends with the leg. Calls and answers are pickled records over a socket pair. When it dies, the
leg's process is told by SIGCHLD, even in the middle of a transfer that would wait for it for ever.

A leg's process that came from a warm one (``harness.warm``) has imported vLLM and nothing more: it is forked, as it was
itself. Any other starts a new interpreter.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib
import os
import pickle
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection, Pipe
from typing import Any

from harness import stacks
from harness.engines import Answer, Counters, Placement
from harness.errors import LegError
from harness.records import DecodeSpec, Leg, Resolved

#: Seconds that the process has to end by itself once it was told to.
END_S = 10.0

#: A socket whose other end is closed is followed by the process's end within so many seconds.
NOTICE_S = 5.0

_PR_SET_PDEATHSIG = 1


class _Elsewhere(Exception):
    """The other process's traceback, as the cause of its exception here."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class Apart:
    """The engine's side in the leg's process.

    Args:
        what: what it is called in messages: "prefill".
        opener: ``module:function`` that opens it there, with the arguments of ``open_engine``.
        leg: what it is opened with.
        environment: variables beside this process's own.
        fork: whether this process may be forked: it has one thread, and no device and no engine yet.
    """

    def __init__(
        self, what: str, opener: str, leg: Leg, environment: Mapping[str, str], *, fork: bool = False
    ) -> None:
        self._what = what
        self._dismissed = False
        self._channel, theirs = Pipe()
        # Before it starts: it may end at once.
        self._before = signal.signal(signal.SIGCHLD, self._look)
        self._process: subprocess.Popen[bytes] | _Forked | None = None
        with theirs:
            if fork:
                self._process = self._fork(theirs, environment)
            else:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "harness.engines.apart", str(theirs.fileno())], stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),), env={**os.environ, **environment},
                )
        self._send((opener, leg))

    def _fork(self, theirs: Connection, environment: Mapping[str, str]) -> _Forked:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            return _Forked(pid)
        code = 1
        try:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._channel.close()
            os.environ.update(environment)
            code = serve(theirs)
        except BaseException:
            traceback.print_exc()
        finally:
            # What the other process has registered for its own end is none of this one's business.
            os._exit(code)

    @property
    def pid(self) -> int:
        return self._process.pid  # type: ignore[union-attr]

    def _look(self, *_: object) -> None:
        """A child of this process has ended; if it is this one, nothing that waits for it will ever be answered."""
        if self._process is not None and self._process.poll() is not None:
            raise self._lost()

    def _lost(self) -> LegError:
        signal.signal(signal.SIGCHLD, self._before or signal.SIG_DFL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(NOTICE_S)  # type: ignore[union-attr]
        code = self._process.returncode  # type: ignore[union-attr]
        if code is None:
            how = "closed its end of the pipe"
        else:
            how = f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return LegError(f"the {self._what} engine {how}")

    def _send(self, message: Any) -> None:
        try:
            self._channel.send(message)
        except OSError:
            raise self._lost() from None

    def wait(self) -> Any:
        """The answer to what it was asked last, or to its start.

        Raises:
            LegError: it is gone.
            Exception: whatever it raised, with its traceback as the cause.
        """
        try:
            answer, error, trace = self._channel.recv()
        except (EOFError, OSError):
            raise self._lost() from None
        if error is not None:
            raise error from _Elsewhere(trace)
        return answer

    def call(self, name: str, *arguments: Any) -> Any:
        """What its method of that name answers; raises as ``wait`` does."""
        self._send((name, arguments))
        return self.wait()

    def resolved(self) -> Resolved:
        return self.call("resolved")

    def generate(self, prompts: Sequence[Sequence[int]], decode: DecodeSpec) -> list[Answer]:
        return self.call("generate", prompts, decode)

    def counters(self) -> Counters:
        return self.call("counters")

    def placements(self) -> list[Placement]:
        return self.call("placements")

    def digests(self, blocks: Sequence[int]) -> list[str]:
        return self.call("digests", blocks)

    def reset(self, deadline_s: float) -> bool:
        return self.call("reset", deadline_s)

    def zero(self) -> tuple[int, int]:
        return self.call("zero")

    def dismiss(self) -> None:
        """Tell it to end, and do not wait."""
        signal.signal(signal.SIGCHLD, self._before or signal.SIG_DFL)
        if not self._dismissed:
            self._dismissed = True
            with contextlib.suppress(OSError):
                self._channel.send(("close", ()))

    def close(self) -> None:
        """End it, by force where it has not ended within ``END_S``."""
        self.dismiss()
        assert self._process is not None
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(END_S)
        self._channel.close()


class _Forked:
    """A forked process: what ``subprocess.Popen`` offers, as far as it is used here."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            # SIGCHLD may come in between, and its handler has asked first.
            with contextlib.suppress(ChildProcessError):
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """
        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(self.pid)
            try:
                select.select([handle], [], [], timeout)
            finally:
                os.close(handle)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired("engine", timeout)
        return code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


# --- inside the other process ------------------------------------------------------------------------------------


def main(arguments: Sequence[str]) -> int:
    """Entry point of an interpreter of its own."""
    faulthandler.enable()
    stacks.listen()
    return serve(Connection(int(arguments[0])))


def serve(channel: Connection) -> int:
    """Open the engine that the first message names, then answer calls until the other end is closed."""
    # Linux only; elsewhere the footprint of the leg finds the process.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    opener, leg = channel.recv()
    module, _, function = opener.partition(":")
    try:
        engine = getattr(importlib.import_module(module), function)(leg, lambda stage: None)
    except BaseException as error:
        channel.send(_failed(error))
        # Its end would be heard before its words.
        with contextlib.suppress(EOFError, OSError):
            channel.recv()
        return 1
    channel.send((None, None, ""))
    while True:
        try:
            name, asked = channel.recv()
        except (EOFError, OSError):
            return 0
        try:
            answer = (getattr(engine, name)(*asked), None, "")
        except BaseException as error:
            answer = _failed(error)
        channel.send(answer)
        if name == "close":
            return 0


def _failed(error: BaseException) -> tuple[None, BaseException, str]:
    """An exception and its traceback as a message; one that cannot travel is told in words, as one of its kind."""
    trace = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        kind = next((kind for kind in (ValueError, NotImplementedError) if isinstance(error, kind)), RuntimeError)
        error = kind(f"{type(error).__name__}: {error}")
    return None, error, trace


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
