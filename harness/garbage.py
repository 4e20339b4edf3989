# SPDX-License-Identifier: Apache-2.0
"""Python's garbage collector where it would walk through much and find nothing."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collector_at_rest() -> Iterator[None]:
    """Without automatic collections while many records are made.

    Records hold no cycles, and each collection walks through all that are there already: of 10,000 cells' observations
    that took four fifths of the time to read them.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@contextlib.contextmanager
def no_garbage_collected() -> Iterator[None]:
    """Without the full collections that somebody orders on purpose.

    vLLM orders them when an engine ends, for the next engine of the same process. Where the process ends next, walking
    through everything that the import left takes longer than all else.
    """
    collect, unfreeze = gc.collect, gc.unfreeze
    gc.collect, gc.unfreeze = lambda generation=2: 0, lambda: None
    try:
        yield
    finally:
        gc.collect, gc.unfreeze = collect, unfreeze
