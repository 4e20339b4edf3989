# SPDX-License-Identifier: Apache-2.0
"""Streaks, first failures, last successes and flips over hand-made runs; damaged and undated ones among them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.benches import history as bench
from harness.errors import UsageError
from harness.history import lines, quiet, read_past, table


def store(root: Path, day: int, verdicts: dict[str, str], *, platform: str = "cpu", ended: bool = True) -> Path:
    """A run folder of one day that holds no more than history reads."""
    path = root / f"202611{day:02d}T040000Z-{day:08x}"
    path.mkdir(parents=True)
    rows = "".join(f"s,{cell},{verdict},{platform}\n" for cell, verdict in verdicts.items())
    (path / "frame.csv").write_text("scenario,cell,verdict,platform\n" + rows)
    (path / "verdicts.jsonl").write_text("".join(
        json.dumps({"scenario": "s", "cell": cell, "verdict": verdict}) + "\n" for cell, verdict in verdicts.items()
    ))
    facts = {"platform": platform} | ({"ended": f"2026-11-{day:02d}T05:00:00Z"} if ended else {})
    (path / "env.json").write_text(json.dumps(facts))
    return path


def day(number: int) -> str:
    return f"2026-11-{number:02d}T05:00:00Z"


def of(root: Path, cell: str, **options) -> dict:
    rows = table(read_past(root, **options))
    return rows[rows["cell"] == cell].iloc[0].to_dict()


def test_a_cell_that_broke_was_repaired_and_broke_again(tmp_path):
    for number, verdict in enumerate(["pass", "fail", "fail", "pass", "pass", "crashed", "crashed"], start=1):
        store(tmp_path, number, {"a": verdict, "b": "pass"})
    assert of(tmp_path, "a") == {
        "platform": "cpu", "scenario": "s", "cell": "a", "outcome": "crashed", "since": day(6), "streak": 2,
        "first_failure": day(2), "last_success": day(5), "flips": 3, "runs": 7, "last_run": day(7),
    }
    rows = table(read_past(tmp_path))
    assert list(rows["cell"]) == ["a", "b"] and list(quiet(rows)) == [False, True]


def test_the_window_is_the_newest_runs(tmp_path):
    for number, verdict in enumerate(["fail", "pass", "pass"], start=1):
        store(tmp_path, number, {"a": verdict})
    assert of(tmp_path, "a")["first_failure"] == day(1)
    newest = of(tmp_path, "a", last=2)
    assert newest["first_failure"] is None and (newest["flips"], newest["runs"], newest["since"]) == (0, 2, day(2))


def test_a_cell_that_was_never_green_has_no_last_success(tmp_path):
    store(tmp_path, 1, {"a": "vacuous"})
    row = of(tmp_path, "a")
    assert (row["last_success"], row["first_failure"], row["outcome"]) == (None, None, "vacuous")


def test_a_cell_missing_from_some_runs_counts_those_it_was_in(tmp_path):
    store(tmp_path, 1, {"a": "pass"})
    store(tmp_path, 2, {"b": "pass"})
    store(tmp_path, 3, {"a": "fail", "b": "pass"})
    assert [of(tmp_path, "a")[name] for name in ("runs", "flips", "last_run")] == [2, 1, day(3)]
    assert [of(tmp_path, "b")[name] for name in ("runs", "since")] == [2, day(2)]


def test_platforms_are_told_apart(tmp_path):
    store(tmp_path, 1, {"a": "pass"})
    store(tmp_path, 2, {"a": "fail"}, platform="rocm")
    rows = table(read_past(tmp_path))
    assert list(zip(rows["platform"], rows["outcome"], strict=True)) == [("rocm", "fail"), ("cpu", "pass")]
    assert any(line.startswith("rocm s::a") for line in lines(read_past(tmp_path)))


def test_time_comes_from_the_run_itself_then_from_its_name(tmp_path):
    store(tmp_path, 1, {"a": "pass"}, ended=False)
    assert of(tmp_path, "a")["since"] == "2026-11-01T04:00:00Z"
    # A folder of the user's own name is placed by when its run ended.
    (tmp_path / "20261101T040000Z-00000001").rename(tmp_path / "zz-first")
    store(tmp_path, 2, {"a": "fail"})
    facts = {"platform": "cpu", "ended": "2026-11-03T00:00:00Z"}
    (tmp_path / "zz-first" / "env.json").write_text(json.dumps(facts))
    assert of(tmp_path, "a")["outcome"] == "pass"


def test_links_and_other_folders_are_no_runs(tmp_path):
    path = store(tmp_path, 1, {"a": "pass"})
    (tmp_path / "latest").symlink_to(path.name)
    (tmp_path / "notes").mkdir()
    (tmp_path / "good").mkdir()
    (tmp_path / "good" / "frame.csv").write_text((path / "frame.csv").read_text())
    assert read_past(tmp_path).runs == 1


def test_a_cut_frame_is_replaced_by_the_verdicts_and_said(tmp_path):
    path = store(tmp_path, 1, {"a": "pass", "b": "fail"})
    (path / "frame.csv").write_text((path / "frame.csv").read_text()[:-5])
    (path / "verdicts.jsonl").write_text((path / "verdicts.jsonl").read_text()[:-5])
    past = read_past(tmp_path)
    assert list(table(past)["cell"]) == ["a"]
    assert past.gaps == (
        f"{path.name}: frame.csv is not whole (its last line is cut off); 1 verdicts read from verdicts.jsonl, "
        "1 lines of it are not whole",
    )


def test_a_killed_run_is_named_and_left_out(tmp_path):
    store(tmp_path, 1, {"a": "pass"})
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed" / "plan.json").write_text("{}")
    past = read_past(tmp_path)
    assert past.runs == 1
    assert past.gaps == ("killed: has no frame.csv and no verdict; `python -m harness check` judges its legs",)
    assert list(lines(past))[-2:] == ["1 cells were green in every run", f"not whole: {past.gaps[0]}"]


def test_a_folder_without_runs_is_one_sentence(tmp_path):
    with pytest.raises(UsageError, match="holds no run with results"):
        read_past(tmp_path)
    with pytest.raises(UsageError, match="no such folder"):
        read_past(tmp_path / "none")


def test_the_text_lists_what_is_not_quiet(tmp_path):
    store(tmp_path, 1, {"a": "pass", "b": "pass"})
    store(tmp_path, 2, {"a": "pass", "b": "fail"})
    text = list(lines(read_past(tmp_path)))
    assert text[0] == f"2 runs, {day(1)} to {day(2)}; 2 cells"
    assert text[2].split() == ["s::b", "fail", day(2), "1", day(2), day(1), "1", "2"]
    assert text[3] == "1 cells were green in every run"
    assert any(line.startswith("s::a") for line in lines(read_past(tmp_path), everything=True))


def test_the_benchs_runs_are_read_whole_and_are_the_same_each_time(tmp_path):
    bench.make_runs(tmp_path / "a", runs=3, cells=5)
    past = read_past(tmp_path / "a")
    rows = table(past)
    assert (past.runs, len(rows), past.gaps) == (3, 5, ())
    assert set(rows["runs"]) == {3} and rows["last_run"].unique() == ["2026-01-03T04:00:00Z"]
    bench.make_runs(tmp_path / "b", runs=3, cells=5)
    again = table(read_past(tmp_path / "b"))
    assert again.to_dict("records") == rows.to_dict("records")


def test_the_bench_reads_the_history_in_a_process_of_its_own(capsys):
    told = bench.show(as_json=True, runs=2, cells=3)
    assert json.loads(capsys.readouterr().out) == told
    assert told["runs"] == 2 and told["cpu_seconds"] > 0 and told["peak_mib"] > 0
