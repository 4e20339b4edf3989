# SPDX-License-Identifier: Apache-2.0
"""Subjects: what a scenario's connector alias means to vLLM, and which source of the connector a leg runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.errors import UsageError
from harness.overlay import Overlay, OverlayError, find_overlay
from harness.records import SubjectSpec

#: Capacity of a store's pool where a scenario does not say, MiB.
CAPACITY_MIB = 256

#: Environment variable that names an overlay to use instead of the scenarios' own, as KVPARITY_MODEL does for a model.
OVERLAY_CHOICE = "KVPARITY_UMBP"

#: Stands for the number of the engine's process in a connector's options (``harness.engines.vllm``).
PROCESS = "{process}"


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a subject's connector comes from, as it enters the leg.

    Attributes:
        env: environment variables that make the engine use it.
        identity: facts that belong to the leg's digest.
        missing: why it cannot be had; None when it can.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    identity: Mapping[str, str] = field(default_factory=dict)
    missing: str | None = None


def kv_transfer_config(subject: SubjectSpec) -> dict[str, Any]:
    """The connector's configuration as ``vllm.LLM(kv_transfer_config=...)`` takes it.

    Raises:
        UsageError: the alias is not one of ours.
    """
    if subject.kv_transfer_config is not None:
        return dict(subject.kv_transfer_config)
    if subject.connector == "embedded":
        return _embedded(subject)
    if subject.connector == "umbp":
        return _umbp(subject)
    raise UsageError(
        f"unknown connector alias {subject.connector!r}; valid: embedded, umbp, or a whole kv_transfer_config"
    )


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


def _umbp(subject: SubjectSpec) -> dict[str, Any]:
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
    return {
        "kv_connector": "UMBPStoreConnector",
        "kv_connector_module_path": "vllm.distributed.kv_transfer.kv_connector.v1.umbp.connector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": options,
    }


def source_of(subject: SubjectSpec, find: Callable[[str | None], Overlay] = find_overlay) -> Source:
    """Find the source of a subject's connector; only ``umbp`` has one that can be chosen.

    Args:
        subject: the subject of one cell.
        find: ``harness.overlay.find_overlay``, or the same with a memory.
    """
    if subject.connector != "umbp" or subject.kv_transfer_config is not None:
        return Source()
    try:
        overlay = find(os.environ.get(OVERLAY_CHOICE) or subject.options.get("overlay"))
    except OverlayError as error:
        return Source(identity={"unavailable": str(error)}, missing=str(error))
    if overlay.has_runtime and subject.options.get("transfer") == "ranges":
        sentence = (
            f"overlay {overlay.origin}: its own runtime chooses between bulk and ranges by itself; "
            "transfer `ranges` cannot be asked for"
        )
        return Source(identity={"unavailable": sentence}, missing=sentence)
    return Source(
        env={"KVPARITY_OVERLAY": str(overlay.path) if overlay.path else "installed"},
        identity={"overlay": overlay.origin, "overlay_files": overlay.digest},
    )
