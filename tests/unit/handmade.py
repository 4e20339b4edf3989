# SPDX-License-Identifier: Apache-2.0
"""Hand-made cells, legs and observations, small enough to read: two prompts of 9 tokens, blocks of 4, three new tokens.

Each prompt hits 2 blocks (8 tokens), so a cell expects 16. The model has 2 layers, 2 head slots. ``clean()`` is a pair
with nothing wrong; ``edit`` changes a phase, ``edit_prompt`` one prompt's answer in it.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field, replace
from typing import Any

from harness.bits import to_bits
from harness.compare import judge
from harness.records import (
    ROLE_PHASES,
    SCHEMA_VERSION,
    Cell,
    Compared,
    DecodeSpec,
    Edge,
    Ending,
    Expectation,
    Failure,
    Finding,
    FindingKind,
    Leg,
    Model,
    Observation,
    Outcome,
    Phase,
    PhaseHits,
    PhaseRecord,
    PromptResult,
    PromptSpec,
    Reference,
    Resolved,
    Role,
    Step,
    Verdict,
)

PROMPTS, BLOCK, LENGTH, HIT, TOKENS = 2, 4, 9, 8, 3
LAYERS, SLOTS, HALVES = 2, 2, 2
MODEL = Model(
    alias="tiny", path="/models/tiny", source="stand-in", digest="m0", num_layers=LAYERS, num_kv_heads=SLOTS,
    head_dim=4, vocab_size=100,
)
ORACLE, SUBJECT = Role.ORACLE, Role.SUBJECT
LOCAL = (Phase.LOCAL_HIT,)
RECOMPUTES = (Phase.RECOMPUTE, Phase.RECOMPUTE_AGAIN)
RESTORED = (Phase.RESTORE, Phase.RESTORE_AGAIN)
#: 2 prompts x 3 tokens; the selected token's and two candidates' logprobs each; 2 blocks a prompt.
ALL = Compared(prompts=2, tokens=6, tokens_equal=6, logprobs=18, logprobs_equal=18, blocks=4, blocks_equal=4)
#: What becomes of ``clean()``.
PASSED = Verdict(
    scenario="matrix", cell="LBHNC-REFERENCE-bi1", outcome=Outcome.PASS, verdict=Outcome.PASS,
    expected_outcome=Outcome.PASS, findings=(), compared=ALL,
)


@dataclass(frozen=True)
class Case:
    """Everything that ``judge`` takes."""

    cell: Cell
    legs: dict[str, Leg]
    oracle: Observation | None
    subject: Observation | None
    further: dict[str, Observation] = field(default_factory=dict)


def make_leg(role: Role, **changes: Any) -> Leg:
    connector = {"kv_connector": "EmbeddedStore", "kv_role": "kv_both"} if role is Role.SUBJECT else None
    leg = Leg(
        digest=f"{role}-leg", role=role, layout="LBHNC", backend="REFERENCE", batch_invariant=True, model=MODEL,
        engine={"block_size": BLOCK}, env={}, kv_transfer_config=connector,
        prompts=PromptSpec(count=PROMPTS, prefix_tokens=HIT, tail_tokens=1),
        decode=DecodeSpec(max_tokens=TOKENS, logprobs=2), phases=ROLE_PHASES[role], identity={"vllm": "0.32.0"},
    )
    return replace(leg, **changes)


def make_hits(each: int = HIT, external: int | None = None) -> tuple[PhaseHits, ...]:
    """What the phases of both roles must hit when each prompt has ``each`` tokens to hit, ``external`` of the store."""
    hit, none = (each,) * PROMPTS, (0,) * PROMPTS
    given = (each if external is None else external,) * PROMPTS
    return tuple(
        PhaseHits(
            role=role, phase=phase, local=hit if phase in LOCAL else none, external=given if phase in RESTORED else none
        )
        for role, phases in ROLE_PHASES.items() for phase in phases
    )


def make_cell(**changes: Any) -> Cell:
    axes = {"layout": "LBHNC", "backend": "REFERENCE", "batch_invariant": True}
    axes.update({name: changes.pop(name) for name in tuple(axes) if name in changes})
    cell = Cell(
        scenario="matrix", id="LBHNC-REFERENCE-bi1", path="scenarios/matrix.yaml", line=5, axes=axes,
        reference=Reference.RECOMPUTE, oracle="oracle-leg", subject="subject-leg", block_size=BLOCK,
        hits=make_hits(), edge=Edge.NONE, expectation=None,
    )
    return replace(cell, **changes)


def make_step(prompt: int, place: int) -> Step:
    token = 10 * (prompt + 1) + place
    best, second = to_bits(-0.5 - place / 8), to_bits(-2.0 - place / 8)
    return Step(token=token, bits=best, top=((token, best), (90 + place, second)))


def digest_block(prompt: int, block: int, changed: tuple[tuple[int, int, int], ...] = ()) -> str:
    """A block's digests; those at the given (layer, head slot, half) are changed."""
    parts = []
    for layer in range(LAYERS):
        for slot in range(SLOTS):
            for half in range(HALVES):
                mark = 1 if (layer, slot, half) in changed else 0
                parts.append(bytes([prompt, block, layer, slot, half, mark, 0, 0]))
    return base64.b64encode(b"".join(parts)).decode()


def make_prompt(phase: Phase, index: int) -> PromptResult:
    first = 10 * index + (4 if phase in RESTORED else 0)
    digested = phase in (Phase.RECOMPUTE, Phase.POPULATE, *RESTORED)
    blocks = LENGTH // BLOCK
    return PromptResult(
        index=index, digest=f"p{index}", num_tokens=LENGTH,
        steps=tuple(make_step(index, place) for place in range(TOKENS)),
        cached_tokens=HIT if phase in LOCAL + RESTORED else 0, finish_reason="length",
        blocks=tuple(range(first, first + blocks)),
        kv=tuple(digest_block(index, block) if digested else None for block in range(blocks)),
    )


def make_phase(role: Role, phase: Phase) -> PhaseRecord:
    restored, subject = phase in RESTORED, role is Role.SUBJECT
    cleared = restored or phase is Phase.RECOMPUTE_AGAIN
    return PhaseRecord(
        phase=phase, prompts=tuple(make_prompt(phase, index) for index in range(PROMPTS)),
        local_tokens=PROMPTS * HIT if phase in LOCAL else 0, external_tokens=PROMPTS * HIT if restored else 0,
        reset_ok=True if cleared else None, zeroed_bytes=4096 if cleared else None,
        nonzero_after_zeroing=0 if cleared else None, delivered_tokens=(PROMPTS * HIT if restored else 0) if subject
        else None, loaded_bytes=(1024 if restored else 0) if subject else None,
        stored_bytes=(1024 if phase is Phase.POPULATE else 0) if subject else None, seconds=0.5,
    )


def make_resolved(role: Role, **changes: Any) -> Resolved:
    blocks = 50
    page = SLOTS * BLOCK * 8
    resolved = Resolved(
        layout="LBHNC", layout_by_strides=("LBHNC",), shape=(blocks, SLOTS, BLOCK, 8),
        strides=(blocks * page, page, BLOCK * 8, 8, 1), dtype="bfloat16", num_layers=LAYERS, backend="REFERENCE",
        backend_class=("harness.plugin.reference.Reference",), batch_invariant=True, block_size=BLOCK,
        kernel_block_size=BLOCK, num_blocks=blocks, threads=1,
        connector="harness.kvstore.connector.EmbeddedStore" if role is Role.SUBJECT else None,
    )
    return replace(resolved, **changes)


def make_observation(role: Role, **changes: Any) -> Observation:
    observation = Observation(
        schema=SCHEMA_VERSION, leg=f"{role}-leg", ending=Ending.OK, resolved=make_resolved(role),
        phases=tuple(make_phase(role, phase) for phase in ROLE_PHASES[role]), failure=None,
        environment={"vllm": "0.32.0", "torch": "2.13.0+cpu"}, seconds={"init": 3.0, "recompute": 1.5},
        peak_bytes=512 * 2**20, log=f"legs/{role}-leg/log.txt",
    )
    return replace(observation, **changes)


def dead(role: Role, ending: Ending, message: str = "no", stage: str = "init", kind: str = "ValueError") -> Observation:
    failure = Failure(stage=stage, kind=kind, message=message)
    return make_observation(
        role, ending=ending, resolved=None, phases=(), failure=failure, log_tail=("last words", message)
    )


def clean(expectation: Expectation | None = None, **cell: Any) -> Case:
    return Case(
        cell=make_cell(expectation=expectation, **cell),
        legs={f"{role}-leg": make_leg(role) for role in Role},
        oracle=make_observation(Role.ORACLE), subject=make_observation(Role.SUBJECT),
    )


def side(case: Case, role: Role, **changes: Any) -> Case:
    """The case with fields of one observation changed."""
    return replace(case, **{role.value: replace(getattr(case, role.value), **changes)})


def resolve(case: Case, role: Role, **changes: Any) -> Case:
    return side(case, role, resolved=replace(getattr(case, role.value).resolved, **changes))


def resolve_both(case: Case, **changes: Any) -> Case:
    """The case in which the workers of both legs resolved something else."""
    return resolve(resolve(case, Role.ORACLE, **changes), Role.SUBJECT, **changes)


def edit(case: Case, role: Role, phases: Phase | tuple[Phase, ...], **changes: Any) -> Case:
    """The case with fields of one phase, or of several, changed."""
    wanted = (phases,) if isinstance(phases, Phase) else phases
    return side(case, role, phases=tuple(
        replace(record, **changes) if record.phase in wanted else record for record in getattr(case, role.value).phases
    ))


def edit_prompt(case: Case, role: Role, phases: Phase | tuple[Phase, ...], index: int, **changes: Any) -> Case:
    """The case with fields of one prompt's answer changed in one phase, or in several."""
    wanted = (phases,) if isinstance(phases, Phase) else phases
    for phase in wanted:
        record = getattr(case, role.value).phase(phase)
        prompts = tuple(replace(one, **changes) if one.index == index else one for one in record.prompts)
        case = edit(case, role, phase, prompts=prompts)
    return case


def edit_step(
    case: Case, role: Role, phases: Phase | tuple[Phase, ...], index: int, place: int, **changes: Any
) -> Case:
    """The case with one generated token changed."""
    steps = [make_step(index, one) for one in range(TOKENS)]
    steps[place] = replace(steps[place], **changes)
    return edit_prompt(case, role, phases, index, steps=tuple(steps))


def verdict_of(case: Case) -> Verdict:
    return judge(case.cell, case.legs, case.oracle, case.subject, case.further)


def kinds(case: Case) -> list[FindingKind]:
    return [finding.kind for finding in verdict_of(case).findings]


def only(case: Case) -> Finding:
    findings = verdict_of(case).findings
    assert len(findings) == 1, findings
    return findings[0]


def other_token() -> Case:
    """Prompt 1's last token is another one in both restores, which the oracle has as its second candidate."""
    top = ((92, to_bits(-1.0)), (22, make_step(1, 2).bits))
    return edit_step(clean(), Role.SUBJECT, RESTORED, 1, 2, token=92, bits=to_bits(-1.0), top=top)


def unit() -> Case:
    """The clean pair without tokens; every phase has its blocks' digests."""
    case = clean()
    legs = {name: replace(leg, engine_name="unit", decode=DecodeSpec(max_tokens=0, logprobs=0))
            for name, leg in case.legs.items()}
    case = replace(case, legs=legs)
    for role in Role:
        for phase in ROLE_PHASES[role]:
            for index in range(PROMPTS):
                kv = tuple(digest_block(index, block) for block in range(LENGTH // BLOCK))
                case = edit_prompt(case, role, phase, index, steps=(), finish_reason=None, kv=kv)
    return case
