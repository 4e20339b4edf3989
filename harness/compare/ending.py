# SPDX-License-Identifier: Apache-2.0
"""First check: does each observation belong to its leg, and did that leg live to answer?"""

from __future__ import annotations

from collections.abc import Iterator

from harness.compare.pair import Pair, finding
from harness.records import SCHEMA_VERSION, Ending, Finding, FindingKind, Leg, Observation, Role

#: Ending -> finding kind and what to say of it.
ENDINGS = {
    Ending.REFUSED: (FindingKind.REJECTED, "the engine refused the configuration"),
    Ending.CRASHED: (FindingKind.CRASHED, "the engine died"),
    Ending.OUT_OF_MEMORY: (FindingKind.OUT_OF_MEMORY, "the machine had too little memory"),
    Ending.HUNG: (FindingKind.HUNG, "the leg outlived its deadline"),
    Ending.NO_OBSERVATION: (FindingKind.NO_OBSERVATION, "the child ended without a result"),
    Ending.UNAVAILABLE: (FindingKind.UNAVAILABLE, "this machine lacks what the leg needs"),
}


def check_ending(pair: Pair) -> Iterator[Finding]:
    """Findings about legs that gave no answer; when there is one, nothing else can be judged."""
    # A subject that never came up settles the cell, and its oracle need not have been run.
    settled = pair.subject is not None and pair.subject.ending is not Ending.OK
    for role, leg, observation in pair.sides():
        if observation is not None:
            yield from check_side(role, leg, observation)
        elif role is Role.SUBJECT or not settled:
            yield finding(
                FindingKind.NO_OBSERVATION, f"the {role} leg {leg.digest} left no observation at all", place=role
            )


def check_side(role: str, leg: Leg, observation: Observation) -> Iterator[Finding]:
    """Findings about one leg, which messages call ``role``; none when it is this leg's and it ended well."""
    if observation.leg != leg.digest:
        yield finding(
            FindingKind.STALE_OBSERVATION,
            f"the {role}'s observation belongs to leg {observation.leg}, the plan asks for {leg.digest}",
            place=role, left=leg.digest, right=observation.leg,
        )
    elif observation.schema != SCHEMA_VERSION:
        yield finding(
            FindingKind.STALE_OBSERVATION,
            f"the {role}'s observation was written with schema {observation.schema}, this is schema {SCHEMA_VERSION}",
            place=role, left=str(SCHEMA_VERSION), right=str(observation.schema),
        )
    elif observation.ending is not Ending.OK:
        kind, saying = ENDINGS[observation.ending]
        failure = observation.failure
        stage = f" at {failure.stage}" if failure else ""
        message = f"{role}: {saying}{stage}"
        if failure:
            # One sentence in one line; the untouched words are in ``right``.
            message += f": {failure.kind}: {' '.join(failure.message.split())}"
        yield finding(
            kind, message, place=f"{role}{stage}",
            left=f"asked: {leg.layout}, {leg.backend}, batch_invariant {leg.batch_invariant}",
            right=failure.message if failure else observation.ending,
        )
