# SPDX-License-Identifier: Apache-2.0
"""A leg's phases: what is done to the engine before each pass over the prompts, and what is written down after it.

Oracle: ``recompute``, ``recompute_again`` (A/A), ``local_hit``. Subject: ``populate``, ``local_hit``, ``restore``,
``restore_again`` (A/A); ``own_restore`` before them where another configuration is to read the store. Before every pass
that must not find KV on the device the local prefix cache is reset, the free blocks are shifted and the KV tensors
zeroed, so that neither stale bytes nor equal block ids can stand in for a load.
What a prompt set wants in the local cache before a restore is put there after that.

Where two engines share the leg, the one that prefills runs ``populate`` and ``local_hit``, and both run the restores:
the prompts are handed over first, and everything else of the phase is about the engine that decodes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from harness import server_restart
from harness.engines import Answer, Counters, Engine, Pair, Placement, answers_of, engine_of
from harness.errors import LegError
from harness.hits import CLEARED, Pass
from harness.prompts import filler_prompt, prompt_digest
from harness.records import RESTORES, DecodeSpec, Leg, Phase, PhaseRecord, PromptResult

#: Phases whose KV blocks are digested: what was computed or stored, and what came back. Where no token is generated the
#: blocks are the whole answer, and every phase's are.
DIGESTED = (Phase.RECOMPUTE, Phase.POPULATE, Phase.OWN_RESTORE, *RESTORES)

#: How a prompt is submitted of which only the KV matters.
ONE_TOKEN = DecodeSpec(max_tokens=1, logprobs=1)


def run_phases(
    leg: Leg,
    opened: Engine | Pair,
    way: Pass,
    stage: Callable[[str], None],
    block_size: int,
    records: list[PhaseRecord],
) -> None:
    """Run every phase of ``leg`` and append its record; ``stage`` is told the name of each phase as it begins.

    What comes before the pass over the prompts has stages of its own: ``restore.reset``, ``restore.shift``.

    The caller owns ``records``, so that phases that finished before an exception are not lost. Stops after a phase
    whose reset failed: what follows would hit the local cache and look like a restore.
    """
    for number, phase in enumerate(leg.phases):
        record = _run_phase(leg, phase, number, opened, way, stage, block_size)
        records.append(record)
        if record.reset_ok is False:
            break
    if leg.restarts_before is not None and Phase.POPULATE in leg.phases:
        # The process ends here and another one looks for what this one stores.
        engine = engine_of(opened, Phase.POPULATE)
        stage("drain")
        patience = leg.deadlines["reset"]
        done = engine.reset(patience)
        if done:
            # As before every restore, the steps of an unrelated prompt finish what a connector put off to the next one.
            _shift_free_blocks(leg, len(leg.phases), engine, block_size)
            done = engine.reset(patience)
        if not done:
            raise LegError(f"stores were unfinished {patience:g} s after the last phase before a new engine")


def _run_phase(
    leg: Leg,
    phase: Phase,
    number: int,
    opened: Engine | Pair,
    way: Pass,
    stage: Callable[[str], None],
    block_size: int,
) -> PhaseRecord:
    engine = engine_of(opened, phase)
    reset_ok, zeroed, nonzero, aborted = None, None, None, None
    if phase in CLEARED:
        stage(f"{phase.value}.reset")
        reset_ok = engine.reset(leg.deadlines["reset"])
        if reset_ok:
            stage(f"{phase.value}.shift")
            _shift_free_blocks(leg, number, engine, block_size)
            stage(f"{phase.value}.reset")
            reset_ok = engine.reset(leg.deadlines["reset"])
    if phase is leg.server_restarts_before and reset_ok:
        stage("server")
        server_restart.ask()
    stage(phase.value)
    if phase in CLEARED:
        zeroed, nonzero = engine.zero()
    if phase in RESTORES and reset_ok:
        for primer in way.primers:
            engine.generate([primer], ONE_TOKEN)
        if way.aborted:
            # What comes now may get the blocks that these loads still write into.
            aborted = sum(engine.abort_load(prompt) for prompt in way.aborted)
    order = way.order_of(phase)
    engine.placements()
    before = engine.counters()
    started = time.perf_counter()
    asked = [way.prompts[index] for index in order]
    answers = answers_of(opened, phase, asked, leg.decode) if reset_ok is not False else []
    seconds = time.perf_counter() - started
    after = engine.counters()
    started = time.perf_counter()
    results = _prompt_results(leg, phase, way, answers, engine, block_size)
    return PhaseRecord(
        phase=phase,
        prompts=results,
        local_tokens=after.local_tokens - before.local_tokens,
        external_tokens=after.external_tokens - before.external_tokens,
        reset_ok=reset_ok,
        zeroed_bytes=zeroed,
        nonzero_after_zeroing=nonzero,
        delivered_tokens=_difference(before, after, "delivered_tokens"),
        loaded_bytes=_difference(before, after, "loaded_bytes"),
        stored_bytes=_difference(before, after, "stored_bytes"),
        seconds=seconds,
        preemptions=_difference(before, after, "preemptions"),
        carried=_carried(answers),
        aborted_loads=aborted,
        digest_seconds=time.perf_counter() - started,
    )


def _shift_free_blocks(leg: Leg, number: int, engine: Engine, block_size: int) -> None:
    """Let an unrelated prompt take the head of the free list, so that the next pass gets other block ids."""
    filler = filler_prompt(leg.prompts, leg.model.vocab_size, length=3 * block_size + 1, number=number)
    engine.generate([filler], ONE_TOKEN)


def _carried(answers: Sequence[Answer]) -> dict[str, str]:
    """What the requests carried, by name; unlike values one after another."""
    names = sorted({name for answer in answers for name in answer.carried})
    return {name: ", ".join(sorted({answer.carried.get(name, "nothing") for answer in answers})) for name in names}


def _difference(before: Counters, after: Counters, name: str) -> int | None:
    first, last = getattr(before, name), getattr(after, name)
    return None if first is None or last is None else last - first


def _prompt_results(
    leg: Leg, phase: Phase, way: Pass, answers: Sequence[Answer], engine: Engine, block_size: int
) -> tuple[PromptResult, ...]:
    """One result per answer, in the order of the set."""
    # Placements are matched by token ids: vLLM renames requests. Equal prompts keep their order of admission.
    placements: dict[tuple[int, ...], list[Placement]] = {}
    for place in engine.placements():
        placements.setdefault(place.tokens, []).append(place)
    results = []
    for index, answer in zip(way.order_of(phase), answers, strict=False):
        tokens = way.prompts[index]
        places = placements.get(tokens, [])
        place = places.pop(0) if len(places) > 1 else places[0] if places else None
        blocks = place.blocks[: len(tokens) // block_size] if place else ()
        wanted = phase in DIGESTED or not leg.decode.max_tokens
        digests = leg.digests and wanted and place is not None and not place.reused
        results.append(
            PromptResult(
                index=index,
                digest=prompt_digest(tokens),
                num_tokens=len(tokens),
                steps=answer.steps,
                cached_tokens=answer.cached_tokens,
                finish_reason=answer.finish_reason,
                local_tokens=answer.local_tokens,
                external_tokens=answer.external_tokens,
                prefill_steps=place.prefill_steps if place else None,
                blocks=blocks,
                kv=tuple(engine.digests(blocks)) if digests else (None,) * len(blocks),
                handover=answer.handover,
            )
        )
    return tuple(sorted(results, key=lambda result: result.index))
