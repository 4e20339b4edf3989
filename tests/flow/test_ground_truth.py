# SPDX-License-Identifier: Apache-2.0
"""A run with a ground truth through pytest: its legs are shared, stored and resumed like any others."""

from __future__ import annotations

from tests.small import CELLS, SMALL

DAMAGED = {phase: {"tokens": [[1, 2]]} for phase in ("recompute", "recompute_again")}
FAKE = {CELLS[0]: {"truth": {"phases": DAMAGED}}}


def test_a_truth_that_says_otherwise_is_red_in_its_cell_alone_and_the_legs_are_kept(alone):
    alone.scenario(f"{SMALL}ground_truth: {{}}\n")
    clean = alone.run("--kvparity-run", "one")
    assert clean.ret == 0
    clean.stdout.fnmatch_lines(["*1 scenarios -> 2 cells, 6 legs (2 shared)*", "Ground truth", "limits: max 0.4 nat,*"])
    frame = alone.frame_of("one")
    assert frame["truth_tokens_equal"].tolist() == [8, 8]
    assert frame["truth_largest"].tolist() == [0.0, 0.0]

    other = alone.run("--kvparity-run", "one", fake=FAKE)
    assert other.ret == 1
    # The cell with the planted truth needs its own two; everything else is taken from before.
    other.stdout.fnmatch_lines(["*8 legs (0 shared)*", "*(6 legs reused)*"])
    frame = alone.frame_of("one")
    assert dict(frame["verdict"]) == {CELLS[0]: "fail", CELLS[1]: "pass"}
    assert frame.loc[CELLS[0], "findings"] == "ground_truth"
    assert frame.loc[CELLS[0], "truth_tokens_equal"] == 6
