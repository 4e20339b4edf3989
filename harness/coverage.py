# SPDX-License-Identifier: Apache-2.0
"""What a plan would cover on a platform: a prediction for every cell, as rows and as tables, without running anything.

The predictions are vLLM's own answers (``harness.capability``, asked in a child process), so a plan for ROCm can be
read on any machine that has vLLM's Python files.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import host
from harness.backends import BACKENDS
from harness.errors import HarnessError, UsageError
from harness.models import find_model
from harness.plan import make_plan
from harness.records import Cell, Leg, Plan
from harness.scenario import read_scenarios

#: Words of a prediction, as the tables show them.
PREDICTIONS = ("runs", "rejected", "becomes", "unknown")

#: Seconds for the child that imports vLLM and answers for all legs.
DEADLINE_S = 600.0


class CoverageError(HarnessError):
    """vLLM could not be asked: it is not installed, or its files do not import."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What vLLM will make of one cell.

    Attributes:
        cell: the cell.
        prediction: ``runs``, ``rejected``, ``becomes`` (another backend or layout would run silently) or ``unknown``.
        reason: vLLM's words and what would run instead; empty where it runs.
        would_run, would_run_layout: backend and layout that would run if the choice were left to vLLM; the cell's own
            where it runs, None where nothing would or nobody knows.
        covers: backend class, valid layouts, head slots and page geometry in bytes; None where the cell covers nothing.
        oracle, subject: the two legs.
    """

    cell: Cell
    prediction: str
    reason: str
    would_run: str | None
    would_run_layout: str | None
    covers: Mapping[str, Any] | None
    oracle: Leg
    subject: Leg

    @property
    def saying(self) -> str:
        """What the cell covers, in one sentence."""
        if self.prediction == "becomes":
            return f"{self.would_run} with {self.would_run_layout}, not {self.cell.backend} with {self.cell.layout}"
        if self.covers is None:
            return "nothing" if self.prediction == "rejected" else "not known here"
        runs = self.covers["runs_per_page"]
        pieces = f"{runs} runs of {self.covers['run_bytes']} bytes" if runs > 1 else "one run"
        return (
            f"{self.covers['class'].rpartition('.')[2]} on {self.covers['head_slots']} head slots, a page of "
            f"{self.covers['page_bytes']} bytes in {pieces}, restored KV against {self.cell.reference}"
        )


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """All predictions of a plan.

    Attributes:
        platform: the platform they are made for.
        vllm: version of the vLLM that was asked.
        assumed: what was taken for granted about the platform's device; None where this machine was asked.
    """

    platform: str
    vllm: str
    assumed: str | None
    predictions: tuple[Prediction, ...] = field(default_factory=tuple)


def load(files: Sequence[Path], *, platform: str, model: str | None) -> tuple[Plan, list[str]]:
    """The plan of ``files`` for any platform, and one sentence for each file made for others; builds no model.

    Raises:
        ScenarioError: every problem of every file.
        UsageError: no such model.
    """
    root = Path.cwd()
    scenarios = read_scenarios([str(path.relative_to(root) if path.is_relative_to(root) else path) for path in files])
    notes = [
        f"{scenario.path}: made for {', '.join(scenario.platforms)}, not for {platform}: no cells"
        for scenario in scenarios
        if platform not in scenario.platforms
    ]
    plan = make_plan(
        scenarios, platform=platform, find_model=lambda name: find_model(name, given=model, build=False),
        identity=host.identity(),
    )
    return plan, notes


def machine_platform() -> str | None:
    """This machine's platform, None where there is no vLLM that could say."""
    try:
        return host.platform()
    except UsageError:
        return None


def predict(plan: Plan, platform: str, here: str | None) -> Coverage:
    """Ask vLLM about every leg of ``plan``, in one child process.

    Args:
        plan: made for ``platform``.
        platform: the platform in question.
        here: this machine's platform, None where it is not known.

    Raises:
        CoverageError: the child gave no answer.
    """
    # A ground truth's leg asks nothing of vLLM.
    asked = [leg for leg in plan.legs if leg.engine_name != "transformers"]
    answer = ask({"platform": platform, "here": here, "legs": [_question(leg) for leg in asked]})
    answers = dict(zip((leg.digest for leg in asked), answer["answers"], strict=True))
    legs = {leg.digest: leg for leg in plan.legs}
    return Coverage(
        platform=platform, vllm=answer["vllm"], assumed=answer["assumed"],
        predictions=tuple(_prediction(cell, legs, answers) for cell in plan.cells),
    )


def ask(question: Mapping[str, Any]) -> dict[str, Any]:
    """The child's answer to a whole question; ``harness.capability`` says what both hold.

    Raises:
        CoverageError: no answer, with the child's last words.
    """
    try:
        child = subprocess.run(
            [sys.executable, "-m", "harness.capability"], input=json.dumps(question), capture_output=True, text=True,
            timeout=DEADLINE_S, check=False, env={**os.environ, "VLLM_LOGGING_LEVEL": "ERROR"},
        )
    except subprocess.TimeoutExpired:
        raise CoverageError(f"vLLM did not answer within {DEADLINE_S:.0f} s what it supports") from None
    try:
        return json.loads(child.stdout)
    except json.JSONDecodeError:
        last = (child.stderr.strip().splitlines() or [f"it ended with code {child.returncode} and no words"])[-1]
        raise CoverageError(f"vLLM could not be asked what it supports: {last}") from None


def _question(leg: Leg) -> dict[str, Any]:
    return {
        "layout": leg.layout, "backend": leg.backend, "vllm_name": BACKENDS[leg.backend].vllm_name,
        "batch_invariant": leg.batch_invariant, "env": dict(leg.env), "engine": dict(leg.engine),
        "kv_transfer_config": leg.kv_transfer_config and dict(leg.kv_transfer_config),
        "num_kv_heads": leg.model.num_kv_heads, "head_dim": leg.model.head_dim,
    }


def _prediction(cell: Cell, legs: Mapping[str, Leg], answers: Mapping[str, Mapping[str, Any]]) -> Prediction:
    """The subject's answer, or the oracle's where only the oracle would not run: the order in which a run asks."""
    subject, oracle = answers[cell.subject], answers[cell.oracle]
    told, whose = (oracle, "the oracle: ") if subject["prediction"] == "runs" != oracle["prediction"] else (subject, "")
    return Prediction(
        cell=cell, prediction=told["prediction"], reason=f"{whose}{told['reason']}" if told["reason"] else "",
        would_run=told["would_run"], would_run_layout=told["would_run_layout"], covers=told["covers"],
        oracle=legs[cell.oracle], subject=legs[cell.subject],
    )


# --- as JSON ------------------------------------------------------------------------------------------------------


def rows(coverage: Coverage) -> list[dict[str, Any]]:
    """One object a cell; ``env`` is the subject's environment, and the oracle's where ``oracle_env`` is absent."""
    return [_row(prediction, coverage) for prediction in coverage.predictions]


def _row(prediction: Prediction, coverage: Coverage) -> dict[str, Any]:
    cell, expectation = prediction.cell, prediction.cell.expectation
    row = {
        "cell": cell.name, "platform": coverage.platform, **cell.axes,
        "prediction": prediction.prediction, "reason": prediction.reason,
        "would_run": prediction.would_run, "would_run_layout": prediction.would_run_layout,
        "covers": prediction.saying, "geometry": prediction.covers, "reference": str(cell.reference),
        "expected": str(expectation.outcome) if expectation else "pass",
        "env": dict(prediction.subject.env),
        "attention_backend": prediction.subject.engine.get("attention_backend"),
        "kv_transfer_config": prediction.subject.kv_transfer_config,
        "oracle": cell.oracle, "subject": cell.subject,
        "vllm": coverage.vllm, "assumed": coverage.assumed,
    }
    if prediction.oracle.env != prediction.subject.env:
        row["oracle_env"] = dict(prediction.oracle.env)
    return row


# --- as text ------------------------------------------------------------------------------------------------------


def render(coverage: Coverage, *, cells: bool = False) -> str:
    """Tables, reasons and environments of each scenario; with ``cells`` also a line for every cell."""
    lines = list(_head(coverage))
    names = dict.fromkeys(one.cell.scenario for one in coverage.predictions)
    for name in names:
        of_scenario = [one for one in coverage.predictions if one.cell.scenario == name]
        counts = Counter(one.prediction for one in of_scenario)
        said = ", ".join(f"{counts[word]} {word}" for word in PREDICTIONS if counts[word])
        lines += ["", f"{name}: {len(of_scenario)} cells ({said})"]
        for flag in dict.fromkeys(one.cell.batch_invariant for one in of_scenario):
            lines += ["", f"  batch invariant: {'yes' if flag else 'no'}"]
            lines += _indented(_table([one for one in of_scenario if one.cell.batch_invariant == flag]))
        lines += ["", "  why"]
        lines += _indented(_reasons(of_scenario))
        lines += ["", "  environment"]
        lines += _indented(_environments(of_scenario))
        if cells:
            lines += ["", "  cells"]
            lines += [f"    {one.cell.id}: {_sentence(one)}" for one in of_scenario]
    return "\n".join(lines) + "\n"


def _head(coverage: Coverage) -> Iterator[str]:
    whom = f"assumed: {coverage.assumed}" if coverage.assumed else "this machine"
    yield f"{coverage.platform}, as the classes of vLLM {coverage.vllm} say; {whom}"


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"    {line}".rstrip() for line in lines]


def _table(predictions: Sequence[Prediction]) -> list[str]:
    """Layouts by backends; a cell of the table holds each word once where further axes make several of it."""
    layouts = list(dict.fromkeys(one.cell.layout for one in predictions))
    backends = list(dict.fromkeys(one.cell.backend for one in predictions))
    words: dict[tuple[str, str], dict[str, None]] = {}
    for one in predictions:
        words.setdefault((one.cell.layout, one.cell.backend), {})[one.prediction] = None
    body = [[layout, *("/".join(words.get((layout, backend), {"-": None})) for backend in backends)]
            for layout in layouts]
    return _columns([["layout", *backends], *body])


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    return ["  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)) for row in rows]


def _reasons(predictions: Sequence[Prediction]) -> Iterator[str]:
    """Each reason once, without the cell's own layout, and the backends and layouts it speaks of."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for one in predictions:
        if one.prediction != "runs":
            reason = one.reason.replace(f"VLLM_KV_CACHE_LAYOUT={one.cell.layout}", "VLLM_KV_CACHE_LAYOUT=<layout>")
            flag = ", batch invariant" if one.cell.batch_invariant else ""
            groups.setdefault((one.prediction, f"{one.cell.backend}{flag}", reason), []).append(one.cell.layout)
    if not groups:
        yield "every cell runs as asked"
    for (word, backend, reason), layouts in groups.items():
        yield f"{backend} ({', '.join(dict.fromkeys(layouts))}): {word}, {reason}"


def _environments(predictions: Sequence[Prediction]) -> Iterator[str]:
    """What all legs share, then what each backend adds; both legs of a cell get the same."""
    envs = [(one.cell.backend, leg.env) for one in predictions for leg in (one.oracle, one.subject)]
    shared = {name: value for name, value in envs[0][1].items() if all(env.get(name) == value for _, env in envs)}
    yield "every leg: " + " ".join(f"{name}={value}" for name, value in sorted(shared.items()))
    seen: dict[str, None] = {}
    for backend, env in envs:
        own = sorted(f"{name}={value}" for name, value in env.items() if name in BACKENDS[backend].env)
        asked = "KVPARITY_BACKEND" if "KVPARITY_BACKEND" in env else "attention_backend"
        value = env.get("KVPARITY_BACKEND", BACKENDS[backend].vllm_name)
        seen[f"{backend}: {' '.join([*own, f'{asked}={value}'])}"] = None
    yield from seen
    yield "and by axis: VLLM_KV_CACHE_LAYOUT=<layout> VLLM_BATCH_INVARIANT=<0 or 1>"


def _sentence(one: Prediction) -> str:
    reason = f", {one.reason}" if one.reason else ""
    return f"{one.prediction}{reason}; covers {one.saying}; oracle {one.cell.oracle}  subject {one.cell.subject}"
