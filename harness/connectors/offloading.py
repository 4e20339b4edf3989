# SPDX-License-Identifier: Apache-2.0
"""``offloading``, ``offloading_cpu``, ``offloading_fs``: vLLM's OffloadingConnector.

As it comes it refuses every platform but CUDA, ROCm and XPU. The two others enter through vLLM's own hook for specs
from outside the tree (``spec_name``, ``spec_module_path``): scheduler, manager, tiers and copy descriptors are vLLM's,
only device streams and the copy itself are replaced (``harness.plugin.host_offload``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from harness.connectors.adapter import FOLDER, Adapter, Bytes, Metric, transfer
from harness.records import SubjectSpec

#: Bytes of host memory that blocks are offloaded into. Few, so that vLLM's regions come up at once.
HOST_BYTES = 64 * 2**20

SPECS = "harness.plugin.host_offload"

BYTES = Bytes(loaded=Metric(name="vllm:kv_offload_load_bytes"), stored=Metric(name="vllm:kv_offload_store_bytes"))


def _config(**options: Any) -> dict[str, Any]:
    return transfer("OffloadingConnector", {"cpu_bytes_to_use": HOST_BYTES, **options})


def configure(subject: SubjectSpec) -> dict[str, Any]:
    """The connector as it comes."""
    return _config()


def configure_cpu(subject: SubjectSpec) -> dict[str, Any]:
    """One tier: host memory."""
    return _config(spec_name="HostOffloadingSpec", spec_module_path=SPECS)


def configure_fs(subject: SubjectSpec) -> dict[str, Any]:
    """Two tiers: host memory, and files in a folder of the leg's own."""
    tiers = [{"type": "fs", "root_dir": FOLDER, "n_read_threads": 2, "n_write_threads": 2}]
    return _config(spec_name="HostTieringSpec", spec_module_path=SPECS, secondary_tiers=tiers)


CPU_TIER = Adapter(
    alias="offloading_cpu",
    connector="OffloadingConnector",
    configure=configure_cpu,
    bytes_moved=BYTES,
    leaves=0,
    evidence="vllm:kv_offload_load_bytes; KV digests over zeroed blocks",
    drain="in the step after the one that computed a block; the scheduler keeps stepping while some are under way",
)

# vLLM asks the files only for what host memory does not have (v1/kv_offload/tiering/manager.py: lookup).
FS_TIER = replace(
    CPU_TIER,
    alias="offloading_fs",
    configure=configure_fs,
    evidence=f"{CPU_TIER.evidence}; out of host memory, which a new engine fills from the files",
    survives_restart=True,
)

ADAPTER = replace(
    CPU_TIER,
    alias="offloading",
    configure=configure,
    refusals=("CPU Offloading is currently only supported on CUDA-alike and XPU GPUs",),
    evidence="none on a CPU host: it refuses, in its words",
)
