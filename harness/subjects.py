# SPDX-License-Identifier: Apache-2.0
"""Subjects: what a scenario's connector alias means to vLLM, and which source of the connector a leg runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.connectors import ADAPTERS
from harness.errors import UsageError
from harness.overlay import Overlay, OverlayError, find_overlay
from harness.records import SubjectSpec
from harness.sources import NOT_FOUND, package_digest

#: Environment variable that names an overlay to use instead of the scenarios' own, as KVPARITY_MODEL does for a model.
OVERLAY_CHOICE = "KVPARITY_UMBP"


#: Alias -> when it loads where a scenario does not say; one that never loads is as good as in time.
LOADS: Mapping[str, str] = {
    "embedded": "sync", "embedded_file": "sync", "umbp": "async", "noop": "sync", "nixl": "async",
}


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
    adapter = ADAPTERS.get(subject.connector)
    if adapter is None:
        raise UsageError(
            f"unknown connector alias {subject.connector!r}; valid: {', '.join(ADAPTERS)}, or a whole "
            "kv_transfer_config"
        )
    return adapter.configure(subject)


def restores(subject: SubjectSpec) -> bool:
    """Whether KV can come back from the subject; one given whole is taken at its word."""
    adapter = ADAPTERS.get(subject.connector) if subject.kv_transfer_config is None else None
    return adapter is None or adapter.restores


def leaves(subject: SubjectSpec) -> int | None:
    """``Adapter.leaves`` of the subject; None for one given whole, of which nobody knows."""
    adapter = ADAPTERS.get(subject.connector) if subject.kv_transfer_config is None else None
    return None if adapter is None else adapter.leaves


def loads_late(subject: SubjectSpec) -> bool | None:
    """Whether the subject loads between steps and not within one; None where nobody knows."""
    default = LOADS.get(subject.connector) if subject.kv_transfer_config is None else None
    return None if default is None else subject.options.get("load", default) == "async"


def source_of(subject: SubjectSpec, find: Callable[[str | None], Overlay] = find_overlay) -> Source:
    """Find the source of a subject's connector: what it needs installed, and for ``umbp`` the overlay.

    Args:
        subject: the subject of one cell.
        find: ``harness.overlay.find_overlay``, or the same with a memory.
    """
    if subject.kv_transfer_config is not None:
        return Source()
    adapter = ADAPTERS[subject.connector]
    missing = adapter.missing()
    if missing is not None:
        return Source(identity={"unavailable": missing}, missing=missing)
    if subject.connector != "umbp":
        packages = [need.module for need in adapter.needs if need.module is not None]
        return Source(
            env=adapter.env,
            identity={f"package files {name}": package_digest(name) or NOT_FOUND for name in packages},
        )
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
