# SPDX-License-Identifier: Apache-2.0
"""A run as pandas DataFrames: a row per cell, a row per generated token, pivots, and ``load_run`` for a stored run."""

from harness.frame.cells import to_frame
from harness.frame.load import LoadedRun, load_run
from harness.frame.pivots import outcome_word, pivot
from harness.frame.steps import STEP_COLUMNS, to_steps
from harness.row import COLUMNS

__all__ = ["COLUMNS", "STEP_COLUMNS", "LoadedRun", "load_run", "outcome_word", "pivot", "to_frame", "to_steps"]
