# SPDX-License-Identifier: Apache-2.0
"""A red cell's sentence names what was held against what."""

from __future__ import annotations

import pytest

from harness.records import FindingKind, Phase, Role, Rule
from harness.report.content import collect
from harness.report.divergence import comparisons
from tests.render.handrun import make_run
from tests.unit.handmade import clean, edit_step, make_step
from tests.unit.handmade_sharing import not_invariant, shared_case


@pytest.mark.parametrize(("phases", "sentence"), [
    ((Phase.RESTORE, Phase.RESTORE_AGAIN), "restored KV gives different logprobs than recompute"),
    (Phase.POPULATE, "the subject's populate, which restores nothing, gives different logprobs than recompute"),
])
def test_the_sentence_names_what_was_not_restored(phases, sentence):
    case = edit_step(clean(), Role.SUBJECT, phases, 1, 2, bits=make_step(1, 2).bits + 1)
    (story,) = collect(make_run([case])).stories
    assert story.sentence == sentence


def shared(again: int):
    """A run of a cell whose store gave nothing of what another configuration put there; the second restore's bits."""
    case = not_invariant(shared_case(Rule.MUST_NOT_HIT))
    case = edit_step(case, Role.ORACLE, Phase.LOCAL_HIT, 1, 2, bits=make_step(1, 2).bits + 1)
    case = edit_step(case, Role.SUBJECT, Phase.RESTORE_AGAIN, 1, 2, bits=again)
    return make_run([case])


def test_a_second_restore_that_is_held_against_a_local_hit_says_so_wherever_it_stands():
    run = shared(again=make_step(1, 2).bits)
    verdict, = run.verdicts
    assert [(one.kind, one.place) for one in verdict.findings] == [
        (FindingKind.LOGPROBS, "subject restore_again, prompt 1, token 2"),
    ]
    (story,) = collect(run).stories
    assert story.sentence == "restored KV gives different logprobs than local_hit"
    assert "A/A control equal for the oracle; the second restore is held against oracle local_hit;" in story.evidence
    comparison, = comparisons(run.pair(run.plan.cells[0]), verdict.findings)
    assert (comparison.left, comparison.right) == ("oracle local_hit", "subject restore_again")
    part, = comparison.divergences
    assert (part.prompt, [row.state for row in part.rows]) == (1, ["equal", "equal", "bits"])


def test_a_pass_over_a_store_that_gave_nothing_is_one_against_the_recompute():
    content = collect(shared(again=make_step(1, 2).bits + 1))
    assert [title for title, _ in content.tables] == ["batch invariance off, against recompute"]
    assert content.evidence[0][1] == "recompute; must not hit: nothing shared"
