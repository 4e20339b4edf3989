# SPDX-License-Identifier: Apache-2.0
"""Errors and exit codes: one root error, and the codes with which a run ends.

pytest's own codes 0 to 5 keep their meaning; ``AMBER`` is ours.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of ``pytest scenarios`` and ``python -m harness``."""

    #: Every selected cell passed or ended as its expectation says.
    OK = 0
    #: At least one cell failed or crashed.
    FAILED = 1
    #: The run was interrupted.
    INTERRUPTED = 2
    #: The harness itself broke.
    INTERNAL = 3
    #: Bad input: a scenario file, an option, a path.
    USAGE = 4
    #: No cell was selected.
    NOTHING_SELECTED = 5
    #: Nothing failed, but a cell was vacuous, unstable or unexpectedly rejected.
    AMBER = 10


class HarnessError(Exception):
    """Root of every error that the harness raises on purpose.

    The message is one sentence that says what was wrong, where, and what is valid.
    """


class UsageError(HarnessError):
    """The caller asked for something that does not exist or makes no sense.

    Common causes: an unknown scenario path, a run folder that is not one, a model directory without weights.
    """


class ScenarioError(UsageError):
    """A scenario file cannot be used; carries every problem of the file at once.

    Attributes:
        problems: one sentence each, already prefixed with ``file:line:``.
    """

    def __init__(self, problems: tuple[str, ...]) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


class WireError(HarnessError):
    """A stored record cannot be read: half a file, another schema version, an unknown field."""


class SchemaError(WireError):
    """A stored record is of another schema version; the message says what to do about it."""


class CalledOff(Exception):
    """The leg was ended because nobody needs it any more; there is no observation of it."""


class LegError(HarnessError):
    """A leg could not be carried out as asked; its child turns this into an Observation."""
