# SPDX-License-Identifier: Apache-2.0
"""Makes an overlay's connector importable inside vLLM's processes, and gives it a runtime.

Only the package ``vllm.distributed.kv_transfer.kv_connector.v1.umbp`` comes from the overlay; everything else stays
the installed vLLM's. The overlay wins over a connector that the installed vLLM has itself.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

#: Folder that mirrors vLLM's tree, or ``installed`` for the installed vLLM's own connector.
VARIABLE = "KVPARITY_OVERLAY"
INSTALLED = "installed"

#: Which runtime serves the connector: ``adapter``, ``stand-in`` or ``mori``; written here, recorded by the worker.
RUNTIME_VARIABLE = "KVPARITY_UMBP_RUNTIME"

PACKAGE = "vllm.distributed.kv_transfer.kv_connector.v1.umbp"
CONNECTOR = f"{PACKAGE}.connector"


class OverlayImportError(RuntimeError):
    """The overlay's connector cannot be imported into this vLLM."""


class Finder(importlib.abc.MetaPathFinder):
    """Finds the connector's package in one folder; its submodules follow from the package's path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != PACKAGE:
            return None
        return importlib.util.spec_from_file_location(
            fullname, self.folder / "__init__.py", submodule_search_locations=[str(self.folder)]
        )


def install(overlay: str) -> None:
    """Import the connector from ``overlay`` and register what serves it; safe to call again.

    Raises:
        OverlayImportError: one sentence: it does not import, or the name is taken by another connector already.
    """
    if overlay != INSTALLED:
        folder = Path(overlay, *PACKAGE.split("."))
        if not any(isinstance(finder, Finder) and finder.folder == folder for finder in sys.meta_path):
            sys.meta_path.insert(0, Finder(folder))
    try:
        runtime = importlib.import_module(f"{PACKAGE}.runtime")
    except Exception as error:
        # Whatever it is, it is the overlay's: a syntax error, a name that this vLLM lacks, a crash in module code.
        raise OverlayImportError(
            f"the UMBP connector of {overlay} does not import into this vLLM: {type(error).__name__}: {error}"
        ) from error
    found = Path(sys.modules[PACKAGE].__file__ or "").parent
    if overlay != INSTALLED and found != folder:
        raise OverlayImportError(f"the UMBP connector was imported from {found} before the overlay {folder}")
    os.environ[RUNTIME_VARIABLE] = _serve(found, runtime)


def _serve(folder: Path, runtime: ModuleType) -> str:
    from vllm.platforms import current_platform

    if not (folder / "runtime" / "embedded.py").is_file():
        from harness.plugin import umbp_runtime

        umbp_runtime.register(runtime)
        return "adapter"
    if not current_platform.is_cpu():
        return "mori"
    from harness.plugin import mori_stand_in

    mori_stand_in.install()
    return "stand-in"
