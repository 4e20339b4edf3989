# SPDX-License-Identifier: Apache-2.0
"""Subjects: what a scenario's connector alias means to vLLM (its ``kv_transfer_config``)."""

from __future__ import annotations

from typing import Any

from harness.errors import UsageError
from harness.records import SubjectSpec

#: Capacity of the embedded store's pool where a scenario does not say, MiB.
CAPACITY_MIB = 256


def kv_transfer_config(subject: SubjectSpec) -> dict[str, Any]:
    """The connector's configuration as ``vllm.LLM(kv_transfer_config=...)`` takes it.

    Raises:
        UsageError: the alias is not one of ours.
    """
    if subject.kv_transfer_config is not None:
        return dict(subject.kv_transfer_config)
    if subject.connector == "embedded":
        return _embedded(subject)
    raise UsageError(f"unknown connector alias {subject.connector!r}; valid: embedded, or a whole kv_transfer_config")


def _embedded(subject: SubjectSpec) -> dict[str, Any]:
    options = {"capacity_mib": CAPACITY_MIB, **subject.options}
    if subject.fault is not None:
        options["fault"] = subject.fault
    return {
        "kv_connector": "EmbeddedStoreConnector",
        "kv_connector_module_path": "harness.kvstore.connector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": options,
    }
