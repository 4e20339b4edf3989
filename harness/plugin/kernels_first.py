# SPDX-License-Identifier: Apache-2.0
"""vLLM's Triton overrides before the connector's class is imported: a way around F3 of docs/found.md.

vLLM's worker registers its overrides when it starts and looks through all modules for the kernels that they replace
(``triton_utils/dispatcher.py: _rebind_kernels``); it dies of what llvmlite keeps in its modules. Registered before
anything has imported llvmlite, they are in force for all that follows, and the worker has nothing left to do. The very
registration is vLLM's own; only its time is another.
"""

from __future__ import annotations

_installed = False


def install() -> None:
    """Register the platform's overrides now, once, and leave the worker none to register."""
    global _installed
    if _installed:
        return
    _installed = True
    from vllm.platforms import current_platform

    current_platform.register_triton_kernel_overrides()
    type(current_platform).register_triton_kernel_overrides = classmethod(_done)


def _done(cls: type) -> None:
    """What the worker calls; everything is registered."""
