# SPDX-License-Identifier: Apache-2.0
"""What every attention backend's class declares, for ROCm, CUDA and CPU, against a table written down by hand.

Wider than the aliases of ``harness.backends``: a class that vLLM changes is noticed here before somebody scenarios it.
``FLASHINFER`` needs its package and ``ULTRAQUANT`` Triton; they are held to the table where those are.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from harness import coverage

# Each platform's answers cost one import of vLLM in a child.
pytestmark = pytest.mark.engine

ANY = None
#: (platform, backend) -> layouts without a connector, preferred first, layouts with one, batch invariant, takes one.
#: Read in vllm/v1/attention/backends/ of 0.32 and 0.33. ROCM_OCTAVE came with 0.33.
TABLE = {
    ("rocm", "TRITON_ATTN"): (ANY, ANY, True, True),
    ("rocm", "ROCM_AITER_FA"): (["LBHNC", "LHBNC"], ["LBHNC", "LHBNC"], False, True),
    ("rocm", "ROCM_AITER_FA, shuffled"): (["LHBNC", "LBHNC"], ["LHBNC", "LBHNC"], False, True),
    ("rocm", "ROCM_AITER_UNIFIED_ATTN"): (["LBHNC", "LHBNC"], ["LBHNC"], False, True),
    ("rocm", "ROCM_ATTN"): (["LHBNC", "LBHNC"], ["LHBNC", "LBHNC"], False, False),
    ("rocm", "ROCM_OCTAVE"): (["LHBNC", "LBNHC"], ["LHBNC", "LBNHC"], False, True),
    ("rocm", "TURBOQUANT"): (["LBNHC"], ["LBNHC"], False, True),
    ("rocm", "ULTRAQUANT"): (["LBNHC"], ["LBNHC"], False, True),
    ("rocm", "ROCM_AITER_MLA"): (ANY, ANY, False, True),
    ("rocm", "ROCM_AITER_TRITON_MLA"): (ANY, ANY, False, True),
    ("rocm", "ROCM_AITER_MLA_SPARSE"): (["LBNHC", "LBHNC", "BLHNC"], ["LBNHC", "LBHNC", "BLHNC"], False, True),
    ("rocm", "TRITON_MLA"): (ANY, ANY, True, True),
    ("cuda", "TRITON_ATTN"): (ANY, ANY, True, True),
    ("cuda", "FLASH_ATTN"): (ANY, ANY, True, True),
    ("cuda", "FLASHINFER"): (ANY, ANY, False, True),
    ("cuda", "FLEX_ATTENTION"): (["LBNHC"], ["LBNHC"], True, True),
    ("cuda", "TURBOQUANT"): (["LBNHC"], ["LBNHC"], False, True),
    ("cuda", "TRITON_MLA"): (ANY, ANY, True, True),
    ("cuda", "FLASH_ATTN_MLA"): (ANY, ANY, True, True),
    ("cpu", "CPU_ATTN"): (["LBHNC"], ["LBHNC"], False, True),
    ("cpu", "CPU_MLA"): (ANY, ANY, False, True),
    ("cpu", "AMX_MLA"): (ANY, ANY, False, True),
}
#: Rows whose class may be missing, or may not load, on a machine without its hardware.
PERHAPS = {"ROCM_OCTAVE", "FLASHINFER", "ULTRAQUANT"}

CHILD = """
import json, os, sys
from types import SimpleNamespace
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
target, here, names = sys.argv[1], sys.argv[2], sys.argv[3].split(";")
from harness.capability.surroundings import Settings, current, environment
from harness.capability.target import platform_of
platform_of(target, target != here)
from vllm.v1.attention.backends.registry import AttentionBackendEnum
AITER = {"VLLM_ROCM_USE_AITER": "1"}
SHUFFLED = {**AITER, "VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT": "1"}
told = {}
for row in names:
    name = row.partition(",")[0]
    try:
        backend = AttentionBackendEnum[name].get_class()
    except Exception as error:
        told[row] = f"{type(error).__name__}: {error}"
        continue
    sides = []
    for connector in (None, SimpleNamespace(is_kv_transfer_instance=True)):
        env = SHUFFLED if "shuffled" in row else AITER if "AITER" in row else {}
        with environment(env, target), current(Settings(kv_transfer_config=connector)):
            layouts = backend.supported_kv_cache_layouts()
            sides.append(layouts and [layout.name for layout in layouts])
    told[row] = [*sides, backend.supports_batch_invariance(), backend.supports_kv_connector()]
json.dump(told, out)
"""


@pytest.fixture(scope="module")
def told():
    """Platform -> row -> what its class declares, or why it does not load."""
    known = {}

    def tell(platform):
        if platform not in known:
            names = ";".join(name for target, name in TABLE if target == platform)
            here = coverage.machine_platform() or ""
            child = subprocess.run([sys.executable, "-c", CHILD, platform, here, names], capture_output=True, text=True,
                                   check=False)
            assert child.returncode == 0, child.stderr[-2000:]
            known[platform] = json.loads(child.stdout)
        return known[platform]

    return tell


@pytest.mark.parametrize(("platform", "name"), TABLE)
def test_a_class_declares_what_the_table_says(told, platform, name):
    answer = told(platform)[name]
    if isinstance(answer, str) and name in PERHAPS:
        pytest.skip(f"{name}'s class does not load on this machine: {answer}")
    assert answer == list(TABLE[platform, name])
