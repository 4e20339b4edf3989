# SPDX-License-Identifier: Apache-2.0
"""Fourth check, the A/A control: does each leg repeat itself bit for bit?

Without that no difference between the legs can be blamed on the store, so no A/B claim is made.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

from harness.compare.digests import digested
from harness.compare.pair import Pair, finding, matched
from harness.compare.steps import compare_steps, token_words
from harness.records import Finding, FindingKind, Phase, PromptResult, Role

#: Per role: what a difference is called, and the two phases that must be equal.
CONTROLS = {
    Role.ORACLE: (FindingKind.ORACLE_UNSTABLE, Phase.RECOMPUTE, Phase.RECOMPUTE_AGAIN),
    Role.SUBJECT: (FindingKind.SUBJECT_UNSTABLE, Phase.RESTORE, Phase.RESTORE_AGAIN),
}


def check_control(pair: Pair) -> Iterator[Finding]:
    """At most one finding per leg: its first difference and the number of prompts that have one."""
    for role, (kind, once, again) in CONTROLS.items():
        if role is Role.SUBJECT and not pair.repeats:
            continue
        first, second = pair.record(role, once), pair.record(role, again)
        if first is None or second is None:
            continue
        pairs = matched(first.prompts, second.prompts)
        if not pair.subject_leg.decode.max_tokens:
            yield from _check_blocks(pair, kind, role, once, again, pairs)
            continue
        unequal = []
        for one, two in pairs:
            likeness = compare_steps(one.steps, two.steps)
            if not likeness.same_tokens or likeness.first_unequal is not None:
                unequal.append((one, two, likeness))
        if not unequal:
            continue
        one, two, likeness = unequal[0]
        place = likeness.before if likeness.first_unequal is None else likeness.first_unequal
        left, right = token_words(one, place), token_words(two, place)
        yield finding(
            kind,
            f"the {role} does not repeat itself: {again} differs from {once} in {len(unequal)} of {len(pairs)} prompts,"
            f" first at prompt {one.index}, token {place}: {left} vs {right}",
            place=f"{role}, prompt {one.index}, token {place}", left=left, right=right, size=likeness.summary(),
            limit="bitwise equal",
        )


def _check_blocks(
    pair: Pair, kind: FindingKind, role: Role, once: Phase, again: Phase,
    pairs: tuple[tuple[PromptResult, PromptResult], ...],
) -> Iterator[Finding]:
    """Where no token is generated the KV blocks are the answer; one without a digest does not repeat itself either."""
    observation = pair.oracle if role is Role.ORACLE else pair.subject
    resolved = observation.resolved if observation else None
    for one, two in pairs:
        for block, (left, right) in enumerate(zip_longest(one.kv, two.kv)):
            if left != right or not digested(left, right, resolved):
                yield finding(
                    kind,
                    f"the {role} does not repeat itself: KV block {block} of prompt {one.index} differs between {once}"
                    f" and {again}",
                    place=f"{role}, prompt {one.index}, block {block}", left=f"{once}", right=f"{again}",
                    limit="bitwise equal",
                )
                return
