# SPDX-License-Identifier: Apache-2.0
"""``mooncake_store``: vLLM's MooncakeStoreConnector over a Mooncake master (``harness.servers``), protocol TCP.

Its keys hold the model, ranks and block hashes, no layout and no dtype; a prefix of the leg's own keeps the legs of a
run apart, which share one master. The objects live in a segment that the engine itself contributes and that ends with
it, so a new engine finds the master and nothing in it.
"""

from __future__ import annotations

from typing import Any

from harness.connectors.adapter import LEG, Adapter, Bytes, Metric, Need, transfer
from harness.records import SubjectSpec

HINT = "Run `make connectors`; Debian also needs libibverbs1, libnl-3-200 and libnl-route-3-200."

NEEDS = (
    Need(name="mooncake-transfer-engine-non-cuda 0.3.13.post1", module="mooncake", hint=HINT),
    Need(name="libibverbs", library="ibverbs", hint=HINT),
)

OPERATIONS = "vllm:mooncake_store_operation_bytes"


def configure(subject: SubjectSpec) -> dict[str, Any]:
    """The connector with keys of the leg's own; its other settings are in the file that the server's fixture writes."""
    return transfer("MooncakeStoreConnector", {"cache_prefix": f"kvparity-{LEG}"})


ADAPTER = Adapter(
    alias="mooncake_store",
    connector="MooncakeStoreConnector",
    configure=configure,
    bytes_moved=Bytes(
        loaded=Metric(name=OPERATIONS, labels={"operation": "load_get", "status": "ok"}),
        stored=Metric(name=OPERATIONS, labels={"operation": "save_put", "status": "ok"}),
    ),
    evidence="vllm:mooncake_store_operation_bytes of load_get; KV digests over zeroed blocks",
    drain="when its sending thread has put them; the scheduler keeps stepping while some are under way",
    needs=NEEDS,
    server="mooncake",
)
