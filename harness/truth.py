# SPDX-License-Identifier: Apache-2.0
"""The ground truth's share of a plan: legs of another implementation, and which other cells a cell is held against.

A scenario that has ``ground_truth`` gets, for each model, prompt set and decoding, two legs of transformers: in the
engine's dtype and in float32. They depend on no layout and no backend, so all of its cells share them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.prompt_sets import SETS
from harness.records import Cell, GroundTruth, Leg, Limits, Outcome, Phase, Role, Scenario
from harness.wire import named

#: Alias of the other implementation where a leg names its backend.
BACKEND = "TRANSFORMERS"

#: Its answers have at least so many candidates, so that nearly each of the engine's few is among them.
CANDIDATES = 20

#: Computed once, and once more as its own A/A control.
PHASES = (Phase.RECOMPUTE, Phase.RECOMPUTE_AGAIN)

#: Whole environment of such a leg: one thread, nothing downloaded, nothing compiled, no GPU.
ENV: Mapping[str, str] = {
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TORCH_COMPILE_DISABLE": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "HIP_VISIBLE_DEVICES": "",
}


def with_ground_truth(
    scenario: Scenario,
    cells: Sequence[Cell],
    legs: Mapping[str, Leg],
    fake: Mapping[str, Mapping[str, Any]] | None = None,
) -> tuple[list[Cell], list[Leg]]:
    """The cells of one scenario with what they are held against, and the legs of the other implementation.

    Args:
        scenario: the scenario of all ``cells``; without ``ground_truth`` they come back as they are.
        cells, legs: as planned so far; ``legs`` holds every cell's oracle, by digest.
        fake: as of ``make_plan``; planted under the role ``truth``.
    """
    if scenario.ground_truth is None:
        return list(cells), []
    made, found = [], {}
    for cell in cells:
        planted = {} if fake is None else fake.get(cell.id, {}).get("truth", {})
        truths = truth_legs(legs[cell.oracle], planted)
        found.update({leg.digest: leg for leg in truths})
        made.append(replace(cell, ground_truth=_held_against(scenario.ground_truth, cell, cells, truths)))
    return made, list(found.values())


def truth_legs(oracle: Leg, planted: Mapping[str, Any]) -> tuple[Leg, ...]:
    """The legs that answer an oracle's prompts without vLLM: in the engine's dtype, and in float32 where that differs.

    Everything that is the engine's own is left out of them, and so out of their digests.
    """
    asked = str(oracle.engine.get("dtype", "auto"))
    # It has no blocks, but some prompts are made of them.
    blocks = {"block_size": oracle.engine["block_size"]} if SETS[oracle.prompts.set].by_blocks else {}
    return tuple(
        named(replace(
            oracle,
            role=Role.ORACLE,
            layout="none",
            backend=BACKEND,
            batch_invariant=False,
            engine={"dtype": dtype, **blocks},
            env=dict(ENV),
            kv_transfer_config=None,
            decode=replace(oracle.decode, logprobs=max(CANDIDATES, oracle.decode.logprobs), submit="alone"),
            phases=PHASES,
            engine_name="fake" if oracle.engine_name == "fake" else "transformers",
            fake=dict(planted),
        ))
        for dtype in dict.fromkeys((asked, "float32"))
    )


def _held_against(limits: Limits, cell: Cell, cells: Sequence[Cell], truths: Sequence[Leg]) -> GroundTruth:
    """Peers: the scenario's first backend in the same layout, and its first layout for the same backend."""
    peers: dict[str, str] = {}
    for axis in ("backend", "layout"):
        peer = next((one for one in cells if _apart_in(axis, one, cell)), None)
        # A cell that is expected to end otherwise computes nothing that another could be held against.
        if peer is not None and peer.id != cell.id and _must_pass(peer) and _must_pass(cell):
            peers[peer.id] = peer.oracle
    return GroundTruth(limits=limits, truths=tuple(leg.digest for leg in truths), peers=peers)


def _apart_in(axis: str, one: Cell, other: Cell) -> bool:
    """Whether two cells are the same question but for one axis; a cell is so with itself."""
    return all(one.axes[name] == value for name, value in other.axes.items() if name != axis)


def _must_pass(cell: Cell) -> bool:
    return cell.expectation is None or cell.expectation.outcome is Outcome.PASS
