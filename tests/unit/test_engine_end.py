# SPDX-License-Identifier: Apache-2.0
"""An engine ends without a walk through everything its process ever imported; the collector itself is as before."""

from __future__ import annotations

import gc

import pytest

from harness.engines.vllm import no_garbage_collected


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
