# SPDX-License-Identifier: Apache-2.0
"""Every frozen record that crosses a border between two stages, and the enums they use.

Flow: ``Scenario -> Cell, Leg -> Observation -> Verdict``. Records hold plain values only (str, int, float, bool,
None, tuples, mappings of those), so that ``harness.wire`` can write and read each of them without loss.
Nothing here imports another module of the harness.
"""

from harness.records.names import (
    DEADLINES_S,
    LAYOUTS,
    OUTCOME_ORDER,
    PLATFORMS,
    ROLE_PHASES,
    SCHEMA_VERSION,
    Certainty,
    Edge,
    Ending,
    FindingKind,
    Outcome,
    Phase,
    Reference,
    Role,
)
from harness.records.observation import (
    Failure,
    Observation,
    PhaseRecord,
    PromptResult,
    Resolved,
    Step,
)
from harness.records.plan import (
    Cell,
    GroundTruth,
    Leg,
    Model,
    PhaseHits,
    Plan,
)
from harness.records.scenario import (
    DecodeSpec,
    EvidenceSpec,
    Expectation,
    Limits,
    Override,
    PromptSpec,
    Scenario,
    SubjectSpec,
)
from harness.records.verdict import (
    Agreement,
    Compared,
    Finding,
    Verdict,
)

__all__ = [
    "Agreement",
    "Cell",
    "Certainty",
    "Compared",
    "DEADLINES_S",
    "DecodeSpec",
    "Edge",
    "Ending",
    "EvidenceSpec",
    "Expectation",
    "Failure",
    "Finding",
    "FindingKind",
    "GroundTruth",
    "LAYOUTS",
    "Leg",
    "Limits",
    "Model",
    "OUTCOME_ORDER",
    "Observation",
    "Outcome",
    "Override",
    "PLATFORMS",
    "Phase",
    "PhaseHits",
    "PhaseRecord",
    "Plan",
    "PromptResult",
    "PromptSpec",
    "ROLE_PHASES",
    "Reference",
    "Resolved",
    "Role",
    "SCHEMA_VERSION",
    "Scenario",
    "Step",
    "SubjectSpec",
    "Verdict",
]
