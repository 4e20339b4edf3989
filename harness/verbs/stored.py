# SPDX-License-Identifier: Apache-2.0
"""What the verbs that read a stored run share: the run, and what its reports see."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.archive import RunFolder
from harness.errors import UsageError

if TYPE_CHECKING:
    from harness.report import RunView
    from harness.session import Run


def open_stored(path: str) -> Run:
    """The run of the folder ``path``.

    Raises:
        UsageError: no such folder, or one that is no run.
    """
    from harness.session import join_run

    folder = Path(path)
    if not folder.is_dir():
        raise UsageError(f"{path}: no such run folder; runs live under results/")
    return join_run(RunFolder(folder))


def view_of(run: Run) -> RunView:
    """What the reports of a stored run show."""
    env = run.folder.path / "env.json"
    facts = json.loads(env.read_text()) if env.exists() else {}
    view = run.view([cell.name for cell in run.plan.cells], {key: str(value) for key, value in facts.items()})
    # The stored duration, not the time since this process read the folder.
    return replace(view, seconds=float(facts.get("seconds", 0.0)))
