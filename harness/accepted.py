# SPDX-License-Identifier: Apache-2.0
"""The accepted run of a platform: where its frame lies, and what a later run has and lacks beside it."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from harness.asked import EVERYTHING, Asked
from harness.baseline import Comparison, by_cell, covered
from harness.errors import UsageError
from harness.frame.read import read_frame

#: Where accepted runs live, a folder per platform.
REFERENCE = Path("results") / "reference"


def reference_of(root: Path, platform: str) -> Path:
    """The folder of a platform's accepted run under ``root``."""
    return root / platform.replace(" ", "-")


def _accepted(folder: Path) -> pd.DataFrame | None:
    """The accepted frame in ``folder``, None where nothing was accepted yet.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        return read_frame(folder / "frame.csv")
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise UsageError(f"{folder}/frame.csv cannot be read ({error}); restore it from git") from None


def lost_cells(folder: Path, run: pd.DataFrame, asked: Asked = EVERYTHING) -> tuple[str, ...]:
    """Cells of the accepted run in ``folder`` that ``run`` should have and has not; none where nothing was accepted.

    Raises:
        UsageError: the accepted frame cannot be read.
    """
    accepted = _accepted(folder)
    if accepted is None:
        return ()
    there = by_cell(run)
    return tuple(name for name in by_cell(accepted) if name not in there and not asked.excuse(name))


def against_reference(run: pd.DataFrame, root: Path, platform: str, asked: Asked = EVERYTHING) -> Comparison | None:
    """A run held against the accepted one of its platform.

    None where none was accepted, or where the run was asked for other cells alone.

    Raises:
        UsageError: the accepted frame cannot be read.
    """
    accepted = _accepted(reference_of(root, platform))
    if accepted is None:
        return None
    names = (f"the accepted run of {platform}", "this run")
    comparison = covered(accepted, run, names=names, asked=asked)
    return comparison if comparison.rows else None
