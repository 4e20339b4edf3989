# SPDX-License-Identifier: Apache-2.0
"""A hand-made cell whose store one configuration filled and another one reads, with nothing wrong."""

from __future__ import annotations

from dataclasses import replace

from harness.compare import judge
from harness.hits import shared_hits
from harness.prompt_sets import make_pass
from harness.records import Phase, PromptSpec, Reference, Role, Rule, Sharing
from tests.unit.handmade import (
    BLOCK,
    HIT,
    PROMPTS,
    Case,
    clean,
    edit,
    edit_prompt,
    make_phase,
    make_resolved,
    resolve,
    resolve_both,
    side,
)

SETTINGS = {"model": "/models/tiny", "weights": "w0", "revision": "None", "hash seed": "h0"}
FULL = PROMPTS * HIT


def shared_case(rule: Rule, shows=("weights",), *, hits: int = 0, again: int = FULL, **sharing) -> Case:
    """Two engines that differ in ``shows``; the first restore found ``hits`` tokens, and nothing is wrong."""
    way = make_pass(PromptSpec(count=PROMPTS, prefix_tokens=HIT, tail_tokens=1), 1024, BLOCK)
    case = clean(
        hits=shared_hits(way, BLOCK, BLOCK, rule),
        sharing=Sharing(difference="weights", rule=rule, shows=shows, brings=(), alters=False, control="control-leg",
                        **sharing),
    )
    own = replace(make_phase(Role.SUBJECT, Phase.RESTORE), phase=Phase.OWN_RESTORE)
    phases = case.subject.phases
    changed = {name: "another" for name in shows if name in SETTINGS}
    resolved = make_resolved(Role.SUBJECT, settings=SETTINGS)
    case = resolve(case, Role.ORACLE, settings=SETTINGS)
    case = side(
        case, Role.SUBJECT, phases=(*phases[:2], own, *phases[2:]), resolved=resolved,
        filled=replace(resolved, settings={**SETTINGS, **changed}),
    )
    case = given(given(case, Phase.RESTORE, hits), Phase.RESTORE_AGAIN, again)
    control = replace(clean().subject, leg="control-leg")
    return replace(case, further={"control-leg": control}, legs={**case.legs, "control-leg": case.legs["subject-leg"]})


def given(case: Case, phase: Phase, tokens: int) -> Case:
    case = edit(case, Role.SUBJECT, phase, external_tokens=tokens, delivered_tokens=tokens, loaded_bytes=tokens)
    for index in range(PROMPTS):
        case = edit_prompt(case, Role.SUBJECT, phase, index, cached_tokens=tokens // PROMPTS)
    return case


def not_invariant(case: Case) -> Case:
    """The case where kernels are not batch invariant, so that a hit is held against the oracle's local hit."""
    cell = replace(case.cell, axes={**case.cell.axes, "batch_invariant": False}, reference=Reference.LOCAL_HIT)
    legs = {name: replace(leg, batch_invariant=False) for name, leg in case.legs.items()}
    case = resolve_both(replace(case, cell=cell, legs=legs), batch_invariant=False)
    return side(case, Role.SUBJECT, filled=replace(case.subject.filled, batch_invariant=False))


def judged(case: Case):
    """(outcome, kinds of its findings, verdict) of a case."""
    verdict = judge(case.cell, case.legs, case.oracle, case.subject, case.further)
    return verdict.outcome, [one.kind for one in verdict.findings], verdict
