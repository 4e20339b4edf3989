# SPDX-License-Identifier: Apache-2.0
"""``lmcache_mp``, ``lmcache_v1``: LMCache beside the engine in a server of its own, and inside the engine's process.

The second has no device connector for a CPU host. It says so in the log, "degraded mode (recompute)", and goes on:
equal answers, no hit. Its cell must be vacuous.
"""

from __future__ import annotations

from typing import Any

from harness.connectors.adapter import PORT, Adapter, Need, transfer
from harness.records import SubjectSpec

NEEDS = (Need(name="lmcache 0.5.6", module="lmcache", hint="Run `make connectors`."),)

#: LMCache stores whole chunks, of 256 tokens where it is not told otherwise; the cells' prompts are shorter.
CHUNK_TOKENS = 16

#: Seconds that the client waits for an answer of its server, at each call.
TIMEOUT_S = 15

#: LMCache imports llvmlite, which vLLM's worker does not survive: docs/found.md, F3 (``harness.plugin.kernels_first``).
KERNELS_FIRST = {"KVPARITY_KERNELS_FIRST": "1"}


def configure_mp(subject: SubjectSpec) -> dict[str, Any]:
    """The connector with the port of the leg's own server."""
    options = {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": PORT, "lmcache.mp.mq_timeout": TIMEOUT_S}
    return transfer("LMCacheMPConnector", options)


def configure_v1(subject: SubjectSpec) -> dict[str, Any]:
    """The connector with its own defaults."""
    return transfer("LMCacheConnectorV1")


MP = Adapter(
    alias="lmcache_mp",
    connector="LMCacheMPConnector",
    configure=configure_mp,
    # Layouts in which a page is one run per head, refused when the KV tensors are handed over.
    refusals=("per-block content is fragmented per head",),
    env=KERNELS_FIRST,
    evidence="the scheduler's hits per request; KV digests over zeroed blocks; it counts nothing itself. Runs by a way"
    " around F3",
    drain="the engine core has to step until the server has answered; until then `reset_prefix_cache` is False",
    survives_restart=True,
    leaves=1,
    needs=NEEDS,
    server="lmcache",
)

IN_PROCESS = Adapter(
    alias="lmcache_v1",
    connector="LMCacheConnectorV1",
    configure=configure_v1,
    env={
        **KERNELS_FIRST,
        "LMCACHE_CHUNK_SIZE": str(CHUNK_TOKENS), "LMCACHE_LOCAL_CPU": "True", "LMCACHE_MAX_LOCAL_CPU_SIZE": "0.25",
    },
    evidence="none on a CPU host: it gives no hit, and its cell must be vacuous",
    drain="inside the forward pass",
    needs=NEEDS,
)
