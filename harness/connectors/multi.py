# SPDX-License-Identifier: Apache-2.0
"""``multi``: vLLM's MultiConnector over ``example`` and ``embedded``; it loads from the first that has something."""

from __future__ import annotations

from typing import Any

from harness.connectors import embedded, example
from harness.connectors.adapter import Adapter
from harness.records import SubjectSpec


def configure(subject: SubjectSpec) -> dict[str, Any]:
    """Both children store; ``example`` is asked first."""
    children = [example.configure(subject), embedded.configure(subject)]
    return {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"connectors": children},
    }


ADAPTER = Adapter(
    alias="multi",
    connector="MultiConnector",
    configure=configure,
    evidence="the scheduler's hits per request; KV digests over zeroed blocks; the child that loads counts nothing",
    drain="when both children's are",
    survives_restart=True,
)
