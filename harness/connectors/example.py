# SPDX-License-Identifier: Apache-2.0
"""``example``: vLLM's ExampleConnector, a folder of safetensors files per prompt.

Its key is the hash of the prompt's token ids up to the last full block before the last token: no model, dtype, layout
or salt is part of it (vLLM, kv_connector/v1/example_connector.py).
"""

from __future__ import annotations

from typing import Any

from harness.connectors.adapter import FOLDER, Adapter, transfer
from harness.records import SubjectSpec


def configure(subject: SubjectSpec) -> dict[str, Any]:
    """The connector with a folder of the leg's own."""
    return transfer("ExampleConnector", {"shared_storage_path": FOLDER})


ADAPTER = Adapter(
    alias="example",
    connector="ExampleConnector",
    configure=configure,
    evidence="the scheduler's hits per request; KV digests over zeroed blocks; it counts nothing itself",
    drain="inside the forward pass that computed the prompt",
    survives_restart=True,
)
