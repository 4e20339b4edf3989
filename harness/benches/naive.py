# SPDX-License-Identifier: Apache-2.0
"""The naive way, to compare with: a fresh interpreter for each engine and each group of phases, one after another.

What one would do by hand: start vLLM, run the prompts, write the answers down, and start again for the next question.
Only what has to share an engine shares one: a local hit needs the pass that filled the cache before it, a restore the
one that filled the store. No process is kept warm, no leg is shared, nothing runs side by side.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from harness.archive import RunFolder
from harness.records import Cell, Ending, Leg, Phase, Plan, Role
from harness.runner import Runner
from harness.warm import SWITCH
from harness.wire import named

#: Groups of phases, each in an interpreter of its own. The second pass of the oracle is the A/A control as well.
GROUPS: Mapping[Role, tuple[tuple[Phase, ...], ...]] = {
    Role.SUBJECT: ((Phase.POPULATE, Phase.RESTORE, Phase.RESTORE_AGAIN), (Phase.POPULATE, Phase.LOCAL_HIT)),
    Role.ORACLE: ((Phase.RECOMPUTE,), (Phase.RECOMPUTE, Phase.LOCAL_HIT)),
}


def legs_of(leg: Leg) -> list[Leg]:
    """The leg, cut into the groups of its role."""
    return [named(replace(leg, phases=phases)) for phases in GROUPS[leg.role]]


def spread(cells: Sequence[Cell], count: int) -> list[Cell]:
    """``count`` cells at even distances, first and last among them; all where there are no more or ``count`` is 0."""
    if not 0 < count < len(cells):
        return list(cells)
    if count == 1:
        return [cells[0]]
    return [cells[round(place * (len(cells) - 1) / (count - 1))] for place in range(count)]


def seconds(plan: Plan, cells: Sequence[Cell], folder: Path) -> tuple[float, int]:
    """(wall seconds, interpreters started) of running ``cells`` the naive way in the new run folder ``folder``.

    A cell whose subject is refused or dies needs no oracle, here as in the harness.
    """
    started, interpreters = time.monotonic(), 0
    for number, cell in enumerate(cells):
        # A folder of its own per cell, so that no leg is shared.
        own = RunFolder(folder / str(number))
        own.prepare()
        with _cold(), contextlib.closing(Runner(own)) as runner:
            for leg in (*legs_of(plan.leg(cell.subject)), *legs_of(plan.leg(cell.oracle))):
                interpreters += 1
                if runner.ensure(leg).ending is not Ending.OK:
                    break
    return time.monotonic() - started, interpreters


@contextlib.contextmanager
def _cold() -> Iterator[None]:
    """Without warm processes."""
    before = os.environ.get(SWITCH)
    os.environ[SWITCH] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SWITCH]
        else:
            os.environ[SWITCH] = before
