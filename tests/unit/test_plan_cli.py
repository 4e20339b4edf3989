# SPDX-License-Identifier: Apache-2.0
"""``python -m harness plan``: tables, reasons, environments and JSON, from answers that the tests make up.

What vLLM really answers is held by test_capability.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness import coverage
from harness.cli import main
from harness.errors import ExitCode

ROOT = Path(__file__).parents[2]

SCENARIO = """\
name: pocket
platforms: [rocm]
model: qwen3-0.6b
subject: embedded
axes:
  layout: [LBHNC, BHLNC]
  backend: [TRITON_ATTN, ROCM_AITER_FA]
  batch_invariant: [false, true]
expect:
  - {when: {backend: ROCM_AITER_FA, batch_invariant: true}, outcome: rejected, match: batch invariance}
  - {when: {backend: ROCM_AITER_FA, layout: BHLNC, batch_invariant: false}, outcome: rejected, match: supported set}
"""
GEOMETRY = {"class": "vllm.x.SomeBackend", "layouts": ["LBHNC", "LHBNC"], "head_slots": 8, "page_bytes": 65536}
BATCH = "batch invariance not supported; auto-selection would run TRITON_ATTN instead"
LAYOUT = "VLLM_KV_CACHE_LAYOUT=BHLNC does not satisfy every supported set; valid layouts: ['LBHNC', 'LHBNC']"


def answer(leg):
    runs = 8 if leg["layout"] == "BHLNC" else 1
    told = {"prediction": "runs", "reason": "", "words": "", "would_run": leg["backend"],
            "would_run_layout": leg["layout"],
            "covers": {**GEOMETRY, "runs_per_page": runs, "run_bytes": 65536 // runs}}
    if leg["backend"] == "TRITON_ATTN":
        return told
    if leg["batch_invariant"]:
        return {**told, "prediction": "rejected", "reason": BATCH, "would_run": "TRITON_ATTN", "covers": None}
    if leg["layout"] == "BHLNC":
        return {**told, "prediction": "rejected", "reason": LAYOUT, "would_run_layout": "LBHNC", "covers": None}
    return told


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """The scenario's path and the questions that are put to the child, answered as ``answer`` says."""
    questions = []

    def ask(question):
        questions.append(question)
        return {"vllm": "9.9", "assumed": "an MI350X", "answers": [answer(leg) for leg in question["legs"]]}

    monkeypatch.setattr(coverage, "ask", ask)
    monkeypatch.setenv("KVPARITY_PLATFORM", "cpu")
    path = tmp_path / "pocket.yaml"
    path.write_text(SCENARIO)
    return str(path), questions


def test_the_table_the_reasons_and_the_counts(asked, capsys):
    path, _ = asked
    assert main(["plan", path, "--platform", "rocm"]) == ExitCode.OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "rocm, as the classes of vLLM 9.9 say; assumed: an MI350X"
    assert "pocket: 8 cells (5 runs, 3 rejected)" in lines
    table = lines.index("  batch invariant: no")
    assert [line.split() for line in lines[table + 1 : table + 4]] == [
        ["layout", "TRITON_ATTN", "ROCM_AITER_FA"], ["LBHNC", "runs", "runs"], ["BHLNC", "runs", "rejected"],
    ]
    table = lines.index("  batch invariant: yes")
    assert [line.split() for line in lines[table + 2 : table + 4]] == [
        ["LBHNC", "runs", "rejected"], ["BHLNC", "runs", "rejected"],
    ]
    assert f"    ROCM_AITER_FA, batch invariant (LBHNC, BHLNC): rejected, {BATCH}" in lines
    assert f"    ROCM_AITER_FA (BHLNC): rejected, {LAYOUT.replace('=BHLNC', '=<layout>')}" in lines
    assert "    ROCM_AITER_FA: VLLM_ROCM_USE_AITER=1 attention_backend=ROCM_AITER_FA" in lines
    assert lines[-1] == "8 cells, 16 legs (0 shared)"


def test_json_has_an_object_for_every_cell(asked, capsys):
    path, questions = asked
    assert main(["plan", path, "--platform", "rocm", "--json"]) == ExitCode.OK
    rows = {row["cell"]: row for row in json.loads(capsys.readouterr().out)}
    assert len(rows) == 8
    refused = rows["pocket::LBHNC-ROCM_AITER_FA-bi1"]
    assert {key: refused[key] for key in ("layout", "backend", "batch_invariant", "prediction", "reason", "would_run",
                                          "covers", "expected")} == {
        "layout": "LBHNC", "backend": "ROCM_AITER_FA", "batch_invariant": True, "prediction": "rejected",
        "reason": BATCH, "would_run": "TRITON_ATTN", "covers": "nothing", "expected": "rejected"}
    assert refused["env"]["VLLM_ROCM_USE_AITER"] == "1" and refused["env"]["VLLM_BATCH_INVARIANT"] == "1"
    assert "oracle_env" not in refused
    runs = rows["pocket::BHLNC-TRITON_ATTN-bi0"]
    assert runs["covers"] == ("SomeBackend on 8 head slots, a page of 65536 bytes in 8 runs of 8192 bytes, restored KV "
                              "against local_hit")
    assert (runs["env"]["VLLM_KV_CACHE_LAYOUT"], runs["attention_backend"]) == ("BHLNC", "TRITON_ATTN")
    # One child for the whole scenario, told what this machine is.
    assert [(question["platform"], question["here"], len(question["legs"])) for question in questions] == [
        ("rocm", "cpu", 16)]


def test_a_line_for_every_cell_on_request(asked, capsys):
    path, _ = asked
    main(["plan", path, "--platform", "rocm", "--cells"])
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert sum(line.startswith(("LBHNC-", "BHLNC-")) for line in lines) == 8
    refused = f"LBHNC-ROCM_AITER_FA-bi1: rejected, {BATCH}; covers nothing; oracle "
    assert any(line.startswith(refused) for line in lines)


def test_a_refused_oracle_decides_where_the_subject_would_run(asked, capsys, monkeypatch):
    path, _ = asked

    def ask(question):
        answers = [
            {**answer(leg), "prediction": "rejected", "reason": "no"} if leg["kv_transfer_config"] is None else
            {**answer(leg), "prediction": "runs", "reason": ""} for leg in question["legs"]
        ]
        return {"vllm": "9.9", "assumed": None, "answers": answers}

    monkeypatch.setattr(coverage, "ask", ask)
    main(["plan", path, "--platform", "rocm", "--json"])
    assert {(row["prediction"], row["reason"]) for row in json.loads(capsys.readouterr().out)} == {
        ("rejected", "the oracle: no")}


def test_another_platforms_scenario_asks_nobody(asked, capsys):
    path, questions = asked
    assert main(["plan", path]) == ExitCode.OK
    assert capsys.readouterr().out.splitlines() == [
        f"{path}: made for rocm, not for cpu: no cells", "0 cells, 0 legs (0 shared)"]
    assert questions == []


def test_a_child_without_an_answer_gives_one_sentence(monkeypatch):
    monkeypatch.setattr(coverage.sys, "executable", "/bin/false")
    with pytest.raises(coverage.CoverageError, match="vLLM could not be asked what it supports: it ended with code 1"):
        coverage.ask({"platform": "rocm", "here": None, "legs": []})


def test_an_unknown_platform_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["plan", "scenarios/rocm.yaml", "--platform", "tpu"])
    assert "invalid choice: 'tpu'" in capsys.readouterr().err
