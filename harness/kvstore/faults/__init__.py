# SPDX-License-Identifier: Apache-2.0
"""Planted faults: stores that are wrong on purpose, so that the harness can prove that it notices.

This module holds their names and is free of vLLM, so that scenario files can be checked without it. A store without a
fault runs none of this package: the connector asks once, when it makes its halves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.kvstore.scheduler import StoreScheduler
    from harness.kvstore.worker import StoreWorker

#: Name that ``kv_connector_extra_config["fault"]`` may have -> what such a store does.
FAULTS: Mapping[str, str] = {
    "single_span": "takes a layer's page for one contiguous span",
    "head_slots_swapped": "exchanges the first two head slots of every restored block",
    "k_v_swapped": "exchanges K and V of every restored token",
    "block_off_by_one": "puts the next block's bytes into each restored block but the last",
    "token_off_by_one": "puts each restored token into the next token's place in its block",
    "blocks_exchanged": "exchanges the first two restored blocks of a request",
    "layer_skipped": "does not restore the last layer",
    "head_slot_skipped": "does not restore the last head slot of the first layer",
    "bit_flipped": "flips the lowest bit of one K value in the last restored block of a request",
    "zeros_restored": "restores zeros",
    "nan_restored": "restores NaN in the last block of a request",
    "load_dropped": "restores nothing, and counts it as delivered",
    "partial_block_claimed": "claims the last, partial block of a prompt as a full hit",
    "stale_object": "restores another prompt's objects under the right keys",
    "evicted_during_load": "overwrites an object while a load reads it",
    "overwritten_before_stored": "stores a preempted request's last block after it was given to another request",
    "block_lost_on_store": "zeroes a request's last block on the device once it is stored",
    "restored_late": "copies the bytes after the forward pass that needed them",
    "spilled_over": "restores a request's last block into the block behind it as well",
    "promise_not_delivered": "promises hits of objects that it has lost",
    "read_once": "loses an object's bytes once they were read",
    "key_without_layout": "leaves the layout out of its keys, and finds another cell's objects",
    "key_without_dtype": "leaves the dtype out of its keys, and finds another cell's objects",
    "key_without_batch_invariance": "leaves batch invariance out of its keys, and finds another cell's objects",
    "key_without_weights": "leaves the model out of its keys, and finds KV of other weights",
}


def worker_class(fault: str | None, *, outlives: bool = False) -> type[StoreWorker]:
    """The worker half of a store with that fault; ``single_span`` is a matter of the plan alone.

    ``outlives``: whether the store is one with a file, whose only faults are those of keys.
    """
    from harness.kvstore.worker import StoreWorker

    if outlives and fault is None:
        from harness.kvstore.objectfile import FileWorker

        return FileWorker
    if fault in (None, "single_span"):
        return StoreWorker
    from harness.kvstore.faults.workers import worker_with

    return worker_with(fault)


def scheduler_class(fault: str | None, *, outlives: bool = False) -> type[StoreScheduler]:
    """The scheduler half of a store with that fault; ``outlives`` as of ``worker_class``."""
    from harness.kvstore.scheduler import StoreScheduler

    if outlives and fault is None:
        from harness.kvstore.objectfile import FileScheduler

        return FileScheduler
    if fault is None:
        return StoreScheduler
    from harness.kvstore.faults.schedulers import SCHEDULERS

    return SCHEDULERS.get(fault, StoreScheduler)
