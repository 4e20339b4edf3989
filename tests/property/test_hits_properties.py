# SPDX-License-Identifier: Apache-2.0
"""What holds of the hits of every prompt set, whatever its lengths."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from harness.errors import UsageError
from harness.hits import RESTORES, expected_hits, full_hit
from harness.prompt_sets import SETS, make_pass
from harness.records import Phase, PromptSpec, Role

SPECS = st.builds(
    PromptSpec, set=st.sampled_from(tuple(SETS)), count=st.integers(1, 5), prefix_tokens=st.integers(1, 90),
    tail_tokens=st.integers(0, 20), seed=st.integers(0, 3),
)


@given(spec=SPECS, block_size=st.sampled_from([1, 2, 5, 16]), late=st.booleans())
def test_where_a_set_was_served_before_every_prompt_is_served_whole(spec, block_size, late):
    try:
        way = make_pass(spec, 1024, block_size)
    except UsageError:
        assume(False)
    whole = [full_hit(len(prompt), block_size) for prompt in way.prompts]
    for hits in expected_hits(way, block_size, late_loads=late):
        both = [local + external for local, external in zip(hits.local, hits.external, strict=True)]
        if hits.phase is Phase.LOCAL_HIT or hits.phase in RESTORES:
            assert both == whole
        assert all(one % block_size == 0 for one in (*hits.local, *hits.external))
        assert hits.role is Role.SUBJECT or not any(hits.external)
        if hits.phase not in RESTORES:
            assert not any(hits.external)


@given(spec=SPECS, block_size=st.sampled_from([1, 2, 5, 16]))
def test_no_block_of_a_restore_is_computed_by_one_prompt_and_found_by_another(spec, block_size):
    """Else a restore's local hits would be of KV that did not come from the store."""
    try:
        way = make_pass(spec, 1024, block_size)
    except UsageError:
        assume(False)
    computed: set[tuple[int, ...]] = set()
    for index in way.hit_order:
        prompt = way.prompts[index]
        whole = full_hit(len(prompt), block_size)
        found = {prompt[:end] for end in range(block_size, whole + 1, block_size)}
        assert not found & computed
        computed |= {prompt[:end] for end in range(block_size, len(prompt) + 1, block_size)} - found
