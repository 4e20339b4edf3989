# SPDX-License-Identifier: Apache-2.0
"""A leg that has its connector's server restarted while its engine lives: how it asks, and how it is answered.

The leg's child writes a file into its store folder and waits until that is gone; the runner, which looks after it
anyway, restarts the server and removes it. Nothing but the server changes: address, settings and log stay.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from harness.errors import LegError

#: Folder of the leg's own, which the runner makes and removes; a connector may keep files in it.
STORE_VARIABLE = "KVPARITY_STORE"

NAME = "restart-the-server"

#: Seconds for a server to stop and to answer again; longer than it has to start.
PATIENCE_S = 180.0

ASK_S = 0.05


def ask(patience_s: float = PATIENCE_S) -> None:
    """In the child: have the server restarted, and return when it serves again.

    Raises:
        LegError: nobody answered.
    """
    request = Path(os.environ.get(STORE_VARIABLE, "")) / NAME
    request.touch()
    until = time.monotonic() + patience_s
    while request.exists():
        if time.monotonic() > until:
            raise LegError(f"the server was not restarted within {patience_s:g} s")
        time.sleep(ASK_S)


def answer(store: Path, restart: Callable[[], None]) -> None:
    """In the runner: restart the server if the child whose folder this is has asked for it."""
    request = store / NAME
    if request.exists():
        restart()
        request.unlink()
