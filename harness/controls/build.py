# SPDX-License-Identifier: Apache-2.0
"""From a control to a cell and its legs, in the very way that a scenario file takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.connectors import ADAPTERS
from harness.controls.table import ENGINE, ORACLE, STORE, Control
from harness.plan import make_plan
from harness.records import Cell, DecodeSpec, Filling, Leg, Limits, Model, PromptSpec, Role, Scenario, SubjectSpec
from harness.wire import named

MODEL = "tiny"
PROMPTS = PromptSpec(count=3, prefix_tokens=48, tail_tokens=8)
DECODE = DecodeSpec(max_tokens=8, logprobs=5)
ENGINE_ARGUMENTS: Mapping[str, Any] = {"block_size": 16, "max_model_len": 256, "num_gpu_blocks_override": 128}


@dataclass(frozen=True)
class Planted:
    """A control with its cell and legs.

    Attributes:
        name: unique among the controls.
        control: the table's row.
        cell: what is judged.
        legs: the cell's two and its further ones, by digest.
        first: leg that has to run before, with the same store; None without.
    """

    name: str
    control: Control
    cell: Cell
    legs: Mapping[str, Leg]
    first: Leg | None = None

    @property
    def oracle(self) -> Leg:
        return self.legs[self.cell.oracle]

    @property
    def subject(self) -> Leg:
        return self.legs[self.cell.subject]


def plant(
    controls: Sequence[Control], *, find_model: Callable[[str], Model], identity: Mapping[str, str], stores: str
) -> list[Planted]:
    """Every control with its cell; equal oracle legs have equal digests.

    Args:
        find_model, identity: as of ``make_plan``.
        stores: folder for the stores that several engines share.
    """
    planted = []
    for control in controls:
        name = _name(control)
        cell, oracle, subject, *further = _pair(control, {}, find_model, identity)
        subject, oracle = _faulty(control, subject), _faulty(control, oracle)
        first = None
        if control.before is not None:
            variable = {"KVPARITY_SHARED_STORE": f"{stores}/{name}.objects"}
            subject = _changed(subject, env={**subject.env, **variable})
            _, _, other, *_ = _pair(control, control.before, find_model, identity)
            first = _changed(other, env={**other.env, **variable})
        cell = replace(cell, id=name, oracle=oracle.digest, subject=subject.digest)
        legs = {leg.digest: leg for leg in (oracle, subject, *further)}
        planted.append(Planted(name, control, cell, legs, first))
    return planted


def _name(control: Control) -> str:
    side = "-oracle" if control.where == ENGINE and control.roles == ORACLE else ""
    return f"{control.fault}{side}{'-async' if control.load == 'async' else ''}"


def _pair(
    control: Control, other: Mapping[str, Any], find_model: Callable[[str], Model], identity: Mapping[str, str]
) -> tuple[Cell, *tuple[Leg, ...]]:
    """The cell without faults of engine and runner, its oracle, its subject and its further legs.

    ``other`` replaces axes and the dtype.
    """
    fault = control.fault if control.where == STORE else None
    axes = {"layout": control.layout, "backend": control.backend, "batch_invariant": control.batch_invariant}
    axes.update({name: value for name, value in other.items() if name in axes})
    if control.differs is not None:
        axes["differs"] = control.differs
    for alias in control.connector or ():
        axes["restore"] = ADAPTERS[alias].paths[0]
    engine = {**ENGINE_ARGUMENTS, **{name: value for name, value in other.items() if name not in axes}}
    scenario = Scenario(
        name="controls", path="harness/controls/table.py", platforms=("cpu",), model=MODEL,
        subject=_subject(control, fault),
        axes={name: (value,) for name, value in axes.items()}, axis_lines={}, reference="auto",
        prompts=replace(PROMPTS, set=control.prompts),
        decode=DECODE, engine=engine, env={}, overrides=(), expect=(), digest="",
        ground_truth=Limits() if control.ground_truth else None,
    )
    fake = None if control.fake is None else {}
    plan = make_plan([scenario], platform="cpu", find_model=find_model, identity=identity, fake=fake)
    (cell,) = plan.cells
    return cell, *(plan.leg(digest) for digest in (cell.oracle, cell.subject, *cell.further))


def _subject(control: Control, fault: str | None) -> SubjectSpec:
    for alias, options in (control.connector or {}).items():
        return SubjectSpec(connector=alias, options=options, fault=fault)
    load = {"load": control.load} if control.load != "sync" else {}
    return SubjectSpec(connector="embedded", fault=fault, options={"capacity_mib": 16, **load})


def _faulty(control: Control, leg: Leg) -> Leg:
    if leg.role not in control.roles:
        return leg
    if control.fake is not None:
        return _changed(leg, fake=dict(control.fake))
    if control.where == ENGINE:
        leg = _changed(leg, engine_name="faulty", fake={"fault": control.fault})
    elif control.fault == "other_prompts":
        leg = _changed(leg, prompts=replace(leg.prompts, seed=leg.prompts.seed + 1))
    elif control.fault == "phase_missing":
        leg = _changed(leg, phases=leg.phases[:-1])
    elif control.fault == "difference_not_taken":
        leg = _changed(leg, filling=Filling())
    elif control.fault == "older_result":
        # A leg of its own: its name in the run folder is given away.
        leg = _changed(leg, identity={**leg.identity, "control": control.fault})
    if leg.role is Role.SUBJECT and "kv_transfer_config" in control.leg:
        changed = {**(leg.kv_transfer_config or {}), **control.leg["kv_transfer_config"]}
        leg = _changed(leg, kv_transfer_config=changed)
    return leg


def _changed(leg: Leg, **changes: Any) -> Leg:
    return named(replace(leg, **changes))
