# SPDX-License-Identifier: Apache-2.0
"""A plan: cells, and the legs they need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from harness.records.leg import Leg
from harness.records.names import PREFILL_DECODE, Certainty, Edge, Phase, Reference, Role, Rule
from harness.records.scenario import Expectation, Limits


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """What a cell says of a store that one configuration fills and another, the cell's own, reads.

    Attributes:
        difference: value of the axis ``differs``.
        rule: what may come back.
        shows: settings that must differ between the two engines as they report them, or the difference was not taken.
        brings: settings that may differ with them; all others must be equal.
        alters: whether the two compute different KV for certain.
        control: digest of the leg that differs in nothing and must get everything back; None where that is the cell's.
    """

    difference: str
    rule: Rule
    shows: tuple[str, ...]
    brings: tuple[str, ...]
    alters: bool
    control: str | None


@dataclass(frozen=True, kw_only=True)
class GroundTruth:
    """What a cell's recompute is held against beside its own store.

    Attributes:
        limits: how far it may be from each.
        truths: digests of the legs of another implementation: in the engine's dtype, then in float32.
        peers: other cell's id -> digest of its oracle: another backend in the same layout, another layout of the same
            backend.
    """

    limits: Limits
    truths: tuple[str, ...]
    peers: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class PhaseHits:
    """Prompt tokens that a phase must find in the local cache and in the store, by position in the prompt set.

    Attributes:
        role, phase: whose.
        local, external: hit tokens of each prompt at its first admission.
        certain: what of them is determined.
        prefill: tokens of each prompt that the engine which prefills for the phase finds in its own cache; empty where
            there is no such engine.
    """

    role: Role
    phase: Phase
    local: tuple[int, ...]
    external: tuple[int, ...]
    certain: Certainty = Certainty.SPLIT
    prefill: tuple[int, ...] = ()

    def of(self, index: int) -> tuple[int, int]:
        """(local, external) of one prompt; nothing is expected of one that the set does not have."""
        return (self.local[index], self.external[index]) if 0 <= index < len(self.local) else (0, 0)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One point of a scenario's axes: one pytest item, one row of the report.

    Attributes:
        scenario: the scenario's name.
        id: unique in the scenario, e.g. ``LBHNC-REFERENCE-bi1``.
        path, line: the scenario file and the line of its axes.
        axes: axis name -> this cell's value.
        reference: what the restore is compared with.
        oracle, subject: digests of the two legs.
        block_size: tokens of one block, as asked.
        hits: what each phase of both legs must find in the caches.
        edge: what the prompt set exists for and must be seen to have happened.
        expectation: what the scenario says of this cell, None when it must pass.
        restores: False where the subject gives nothing back by design, so that the cell says what merely having its
            connector changes; ``expected_external_tokens`` is 0 then.
        ground_truth: what its recompute is held against beside the store, None for nothing.
        sharing: what it says of a store that another configuration filled, None for nothing.
    """

    scenario: str
    id: str
    path: str
    line: int
    axes: Mapping[str, Any]
    reference: Reference
    oracle: str
    subject: str
    block_size: int
    hits: tuple[PhaseHits, ...]
    edge: Edge
    expectation: Expectation | None
    restores: bool = True
    ground_truth: GroundTruth | None = None
    sharing: Sharing | None = None

    @property
    def hands_over(self) -> bool:
        """Whether the subject's restores get the KV from a second engine that is alive beside the first."""
        return self.axes.get("restore") == PREFILL_DECODE

    @property
    def further(self) -> tuple[str, ...]:
        """Digests of the legs that it needs beside its own two."""
        control = (self.sharing.control,) if self.sharing and self.sharing.control else ()
        truths = (*self.ground_truth.truths, *self.ground_truth.peers.values()) if self.ground_truth else ()
        return (*truths, *control)

    def phases_of(self, role: Role) -> tuple[Phase, ...]:
        """The phases that a leg of that role must have run, in order."""
        return tuple(one.phase for one in self.hits if one.role is role)

    def hits_of(self, role: Role, phase: Phase) -> PhaseHits | None:
        """The rule's answer for one phase; None for a phase that the role does not have."""
        return next((one for one in self.hits if (one.role, one.phase) == (role, phase)), None)

    @property
    def expected_external_tokens(self) -> int:
        """External hit tokens that each restore must have, summed over the prompts."""
        restore = self.hits_of(Role.SUBJECT, Phase.RESTORE)
        return sum(restore.external) if restore else 0

    @property
    def full_external_tokens(self) -> int:
        """External hit tokens of a restore that is given everything, whoever stored it, summed over the prompts."""
        restore = self.hits_of(Role.SUBJECT, Phase.RESTORE_AGAIN)
        return sum(restore.external) if restore else 0

    @property
    def expected_blocks(self) -> int:
        """Blocks that each restore must have from the store, some by way of the local cache, summed over prompts."""
        restore = self.hits_of(*self.given_back)
        if restore is None:
            return 0
        return sum(self.blocks_of(restore, index) for index in range(len(restore.local)))

    def blocks_of(self, hits: PhaseHits, index: int) -> int:
        """Full blocks of one prompt that a phase with these hits has from the store and does not write itself."""
        # A whole prompt is handed over, and yet its last token is computed again, in its block.
        return max(sum(hits.of(index)) - self.hands_over, 0) // self.block_size

    @property
    def given_back(self) -> tuple[Role, Phase]:
        """The phase whose hits say which blocks a restore is held to.

        Where nothing is given back, or nobody knows how much, the blocks that a store would have given are compared as
        they were computed.
        """
        if self.sharing is not None:
            # By then the reading engine has stored whatever it was not given.
            return Role.SUBJECT, Phase.RESTORE_AGAIN
        return Role.SUBJECT, Phase.RESTORE if self.restores else Phase.LOCAL_HIT

    @property
    def layout(self) -> str:
        return self.axes["layout"]

    @property
    def backend(self) -> str:
        return self.axes["backend"]

    @property
    def batch_invariant(self) -> bool:
        return self.axes["batch_invariant"]

    @property
    def name(self) -> str:
        """``scenario::cell``, unique in a run."""
        return f"{self.scenario}::{self.id}"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All cells of a run and the legs they need, each leg once."""

    schema: int
    cells: tuple[Cell, ...]
    legs: tuple[Leg, ...]

    @property
    def shared(self) -> int:
        """Legs that were spared because several cells need the same one."""
        return sum(2 + len(cell.further) for cell in self.cells) - len(self.legs)

    @cached_property
    def _by_digest(self) -> Mapping[str, Leg]:
        return {leg.digest: leg for leg in self.legs}

    def leg(self, digest: str) -> Leg:
        return self._by_digest[digest]
