# SPDX-License-Identifier: Apache-2.0
"""A leg that goes on in a new process: its parts, and one observation of both.

What the first process held in memory is gone for the second; only a store outside the engine can bridge them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from harness.errors import LegError
from harness.records import Ending, Failure, Leg, Observation


def parts(leg: Leg) -> tuple[Leg, ...]:
    """The leg as each of its processes is told it, in order; they share its digest, and with it store and log.

    The first one fills the store, and has what ``Leg.filling`` says.

    Raises:
        LegError: a restart is asked for where no phase comes before it, so that one engine would do all the work.
    """
    if leg.restarts_before is None:
        return (leg,)
    place = leg.phases.index(leg.restarts_before) if leg.restarts_before in leg.phases else 0
    if not place:
        phases = ", ".join(leg.phases)
        raise LegError(f"leg {leg.digest} cannot restart before {leg.restarts_before} after an earlier phase: {phases}")
    return replace(leg.filler, phases=leg.phases[:place]), replace(leg, phases=leg.phases[place:])


def joined(first: Observation, second: Observation, *, filling: bool = False) -> Observation:
    """One observation of two processes of a leg; the second's ending and resolution, and both processes' phases.

    Two engines that resolved the same configuration differently are no restart: that is a crash, in so many words.
    With ``filling`` they were told to differ, and whether they did so as told is the comparator's business.
    """
    seconds = Counter(first.seconds)
    seconds.update(second.seconds)
    whole = replace(
        second, phases=first.phases + second.phases, seconds=dict(seconds),
        peak_bytes=max(first.peak_bytes, second.peak_bytes), filled=first.resolved, left_bytes=first.left_bytes,
    )
    if not filling and second.resolved is not None and second.resolved != first.resolved:
        message = f"the new engine resolved {second.resolved}, the one before it {first.resolved}"
        failure = Failure(stage="restart", kind="ResolvedDifferently", message=message)
        return replace(whole, ending=Ending.CRASHED, failure=failure)
    return whole
