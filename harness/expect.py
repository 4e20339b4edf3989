# SPDX-License-Identifier: Apache-2.0
"""Expectations: which one speaks of a cell, whether a scenario's set of them makes sense, and whether one was met.

Expectations are strict, as pytest's ``xfail(strict=True, raises=...)`` is: ending otherwise, ending the same way with
other words, or passing after all, is a failure. An expectation that speaks of no cell, or a cell of which two speak,
is an error of the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from harness.axes import cell_id, matches, points
from harness.records import Expectation, Finding, FindingKind, Outcome, Scenario

__all__ = ["check_expectations", "expectation_for", "judge_expectation", "matches", "overlaps"]


def expectation_for(axes: Mapping[str, Any], expectations: Iterable[Expectation]) -> Expectation | None:
    """The expectation that speaks of a point, None when it must pass.

    ``check_expectations`` makes sure that there is at most one; of several the first is given.
    """
    return next((expectation for expectation in expectations if matches(expectation.when, axes)), None)


def check_expectations(scenario: Scenario) -> list[str]:
    """Problems of a scenario's expectations, each ``file:line: sentence``."""
    return [f"{scenario.path}:{line}: {text}" for line, text in overlaps(scenario.axes, scenario.expect)]


def overlaps(axes: Mapping[str, tuple[Any, ...]], expectations: Sequence[Expectation]) -> list[tuple[int, str]]:
    """Expectations that match no point of ``axes``, and pairs that match the same one: (line, sentence)."""
    found: list[tuple[int, str]] = []
    cells = list(points(axes))
    matched = [[cell for cell in cells if matches(expectation.when, cell)] for expectation in expectations]
    for index, expectation in enumerate(expectations):
        if not matched[index]:
            found.append((expectation.line, "expect: this expectation matched no cell of the scenario."))
        for earlier in range(index):
            both = [cell_id(cell) for cell in matched[earlier] if matches(expectation.when, cell)]
            if both:
                more = f" and {len(both) - 1} more" if len(both) > 1 else ""
                found.append((expectation.line, f"expect: this expectation matches {both[0]}{more}, and so does the "
                              f"one on line {expectations[earlier].line}; a cell can have one only."))
    return found


def judge_expectation(
    expectation: Expectation | None, outcome: Outcome, findings: Sequence[Finding]
) -> Finding | None:
    """None when the expectation was met, otherwise the finding that says what differs, both sides.

    ``outcome`` is the cell's worst outcome and ``findings`` its findings, both before any expectation. Without an
    expectation there is nothing to judge. A cell that could not run here (``unavailable``) neither meets nor breaks an
    expectation of another outcome, so None is given for it too: callers must compare outcomes before they say
    ``expected``. Where a finding kind and a text are named, one finding must have both.
    """
    if expectation is None or (outcome is Outcome.UNAVAILABLE and expectation.outcome is not outcome):
        return None
    wrong: list[str] = []
    if outcome is not expectation.outcome:
        wrong.append(f"the outcome is {outcome}, not {expectation.outcome}")
    named = [finding for finding in findings if expectation.finding in (None, finding.kind)]
    if expectation.finding is not None and not named:
        wrong.append(f"there is no finding {expectation.finding}")
    elif expectation.match is not None and not any(expectation.match in _words(finding) for finding in named):
        whose = f"the finding {expectation.finding} says" if expectation.finding else "any finding says"
        wrong.append(f"nothing that {whose} contains the expected text")
    if not wrong:
        return None
    return Finding(
        kind=FindingKind.EXPECTATION_UNMET,
        outcome=Outcome.FAIL,
        message=f"The scenario's expectation was not met: {'; '.join(wrong)}.",
        place=f"scenario line {expectation.line}" if expectation.line else "",
        left=f"expected {_expected(expectation)}",
        right=f"got {_got(outcome, findings)}",
    )


def _words(finding: Finding) -> str:
    return "\n".join((finding.message, finding.place, finding.left, finding.right, finding.size, finding.limit))


def _expected(expectation: Expectation) -> str:
    words = str(expectation.outcome)
    if expectation.finding is not None:
        words += f", finding {expectation.finding}"
    if expectation.match is not None:
        words += f", text `{expectation.match}`"
    return f"{words} ({expectation.issue})" if expectation.issue else words


def _got(outcome: Outcome, findings: Sequence[Finding]) -> str:
    if not findings:
        return f"{outcome}, no findings"
    return f"{outcome}, " + "; ".join(f"{finding.kind}: {finding.message}" for finding in findings)
