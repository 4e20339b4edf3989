# SPDX-License-Identifier: Apache-2.0
"""``decode_bench``: vLLM's DecodeBenchConnector fills KV with a constant and claims a hit; a control that must fail."""

from __future__ import annotations

from typing import Any

from harness.connectors.adapter import Adapter, transfer
from harness.records import SubjectSpec


def configure(subject: SubjectSpec) -> dict[str, Any]:
    """The connector with its own defaults."""
    return transfer("DecodeBenchConnector")


ADAPTER = Adapter(
    alias="decode_bench",
    connector="DecodeBenchConnector",
    configure=configure,
    evidence="none: its KV is made up, and its cell must fail",
    drain="it stores nothing",
)
