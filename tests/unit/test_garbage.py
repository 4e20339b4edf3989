# SPDX-License-Identifier: Apache-2.0
"""The garbage collector rests where it would find nothing, and is as before afterwards, whatever happens meanwhile."""

from __future__ import annotations

import gc

import pytest

from harness.garbage import collector_at_rest, no_garbage_collected


def test_nothing_is_collected_or_unfrozen_meanwhile():
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        with no_garbage_collected():
            assert gc.collect() == 0
            gc.unfreeze()
            assert gc.get_freeze_count() == frozen > 0
    finally:
        gc.unfreeze()
    assert gc.get_freeze_count() == 0


def test_an_error_on_the_way_leaves_the_collector_as_it_was():
    before = gc.collect, gc.unfreeze
    with pytest.raises(RuntimeError, match="connector"), no_garbage_collected():
        raise RuntimeError("connector")
    assert (gc.collect, gc.unfreeze) == before


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_rests_and_is_then_as_it_was(enabled):
    was = gc.isenabled()
    try:
        gc.enable() if enabled else gc.disable()
        with pytest.raises(ValueError, match="half a file"), collector_at_rest():
            assert not gc.isenabled()
            raise ValueError("half a file")
        assert gc.isenabled() is enabled
    finally:
        gc.enable() if was else gc.disable()
