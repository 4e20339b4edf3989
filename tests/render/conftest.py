# SPDX-License-Identifier: Apache-2.0
"""A real headless browser. ``KVPARITY_BROWSER=required`` (.ci/run) makes a missing one an error instead of a skip."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest

#: Programs that Playwright can drive as Chromium.
PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_browser() -> str:
    """Path of a browser; skips the test, or fails it where one is required."""
    missing = None
    try:
        import playwright  # noqa: F401
    except ImportError:
        missing = "the Python package playwright is not installed"
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        missing = f"no browser on PATH ({', '.join(PROGRAMS)}); on Debian: apt-get install chromium"
    if missing is None:
        return program
    if os.environ.get("KVPARITY_BROWSER") == "required":
        pytest.fail(f"KVPARITY_BROWSER=required, and {missing}")
    pytest.skip(missing)


@pytest.fixture(scope="session")
def browser() -> Iterator:
    """One browser for all tests; it has no sandbox, because a container's root cannot make one."""
    program = find_browser()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield started
        started.close()
