# SPDX-License-Identifier: Apache-2.0
"""A UMBP source that cannot be had or does not import, through the whole way of a run: one sentence, never a pass."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from harness import overlay
from harness.archive import RunFolder
from harness.overlay import FOLDER, OverlayError, find_overlay
from harness.records import Outcome
from harness.session import Run, load_plan
from harness.subjects import OVERLAY_CHOICE

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
CELL = "LBHNC-REFERENCE-bi0-bulk"
SPEC = "wheel:vllm==0.33.0"


@pytest.fixture
def run_with(tmp_path, monkeypatch):
    """Plan umbp_smoke.yaml with another source and run one of its cells: (verdict, the plan's oracle leg was run)."""
    monkeypatch.chdir(ROOT)
    # What a machine without network has: pip finds nothing, and nothing was kept.
    monkeypatch.setenv("PIP_NO_INDEX", "1")

    def run(spec, cache=None):
        monkeypatch.setenv(OVERLAY_CHOICE, spec)
        if cache is not None:
            monkeypatch.setattr(overlay, "cache_folder", lambda: cache)
        plan, _ = load_plan([ROOT / "scenarios" / "umbp_smoke.yaml"], root=ROOT, model=None)
        folder = RunFolder(tmp_path / "run")
        folder.prepare()
        folder.write_plan(plan)
        session = Run(plan=plan, folder=folder)
        cell = next(cell for cell in plan.cells if cell.id == CELL)
        try:
            return session.run_cell(cell), folder.observation_path(cell.oracle).exists()
        finally:
            session.close()

    return run


@pytest.fixture
def repository(tmp_path):
    """A git repository without UMBP."""
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "x.py").touch()
    for arguments in (["init", "-q", "--initial-branch=main"], ["add", "."],
                      ["-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-qm", "one"]):
        subprocess.run(["git", "-C", str(folder), *arguments], check=True, env={**os.environ, "GIT_CONFIG_GLOBAL": ""})
    return folder


@pytest.mark.parametrize(("spec", "words"), [
    ("/nowhere/vllm", "overlay /nowhere/vllm: no such directory; valid: a directory that mirrors vLLM's tree, git:"),
    ("{tree}", "overlay {tree}: no UMBP connector in it, vllm/distributed/kv_transfer/kv_connector/v1/umbp/__init__"),
    ("git:{tree}@no-such-branch", "overlay git:{tree}@no-such-branch: git cannot find it in {tree} (no such commit"),
    ("git:{tree}@main", "overlay git:{tree}@main: no UMBP connector in it"),
    (SPEC, f"overlay {SPEC}: pip cannot download it (No matching distribution found for vllm==0.33.0); with a wheel"),
    ("installed", "the installed vLLM has no UMBP connector; take it from elsewhere with `overlay: \"wheel:vllm=="),
])
def test_a_source_that_cannot_be_had_is_unavailable_and_says_why(run_with, repository, tmp_path, spec, words):
    if spec == "installed":
        try:
            find_overlay("installed")
        except OverlayError:
            pass
        else:
            pytest.skip("the installed vLLM has UMBP")
    verdict, oracle_ran = run_with(spec.format(tree=repository), cache=tmp_path / "cache")
    finding, = verdict.findings
    assert (verdict.outcome, verdict.verdict) == (Outcome.UNAVAILABLE, Outcome.UNAVAILABLE)
    assert words.format(tree=repository) in finding.message and "\n" not in finding.message
    # Nothing can be compared with it, so no engine was started.
    assert not oracle_ran


@pytest.fixture
def broken(upstream_umbp, tmp_path):
    """A copy of the upstream folder with one file changed."""

    def make(name, text):
        root = tmp_path / "broken"
        shutil.copytree(upstream_umbp / FOLDER, root / FOLDER)
        path = root / FOLDER / name
        path.write_text(path.read_text() + text)
        return str(root)

    return make


@pytest.mark.parametrize(("text", "words"), [
    ("\ndef broken(:\n", "does not import into this vLLM: SyntaxError: invalid syntax"),
    ("\nfrom vllm.config import NoSuchThing\n", "does not import into this vLLM: ImportError: cannot import name "
                                                "'NoSuchThing' from 'vllm.config'"),
])
def test_a_source_that_does_not_import_crashes_its_cell(run_with, broken, text, words):
    verdict, oracle_ran = run_with(broken("data.py", text))
    finding, = verdict.findings
    assert (verdict.outcome, verdict.verdict) == (Outcome.CRASHED, Outcome.CRASHED)
    assert finding.message.startswith("subject: the engine died at load: OverlayImportError: the UMBP connector of ")
    assert words in finding.message and not oracle_ran
