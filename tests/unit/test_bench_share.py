# SPDX-License-Identifier: Apache-2.0
"""Whose time a run's time was: arithmetic on made-up spans."""

from __future__ import annotations

import pytest

from harness import records
from harness.benches import share
from harness.records import Ending, Observation, Phase, PhaseRecord


def span(start: float, total: float, vllm: float, digests: float = 0.0, fillers: float = 0.0) -> share.Span:
    return share.Span(end=start + total, total=total, vllm=vllm, fillers=fillers, digests=digests)


def phase(name: Phase, seconds: float, digest_seconds: float) -> PhaseRecord:
    return PhaseRecord(
        phase=name, prompts=(), local_tokens=0, external_tokens=0, reset_ok=None, zeroed_bytes=None,
        nonzero_after_zeroing=None, delivered_tokens=None, loaded_bytes=None, stored_bytes=None, seconds=seconds,
        digest_seconds=digest_seconds,
    )


def test_a_span_counts_import_load_and_generation_as_the_engine_s():
    observation = Observation(
        schema=records.SCHEMA_VERSION, leg="ab", ending=Ending.OK, resolved=None,
        phases=(phase(Phase.POPULATE, 6.0, 0.5), phase(Phase.RESTORE, 2.0, 0.25)), failure=None, environment={},
        seconds={"spawn": 0.25, "import": 3.0, "load": 4.0, "populate": 7.0, "restore.reset": 0.25,
                 "restore.shift": 0.5, "restore": 4.0, "close": 1.0},
        peak_bytes=0,
    )
    one = share.span(observation, 100.0)
    assert one == share.Span(end=100.0, total=20.0, vllm=15.5, fillers=0.5, digests=0.75)
    assert one.start == 80.0


def test_one_lane_without_pause():
    spans = [span(1.0, 4.0, 3.0), span(5.0, 4.0, 4.0)]
    assert share.harness_share(spans, wall=10.0, workers=1) == pytest.approx(0.3)


def test_the_end_where_a_lane_has_nothing_left_is_not_the_harness_s():
    spans = [span(0.0, 10.0, 10.0), span(0.0, 4.0, 4.0)]
    assert share.idle_seconds(spans, 2) == 6.0
    assert share.harness_share(spans, wall=10.0, workers=2) == pytest.approx(0.0)


def test_a_gap_between_two_legs_is_the_harness_s():
    spans = [span(0.0, 4.0, 4.0), span(6.0, 4.0, 4.0), span(0.0, 10.0, 10.0)]
    assert share.idle_seconds(spans, 2) == 0.0
    assert share.harness_share(spans, wall=10.0, workers=2) == pytest.approx(2.0 / 20.0)


def test_a_lane_that_never_had_a_leg_is_idle():
    assert share.idle_seconds([span(2.0, 4.0, 4.0)], 2) == 4.0
    assert share.idle_seconds([], 2) == 0.0


def test_spans_go_to_the_lane_that_is_free():
    spans = [span(5.0, 1.0, 1.0), span(0.0, 10.0, 1.0), span(0.0, 4.0, 1.0), span(7.0, 3.0, 1.0)]
    assert [[one.start for one in lane] for lane in share.lanes(spans, 2)] == [[0.0], [0.0, 5.0, 7.0]]


def test_digests_are_counted_against_the_legs_whole_time():
    assert share.digest_share([span(0.0, 10.0, 8.0, 0.5), span(0.0, 10.0, 8.0, 0.1)]) == pytest.approx(0.03)
    assert share.digest_share([]) == 0.0


def test_unrelated_prompts_are_vllm_s_time_and_told_apart():
    spans = [span(0.0, 10.0, 10.0, fillers=1.0), span(0.0, 10.0, 10.0, fillers=2.0)]
    assert share.harness_share(spans, wall=10.0, workers=2) == pytest.approx(0.0)
    assert share.filler_share(spans) == pytest.approx(0.15)
    assert share.filler_share([]) == 0.0
