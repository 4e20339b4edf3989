# SPDX-License-Identifier: Apache-2.0
"""A pytest-xdist worker that has no cell left runs legs that another one has still before it.

xdist hands out whole cells, and a cell of two long legs may be the last: without this, one worker would do both while
the others look on. What a worker takes over is claimed as any leg is, so it runs once, and in the worker whose cell it
is the observation is then simply there.
"""

from __future__ import annotations

from collections.abc import Generator

import pytest

from harness.items import RUN, CellItem


class Helping:
    """Registered in a worker; helps once its own cells are done."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """After the loop, unless it was told to stop (``-x``, an interrupt raises)."""
        done = yield
        run = session.config.stash.get(RUN, None)
        told = session.shouldstop or session.shouldfail or session.config.getoption("maxfail")
        if run is not None and not told:
            run.help(item.cell for item in session.items if isinstance(item, CellItem))
        return done
