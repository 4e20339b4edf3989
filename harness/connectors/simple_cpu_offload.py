# SPDX-License-Identifier: Apache-2.0
"""``simple_cpu_offload``: vLLM's SimpleCPUOffloadConnector, which needs device streams and so refuses a CPU host."""

from __future__ import annotations

from typing import Any

from harness.connectors.adapter import Adapter, transfer
from harness.connectors.offloading import HOST_BYTES
from harness.records import SubjectSpec


def configure(subject: SubjectSpec) -> dict[str, Any]:
    """The connector with as much host memory as the other offloading subjects."""
    return transfer("SimpleCPUOffloadConnector", {"cpu_bytes_to_use": HOST_BYTES})


ADAPTER = Adapter(
    alias="simple_cpu_offload",
    connector="SimpleCPUOffloadConnector",
    configure=configure,
    # It asks a stream for its priorities before it asks for the platform.
    refusals=("type object '_StreamPlaceholder' has no attribute 'priority_range'",),
    evidence="none on a CPU host: it refuses, in its words",
    drain="when the stream that stores has been synchronised",
)
