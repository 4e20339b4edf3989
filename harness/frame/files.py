# SPDX-License-Identifier: Apache-2.0
"""Frames on disk: CSV always, parquet beside it where pyarrow is installed (extra ``parquet``)."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pandas as pd

from harness import wire

#: Names in a run folder, without their endings.
CELLS, STEPS = "frame", "steps"


def write_frame(frame: pd.DataFrame, path: Path) -> list[Path]:
    """Write ``path`` with ``.csv`` and, where it can be had, ``.parquet`` added; the files that were written.

    Each is either absent, the old one, or whole.
    """
    written = [path.with_suffix(".csv")]
    wire.write_text(written[0], frame.to_csv(index=False))
    if importlib.util.find_spec("pyarrow") is not None:
        target = path.with_suffix(".parquet")
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            frame.to_parquet(temporary, engine="pyarrow", index=False)
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
        written.append(target)
    return written
