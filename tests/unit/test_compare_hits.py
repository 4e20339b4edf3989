# SPDX-License-Identifier: Apache-2.0
"""Evidence of prompt sets: hits by source, by prompt and by phase; preemption and chunks; both restores; no digests."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest

from harness.records import Certainty, Edge, FindingKind, Outcome, Phase, Role
from tests.unit.handmade import (
    BLOCK,
    HIT,
    ORACLE,
    PROMPTS,
    RECOMPUTES,
    RESTORED,
    SUBJECT,
    Case,
    clean,
    digest_block,
    edit,
    edit_prompt,
    make_hits,
    only,
    resolve,
    verdict_of,
)


def findings(case: Case) -> list[tuple[FindingKind, str]]:
    return [(one.kind, one.place) for one in verdict_of(case).findings]


def expecting(case: Case, role: Role, phases: tuple[Phase, ...], **changes) -> Case:
    """The case with other hits expected of some phases."""
    hits = tuple(replace(one, **changes) if one.role is role and one.phase in phases else one for one in case.cell.hits)
    return replace(case, cell=replace(case.cell, hits=hits))


def local_then_external() -> Case:
    """Prompt 0 has one block local and one external in a restore, prompt 1 both external; and so it was."""
    case = expecting(clean(), SUBJECT, RESTORED, local=(BLOCK, 0), external=(BLOCK, HIT))
    case = edit(case, SUBJECT, RESTORED, local_tokens=BLOCK, external_tokens=BLOCK + HIT, delivered_tokens=BLOCK + HIT,
                loaded_bytes=(BLOCK + HIT) * 64)
    case = edit_prompt(case, SUBJECT, RESTORED, 0, local_tokens=BLOCK, external_tokens=BLOCK)
    return edit_prompt(case, SUBJECT, RESTORED, 1, local_tokens=0, external_tokens=HIT)


def test_local_and_external_parts_of_a_restore_are_counted_apart():
    case = local_then_external()
    assert verdict_of(case).findings == ()
    assert verdict_of(case).compared.blocks == PROMPTS * HIT // BLOCK
    swapped = edit_prompt(case, SUBJECT, Phase.RESTORE, 0, local_tokens=0, external_tokens=HIT)
    swapped = edit_prompt(swapped, SUBJECT, Phase.RESTORE, 1, local_tokens=BLOCK, external_tokens=BLOCK)
    assert findings(swapped) == [
        (FindingKind.EXTERNAL_HITS, "subject restore, prompt 0"),
        (FindingKind.EXTERNAL_HITS, "subject restore, prompt 1"),
    ]
    assert verdict_of(swapped).findings[0].message == (
        "subject restore, prompt 0: 0 local and 8 external hit tokens, 4 local and 4 external expected"
    )


def test_a_restore_without_its_local_part_is_vacuous():
    case = edit(local_then_external(), SUBJECT, RESTORED, local_tokens=0, external_tokens=2 * HIT, delivered_tokens=16)
    assert {kind for kind, _ in findings(case)} == {FindingKind.EXTERNAL_HITS, FindingKind.LOCAL_HITS}
    assert verdict_of(case).outcome is Outcome.VACUOUS


def test_blocks_of_the_local_part_may_be_where_they_were():
    case = edit_prompt(local_then_external(), SUBJECT, Phase.RESTORE, 0, blocks=(0, 5))
    assert verdict_of(case).findings == ()
    assert only(edit_prompt(case, SUBJECT, Phase.RESTORE, 0, blocks=(4, 1))).kind is FindingKind.SAME_BLOCKS


def test_a_cold_pass_may_hit_what_it_left_itself_and_nothing_else():
    case = expecting(clean(), SUBJECT, (Phase.POPULATE,), local=(0, HIT))
    assert only(case).message == (
        "subject populate must hit 8 local, 0 external tokens of its own prompts, it had 0 local and 0 external hit"
        " tokens"
    )
    hit = edit(case, SUBJECT, Phase.POPULATE, local_tokens=HIT)
    hit = edit_prompt(hit, SUBJECT, Phase.POPULATE, 1, cached_tokens=HIT)
    assert verdict_of(hit).findings == ()
    other = edit_prompt(hit, SUBJECT, Phase.POPULATE, 1, cached_tokens=0)
    assert only(edit_prompt(other, SUBJECT, Phase.POPULATE, 0, cached_tokens=HIT)).kind is FindingKind.POPULATE_NOT_COLD


def small_pool() -> Case:
    """Every pass preempts; the local hits are what was left, the rest from the store."""
    case = expecting(clean(edge=Edge.PREEMPTION), SUBJECT, (Phase.LOCAL_HIT,), certain=Certainty.SUM)
    case = expecting(case, ORACLE, (Phase.LOCAL_HIT,), certain=Certainty.LIMIT)
    case = edit(case, ORACLE, RECOMPUTES, preemptions=2)
    return edit(case, SUBJECT, (Phase.POPULATE, *RESTORED), preemptions=1)


def test_what_is_checked_in_a_small_pool():
    case = small_pool()
    assert verdict_of(case).findings == ()
    assert verdict_of(edit(case, SUBJECT, Phase.LOCAL_HIT, local_tokens=4, external_tokens=12)).findings == ()
    short = edit(case, SUBJECT, Phase.LOCAL_HIT, local_tokens=4, external_tokens=8)
    assert only(short).message == "subject local_hit: 12 local and external hit tokens, exactly 16 expected"
    evicted = edit(case, ORACLE, Phase.LOCAL_HIT, local_tokens=8)
    evicted = edit_prompt(evicted, ORACLE, Phase.LOCAL_HIT, 0, cached_tokens=0)
    assert verdict_of(evicted).findings == ()
    beyond = edit_prompt(evicted, ORACLE, Phase.LOCAL_HIT, 0, cached_tokens=HIT + 1)
    assert only(beyond).message == "oracle local_hit: the prompts had 9, 8 cached tokens, at most 8, 8 expected"


def test_a_small_pool_forgives_no_restore_that_is_not_exact():
    case = edit(small_pool(), SUBJECT, Phase.RESTORE, external_tokens=12, delivered_tokens=12)
    assert only(case).kind is FindingKind.EXTERNAL_HITS


def test_a_preempted_request_is_loaded_again_into_whatever_blocks_there_are():
    case = edit(small_pool(), SUBJECT, RESTORED, delivered_tokens=40)
    assert verdict_of(edit_prompt(case, SUBJECT, Phase.RESTORE, 0, blocks=(0, 1))).findings == ()
    less = edit(case, SUBJECT, Phase.RESTORE, delivered_tokens=15)
    assert only(less).kind is FindingKind.NOTHING_DELIVERED


def test_bytes_beyond_the_tokens_are_a_failure_even_of_a_restore_that_answers_right():
    """16 tokens of 2 layers, 2 head slots, 8 elements of 2 bytes."""
    found = only(edit(clean(), SUBJECT, Phase.RESTORE, loaded_bytes=16 * 1024))
    assert (found.kind, found.outcome, found.left, found.right, found.size) == (
        FindingKind.OVERRUN, Outcome.FAIL, "1024 bytes", "16384 bytes", "+15360 bytes")
    for unknown in (edit(small_pool(), SUBJECT, RESTORED, loaded_bytes=2048),
                    edit(clean(), SUBJECT, RESTORED, loaded_bytes=None),
                    resolve(edit(clean(), SUBJECT, RESTORED, loaded_bytes=9999), SUBJECT, dtype="float4")):
        assert FindingKind.OVERRUN not in {one.kind for one in verdict_of(unknown).findings}


def nothing_given(loaded: int) -> Case:
    """A subject that gives nothing back by design, and whose connector says that it loaded so many bytes."""
    hits = tuple(
        replace(one, external=(0,) * PROMPTS) if one.role is SUBJECT and one.phase in RESTORED else one
        for one in make_hits()
    )
    case = edit(clean(hits=hits, restores=False), SUBJECT, RESTORED, external_tokens=0, delivered_tokens=0,
                loaded_bytes=loaded)
    for index in range(PROMPTS):
        case = edit_prompt(case, SUBJECT, RESTORED, index, cached_tokens=0)
    return case


def test_bytes_where_none_were_promised_are_a_failure():
    assert verdict_of(nothing_given(0)).findings == ()
    first, second = verdict_of(nothing_given(1)).findings
    assert (first.kind, first.outcome, first.place, second.place) == (
        FindingKind.OVERRUN, Outcome.FAIL, "subject restore", "subject restore_again")
    assert first.message == "subject restore: the connector loaded 1 bytes, the KV of 0 tokens has 0"
    # A store that was asked for too little has a finding for that, and its bytes may be those that were expected.
    asked = edit(clean(), SUBJECT, Phase.RESTORE, external_tokens=0, delivered_tokens=0)
    assert {kind for kind, _ in findings(asked)} == {FindingKind.EXTERNAL_HITS}


def test_a_small_pool_keeps_at_least_one_digest():
    case = edit_prompt(small_pool(), SUBJECT, RESTORED, 0, kv=(None, None))
    assert verdict_of(case).findings == ()
    assert only(edit_prompt(case, SUBJECT, RESTORED, 1, kv=(None, None))).kind is FindingKind.DIGESTS_MISSING


@pytest.mark.parametrize("preemptions", [0, None])
def test_a_pass_that_preempted_nobody_is_vacuous(preemptions):
    case = edit(small_pool(), SUBJECT, Phase.RESTORE, preemptions=preemptions)
    assert (only(case).kind, only(case).place) == (FindingKind.EDGE_NOT_REACHED, "subject restore")


@pytest.mark.parametrize(("steps", "reached"), [(3, True), (2, True), (1, False), (None, False)])
def test_a_prompt_that_was_computed_in_one_step_was_not_chunked(steps, reached):
    case = clean(edge=Edge.CHUNKS)
    for role, phases in ((ORACLE, RECOMPUTES), (SUBJECT, (Phase.POPULATE,))):
        for index in range(PROMPTS):
            case = edit_prompt(case, role, phases, index, prefill_steps=3)
    case = edit_prompt(case, SUBJECT, Phase.POPULATE, 1, prefill_steps=steps)
    found = [] if reached else [(FindingKind.EDGE_NOT_REACHED, "subject populate")]
    assert findings(case) == found


@pytest.mark.parametrize(("aborted", "reached"), [(1, True), (0, False), (None, False)])
def test_a_load_that_nobody_aborted_is_vacuous_and_one_that_was_may_end_late(aborted, reached):
    case = edit(clean(edge=Edge.ABORT), SUBJECT, RESTORED, aborted_loads=1, delivered_tokens=24, loaded_bytes=1536)
    case = edit(case, SUBJECT, Phase.RESTORE_AGAIN, aborted_loads=aborted)
    assert findings(case) == ([] if reached else [(FindingKind.EDGE_NOT_REACHED, "subject restore_again")])


def test_prompts_that_are_too_short_say_so_and_nothing_else():
    case = clean(hits=make_hits(0))
    for role, phases in ((ORACLE, (Phase.LOCAL_HIT,)), (SUBJECT, (Phase.LOCAL_HIT, *RESTORED))):
        case = edit(case, role, phases, local_tokens=0, external_tokens=0)
        for index in range(PROMPTS):
            case = edit_prompt(case, role, phases, index, cached_tokens=0)
    case = edit(case, SUBJECT, RESTORED, delivered_tokens=0, loaded_bytes=0)
    assert only(case).kind is FindingKind.NOTHING_COMPARED
    assert verdict_of(case).verdict is Outcome.VACUOUS
    assert verdict_of(case).compared.blocks == 0


# --- digests ----------------------------------------------------------------------------------------------------

DAMAGED = (digest_block(1, 0), digest_block(1, 1, ((1, 0, 0),)))


def test_damage_that_only_the_second_restore_has():
    found = only(edit_prompt(clean(), SUBJECT, Phase.RESTORE_AGAIN, 1, kv=DAMAGED))
    assert found.message == (
        "KV restored again is not that of oracle recompute: layer 1, head slot 0, K only, block 1 of prompt 1"
    )
    assert (found.kind, found.right) == (FindingKind.KV_DIGESTS, "subject restore_again")


def test_damage_of_both_restores_is_told_once():
    found = only(edit_prompt(clean(), SUBJECT, RESTORED, 1, kv=DAMAGED))
    assert found.place == "subject restore"


def test_a_block_that_only_the_second_restore_lacks_is_missed():
    found = only(edit_prompt(clean(), SUBJECT, Phase.RESTORE_AGAIN, 1, kv=(None, None)))
    assert (found.kind, found.place) == (FindingKind.DIGESTS_MISSING, "subject restore_again")


def test_without_batch_invariance_both_are_held_against_what_was_stored():
    case = clean(batch_invariant=False)
    case = replace(case, legs={name: replace(leg, batch_invariant=False) for name, leg in case.legs.items()})
    for role in Role:
        side = getattr(case, role.value)
        side = replace(side, resolved=replace(side.resolved, batch_invariant=False))
        case = replace(case, **{role.value: side})
    # Rounding: the oracle's recompute has other bits, and nobody minds.
    rounded = edit_prompt(case, ORACLE, Phase.RECOMPUTE, 1, kv=DAMAGED)
    assert verdict_of(rounded).findings == ()
    stored = edit_prompt(case, SUBJECT, Phase.POPULATE, 1, kv=DAMAGED)
    assert only(stored).message.startswith("restored KV is not that of subject populate: layer 1")


def test_without_digests_a_cell_passes_on_values_and_compares_no_block():
    case = clean()
    legs = {name: replace(leg, digests=False) for name, leg in case.legs.items()}
    for role, phases in ((ORACLE, (Phase.RECOMPUTE,)), (SUBJECT, (Phase.POPULATE, *RESTORED))):
        for index in range(PROMPTS):
            case = edit_prompt(case, role, phases, index, kv=(None, None))
    assert only(case).kind is FindingKind.DIGESTS_MISSING
    off = replace(case, legs=legs)
    assert (verdict_of(off).outcome, verdict_of(off).compared.blocks) == (Outcome.PASS, 0)


@pytest.mark.parametrize("batch_invariant", [True, False])
def test_where_a_block_was_stored_from_must_be_known_whatever_its_digest_is_held_against(batch_invariant):
    """Of a batch invariant subject nobody looks at populate's digests: the oracle's recompute is the reference."""
    case = clean(batch_invariant=batch_invariant)
    for role in Role:
        case = resolve(case, role, batch_invariant=batch_invariant)
    for blocks, known in (((), 0), ((10,), 1)):
        kv = case.subject.phase(Phase.POPULATE).prompts[1].kv
        found = only(edit_prompt(case, SUBJECT, Phase.POPULATE, 1, blocks=blocks, kv=kv))
        assert (found.kind, found.outcome, found.right) == (
            FindingKind.SAME_BLOCKS, Outcome.VACUOUS, f"{known} of 2 known")
    # Where a block was restored to is known with its digest.
    lost = only(edit_prompt(case, SUBJECT, Phase.RESTORE, 1, blocks=(), kv=()))
    assert lost.kind is FindingKind.DIGESTS_MISSING
    local = edit_prompt(local_then_external(), SUBJECT, Phase.POPULATE, 0, blocks=())
    assert (only(local).kind, only(local).right) == (FindingKind.SAME_BLOCKS, "0 of 1 known")


def short_digests(digests: int) -> str:
    """A block's base64 of fewer digests than its layers have."""
    return base64.b64encode(bytes(8 * digests)).decode()


@pytest.mark.parametrize(("digests", "known"), [(0, False), (1, False), (3, False), (4, True), (8, True)])
def test_equal_blocks_count_when_each_layer_has_a_digest_of_k_and_of_v(digests, known):
    """2 layers: 4 digests at least; an empty string is none at all."""
    case = edit_prompt(clean(), ORACLE, Phase.RECOMPUTE, 1, kv=(digest_block(1, 0), short_digests(digests)))
    case = edit_prompt(case, SUBJECT, RESTORED, 1, kv=(digest_block(1, 0), short_digests(digests)))
    found = [] if known else [(FindingKind.DIGESTS_MISSING, "subject restore")]
    assert findings(case) == found
    assert verdict_of(case).compared.blocks == 3 + known


def test_digests_of_another_number_on_one_side_are_unequal_and_an_empty_one_is_missing():
    case = edit_prompt(clean(), SUBJECT, RESTORED, 1, kv=(digest_block(1, 0), short_digests(1)))
    assert findings(case) == [(FindingKind.KV_DIGESTS, "subject restore")]
    case = edit_prompt(clean(), SUBJECT, RESTORED, 1, kv=(digest_block(1, 0), ""))
    assert findings(case) == [(FindingKind.DIGESTS_MISSING, "subject restore")]


def test_without_digests_blocks_that_nobody_knows_are_vacuous():
    case = clean()
    off = replace(case, legs={name: replace(leg, digests=False) for name, leg in case.legs.items()})
    assert verdict_of(off).outcome is Outcome.PASS
    for role_phase, blocks, known in ((Phase.POPULATE, (), 0), (Phase.RESTORE, (), 0), (Phase.RESTORE, (20,), 1)):
        found = only(edit_prompt(off, SUBJECT, role_phase, 1, blocks=blocks))
        assert (found.kind, found.outcome) == (FindingKind.SAME_BLOCKS, Outcome.VACUOUS)
        assert found.message.startswith(f"prompt 1: where {2 - known} of its 2 blocks were stored from or restored to")
        assert (found.right, found.place) == (f"{known} of 2 known", "subject restore, prompt 1")
