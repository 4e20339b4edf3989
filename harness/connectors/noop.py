# SPDX-License-Identifier: Apache-2.0
"""``noop``: a connector that stores and restores nothing, so that its cell says what merely having one changes."""

from __future__ import annotations

from typing import Any

from harness.connectors.adapter import Adapter, transfer
from harness.records import SubjectSpec


def configure(subject: SubjectSpec) -> dict[str, Any]:
    """Our connector, which inherits everything but what vLLM demands."""
    return transfer("NoopConnector", module="harness.plugin.noop_connector")


ADAPTER = Adapter(
    alias="noop",
    connector="NoopConnector",
    configure=configure,
    restores=False,
    evidence="0 external tokens; tokens, logprobs and KV digests equal to recompute. It restores nothing",
    drain="it stores nothing",
)
