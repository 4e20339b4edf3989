# SPDX-License-Identifier: Apache-2.0
"""Whatever happens to one leg or to the disk, the other legs' results are kept and the run ends by itself."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.flow.conftest import Suite
from tests.small import CELLS, SMALL

WIDE = SMALL.replace("layout: [LBHNC]", "layout: [LBHNC, LHBNC]")
NAMES = [f"{layout}-REFERENCE-bi{flag}" for layout in ("LBHNC", "LHBNC") for flag in (0, 1)]
FLOOD = {CELLS[0]: {"subject": {"stages": {"restore": "flood"}}}}


@pytest.fixture
def small_disk(alone: Suite):
    """A run folder on a disk of 8 MiB."""
    folder = alone.root / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a tmpfs is not permitted here")
    yield folder / "run"
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_log_that_fills_the_disk_costs_its_own_leg_alone(alone, small_disk):
    """100 MB of log on a disk of 8: it is cut before the next leg starts."""
    result = alone.run("--kvparity-run", str(small_disk), fake=FLOOD)
    assert result.ret == 1
    frame = (small_disk / "frame.csv").read_text().splitlines()
    assert len(frame) == 3
    assert "INTERNALERROR" not in result.stdout.str()
    assert f"{CELLS[0]}" in frame[1] and ",crashed," in frame[1] and ",pass," in frame[2]


def test_a_full_disk_ends_a_run_that_says_so_and_resumes_when_there_is_room(alone, small_disk):
    assert alone.run("--kvparity-run", str(small_disk), "-k", "bi0").ret == 0
    kept = {path.name: path.read_bytes() for path in small_disk.glob("legs/????????????????.json")}
    filler = small_disk.parent / "filler"
    with pytest.raises(OSError), filler.open("wb", buffering=0) as stream:
        while True:
            stream.write(b"x" * 4096)
    result = alone.run("--kvparity-run", str(small_disk))
    text = result.stdout.str() + result.stderr.str()
    assert result.ret in (3, 4) and "No space left on device" in text
    assert "Traceback" not in text and "INTERNALERROR" not in text
    assert {path.name: path.read_bytes() for path in small_disk.glob("legs/????????????????.json")} == kept
    filler.unlink()
    again = alone.run("--kvparity-run", str(small_disk))
    assert again.ret == 0
    again.stdout.fnmatch_lines(["*(2 legs reused)*"])


def test_two_workers_judge_as_one_process_and_run_each_leg_once(alone, two_workers_of):
    alone.scenario(WIDE)
    fake = {
        NAMES[1]: {"subject": {"phases": {"restore": {"bits": [[1, 2]]}, "restore_again": {"bits": [[1, 2]]}}}},
        NAMES[2]: {"subject": {"stages": {"restore": "sigkill"}}},
    }
    seen = {}
    for name, suite in {"one": alone, "two": two_workers_of(alone)}.items():
        assert suite.run("--kvparity-run", str(alone.root / name), fake=fake).ret == 1
        folder = alone.root / name
        starts = {path.stem: path.read_text(errors="replace").count("planted") for path in folder.glob("legs/*.log")}
        plan = json.loads((folder / "plan.json").read_text())
        # A dead subject needs no oracle. One that ran beside it is called off, and may have a log.
        starts.pop(next(cell["oracle"] for cell in plan["cells"] if cell["id"] == NAMES[2]), None)
        seen[name] = ((folder / "verdicts.jsonl").read_text(), starts)
    assert seen["one"] == seen["two"]
    assert len(seen["one"][1]) == 8 - 1


SECRET = "hunter2-very-secret"


def test_a_secret_in_the_environment_is_in_no_file_of_the_run(alone, monkeypatch):
    for name in ("AWS_SECRET_ACCESS_KEY", "VLLM_API_KEY", "HF_TOKEN", "MY_TORCH_TOKEN", "PASSWORD"):
        monkeypatch.setenv(name, SECRET)
    result = alone.run(fake={CELLS[0]: {"subject": {"stages": {"load": "raise"}}}})
    assert result.ret == 1
    files = [path for path in alone.folder.rglob("*") if path.is_file()]
    assert len(files) > 8
    assert [str(path) for path in files if SECRET.encode() in Path(path).read_bytes()] == []
    assert SECRET not in result.stdout.str()
