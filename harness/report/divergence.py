# SPDX-License-Identifier: Apache-2.0
"""Where two answers part: the steps on both sides, and the geometry of a plot of their logprob differences."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from harness.bits import from_bits
from harness.compare.control import CONTROLS
from harness.compare.pair import Pair, matched
from harness.compare.steps import compare_step, compare_steps
from harness.records import Finding, FindingKind, Phase, PromptResult, Role, Step

#: Prompts shown per pair of phases, and rows of a prompt's table, at most.
MOST_PROMPTS, MOST_ROWS = 6, 40
#: Equal steps shown before the first difference, and steps of other texts behind the divergence.
BEFORE, BEHIND = 2, 1

#: Plot: pixels of one step, of the plot's height, and of the margin for its numbers.
STEP, HEIGHT, LEFT, TOP = 14, 96, 44, 8
#: Decades of the logarithmic axis, nat.
LOWEST, HIGHEST = -8, 1
#: Rounding alone stays below this (docs/findings.md, logprobs).
ROUNDING = 0.06


@dataclass(frozen=True, kw_only=True)
class Row:
    """One step of both sides; ``state`` is ``equal``, ``bits`` (same token, other bits), ``token`` or ``behind``."""

    step: int
    left: str
    left_logprob: str
    right: str
    right_logprob: str
    difference: str
    state: str


@dataclass(frozen=True, kw_only=True)
class Point:
    """One step in the plot; ``kind`` is ``equal``, ``bits`` or ``token``; ``height`` is of the bar above the axis."""

    x: float
    y: float
    height: float
    kind: str


@dataclass(frozen=True, kw_only=True)
class Plot:
    """Largest logprob difference per step, logarithmic; every number in pixels.

    Attributes:
        points: one per step with equal contexts.
        lines: (y, text) of the axis, the rounding bound last.
        divergence: x of the first other token, None without.
    """

    width: float
    height: float
    base: float
    points: tuple[Point, ...]
    lines: tuple[tuple[float, str], ...]
    divergence: float | None


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """One prompt whose answer differs between two phases."""

    prompt: int
    summary: str
    rows: tuple[Row, ...]
    hidden_rows: int
    plot: Plot


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two phases whose answers differ; ``more`` prompts are not shown."""

    left: str
    right: str
    divergences: tuple[Divergence, ...]
    more: int


def comparisons(pair: Pair, findings: tuple[Finding, ...]) -> Iterator[Comparison]:
    """The pairs of phases that findings say something about, and where they differ."""
    for left, right in dict.fromkeys(_sides(pair, findings)):
        first, second = pair.record(*left), pair.record(*right)
        if first is None or second is None:
            continue
        unequal = [(one, two) for one, two in matched(first.prompts, second.prompts) if one.steps != two.steps]
        yield Comparison(
            left=" ".join(left), right=" ".join(right),
            divergences=tuple(_divergence(*both) for both in unequal[:MOST_PROMPTS]),
            more=max(0, len(unequal) - MOST_PROMPTS),
        )


def _sides(pair: Pair, findings: tuple[Finding, ...]):
    against = pair.references()
    controls = {kind: ((role, once), (role, again)) for role, (kind, once, again) in CONTROLS.items()}
    for one in findings:
        if one.kind in controls:
            yield controls[one.kind]
        elif one.kind in (FindingKind.TOKENS, FindingKind.LOGPROBS):
            right = side_of(one)
            if right in against:
                yield against[right], right


def side_of(finding: Finding) -> tuple[Role, Phase] | None:
    """The leg and the phase that the finding's place names; None where it names none."""
    role, _, phase = finding.place.split(",")[0].partition(" ")
    try:
        return Role(role), Phase(phase)
    except ValueError:
        return None


def _divergence(left: PromptResult, right: PromptResult) -> Divergence:
    like = compare_steps(left.steps, right.steps)
    first = like.before if like.first_unequal is None else like.first_unequal
    start, end = max(0, first - BEFORE), min(like.tokens, like.before + 1 + BEHIND)
    rows = tuple(_row(left, right, place, like.before) for place in range(start, end))
    return Divergence(
        prompt=left.index, summary=like.summary(), rows=rows[:MOST_ROWS], hidden_rows=max(0, len(rows) - MOST_ROWS),
        plot=_plot(left, right, like.before, like.tokens),
    )


def _row(left: PromptResult, right: PromptResult, place: int, before: int) -> Row:
    one, two = (prompt.steps[place] if place < len(prompt.steps) else None for prompt in (left, right))
    difference, state = "", "behind"
    if place <= before:
        state = "token" if one is None or two is None or one.token != two.token else "equal"
        if one is not None and two is not None:
            count, equal, largest = compare_step(one, two)
            difference = _amount(largest) if count else "no logprobs"
            state = "bits" if state == "equal" and count != equal else state
    return Row(
        step=place, left=_token(one), left_logprob=_logprob(one), right=_token(two), right_logprob=_logprob(two),
        difference=difference, state=state,
    )


def _token(step: Step | None) -> str:
    return "ended" if step is None else str(step.token)


def _logprob(step: Step | None) -> str:
    return "" if step is None or step.bits is None else f"{from_bits(step.bits):.7f}"


def _amount(largest: float) -> str:
    return "0" if largest == 0 else f"{largest:.1e}"


def _plot(left: PromptResult, right: PromptResult, before: int, tokens: int) -> Plot:
    base = TOP + HEIGHT
    points = []
    for place, (one, two) in enumerate(zip(left.steps, right.steps, strict=False)):
        if place > before:
            break
        count, equal, largest = compare_step(one, two)
        kind = "token" if one.token != two.token else "equal" if count == equal else "bits"
        y = _height(largest)
        points.append(Point(x=LEFT + (place + 0.5) * STEP, y=y, height=round(base - y, 1), kind=kind))
    lines = [(_height(10.0**decade), f"1e{decade}") for decade in range(HIGHEST, LOWEST - 1, -3)]
    return Plot(
        width=LEFT + max(tokens, 1) * STEP + TOP, height=base + 18, base=base, points=tuple(points),
        lines=(*lines, (_height(ROUNDING), "")),
        divergence=LEFT + (before + 0.5) * STEP if before < tokens else None,
    )


def _height(difference: float) -> float:
    """y of a difference; 0 lies on the axis, everything above ``10**HIGHEST`` (also infinity) at the top."""
    if difference <= 0:
        return float(TOP + HEIGHT)
    decade = HIGHEST if math.isinf(difference) else math.log10(difference)
    share = (min(max(decade, LOWEST), HIGHEST) - LOWEST) / (HIGHEST - LOWEST)
    return round(TOP + HEIGHT * (1 - share), 1)
