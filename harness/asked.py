# SPDX-License-Identifier: Apache-2.0
"""What a run was asked to run: so that a later reader can tell a cell that is gone from one that nobody asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

#: Platform -> the scenario files that run where none is named.
MATRIX: Mapping[str, tuple[str, ...]] = {
    # The stores of one host share their oracles. Without UMBP's source its cells are unavailable, and the run is amber.
    "cpu": ("scenarios/matrix.yaml", "scenarios/umbp.yaml", "scenarios/umbp_unit.yaml"),
    "rocm": ("scenarios/rocm.yaml",),
    "cuda": ("scenarios/cuda.yaml",),
}

#: Keys of ``env.json``. The last three are there only where something was left out.
SCENARIOS, FILES, CELLS, SHARD = KEYS = ("scenarios", "only_files", "only_cells", "shard")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a run was asked to run.

    Attributes:
        scenarios: names of the scenarios that have cells on its platform.
        files: the scenario files, where they are less than the platform's whole matrix; otherwise empty.
        cells: ``3 of 96 cells``, where some were left out by name (``-k``, ``::cell``, ``--lf``); otherwise empty.
        shard: ``2/5`` where it is one of several parts; otherwise empty.
        unanswered: cells that it was asked for by name, and has no result of.
    """

    scenarios: tuple[str, ...] = ()
    files: str = ""
    cells: str = ""
    shard: str = ""
    unanswered: tuple[str, ...] = ()

    def excuse(self, name: str) -> str:
        """Why the cell ``scenario::cell`` need not be in the run; empty where it should be."""
        if name in self.unanswered:
            return ""
        if self.shard:
            return f"which is shard {self.shard}"
        if self.cells:
            return f"which was asked for {self.cells}"
        if self.files and name.split("::")[0] not in self.scenarios:
            return f"which was asked for {self.files}"
        return ""

    def chosen(self, selected: int, planned: int) -> Asked:
        """The same of so many cells of those that were planned."""
        return self if selected == planned else replace(self, cells=f"{selected} of {planned} cells")

    def facts(self) -> dict[str, str]:
        """For ``env.json``."""
        values = (", ".join(self.scenarios), self.files, self.cells, self.shard)
        return {key: value for key, value in zip(KEYS, values, strict=True) if value}


#: What a run was asked of which nobody knows better.
EVERYTHING = Asked()


def of_facts(facts: Mapping[str, Any], unanswered: tuple[str, ...] = ()) -> Asked:
    """What ``env.json`` says; of a run that says nothing, that it was asked for everything."""
    known = {key: str(facts.get(key, "")) for key in KEYS}
    scenarios = tuple(name for name in known[SCENARIOS].split(", ") if name)
    return Asked(scenarios=scenarios, files=known[FILES], cells=known[CELLS], shard=known[SHARD],
                 unanswered=unanswered)


def of_files(
    scenarios: Iterable[str], files: Iterable[Path], *, root: Path, platform: str, shard: str | None = None
) -> Asked:
    """What a run is asked before anybody chooses among its cells.

    Args:
        scenarios: names of those that have cells here; one may come again.
        files: the scenario files.
        root: the checkout.
        platform: this machine's.
        shard: ``I/N``.
    """
    there = {path.resolve(): path for path in files}
    whole = {(root / name).resolve() for name in MATRIX.get(platform, ())} <= set(there)
    shown = (str(path.relative_to(root)) if path.is_relative_to(root) else path.name for path in there.values())
    return Asked(
        scenarios=tuple(dict.fromkeys(scenarios)), files="" if whole else ", ".join(shown), shard=shard or ""
    )
