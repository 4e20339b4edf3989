# SPDX-License-Identifier: Apache-2.0
"""``embedded``: the harness's own store in host memory (``harness.kvstore``)."""

from __future__ import annotations

from typing import Any

from harness.connectors.adapter import LEVELS, Adapter, Option, transfer
from harness.kvstore.faults import FAULTS
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
