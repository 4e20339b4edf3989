# SPDX-License-Identifier: Apache-2.0
"""A store that outlives its engine, for the faults of keys: objects in a file that the next cell's engine opens.

The file is named by ``KVPARITY_SHARED_STORE``; the first engine writes it, later ones only read it.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.kvstore.pool import Pool

#: Variable with the file's path.
VARIABLE = "KVPARITY_SHARED_STORE"

#: Fault -> parts of the identity that its keys lack. A layer's spec names the dtype too.
LACKING: Mapping[str, tuple[str, ...]] = {
    "key_without_layout": ("layout",),
    "key_without_dtype": ("dtype", "kv_dtype", "layers"),
    "key_without_batch_invariance": ("batch_invariant",),
}


def reduced(identity: Mapping[str, Any], fault: str) -> dict[str, Any]:
    """The identity without what the fault forgets."""
    return {name: value for name, value in identity.items() if name not in LACKING[fault]}


def read() -> list[tuple[bytes, bytes]]:
    """(key, object) by slot; empty for the first engine."""
    path = Path(os.environ[VARIABLE])
    return pickle.loads(path.read_bytes()) if path.exists() else []


def write(pool: Pool) -> None:
    """Everything that the pool holds, in slot order."""
    held = [
        (key, pool.data[slot].numpy().tobytes()) for slot, key in enumerate(pool.keys) if key is not None
    ]
    Path(os.environ[VARIABLE]).write_bytes(pickle.dumps(held))
