# SPDX-License-Identifier: Apache-2.0
"""Which cells a scenario file collects."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from harness.items import cells_by_file
from tests.unit.handmade import make_cell


def test_each_file_has_its_cells_in_the_plans_order_and_no_path_is_resolved_twice(tmp_path, monkeypatch):
    (tmp_path / "link.yaml").symlink_to("two.yaml")
    asked, whole = [], Path.resolve
    monkeypatch.setattr(Path, "resolve", lambda path: asked.append(path.name) or whole(path))
    paths = ["one.yaml", str(tmp_path / "two.yaml"), "one.yaml", "link.yaml"]
    cells = [replace(make_cell(), id=str(number), path=path) for number, path in enumerate(paths)]
    found = cells_by_file(cells, tmp_path)
    assert {path: [cell.id for cell in own] for path, own in found.items()} == {
        tmp_path / "one.yaml": ["0", "2"], tmp_path / "two.yaml": ["1", "3"],
    }
    assert asked == ["one.yaml", "two.yaml", "link.yaml"]
