# SPDX-License-Identifier: Apache-2.0
"""The engine of a leg whose store is not on this machine: says why, without starting anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from harness.errors import HarnessError
from harness.records import Leg

#: Key of ``Leg.identity`` that holds the sentence.
REASON = "unavailable"


class UnavailableError(HarnessError):
    """What the leg needs is not here; ``harness.worker`` knows this error by its name."""


def open_engine(leg: Leg, stage: Callable[[str], None]) -> NoReturn:
    """Raises:
        UnavailableError: always, with the leg's sentence.
    """
    stage("load")
    raise UnavailableError(leg.identity.get(REASON, "the store under test is not on this machine"))
