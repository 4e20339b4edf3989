# SPDX-License-Identifier: Apache-2.0
"""``harness.load_run``: whole runs, half-written ones, accepted frames; and what its docstring promises."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import harness
from harness import cli
from harness.archive import RunFolder
from harness.axes import FURTHER_AXES
from harness.errors import UsageError, WireError
from harness.frame import COLUMNS, STEP_COLUMNS, to_frame
from harness.frame.files import CELLS, write_frame
from harness.records import SCHEMA_VERSION, Plan
from tests.unit.handmade import clean, verdict_of


def store(path: Path, *, whole: bool = True) -> RunFolder:
    """A run of two cells that share their legs; a half-written one lacks verdicts, facts and one leg."""
    case = clean()
    other = clean(id="other", layout="BHLNC", oracle="gone-leg")
    legs = {**case.legs, "gone-leg": case.legs["oracle-leg"].__class__(
        **{**vars(case.legs["oracle-leg"]), "digest": "gone-leg"})}
    cells = (case.cell, other.cell) if not whole else (case.cell,)
    folder = RunFolder(path)
    folder.prepare()
    folder.write_plan(Plan(schema=SCHEMA_VERSION, cells=cells, legs=tuple(legs.values())))
    folder.write_observation(case.oracle)
    folder.write_observation(case.subject)
    if whole:
        folder.write_environment({"platform": "cpu", "seconds": 3.5})
        folder.write_verdicts([verdict_of(case)])
    return folder


def test_a_whole_run_is_its_frame(tmp_path):
    store(tmp_path / "run")
    run = harness.load_run(tmp_path / "run")
    case = clean()
    expected = to_frame(run.run.plan, [verdict_of(case)],
                        {"oracle-leg": case.oracle, "subject-leg": case.subject}, platform="cpu")
    pd.testing.assert_frame_equal(run.cells, expected)
    assert run.cells["platform"].tolist() == ["cpu"] and len(run.steps) == 7 * 2 * 3
    assert run.missing == ()
    assert run.pivot().values.tolist() == [["pass"]]
    assert repr(run) == f"<run {tmp_path / 'run'}: 1 cells>"
    table = harness.pivot(run.cells, index="layout", columns=["backend", "batch_invariant"])
    assert table.columns.tolist() == [("REFERENCE", True)] and table.loc["LBHNC"].tolist() == ["pass"]


def test_the_stored_verdict_stands_until_somebody_checks(tmp_path):
    folder = store(tmp_path / "run")
    path = folder.path / "verdicts.jsonl"
    stored = json.loads(path.read_text())
    path.write_text(json.dumps({**stored, "verdict": "vacuous"}) + "\n")
    assert harness.load_run(folder.path).cells["verdict"].tolist() == ["vacuous"]


def test_a_half_written_run_has_what_there_is_and_says_what_is_missing(tmp_path):
    store(tmp_path / "run", whole=False)
    run = harness.load_run(str(tmp_path / "run"))
    assert run.cells[["cell", "verdict"]].values.tolist() == [["LBHNC-REFERENCE-bi1", "pass"]]
    assert run.missing == ("matrix::other",)
    assert any("1 of 2 cells have no result: matrix::other" in gap for gap in run.gaps)
    # The subject that the second cell shares has answered.
    assert set(run.steps.loc[run.steps["cell"] == "other", "role"]) == {"subject"}
    assert repr(run).endswith(": 1 cells, 1 missing>")


def test_an_accepted_run_is_a_frame_alone(tmp_path):
    whole = harness.load_run(store(tmp_path / "run").path)
    (tmp_path / "accepted").mkdir()
    write_frame(whole.cells, tmp_path / "accepted" / CELLS)
    accepted = harness.load_run(tmp_path / "accepted")
    pd.testing.assert_frame_equal(accepted.cells, whole.cells)
    assert len(accepted.steps) == 0 and accepted.missing == ()


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no such run folder"):
        harness.load_run(tmp_path / "nowhere")
    folder = store(tmp_path / "run")
    plain = json.loads(folder.plan_path.read_text())
    folder.plan_path.write_text(json.dumps({**plain, "schema": 0}))
    with pytest.raises(WireError, match="schema 0"):
        harness.load_run(folder.path)


@pytest.mark.parametrize("parquet", [True, False], ids=["with-pyarrow", "without"])
def test_csv_always_and_parquet_where_pyarrow_is(tmp_path, monkeypatch, parquet):
    cells = harness.load_run(store(tmp_path / "run").path).cells
    if not parquet:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    written = write_frame(cells, tmp_path / "frame")
    assert [path.name for path in written] == ["frame.csv", "frame.parquet"][: 1 + parquet]
    assert sorted(path.name for path in tmp_path.iterdir()) == [*(path.name for path in written), "run"]
    assert pd.read_csv(written[0], dtype=dict(COLUMNS))["tokens_equal"].tolist() == [6]
    if parquet:
        back = pd.read_parquet(written[1])
        assert back.astype(dict(COLUMNS)).equals(cells)
        assert back["seed"].isna().all() and back["external_tokens"].tolist() == [16]


def described(title: str) -> list[str]:
    """Columns that the class's docstring describes under the heading ``title``."""
    part = harness.LoadedRun.__doc__.split(f"Columns of ``{title}``")[1].split("\n\n")[0]
    # A description's continuation is indented further; one of a list of names ends with a comma before it.
    entries = re.findall(r"^ {8}(\w[\w, \n]*?):", part, re.MULTILINE)
    return [name for entry in entries for name in re.split(r",\s*", entry)]


def test_the_docstring_describes_every_column_and_no_other():
    assert sorted(described("cells")) == sorted(COLUMNS)
    assert sorted(described("steps")) == sorted(STEP_COLUMNS)
    assert set(FURTHER_AXES) <= set(described("cells"))


def test_importing_harness_imports_nothing_dear():
    code = "import sys, harness; print(sorted({'pandas', 'numpy', 'jinja2', 'rich', 'torch'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert {"load_run", "pivot", "LoadedRun"} <= set(dir(harness))
    with pytest.raises(AttributeError, match="has no attribute 'sheep'"):
        harness.sheep  # noqa: B018


def test_the_examples_of_the_documentation_run(tmp_path, monkeypatch):
    store(tmp_path / "results" / "latest")
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "frame.md").read_text(encoding="utf-8")
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(block, "docs/frame.md", "exec"), names)
    assert names["restore"].empty  # that cell is not in this run


def test_the_report_of_a_killed_run_can_be_written_later(tmp_path, capsys):
    folder = store(tmp_path / "run", whole=False).path
    assert cli.main(["report", str(folder)]) == 0
    assert not (folder / "report.html").exists()
    assert cli.main(["report", str(folder), "--write"]) == 0
    assert "1 of 2 cells have no result: matrix::other" in capsys.readouterr().out
    assert "1 of 2 planned cells have no result in this run folder." in (folder / "report.html").read_text()
    assert pd.read_csv(folder / "frame.csv")["cell"].tolist() == ["LBHNC-REFERENCE-bi1"]
    assert "1 pass, 1 not run" in (folder / "report.md").read_text()
    assert len(pd.read_csv(folder / "steps.csv")) > 0
