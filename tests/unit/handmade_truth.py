# SPDX-License-Identifier: Apache-2.0
"""Hand-made ground truths beside the hand-made pair: the oracle's own answers, moved or parted."""

from __future__ import annotations

from dataclasses import replace

from harness.bits import to_bits
from harness.records import GroundTruth, Limits, Phase, Role, Step
from tests.unit.handmade import (
    Case,
    make_leg,
    make_observation,
    make_prompt,
    make_resolved,
    make_step,
)

LIMITS = Limits(largest=0.4, median=0.1, near_tie=0.2)
PHASES = (Phase.RECOMPUTE, Phase.RECOMPUTE_AGAIN)
PEER = "LBHNC-CPU_ATTN-bi1"


def truth(dtype: str, steps=make_step, **changes):
    """(leg, what it saw): two prompts of three tokens, by default those of the oracle."""
    name = f"truth-{dtype}"
    leg = make_leg(Role.ORACLE, digest=name, backend="TRANSFORMERS", engine={"dtype": dtype}, phases=PHASES)
    prompts = tuple(
        replace(make_prompt(Phase.RECOMPUTE, index), blocks=(), kv=(),
                steps=tuple(steps(index, place) for place in range(3)))
        for index in range(2)
    )
    observation = make_observation(Role.ORACLE)
    records = tuple(replace(record, prompts=prompts) for record in observation.phases if record.phase in PHASES)
    resolved = make_resolved(Role.ORACLE, backend="TRANSFORMERS", dtype=dtype)
    return leg, replace(observation, **{"leg": name, "resolved": resolved, "phases": records, **changes})


def moved(by: float, *, only: tuple[int, int] | None = None):
    """Steps whose logprobs are moved by so many nat, all or one of them."""
    def step(index: int, place: int) -> Step:
        right = make_step(index, place)
        if only not in (None, (index, place)):
            return right
        values = (-0.5 - place / 8 - by, -2.0 - place / 8 - by)
        top = tuple((token, to_bits(value)) for (token, _), value in zip(right.top, values, strict=True))
        return Step(token=right.token, bits=top[0][1], top=top)
    return step


def parted(gap: float, *, listed: bool = True):
    """Steps of which prompt 1's token 1 is another one, the oracle's ``gap`` behind it; afterwards another text."""
    def step(index: int, place: int) -> Step:
        right = make_step(index, place)
        if index == 0 or place == 0:
            return right
        if place == 2:
            return Step(token=77, bits=to_bits(-9.0), top=((77, to_bits(-9.0)),))
        ours = right.token if listed else 99
        top = ((55, right.bits), (ours, to_bits(-0.5 - 1 / 8 - gap)), (91, right.top[1][1]))
        return Step(token=55, bits=top[0][1], top=top)
    return step


def with_truths(case: Case, *truths, peers=None) -> Case:
    asked = GroundTruth(
        limits=LIMITS, truths=tuple(leg.digest for leg, _ in truths),
        peers={name: leg.digest for name, (leg, _) in (peers or {}).items()},
    )
    both = [*truths, *(peers or {}).values()]
    legs = {**case.legs, **{leg.digest: leg for leg, _ in both}}
    further = {leg.digest: one for leg, one in both if one is not None}
    return replace(case, cell=replace(case.cell, ground_truth=asked), legs=legs, further=further)


def peer(steps=make_step, **changes):
    leg = make_leg(Role.ORACLE, digest="peer", backend="CPU_ATTN")
    _, seen = truth("bfloat16", steps)
    return leg, replace(seen, **{"leg": "peer", **changes})
