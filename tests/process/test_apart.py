# SPDX-License-Identifier: Apache-2.0
"""A second engine of a leg, in a process of its own: its answers, its refusals, its end at any time."""

from __future__ import annotations

import os
import signal
import socket

import psutil
import pytest
import zmq

from harness.engines.apart import Apart
from harness.engines.prefill_decode import held_port
from harness.errors import LegError
from harness.records import DecodeSpec, Leg

DECODE = DecodeSpec(max_tokens=2, logprobs=1)
PROMPT = tuple(range(40))


def open_fake(leg: Leg, stage):
    """The fake engine, in the process beside; called by name."""
    from harness.engines.fake import open_engine

    class Stages:
        current = "load"

        def __call__(self, name: str) -> None:
            self.current = name

    return open_engine(leg, Stages())


def open_stopped(leg: Leg, stage):
    """An engine that never comes up; called by name."""
    os.kill(os.getpid(), signal.SIGSTOP)


def open_unspeakable(leg: Leg, stage):
    """A refusal that cannot be pickled; called by name."""

    class Refusal(ValueError):
        pass

    raise Refusal("no such layout")


@pytest.fixture(params=[False, True], ids=["interpreter", "fork"])
def started(make_leg, request):
    """Starts an engine apart; at the end of the test none is left, and SIGCHLD is nobody's."""
    made: list[Apart] = []
    before = signal.getsignal(signal.SIGCHLD)

    def start(opener: str = "open_fake", **leg) -> Apart:
        environment = {"PYTHONPATH": os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])}
        opener = f"tests.process.test_apart:{opener}"
        made.append(Apart("prefill", opener, make_leg(**leg), environment, fork=request.param))
        return made[-1]

    yield start
    for one in made:
        one.close()
        assert not psutil.pid_exists(one.pid)
    assert signal.getsignal(signal.SIGCHLD) == before


def test_it_answers_as_an_engine_in_this_process_does(started, make_leg):
    leg = make_leg()
    apart, here = started(), open_fake(leg, None)
    apart.wait()
    assert apart.resolved() == here.resolved()
    assert apart.generate([PROMPT], DECODE) == here.generate([PROMPT], DECODE)
    assert apart.placements() == here.placements()
    blocks = (1, 2)
    assert apart.digests(blocks) == here.digests(blocks)
    assert apart.counters() == here.counters()
    assert (apart.reset(1.0), apart.zero()) == (here.reset(1.0), here.zero())
    assert os.getsid(apart.pid) == os.getsid(0)


def test_what_it_raises_is_raised_here_with_its_traceback(started):
    apart = started(fake={"stages": {"load": "refuse"}})
    with pytest.raises(ValueError, match="planted refusal") as caught:
        apart.wait()
    assert "in _refuse" in str(caught.value.__cause__)


def test_a_refusal_that_cannot_travel_stays_a_refusal(started):
    with pytest.raises(ValueError, match="Refusal: no such layout"):
        started("open_unspeakable").wait()


def test_a_method_that_fails_leaves_it_alive(started):
    apart = started()
    apart.wait()
    with pytest.raises(AttributeError):
        apart.call("no_such_method")
    assert apart.zero()[0] > 0


@pytest.mark.parametrize("ending", ["sigkill", "exit0"])
def test_one_that_ends_while_it_loads_says_how(started, ending):
    apart = started(fake={"stages": {"load": ending}})
    with pytest.raises(LegError, match="prefill engine (died of SIGKILL|ended with exit code 0)"):
        apart.wait()


def test_its_end_interrupts_whatever_this_process_waits_for(started):
    apart = started()
    apart.wait()
    with pytest.raises(LegError, match="prefill engine died of SIGKILL"):
        os.kill(apart.pid, signal.SIGKILL)
        signal.pause()
    with pytest.raises(LegError, match="prefill engine died of SIGKILL"):
        apart.zero()


def test_the_end_of_another_child_is_not_its_own(started):
    apart = started()
    apart.wait()
    assert os.spawnlp(os.P_WAIT, "true", "true") == 0
    assert apart.zero()[0] > 0


def test_one_that_does_not_answer_is_ended_by_force(started, monkeypatch):
    monkeypatch.setattr("harness.engines.apart.END_S", 0.2)
    apart = started("open_stopped")
    apart.close()
    assert not psutil.pid_exists(apart.pid)


def test_aheld_port_is_nobodys_but_a_listener_can_have_it():
    with held_port() as held, zmq.Context() as context, context.socket(zmq.ROUTER) as listener:
        port = held.getsockname()[1]
        with pytest.raises(OSError), socket.socket() as other:
            other.bind(("127.0.0.1", port))
        listener.bind(f"tcp://127.0.0.1:{port}")
        with socket.socket() as client:
            client.connect(("127.0.0.1", port))
