# SPDX-License-Identifier: Apache-2.0
"""The faults of keys: a store with a file (``harness.kvstore.objectfile``) forgets a part of its identity."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Fault -> parts of the identity that its keys lack. A layer's spec names the dtype too.
LACKING: Mapping[str, tuple[str, ...]] = {
    "key_without_layout": ("layout",),
    "key_without_dtype": ("dtype", "kv_dtype", "layers"),
    "key_without_batch_invariance": ("batch_invariant",),
    "key_without_weights": ("model", "weights"),
}


def reduced(identity: Mapping[str, Any], fault: str) -> dict[str, Any]:
    """The identity without what the fault forgets."""
    return {name: value for name, value in identity.items() if name not in LACKING[fault]}
