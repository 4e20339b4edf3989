# SPDX-License-Identifier: Apache-2.0
"""The upstream UMBP connector of vLLM 0.33.0 in real engines with the tiny model, against a copy with a planted change.

The change is what a hasty repair looks like: one range per head, head slots taken for the outermost part of a page.
That repairs BHLNC and ruins LBNHC, whose heads are interleaved within a token. Six legs, two of them oracles.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import ab
from harness.archive import RunFolder
from harness.errors import ExitCode
from harness.overlay import FOLDER
from harness.plan import select
from harness.records import FindingKind, Outcome, Phase, Role
from harness.session import join_run

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
SPEC = "wheel:vllm==0.33.0"
SPLIT_CELL, INTERLEAVED_CELL = "BHLNC-REFERENCE-bi0-ranges", "LBNHC-REFERENCE-bi0-ranges"

#: Text of the upstream file -> what the planted copy has instead.
PLANTED = {
    "            addresses[layer_name] = cache.data_ptr()\n":
        "            addresses[layer_name] = cache.data_ptr()\n"
        "            self._heads = (cache.shape[1], cache.stride(1) * cache.element_size())\n",
    "            if region.block_bytes <= physical_stride:\n":
        "            if region.block_bytes <= physical_stride:\n"
        "                heads, head_stride = self._heads\n"
        "                length = region.block_bytes // heads\n"
        "                for head in range(heads):\n"
        "                    ranges.append(KVRange(region.layer_name, region.group_id, block_id,\n"
        "                                          base_address + block_id * physical_stride + head * head_stride,\n"
        "                                          physical_stride, length, object_offset + head * length))\n"
        "                object_offset += region.block_bytes\n"
        "                continue\n"
        "            if region.block_bytes <= physical_stride:\n",
}


@pytest.fixture(scope="module")
def planted(upstream_umbp, tmp_path_factory) -> Path:
    """A copy of the upstream folder with one changed file."""
    root = tmp_path_factory.mktemp("planted")
    for path in (upstream_umbp / FOLDER).rglob("*.py"):
        text = path.read_text()
        if path.name == "data.py":
            for old, new in PLANTED.items():
                assert text.count(old) == 1, old
                text = text.replace(old, new)
        copy = root / path.relative_to(upstream_umbp)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(text)
    return root


def test_a_planted_change_shows_as_fixed_and_newly_failing(planted, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(ROOT)
    code = ab.run(SPEC, str(planted), ["scenarios/umbp_smoke.yaml"], folder=tmp_path / "ab",
                  expression=f"{SPLIT_CELL} or {INTERLEAVED_CELL}")
    printed = capfd.readouterr().out
    rows = {row.cell: (row.base, row.candidate, str(row.change)) for row in
            ab.compare(tmp_path / "ab" / "base", tmp_path / "ab" / "candidate")}
    assert rows[f"umbp_smoke::{SPLIT_CELL}"] == (Outcome.FAIL, Outcome.PASS, "fixed"), printed
    base, candidate, change = rows[f"umbp_smoke::{INTERLEAVED_CELL}"]
    assert (base, change) == (Outcome.PASS, "newly failing") and candidate in (Outcome.FAIL, Outcome.CRASHED), printed
    assert code is ExitCode.FAILED
    assert "2 cells: 1 fixed, 1 newly failing" in printed

    # The base: wrong KV although every token was a hit, and the words of the expectation.
    run = join_run(RunFolder(tmp_path / "ab" / "base"))
    verdicts, observations = run.judge_stored(select(run.plan, [f"umbp_smoke::{SPLIT_CELL}"]))
    assert verdicts[0].verdict is Outcome.EXPECTED
    kinds = {finding.kind for finding in verdicts[0].findings}
    assert FindingKind.LOGPROBS in kinds and FindingKind.KV_DIGESTS in kinds
    assert FindingKind.EXTERNAL_HITS not in kinds
    subject = next(observations[leg.digest] for leg in run.plan.legs
                   if leg.role is Role.SUBJECT and leg.layout == "BHLNC")
    restore = subject.phase(Phase.RESTORE)
    assert restore.external_tokens == 3 * 48
    # K and V of 48 tokens, 4 layers, 4 heads, head size 32, two bytes each, for three prompts.
    assert restore.loaded_bytes == restore.external_tokens * 4 * 4 * 2 * 32 * 2
    assert subject.environment["env:KVPARITY_UMBP_RUNTIME"] == "adapter"
    leg = run.plan.leg(subject.leg)
    assert leg.identity["overlay"] == SPEC and len(leg.identity["overlay_files"]) == 16
    # The oracles ran once: those of the base were taken over.
    candidate_run = join_run(RunFolder(tmp_path / "ab" / "candidate"))
    for digest in [leg.digest for leg in run.plan.legs if leg.role is Role.ORACLE]:
        one, two = (side.folder.observation_path(digest).read_bytes() for side in (run, candidate_run))
        assert one == two
