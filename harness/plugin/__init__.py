# SPDX-License-Identifier: Apache-2.0
"""Code that runs inside vLLM, entered through the entry point group ``vllm.general_plugins``.

``register`` does nothing, and imports nothing but this file, unless the environment variable ``KVPARITY_BACKEND`` names
the attention backend that the engine is to run, ``KVPARITY_OVERLAY`` the source of its KV connector, or
``KVPARITY_KERNELS_FIRST`` is set. vLLM calls it in every process of an engine.
"""

from __future__ import annotations

import os

#: Name of the attention backend that the engine must run: an alias of ours or a member of vLLM's AttentionBackendEnum.
BACKEND_VARIABLE = "KVPARITY_BACKEND"

#: Folder with the source of the KV connector that the engine must use, or ``installed``.
OVERLAY_VARIABLE = "KVPARITY_OVERLAY"

#: Set for a connector whose class imports llvmlite, which vLLM's worker does not survive (docs/found.md, F3).
KERNELS_VARIABLE = "KVPARITY_KERNELS_FIRST"

#: Set for every process of a leg; such a process writes its stacks to its log when it is asked to.
LEG_VARIABLE = "KVPARITY_LEG"


def register() -> None:
    """Make vLLM's CPU platform strict about backends and, where asked for, batch invariant.

    Does nothing on other platforms: there vLLM validates an explicitly requested backend itself, and has its own
    batch-invariant kernels.
    """
    if os.environ.get(LEG_VARIABLE):
        from harness import stacks

        stacks.listen()
    _install_overlay()
    if os.environ.get(KERNELS_VARIABLE):
        from harness.plugin import kernels_first

        kernels_first.install()
    asked = os.environ.get(BACKEND_VARIABLE)
    if not asked:
        return
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from harness.plugin import batch_invariant, selection, wide_gemm

    selection.install(asked)
    batch_invariant.install()
    wide_gemm.install()


def _install_overlay() -> None:
    """The connector's source overlay, on every platform; see ``harness.plugin.overlay``."""
    asked = os.environ.get(OVERLAY_VARIABLE)
    if asked:
        from harness.plugin import overlay

        overlay.install(asked)
