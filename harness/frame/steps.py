# SPDX-License-Identifier: Apache-2.0
"""The long form of a run: a row per generated token of every cell, beside the token that it is compared with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from harness.bits import from_bits
from harness.compare.pair import Pair, matched
from harness.compare.steps import compare_step
from harness.records import Observation, Plan, PromptResult, Role

#: Column -> nullable pandas type, in the order of ``steps.csv``.
STEP_COLUMNS: Mapping[str, str] = {
    "scenario": "string",
    "cell": "string",
    "role": "string",
    "phase": "string",
    "prompt": "Int64",
    "step": "Int64",
    "token": "Int64",
    "logprob": "Float64",
    "reference": "string",
    "reference_token": "Int64",
    "reference_logprob": "Float64",
    "difference": "Float64",
    "largest_difference": "Float64",
    "bitwise_equal": "boolean",
    "same_context": "boolean",
}


def to_steps(plan: Plan, observations: Mapping[str, Observation]) -> pd.DataFrame:
    """One row per cell, role, phase, prompt and generated token, for every leg that answered.

    A leg that two cells share has its rows under both. Unknown values are missing. A token behind the first that
    differs from the reference is compared with nothing: its context is another.
    """
    legs = {leg.digest: leg for leg in plan.legs}
    columns: dict[str, list[Any]] = {name: [] for name in STEP_COLUMNS}
    for cell in plan.cells:
        pair = Pair(cell=cell, legs=legs, oracle=observations.get(cell.oracle), subject=observations.get(cell.subject))
        for row in _rows(pair):
            for name, value in zip(STEP_COLUMNS, row, strict=True):
                columns[name].append(value)
    return pd.DataFrame({name: pd.array(values, dtype=STEP_COLUMNS[name]) for name, values in columns.items()})


def _rows(pair: Pair) -> Iterator[tuple[Any, ...]]:
    against = pair.references()
    for role in Role:
        for phase in pair.cell.phases_of(role):
            record = pair.record(role, phase)
            if record is None:
                continue
            other = against.get((role, phase))
            reference = pair.record(*other) if other else None
            partners = {two.index: one for one, two in matched(reference.prompts, record.prompts)} if reference else {}
            start = (pair.cell.scenario, pair.cell.id, role.value, phase.value)
            name = f"{other[0]} {other[1]}" if other else None
            for prompt in record.prompts:
                for row in _prompt(prompt, partners.get(prompt.index)):
                    yield (*start, prompt.index, *row[:3], name, *row[3:])


def _prompt(prompt: PromptResult, reference: PromptResult | None) -> Iterator[tuple[Any, ...]]:
    """(step, token, logprob, then the reference's columns)."""
    same = True
    for place, step in enumerate(prompt.steps):
        own = (place, step.token, _logprob(step.bits))
        if reference is None or place >= len(reference.steps):
            yield (*own, *[None] * 5, None if reference is None else False)
            continue
        other = reference.steps[place]
        left, right = _logprob(other.bits), _logprob(step.bits)
        alike = step.token == other.token and left is not None and right is not None
        count, equal, largest = compare_step(other, step) if same else (0, 0, None)
        yield (
            *own, other.token, left, right - left if alike and same else None, largest if count else None,
            (step.token == other.token and count == equal) if count else None, same,
        )
        same = same and step.token == other.token


def _logprob(bits: int | None) -> float | None:
    return None if bits is None else from_bits(bits)
