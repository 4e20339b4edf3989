# SPDX-License-Identifier: Apache-2.0
"""The kinds of server that connectors talk to: command line, health, and what their clients must be told."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.connectors.lmcache import CHUNK_TOKENS


@dataclass(frozen=True, kw_only=True)
class ServerSpec:
    """How to run one kind of server.

    Attributes:
        name: as ``Adapter.server`` names it.
        ports: names of the loopback ports that it needs.
        command: (ports by name, folder) -> command line.
        health: (ports) -> URL that answers with status 200 once the server serves.
        env: (ports, folder) -> variables for the legs that use it; may write files into the folder.
        shared: whether the legs of a run can share one server; otherwise each leg has one of its own.
    """

    name: str
    ports: tuple[str, ...]
    command: Callable[[Mapping[str, int], Path], list[str]]
    health: Callable[[Mapping[str, int]], str]
    env: Callable[[Mapping[str, int], Path], dict[str, str]]
    shared: bool


def _mooncake_command(ports: Mapping[str, int], folder: Path) -> list[str]:
    return [
        _beside("mooncake", "mooncake_master"),
        f"--rpc_port={ports['rpc']}", "--rpc_address=127.0.0.1",
        f"--metrics_port={ports['admin']}", "--metrics_host=127.0.0.1",
        "--enable_http_metadata_server=true", "--http_metadata_server_host=127.0.0.1",
        f"--http_metadata_server_port={ports['metadata']}",
    ]


def _mooncake_env(ports: Mapping[str, int], folder: Path) -> dict[str, str]:
    """vLLM reads Mooncake's settings from a file (vllm/distributed/mooncake_store.py: MooncakeStoreConfig)."""
    path = folder / "mooncake.json"
    path.write_text(json.dumps({
        "metadata_server": f"http://127.0.0.1:{ports['metadata']}/metadata",
        "master_server_address": f"127.0.0.1:{ports['rpc']}",
        "protocol": "tcp",
        "device_name": "",
        "global_segment_size": 128 * 2**20,
        "local_buffer_size": 64 * 2**20,
    }))
    return {
        "MOONCAKE_CONFIG_PATH": str(path),
        "MC_TCP_BIND_ADDRESS": "127.0.0.1",
        "VLLM_HOST_IP": "127.0.0.1",
    }


def _lmcache_command(ports: Mapping[str, int], folder: Path) -> list[str]:
    return [
        sys.executable, "-c", "from lmcache.cli.main import main; main()", "server",
        "--host", "127.0.0.1", "--port", str(ports["queue"]),
        "--http-host", "127.0.0.1", "--http-port", str(ports["http"]),
        # Without it the client waits in its init for a device that a CPU host does not have.
        "--supported-transfer-mode", "auto",
        "--l1-size-gb", "1", "--eviction-policy", "LRU", "--max-workers", "1",
        "--chunk-size", str(CHUNK_TOKENS), "--disable-observability",
    ]


SERVERS: Mapping[str, ServerSpec] = {
    spec.name: spec
    for spec in (
        ServerSpec(
            name="mooncake",
            ports=("rpc", "admin", "metadata"),
            command=_mooncake_command,
            health=lambda ports: f"http://127.0.0.1:{ports['admin']}/health",
            env=_mooncake_env,
            shared=True,
        ),
        ServerSpec(
            name="lmcache",
            ports=("queue", "http"),
            command=_lmcache_command,
            health=lambda ports: f"http://127.0.0.1:{ports['http']}/healthcheck",
            env=lambda ports, folder: {"KVPARITY_SERVER_PORT": str(ports["queue"])},
            # Its keys hold the model and nothing of the leg, so one leg would find what another stored.
            shared=False,
        ),
    )
}


def _beside(module: str, program: str) -> str:
    """A program that a package carries, by its path; its bare name when the package is not here."""
    spec = importlib.util.find_spec(module)
    folders = spec.submodule_search_locations if spec is not None else None
    return str(Path(folders[0]) / program) if folders else program
