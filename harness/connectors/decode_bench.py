# SPDX-License-Identifier: Apache-2.0
"""``decode_bench``: vLLM's DecodeBenchConnector fills KV with a constant and claims a hit; a control that must fail."""

from __future__ import annotations

from typing import Any

from harness.connectors.adapter import Adapter
from harness.records import SubjectSpec


def configure(subject: SubjectSpec) -> dict[str, Any]:
    """The connector with its own defaults."""
    return {"kv_connector": "DecodeBenchConnector", "kv_role": "kv_both"}


ADAPTER = Adapter(
    alias="decode_bench",
    connector="DecodeBenchConnector",
    configure=configure,
    evidence="none: its KV is made up, and its cell must fail",
    drain="it stores nothing",
    partial_blocks=True,
)
