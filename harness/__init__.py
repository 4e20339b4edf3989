# SPDX-License-Identifier: Apache-2.0
"""kvparity: does KV that came back from a store equal, bit for bit, what the engine would have computed?

For notebooks: ``harness.load_run("results/latest")``, ``harness.pivot(run.cells, index="layout", columns="backend")``.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

#: Public names that need pandas; it is imported with the first use of one, so that ``import harness`` stays cheap
#: in every child process.
_OF_FRAME = ("LoadedRun", "load_run", "pivot")

__all__ = ["__version__", *_OF_FRAME]


def __getattr__(name: str) -> Any:
    if name in _OF_FRAME:
        return getattr(importlib.import_module("harness.frame"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
