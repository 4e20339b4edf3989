# SPDX-License-Identifier: Apache-2.0
"""``multi``: vLLM's MultiConnector over ``example`` and ``offloading_cpu``; it loads from the first that has something.

A child from outside vLLM's registry that reports statistics cannot be among them: docs/found.md, F1.
"""

from __future__ import annotations

from typing import Any

from harness.connectors import example, offloading
from harness.connectors.adapter import Adapter, transfer
from harness.records import SubjectSpec


def configure(subject: SubjectSpec) -> dict[str, Any]:
    """Both children store; ``example`` is asked first."""
    children = [example.configure(subject), offloading.configure_cpu(subject)]
    return transfer("MultiConnector", {"connectors": children})


ADAPTER = Adapter(
    alias="multi",
    connector="MultiConnector",
    configure=configure,
    evidence="the scheduler's hits per request; KV digests over zeroed blocks; the child that loads counts nothing",
    drain="when both children's are",
    survives_restart=True,
)
