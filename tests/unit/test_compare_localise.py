# SPDX-License-Identifier: Apache-2.0
"""The words that name damaged KV: the smallest description that covers it, exactly."""

from __future__ import annotations

import base64

import pytest

from harness.compare.digests import split_digests, unequal_digests
from harness.compare.localise import DigestShape, describe
from harness.records import Compared, FindingKind, Phase, Role
from tests.unit.handmade import clean, digest_block, edit_prompt, resolve, verdict_of

SHAPE = DigestShape(layers=28, slots=8, halves=2)
BLOCKS = {(prompt, block) for prompt in range(3) for block in range(12)}


def positions(layers=range(28), slots=range(8), halves=(0, 1)):
    return frozenset((layer * 8 + slot) * 2 + half for layer in layers for slot in slots for half in halves)


@pytest.mark.parametrize(
    ("unequal", "words"),
    [
        (dict.fromkeys(BLOCKS, positions()), "all 28 layers of every block"),
        (dict.fromkeys(BLOCKS, positions(slots=range(1, 8))), "all 28 layers, head slots 1-7 of every block"),
        (dict.fromkeys(BLOCKS, positions(halves=(1,))), "all 28 layers, V only of every block"),
        (dict.fromkeys(BLOCKS, positions(layers=(5,), halves=(0,))), "layer 5, K only"),
        (dict.fromkeys(BLOCKS, positions(layers=(0, 1, 5), slots=(3,))), "layers 0-1, 5, head slot 3"),
        ({(1, 3): positions()}, "block 3 of prompt 1"),
        ({(1, 3): positions(layers=(5,), slots=(2,))}, "layer 5, head slot 2, block 3 of prompt 1"),
        ({(0, 0): positions(slots=(0,))}, "all 28 layers, head slot 0, block 0 of prompt 0"),
        ({(prompt, 11): positions() for prompt in range(3)}, "block 11 of every prompt"),
        ({(2, block): positions() for block in range(12)}, "every block of prompt 2"),
        (
            dict.fromkeys([(0, 1), (0, 2), (2, 7)], positions()),
            "blocks 1-2 of prompt 0 and block 7 of prompt 2",
        ),
        (
            {(0, 0): positions(layers=(1,)), (1, 3): positions(layers=(2,))},
            "layer 1, block 0 of prompt 0; layer 2, block 3 of prompt 1",
        ),
        (
            dict.fromkeys(BLOCKS, positions(layers=(0,)) | positions(layers=range(1, 28), slots=range(1, 8))),
            "layer 0; layers 1-27, head slots 1-7",
        ),
        (
            {(0, block): positions(layers=(block,), slots=(block,)) for block in range(4)},
            "within layers 0-3, head slots 0-3, blocks 0-3 of prompt 0 (8 of 128 digests there)",
        ),
    ],
)
def test_damage_is_named(unequal, words):
    assert describe(unequal, BLOCKS, SHAPE) == words


def test_digests_without_halves_and_of_one_layer():
    assert describe({(0, 0): frozenset({1})}, {(0, 0), (0, 1)}, DigestShape(1, 4, 1)) == (
        "head slot 1, block 0 of prompt 0"
    )


def test_digests_of_another_length_differ_everywhere():
    one, two = (base64.b64encode(bytes(8 * count)).decode() for count in (2, 3))
    assert unequal_digests(one, two) == {0, 1, 2}
    assert unequal_digests("not base64!", "nor this!") == {0}
    assert split_digests(base64.b64encode(bytes(9)).decode()) == ()


def test_the_finding_names_place_and_size():
    damaged = tuple((layer, slot, 1) for layer in range(2) for slot in range(2))
    case = edit_prompt(
        clean(), Role.SUBJECT, Phase.RESTORE, 1, kv=(digest_block(1, 0, damaged), digest_block(1, 1))
    )
    verdict = verdict_of(case)
    assert [(one.kind, one.message, one.size, one.left) for one in verdict.findings] == [(
        FindingKind.KV_DIGESTS,
        "restored KV is not that of oracle recompute: all 2 layers, V only, block 0 of prompt 1",
        "4 of 32 digests in 2 of 8 pages, 1 of 4 blocks", "oracle recompute",
    )]
    assert (verdict.compared.blocks, verdict.compared.blocks_equal) == (4, 3)


def test_without_batch_invariance_the_truth_is_what_was_stored():
    case = clean(batch_invariant=False)
    for role in Role:
        case = resolve(case, role, batch_invariant=False)
    rounding = (digest_block(0, 0, ((0, 0, 0),)), digest_block(0, 1))
    recomputed = edit_prompt(case, Role.ORACLE, Phase.RECOMPUTE, 0, kv=rounding)
    assert verdict_of(recomputed).findings == ()
    restored = edit_prompt(case, Role.SUBJECT, Phase.RESTORE, 0, kv=rounding)
    finding, = verdict_of(restored).findings
    assert finding.message == (
        "restored KV is not that of subject populate: layer 0, head slot 0, K only, block 0 of prompt 0"
    )


def test_blocks_that_were_recomputed_say_nothing():
    case = clean()
    for role, phase in ((Role.ORACLE, Phase.RECOMPUTE), (Role.SUBJECT, Phase.RESTORE)):
        record = getattr(case, role).phase(phase)
        for prompt in record.prompts:
            tail = digest_block(9, 9) if role is Role.SUBJECT else digest_block(8, 8)
            case = edit_prompt(case, role, phase, prompt.index, kv=(*prompt.kv, tail))
    verdict = verdict_of(case)
    assert (verdict.findings, verdict.compared) == ((), Compared(
        prompts=2, tokens=6, tokens_equal=6, logprobs=18, logprobs_equal=18, blocks=4, blocks_equal=4,
    ))
