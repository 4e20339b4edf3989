# SPDX-License-Identifier: Apache-2.0
"""Each outcome's letter, colour class and order in the HTML report, so that nobody needs the colour to read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.records import OUTCOME_ORDER, Outcome

#: What a planned cell without a verdict is called.
NOT_RUN = "not run"


@dataclass(frozen=True, kw_only=True)
class Mark:
    """How an outcome is drawn.

    Attributes:
        word: the outcome, or ``not run``.
        letter: one character, unique.
        tone: CSS class; it stands for a colour and a shape: ``good`` round, ``bad`` square and thick, ``doubt`` cut.
    """

    word: str
    letter: str
    tone: str


MARKS: Mapping[str, Mark] = {
    mark.word: mark
    for mark in (
        Mark(word=Outcome.PASS.value, letter="P", tone="good"),
        Mark(word=Outcome.EXPECTED.value, letter="E", tone="known"),
        Mark(word=Outcome.UNAVAILABLE.value, letter="A", tone="none"),
        Mark(word=Outcome.REJECTED.value, letter="R", tone="doubt"),
        Mark(word=Outcome.UNSTABLE.value, letter="U", tone="doubt"),
        Mark(word=Outcome.VACUOUS.value, letter="V", tone="doubt"),
        Mark(word=Outcome.CRASHED.value, letter="C", tone="bad"),
        Mark(word=Outcome.FAIL.value, letter="F", tone="bad"),
        Mark(word=NOT_RUN, letter="-", tone="none"),
    )
}


def rank(word: str) -> int:
    """Place in the list of cells: the worst first, not run behind what must be looked at."""
    return -1 if word == NOT_RUN else OUTCOME_ORDER.index(Outcome(word))
