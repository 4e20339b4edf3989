# SPDX-License-Identifier: Apache-2.0
"""``embedded``, ``embedded_file``: the harness's own store in host memory, and one whose objects outlive its engine."""

from __future__ import annotations

from typing import Any

from harness.connectors.adapter import FOLDER, LEVELS, Adapter, Option, transfer
from harness.kvstore.faults import FAULTS
from harness.kvstore.faults.shared import LACKING
from harness.records import SubjectSpec

#: Capacity of a store's pool where a scenario does not say, MiB.
CAPACITY_MIB = 256


def configure(subject: SubjectSpec) -> dict[str, Any]:
    """The store with the subject's options and, for a control, its planted fault."""
    options = {"capacity_mib": CAPACITY_MIB, **subject.options}
    options.pop("level", None)
    if subject.fault is not None:
        options["fault"] = subject.fault
    return transfer("EmbeddedStoreConnector", options, module="harness.kvstore.connector")


def configure_file(subject: SubjectSpec) -> dict[str, Any]:
    """The store with a file in the leg's folder, and the subject's fault."""
    config = configure(subject)
    options = {**config["kv_connector_extra_config"], "file": f"{FOLDER}/objects"}
    return {**config, "kv_connector_extra_config": options}


FILE = Adapter(
    alias="embedded_file",
    connector="EmbeddedStoreConnector",
    configure=configure_file,
    options={"capacity_mib": Option(at_least=1), "fault": Option(values=tuple(LACKING))},
    evidence="as of `embedded`; a new engine reads its objects from a file",
    drain="at the end of the step that computed a block",
    survives_restart=True,
)

ADAPTER = Adapter(
    alias="embedded",
    connector="EmbeddedStoreConnector",
    configure=configure,
    options={
        "capacity_mib": Option(at_least=1),
        "transfer": Option(values=("bulk", "ranges")),
        "load": Option(values=("sync", "async")),
        "level": Option(values=LEVELS),
        "fault": Option(values=tuple(FAULTS)),
    },
    evidence="its worker's counts of tokens delivered and bytes loaded, equal to the scheduler's hits; KV digests",
    drain="at the end of the step that computed a block",
)
