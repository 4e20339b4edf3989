# SPDX-License-Identifier: Apache-2.0
"""The folder of a leg's own that is not its connector's: a model under another name, an adapter made for the leg."""

from __future__ import annotations

import os
from pathlib import Path

from harness.adapter import write_adapter
from harness.errors import LegError
from harness.records import Leg, Model
from harness.server_restart import STORE_VARIABLE


def model_path(leg: Leg) -> str:
    """The model's folder; where its name must not tell, a link of another name in a folder of the leg's own.

    Each process of the leg makes the link anew, so that the same path can lead to another model.
    """
    if leg.model_name is None:
        return leg.model.path
    link = own_folder() / leg.model_name
    link.unlink(missing_ok=True)
    link.symlink_to(leg.model.path, target_is_directory=True)
    return str(link)


def adapter_path(name: str, model: Model) -> str:
    """Folder of an adapter for the model, made here and now."""
    folder = own_folder() / f"adapter-{name}"
    folder.mkdir(exist_ok=True)
    write_adapter(folder, Path(model.path))
    return str(folder)


def own_folder() -> Path:
    """The folder of the leg's own that is not its connector's.

    Raises:
        LegError: nobody named one; only the runner does.
    """
    store = os.environ.get(STORE_VARIABLE)
    if not store:
        raise LegError(f"{STORE_VARIABLE} names no folder, and the leg needs one of its own")
    return Path(store).parent
