# SPDX-License-Identifier: Apache-2.0
"""The night: its one exit code, what it is compared with, its summary; and the CI files that call it."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from harness import nightly
from harness.cli import main
from harness.errors import ExitCode
from harness.nightly import Step, base_of, keep_good, summary, tell, worst
from harness.plan import select
from tests.quick import Quick
from tests.small import FIRST, SECOND, SMALL, VACUOUS, VALUES

ROOT = Path(__file__).parents[2]
GITHUB, BUILDKITE = ROOT / ".github" / "workflows" / "nightly.yml", ROOT / ".buildkite" / "pipeline.yml"


@pytest.mark.parametrize(
    ("codes", "want"),
    [([0, 0, 0], 0), ([0, 0, 10], 10), ([10, 0], 10), ([10, 1, 0], 1), ([0, 1], 1), ([5, 0], 1), ([0, 4], 1),
     ([0, -9], 1), ([2, 10], 1)],
)
def test_one_code_for_all_steps(codes, want):
    assert worst(codes) == want


@pytest.fixture
def night(quick: Quick, monkeypatch: pytest.MonkeyPatch):
    """A night whose matrix is a fake run and whose controls end with ``caught``; compare is the real verb."""

    def run(fake=None, caught: int = 0, matrix: int = 0, text: str = SMALL) -> ExitCode:
        def step(name: str, verb: str, *arguments: str) -> Step:
            if verb == "matrix":
                folder = Path(arguments[arguments.index("--run") + 1])
                quick.run(str(folder), text, fake)
                return Step(name=name, code=matrix, said="2 cells")
            if verb == "controls":
                return Step(name=name, code=caught, said="1 of 1 planted faults caught")
            return Step(name=name, code=main([verb, *arguments]), said="")

        monkeypatch.setattr(nightly, "_step", step)
        return nightly.nightly(Path("nights"), good=Path("good"), environment={})

    return run


def test_a_green_night_becomes_the_last_good_run(night, quick):
    assert night() is ExitCode.OK
    assert Path("nights/exit").read_text() == "0\n"
    text = Path("nights/summary.md").read_text()
    assert text.startswith("# KV parity nightly: green\n") and "| controls | 0 | 1 of 1 planted faults caught |" in text
    assert "Nothing to compare with: no good run is kept, and none was accepted." in text
    assert sorted(path.name for path in Path("good").iterdir()) == ["frame.csv", "report.md"]
    # Nights are run folders, so their history can be told.
    assert quick.verb("history", "nights")[0] == 0


@pytest.mark.parametrize(("fake", "matrix", "want", "words"), [
    (VALUES, 1, 1, "### Newly failing"), (VACUOUS, 10, 10, "### Newly without a claim"),
])
def test_what_broke_since_the_last_good_run_decides(night, fake, matrix, want, words):
    night()
    before = Path("good/frame.csv").read_text()
    Path("nights").rename("first")
    assert night(fake=fake, matrix=matrix) == want
    assert Path("nights/exit").read_text() == f"{want}\n"
    text = Path("nights/summary.md").read_text()
    assert words in text and SECOND in text and "# KV parity report" in text
    assert Path("good/frame.csv").read_text() == before


def test_a_green_night_with_other_prompts_is_the_next_good_one(night):
    night()
    before = Path("good/frame.csv").read_text()
    Path("nights").rename("first")
    assert night(text=SMALL.replace("tail_tokens: 8", "tail_tokens: 9")) is ExitCode.OK
    text = Path("nights/summary.md").read_text()
    assert "| compare | 10 |" in text and "**2 cells: 2 not comparable**" in text
    assert Path("good/frame.csv").read_text() != before


def test_a_green_night_that_lost_a_cell_is_amber_until_somebody_says_so(night):
    night()
    before = Path("good/frame.csv").read_text()
    for place in ("first", "second"):
        Path("nights").rename(place)
        assert night(text=SMALL.replace("[false, true]", "[false]")) is ExitCode.AMBER
        text = Path("nights/summary.md").read_text()
        assert f"| {SECOND} | pass | none | not in the run any more |" in text
        assert f"\nGone since good: {SECOND}. If that is meant, remove that folder.\n" in text
        assert Path("good/frame.csv").read_text() == before


def test_a_cell_that_the_night_was_asked_for_by_name_and_has_no_result_of_is_lost(quick):
    """Others of its scenario need not be there; that one had to run."""
    keep_good(quick.run("base"), Path("good"))
    run = quick.of_plan("run", quick.plan(), only_cells="2 of 9 cells")
    assert nightly.lost_cells(run, Path("good")) == ()
    oracle = next(cell.oracle for cell in quick.plan().cells if cell.name == SECOND)
    (run / "legs" / f"{oracle}.json").unlink()
    (run / "frame.csv").write_text("".join((run / "frame.csv").read_text().splitlines(keepends=True)[:-1]))
    assert nightly.lost_cells(run, Path("good")) == (SECOND,)
    # One that it was not asked for is not.
    run = quick.of_plan("other", select(quick.plan(), [FIRST]), only_cells="1 of 2 cells")
    assert nightly.lost_cells(run, Path("good")) == ()


def test_a_fault_that_is_missed_makes_the_night_red(night):
    assert night(caught=1) is ExitCode.FAILED
    assert not Path("good").exists()


def test_without_a_good_run_the_accepted_one_is_the_base(quick):
    run = quick.run("run")
    assert base_of(run, Path("good")) is None
    assert quick.verb("accept", "run")[0] == 0
    assert base_of(run, Path("good")) == Path("results/reference/fake-engine")
    keep_good(run, Path("good"))
    assert base_of(run, Path("good")) == Path("good")


def test_a_long_summary_is_cut_with_a_note(tmp_path, monkeypatch):
    monkeypatch.setattr(nightly, "MOST_BYTES", 2000)
    (tmp_path / "report.md").write_text("ä line of the report\n" * 500)
    text = summary([Step(name="matrix", code=0)], ExitCode.OK, tmp_path, None)
    assert len(text.encode()) <= 2000
    assert text.endswith(f"Cut at 2000 bytes; the whole report is {tmp_path}/report.md.\n")


def test_github_gets_a_summary_and_a_line_for_what_is_not_green(tmp_path, capsys):
    path = tmp_path / "summary"
    path.write_text("before\n")
    tell("text\n", ExitCode.AMBER, {"GITHUB_STEP_SUMMARY": str(path)})
    assert path.read_text() == "before\ntext\n"
    assert capsys.readouterr().out == "::warning title=KV parity nightly::amber; see the job summary\n"
    tell("text\n", ExitCode.OK, {"GITHUB_STEP_SUMMARY": str(path)})
    assert capsys.readouterr().out == ""


def test_buildkite_gets_an_annotation(tmp_path, monkeypatch):
    agent = tmp_path / "buildkite-agent"
    agent.write_text(f"#!/bin/sh\necho \"$@\" > {tmp_path}/said\ncat >> {tmp_path}/said\n")
    agent.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    tell("text\n", ExitCode.FAILED, {"BUILDKITE": "true"})
    assert (tmp_path / "said").read_text() == "annotate --style error --context kvparity\ntext\n"
    tell("other\n", ExitCode.OK, {})
    assert "other" not in (tmp_path / "said").read_text()


# --- the CI files ---


def commands() -> list[str]:
    """Every shell command of both files."""
    jobs = yaml.safe_load(GITHUB.read_text())["jobs"]
    steps = yaml.safe_load(BUILDKITE.read_text())["steps"]
    return [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step] + [
        step["command"].replace("$$", "$") for step in steps
    ]


def test_ci_calls_make_targets_and_variables_that_exist():
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE))
    assert len(commands()) == 4
    for command in commands():
        call, code = re.fullmatch(r'make (.+) \|\| exit "\$\(cat (\S+)\)"', command).groups()
        target, *variables = call.split()
        assert target in targets
        for variable in variables:
            assert f"$({variable.split('=')[0]})" in makefile, variable
        # The file that the code comes from is the one that the target writes.
        assert code == "results/nightly/exit" and f"rm -f {code}" in makefile


def test_amber_is_a_soft_failure_on_buildkite():
    for step in yaml.safe_load(BUILDKITE.read_text())["steps"]:
        assert step["soft_fail"] == [{"exit_status": int(ExitCode.AMBER)}]


@pytest.mark.skipif(importlib.util.find_spec("check_jsonschema") is None, reason="needs the package check-jsonschema")
@pytest.mark.parametrize(("schema", "path"), [("github-workflows", GITHUB), ("buildkite", BUILDKITE)],
                         ids=["github", "buildkite"])
def test_ci_files_are_what_their_systems_schema_says(schema, path):
    answer = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", str(path)],
        capture_output=True, text=True, check=False,
    )
    assert answer.returncode == 0, answer.stdout
