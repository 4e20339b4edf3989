# SPDX-License-Identifier: Apache-2.0
"""A run as its reports see it. ``text`` and ``markdown`` render the same content, which ``content`` collects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from harness.records import Cell, Leg, Observation, Plan, Verdict

__all__ = ["RunView"]


@dataclass(frozen=True, kw_only=True)
class RunView:
    """Everything a report is made of; nothing in it asks an engine.

    Attributes:
        plan: cells and legs of the run.
        verdicts: of the cells that were judged, one each; a plan's cell without one is shown as not run.
        observations: leg digest -> what the leg saw, for the legs that were run.
        folder: the run folder, as the user should type it.
        platform: ``cpu``, ``rocm`` or ``cuda``, with the device where one is known.
        versions: name -> version, e.g. ``vllm``, ``torch``.
        seconds: wall time of the run.
        reused_legs: legs whose observation was taken from an earlier run of the same folder.
    """

    plan: Plan
    verdicts: tuple[Verdict, ...]
    observations: Mapping[str, Observation]
    folder: str
    platform: str
    versions: Mapping[str, str]
    seconds: float
    reused_legs: int = 0

    @cached_property
    def cells(self) -> Mapping[tuple[str, str], Cell]:
        """(scenario, cell id) -> cell."""
        return {(cell.scenario, cell.id): cell for cell in self.plan.cells}

    @cached_property
    def legs(self) -> Mapping[str, Leg]:
        """digest -> leg."""
        return {leg.digest: leg for leg in self.plan.legs}

    def cell(self, verdict: Verdict) -> Cell:
        return self.cells[verdict.scenario, verdict.cell]
