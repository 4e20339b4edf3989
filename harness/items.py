# SPDX-License-Identifier: Apache-2.0
"""A cell as a pytest item, and a scenario file as its collector; what an item tells the other processes of a run.

An item's user properties travel through pytest-xdist and into JUnit: its verdict, and the evidence of its row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.records import GREEN, Cell, Verdict
from harness.session import Run

RUN = pytest.StashKey[Run]()
#: The plan's cells by their file, made when the first file is collected.
CELLS = pytest.StashKey[dict[Path, list[Cell]]]()

#: Name of the user property that carries an item's verdict.
VERDICT = "verdict"
#: Characters of the first finding's message among the properties; the failure has all of them.
MESSAGE_CHARACTERS = 1000


class ScenarioFile(pytest.File):
    """One scenario file; its items are its cells."""

    def collect(self) -> Iterator[CellItem]:
        if CELLS not in self.config.stash:
            self.config.stash[CELLS] = cells_by_file(self.config.stash[RUN].plan.cells, self.config.rootpath)
        for cell in self.config.stash[CELLS].get(self.path.resolve(), ()):
            yield CellItem.from_parent(self, name=cell.id, cell=cell)


def cells_by_file(cells: Iterable[Cell], root: Path) -> dict[Path, list[Cell]]:
    """Scenario file -> its cells, in the plan's order; paths are resolved, each once."""
    named: dict[str, list[Cell]] = {}
    for cell in cells:
        named.setdefault(cell.path, []).append(cell)
    found: dict[Path, list[Cell]] = {}
    for path, own in named.items():
        found.setdefault((root / path).resolve(), []).extend(own)
    return found


class CellRed(Exception):
    """A cell whose verdict is not green; carries the verdict."""

    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict
        super().__init__(verdict.verdict.value)


class CellItem(pytest.Item):
    """One cell: runs its legs (or reads what another process saw), judges them, and is green or not."""

    def __init__(self, *, cell: Cell, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.cell = cell

    def runtest(self) -> None:
        self.user_properties.append(("cell", self.cell.name))
        run = self.config.stash[RUN]
        verdict = run.run_cell(self.cell)
        # The evidence goes into JUnit, too; a cell's plain id is the test case's name there.
        for name, value in run.row(self.cell, verdict).items():
            if name != "cell":
                self.user_properties.append((name, value[:MESSAGE_CHARACTERS] if name == "message" else value))
        if verdict.verdict not in GREEN:
            raise CellRed(verdict)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if not isinstance(excinfo.value, CellRed):
            return super().repr_failure(excinfo, style)
        findings = excinfo.value.verdict.findings
        lines = [f"{finding.kind}: {finding.message}" for finding in findings] or [excinfo.value.verdict.verdict.value]
        return "\n".join(lines)

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, max(self.cell.line - 1, 0), self.cell.name


def property_of(report: pytest.TestReport, name: str) -> str | None:
    """A user property of the item that is reported; None where it has none of that name."""
    return next((value for key, value in report.user_properties if key == name), None)
