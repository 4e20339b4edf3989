# SPDX-License-Identifier: Apache-2.0
"""Records survive JSON whole, and what is not a whole record is refused with the file's name."""

from __future__ import annotations

import dataclasses
import json

import pytest

from harness import records, wire
from harness.errors import WireError
from harness.records import Ending, Failure, Leg, Observation, Phase, PhaseRecord, PromptResult, Step


def observation(**changes) -> Observation:
    step = Step(token=7, bits=0xBF800001, top=((7, 0xBF800001), (9, 0x7FC00000)))
    prompt = PromptResult(
        index=0, digest="d", num_tokens=40, steps=(step,), cached_tokens=32, finish_reason="length",
        blocks=(3, 4), kv=("AAAA", None),
    )
    phase = PhaseRecord(
        phase=Phase.RESTORE, prompts=(prompt,), local_tokens=0, external_tokens=32, reset_ok=True, zeroed_bytes=64,
        nonzero_after_zeroing=0, delivered_tokens=32, loaded_bytes=8, stored_bytes=0, seconds=0.5,
    )
    fields = {
        "schema": records.SCHEMA_VERSION, "leg": "ab", "ending": Ending.CRASHED, "resolved": None,
        "phases": (phase,), "failure": Failure(stage="load", kind="ValueError", message="no\nway"),
        "environment": {"torch": "2"}, "seconds": {"load": 1.25}, "peak_bytes": 10, "log": "x", "log_tail": ("a", "b"),
    }
    return Observation(**{**fields, **changes})


def test_observation_survives_a_file(tmp_path):
    path = tmp_path / "deep" / "o.json"
    wire.write(path, observation())
    assert wire.read(Observation, path) == observation()


def test_leg_survives_and_keeps_nested_mappings(make_leg, tmp_path):
    leg = make_leg(kv_transfer_config={"kv_connector_extra_config": {"capacity_mib": 256, "fault": None}})
    wire.write(tmp_path / "leg.json", leg)
    assert wire.read(Leg, tmp_path / "leg.json") == leg


def test_every_field_of_every_record_is_written():
    plain = wire.to_plain(observation())
    assert list(plain) == [field.name for field in dataclasses.fields(Observation)]
    assert list(plain["phases"][0]) == [field.name for field in dataclasses.fields(PhaseRecord)]


@pytest.mark.parametrize("cut", [0, 1, 40, -2])
def test_half_a_file_is_refused(tmp_path, cut):
    path = tmp_path / "o.json"
    text = wire.to_json(observation())
    path.write_text(text[:cut])
    with pytest.raises(WireError, match=r"o\.json: not whole JSON"):
        wire.read(Observation, path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"surplus": 1}, "surplus: "),
        ({"ending": "great"}, "ending: "),
        ({"phases": [{"phase": "restore"}]}, "phases.0.prompts: "),
        ({"schema": 99}, "written with schema 99, this version reads 2"),
    ],
)
def test_what_is_not_the_record_is_refused_with_the_place(tmp_path, change, words):
    path = tmp_path / "o.json"
    path.write_text(json.dumps({**wire.to_plain(observation()), **change}))
    with pytest.raises(WireError) as caught:
        wire.read(Observation, path)
    assert words in str(caught.value) and str(path) in str(caught.value)


def test_missing_file(tmp_path):
    with pytest.raises(WireError, match="no such file"):
        wire.read(Observation, tmp_path / "none.json")


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch):
    path = tmp_path / "o.json"
    wire.write_text(path, "old")

    def refuse(*_):
        raise OSError("disk full")

    monkeypatch.setattr(wire.os, "replace", refuse)
    with pytest.raises(OSError, match="disk full"):
        wire.write_text(path, "new")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["o.json"]


def test_digest_ignores_mapping_order_and_nothing_else(make_leg):
    assert wire.digest({"a": 1, "b": 2}) == wire.digest({"b": 2, "a": 1})
    base = make_leg(env={"A": "1", "B": "2"})
    assert wire.digest(base) == wire.digest(make_leg(env={"B": "2", "A": "1"}))
    changed = [
        make_leg(env={"A": "1", "B": "3"}), make_leg(layout="LBNHC"), make_leg(batch_invariant=False),
        make_leg(identity={"torch": "3"}), make_leg(fake={"x": 1}), make_leg(engine={"block_size": 32}),
    ]
    digests = {wire.digest(leg) for leg in [base, *changed]}
    assert len(digests) == len(changed) + 1


def test_the_fast_way_to_json_says_what_the_plain_one_says():
    odd = observation(seconds={"load": float("inf"), "import": 1e-05}, environment={"text": 'q"\u2028\n'})
    assert json.loads(wire.to_json(odd)) == wire.to_plain(odd) == json.loads(wire.to_json(odd, indent=1))
    nan = json.loads(wire.to_json(observation(seconds={"load": float("nan")})))["seconds"]["load"]
    assert nan != nan


def test_a_written_file_is_as_readable_as_one_that_open_makes(tmp_path):
    plain = tmp_path / "plain"
    plain.write_text("")
    wire.write_text(tmp_path / "report.html", "")
    assert (tmp_path / "report.html").stat().st_mode == plain.stat().st_mode
