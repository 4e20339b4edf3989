# SPDX-License-Identifier: Apache-2.0
"""``umbp``: vLLM's UMBP connector from a source overlay (``harness.overlay``), in its embedded mode."""

from __future__ import annotations

from typing import Any

from harness.connectors.adapter import LEVELS, PROCESS, Adapter, Bytes, Metric, Option, transfer
from harness.connectors.embedded import CAPACITY_MIB
from harness.records import SubjectSpec


def configure(subject: SubjectSpec) -> dict[str, Any]:
    """UMBP's embedded mode with the subject's options."""
    given = subject.options
    options: dict[str, Any] = {
        "mode": "embedded",
        "capacity_bytes": int(given.get("capacity_mib", CAPACITY_MIB)) * 2**20,
        # Engines of one model and layout on one host would share the socket that their lookups go through.
        "lookup_instance": f"kvparity-{PROCESS}",
    }
    if "load" in given:
        options["load_async"] = given["load"] == "async"
    if "transfer" in given:
        options["transfer"] = given["transfer"]
    module = "vllm.distributed.kv_transfer.kv_connector.v1.umbp.connector"
    return transfer("UMBPStoreConnector", options, module=module)


ADAPTER = Adapter(
    alias="umbp",
    connector="UMBPStoreConnector",
    configure=configure,
    options={
        "overlay": Option(text=True),
        "capacity_mib": Option(at_least=1),
        "transfer": Option(values=("bulk", "ranges")),
        "load": Option(values=("sync", "async")),
        "level": Option(values=LEVELS),
    },
    bytes_moved=Bytes(
        loaded=Metric(name="vllm:umbp_transfer_bytes", labels={"operation": "load"}),
        stored=Metric(name="vllm:umbp_transfer_bytes", labels={"operation": "store"}),
    ),
    evidence="vllm:umbp_transfer_bytes by operation; KV digests",
    drain="blocks stay held until their stores have ended",
)
