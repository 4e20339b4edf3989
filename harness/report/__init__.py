# SPDX-License-Identifier: Apache-2.0
"""A run as its reports see it. ``text`` and ``markdown`` render the same content, which ``content`` collects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from harness.compare.pair import Pair
from harness.records import Cell, Leg, Observation, Plan, Verdict

if TYPE_CHECKING:
    import pandas as pd

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
    def cells(self) -> Mapping[str, Cell]:
        """Name -> cell."""
        return {cell.name: cell for cell in self.plan.cells}

    @cached_property
    def legs(self) -> Mapping[str, Leg]:
        """digest -> leg."""
        return {leg.digest: leg for leg in self.plan.legs}

    @cached_property
    def frame(self) -> pd.DataFrame:
        """The run's frame (``harness.frame.to_frame``), made once for all reports; nobody may change it."""
        # pandas is dear, and a run that has not ended needs none.
        from harness.frame import to_frame

        return to_frame(self.plan, self.verdicts, self.observations, platform=self.platform)

    def cell(self, verdict: Verdict) -> Cell:
        return self.cells[verdict.name]

    def pair(self, cell: Cell) -> Pair:
        """The cell's two legs and what they saw."""
        return Pair(
            cell=cell, legs=self.legs, oracle=self.observations.get(cell.oracle),
            subject=self.observations.get(cell.subject),
        )
