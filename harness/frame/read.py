# SPDX-License-Identifier: Apache-2.0
"""``frame.csv`` read back, of this version or an older one; what is cut off or no frame is refused."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from harness.records import Outcome
from harness.row import COLUMNS


def read_frame(path: Path) -> pd.DataFrame:
    """``frame.csv`` with the types it was written with; a column that its version did not have is missing.

    Raises:
        FileNotFoundError: no such file.
        ValueError: cut off, or not a frame.
    """
    frame = read_whole(path, keep_default_na=False, na_values=[""])
    lacking = [name for name in ("scenario", "cell", "verdict", "outcome") if name not in frame.columns]
    if lacking:
        raise ValueError(f"it has no column {', '.join(lacking)}")
    check_words(frame, ["verdict", "outcome"])
    read = pd.DataFrame({name: _typed(frame, name, kind) for name, kind in COLUMNS.items()})
    # CSV does not tell an empty text from a missing one; these two are never missing.
    read[["findings", "message"]] = read[["findings", "message"]].fillna("")
    return read


def read_whole(path: Path, **options: Any) -> pd.DataFrame:
    """A CSV file's columns as texts; ``options`` are those of ``pandas.read_csv``.

    Raises:
        FileNotFoundError: no such file.
        ValueError: cut off, or no CSV.
    """
    data = path.read_bytes()
    if not data.endswith(b"\n"):
        raise ValueError("its last line is cut off")
    return pd.read_csv(io.BytesIO(data), dtype="string", **options)


def check_words(frame: pd.DataFrame, columns: Sequence[str]) -> None:
    """Every value of ``columns`` is an outcome.

    Raises:
        ValueError: one is not, or is missing.
    """
    for name in columns:
        strange = [word for word in frame[name].unique() if pd.isna(word) or word not in list(Outcome)]
        if strange:
            raise ValueError(f"column {name} has {strange[0]!r}; valid: {', '.join(Outcome)}")


def _typed(frame: pd.DataFrame, name: str, kind: str) -> pd.Series:
    if name not in frame.columns:
        return pd.Series(pd.NA, index=frame.index, dtype=kind)
    column = frame[name]
    if kind == "boolean":
        return column.map({"True": True, "False": False}).astype(kind)
    return column.astype(kind)
