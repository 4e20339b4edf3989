# SPDX-License-Identifier: Apache-2.0
"""``nixl``: vLLM's NixlConnector, which reads a prompt's blocks out of another live engine's memory.

It keeps no store, so it can only restore between two engines. ``kv_role`` is each engine's own (``kv_producer``,
``kv_consumer``) and replaced when it starts. The engine that prefills holds a prompt's blocks until they were read, or
until a lease ends that the other one renews; a lease longer than any leg keeps a slow machine from losing them.
"""

from __future__ import annotations

from typing import Any

from harness.connectors.adapter import Adapter, Bytes, Metric, Need, transfer
from harness.records import PREFILL_DECODE, SubjectSpec

HINT = "Run `make connectors`."

NEEDS = (
    Need(name="nixl 1.5.1", module="nixl", hint=HINT),
    Need(name="nixl-cu12 1.5.1", module="nixl_cu12", hint=HINT),
)

#: Seconds for which blocks are held without a sign of life.
LEASE_S = 3600


def configure(subject: SubjectSpec) -> dict[str, Any]:
    """The connector over tensors in host memory."""
    return {**transfer("NixlConnector", {"kv_lease_duration": LEASE_S}), "kv_buffer_device": "cpu"}


ADAPTER = Adapter(
    alias="nixl",
    connector="NixlConnector",
    configure=configure,
    bytes_moved=Bytes(loaded=Metric(name="vllm:nixl_bytes_transferred")),
    evidence="the scheduler's hits per request, each prompt whole; vllm:nixl_bytes_transferred, exactly the blocks'"
    " bytes; KV digests over zeroed blocks",
    drain="nothing is stored; blocks that were handed over are free again once they were read",
    env={"VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1"},
    needs=NEEDS,
    paths=(PREFILL_DECODE,),
)
