# SPDX-License-Identifier: Apache-2.0
"""What scheduler and worker halves tell each other, in one process or across processes: plain picklable records."""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)


@dataclass(frozen=True)
class Move:
    """Blocks of one request that are stored or loaded together; the three tuples run in parallel.

    Attributes:
        id: unique number.
        request: request id.
        blocks: block ids in the KV tensors.
        slots: slots in the pool.
        keys: what the slots hold or will hold.
    """

    id: int
    request: str
    blocks: tuple[int, ...]
    slots: tuple[int, ...]
    keys: tuple[bytes, ...]


@dataclass
class Orders(KVConnectorMetadata):
    """One step's work for the workers.

    Attributes:
        epoch: how many load failures the scheduler knew of; stores of an epoch in which a load failed are void, because
            their blocks may have been computed over missing KV.
        loads: to be done before this step's forward pass (sync) or any time (async).
        stores: to be done after it, before any block can be reused.
    """

    epoch: int
    loads: tuple[Move, ...] = ()
    stores: tuple[Move, ...] = ()


@dataclass
class Report(KVConnectorWorkerMetadata):
    """What one step's work came to.

    Attributes:
        epoch: of the orders.
        stored: keys whose bytes are complete.
        dropped: keys that were not stored.
        loaded: ids of loads that ended, well or not.
        missing: keys that the pool did not hold.
        failed: whether any load failed since the epoch began.
    """

    epoch: int
    stored: set[bytes] = field(default_factory=set)
    dropped: set[bytes] = field(default_factory=set)
    loaded: set[int] = field(default_factory=set)
    missing: set[bytes] = field(default_factory=set)
    failed: bool = False

    def aggregate(self, other: KVConnectorWorkerMetadata) -> Report:
        """Of several ranks: a key is stored when all have it, missing when one has not."""
        assert isinstance(other, Report)
        dropped = self.dropped | other.dropped
        return Report(
            epoch=max(self.epoch, other.epoch),
            stored=(self.stored | other.stored) - dropped,
            dropped=dropped,
            loaded=self.loaded | other.loaded,
            missing=self.missing | other.missing,
            failed=self.failed or other.failed,
        )


@dataclass
class Hello(KVConnectorHandshakeMetadata):
    """A worker's pool, told once when the engine starts.

    Attributes:
        slots: objects that fit.
        object_bytes: size of one object.
        identity: digest of all that changes an object's bytes beside its tokens.
    """

    slots: int
    object_bytes: int
    identity: str
