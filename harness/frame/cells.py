# SPDX-License-Identifier: Apache-2.0
"""The frame of a run: a row per cell with every evidence column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from harness.records import Observation, Plan, Verdict
from harness.row import COLUMNS, row_of


def to_frame(
    plan: Plan, verdicts: Sequence[Verdict], observations: Mapping[str, Observation], *, platform: str | None = None
) -> pd.DataFrame:
    """One row per verdict, in the plan's order; a cell without a verdict has no row.

    Unknown values are missing (``pd.NA``), never zero; ``harness.LoadedRun`` describes the columns.
    """
    judged = {verdict.name: verdict for verdict in verdicts}
    legs = {leg.digest: leg for leg in plan.legs}
    rows = [
        {**row_of(cell, judged[cell.name], legs, observations), "platform": platform or None}
        for cell in plan.cells
        if cell.name in judged
    ]
    columns = {name: [row[name] for row in rows] for name in COLUMNS}
    return pd.DataFrame({name: pd.array(values, dtype=COLUMNS[name]) for name, values in columns.items()})
