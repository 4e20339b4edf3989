# SPDX-License-Identifier: Apache-2.0
"""The connector's settings: ``kv_connector_extra_config``, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from harness.kvstore.faults import FAULTS
from harness.kvstore.transfer import PATHS

_CHOICES: dict[str, tuple[str | None, ...]] = {
    "transfer": tuple(PATHS),
    "load": ("sync", "async"),
    "fault": (None, *FAULTS),
}


@dataclass(frozen=True)
class Settings:
    """
    Attributes:
        capacity_mib: size of each worker's pool.
        transfer: ``bulk`` or ``ranges``.
        load: ``sync`` (before the forward pass) or ``async`` (between steps, in a thread).
        fault: None, or the name of a planted fault.
        file: where the objects outlive the engine, for ``harness.kvstore.objectfile``; None for a store that ends with
            it.
    """

    capacity_mib: float = 256
    transfer: str = "bulk"
    load: str = "sync"
    fault: str | None = None
    file: str | None = None

    @classmethod
    def of(cls, extra: Mapping[str, Any] | None) -> Settings:
        """
        Raises:
            ValueError: an unknown key or value; says the valid ones.
        """
        extra = dict(extra or {})
        known = [field.name for field in fields(cls)]
        if unknown := sorted(set(extra) - set(known)):
            raise ValueError(f"Unknown kv_connector_extra_config keys {unknown}; valid are {known}.")
        for name, choices in _CHOICES.items():
            if name in extra and extra[name] not in choices:
                raise ValueError(f"kv_connector_extra_config[{name!r}] is {extra[name]!r}; valid are {list(choices)}.")
        capacity = extra.get("capacity_mib", cls.capacity_mib)
        if isinstance(capacity, bool) or not isinstance(capacity, int | float) or capacity <= 0:
            raise ValueError(
                f"kv_connector_extra_config['capacity_mib'] is {capacity!r}; it must be a positive number."
            )
        return cls(**extra)
