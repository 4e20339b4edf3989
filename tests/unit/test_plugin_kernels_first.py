# SPDX-License-Identifier: Apache-2.0
"""The way around F3 of docs/found.md: after it, and only after it, vLLM's worker survives an imported llvmlite."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from harness.connectors import ADAPTERS
from harness.plugin import KERNELS_VARIABLE

CODE = """
from harness.plugin import register
register()
import llvmlite.binding
from vllm.platforms import current_platform
from vllm.triton_utils import dispatcher
before = sorted(dispatcher._registry)
try:
    current_platform.register_triton_kernel_overrides()
except AttributeError as error:
    print("died:", error)
else:
    from vllm.v1.worker.block_table import ComputeSlotMappingKernel
    print("lived:", len(before), sorted(dispatcher._registry) == before, type(ComputeSlotMappingKernel.kernel).__name__)
"""


@pytest.mark.parametrize(("switch", "words"), [
    ({}, "died: '_lib_fn_wrapper' object has no attribute 'get'"),
    ({KERNELS_VARIABLE: "1"}, "lived: 11 True KernelOverride"),
])
def test_overrides_registered_first_survive_llvmlite(switch, words):
    pytest.importorskip("llvmlite", reason="llvmlite is not installed")
    done = subprocess.run(
        [sys.executable, "-c", CODE], env={**os.environ, **switch}, capture_output=True, text=True, check=True,
    )
    assert done.stdout.splitlines()[-1] == words


def test_the_aliases_whose_class_imports_llvmlite_ask_for_it():
    assert [alias for alias, one in ADAPTERS.items() if KERNELS_VARIABLE in one.env] == ["lmcache_mp", "lmcache_v1"]
