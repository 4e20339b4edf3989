# SPDX-License-Identifier: Apache-2.0
"""Second check: is what the workers resolved what the cell asks for, and the same on both sides?

vLLM resolves silently to something else in several ways (another backend, another layout, another thread count); an A/B
between two different engines, or of another configuration than the cell's, proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.compare.pair import Pair, finding, words
from harness.records import Cell, Finding, FindingKind, Observation, Resolved, Role

#: Dimensions of ``Resolved.strides``, outermost first in the identity layout.
DIMENSIONS = "LBHNC"


#: Settings beside the fields of ``Resolved`` that decide what is computed.
LOADED = ("weights", "model dtype", "kv cache dtype")


def check_resolved(pair: Pair) -> Iterator[Finding]:
    """Findings about a configuration that is not the cell's, or not the same in both legs."""
    both = []
    for role, _, observation in pair.sides():
        assert observation is not None
        if observation.resolved is None:
            yield finding(
                FindingKind.LAYOUT_NOT_AS_ASKED,
                f"{role}: the worker never reported what it resolved; {pair.cell.layout} was asked for",
                place=role, left=pair.cell.layout, right="unknown",
            )
            continue
        both.append(observation.resolved)
        yield from _check_asked(role, pair.cell, observation.resolved)
        yield from _check_connector(role, observation.resolved)
        if pair.cell.hands_over and role is Role.SUBJECT:
            yield from _check_prefill(pair.cell, observation)
    if len(both) == 2:
        yield from _check_equal(*both)


def _check_prefill(cell: Cell, observation: Observation) -> Iterator[Finding]:
    """The engine that prefills for the subject is held to the same, and to the one that decodes."""
    who, resolved = "the prefill engine", observation.prefill
    if resolved is None:
        yield finding(
            FindingKind.LAYOUT_NOT_AS_ASKED,
            f"{who}: its worker never reported what it resolved; {cell.layout} was asked for",
            place=who, left=cell.layout, right="unknown",
        )
        return
    yield from _check_asked(who, cell, resolved)
    if observation.resolved is not None:
        yield from _check_equal(resolved, observation.resolved, (who, "the decode engine"))
        if resolved.connector != observation.resolved.connector:
            left, right = str(resolved.connector), str(observation.resolved.connector)
            yield finding(
                FindingKind.LEGS_RESOLVED_DIFFERENTLY, f"connector is {left} in {who} and {right} in the decode engine",
                place="connector", left=left, right=right,
            )


def _check_asked(role: str, cell: Cell, resolved: Resolved) -> Iterator[Finding]:
    def not_as_asked(kind: FindingKind, what: str, asked: object, got: object) -> Finding:
        return finding(
            kind, f"{role}: {what} {asked} was asked for, the worker uses {got}",
            place=role, left=str(asked), right=str(got),
        )

    if resolved.layout != cell.layout:
        yield not_as_asked(FindingKind.LAYOUT_NOT_AS_ASKED, "layout", cell.layout, resolved.layout)
    if resolved.block_size != cell.block_size:
        yield not_as_asked(FindingKind.LAYOUT_NOT_AS_ASKED, "block size", cell.block_size, resolved.block_size)
    if cell.layout not in resolved.layout_by_strides:
        yield finding(
            FindingKind.STRIDES_NOT_AS_LAYOUT,
            f"{role}: the tensors' strides {list(resolved.strides)} are those of {words(resolved.layout_by_strides)},"
            f" {cell.layout} was asked for",
            place=role, left=cell.layout, right=words(resolved.layout_by_strides),
        )
    if resolved.backend != cell.backend or not resolved.backend_class:
        got = f"{resolved.backend} ({words(resolved.backend_class)})"
        yield not_as_asked(FindingKind.BACKEND_NOT_AS_ASKED, "backend", cell.backend, got)
    if resolved.batch_invariant != cell.batch_invariant:
        yield not_as_asked(
            FindingKind.BATCH_INVARIANCE_NOT_AS_ASKED, "batch invariance", cell.batch_invariant,
            resolved.batch_invariant,
        )


def _check_connector(role: Role, resolved: Resolved) -> Iterator[Finding]:
    if (resolved.connector is None) is (role is Role.ORACLE):
        return
    right = resolved.connector or "none"
    wanted = "no KV connector" if role is Role.ORACLE else "a KV connector"
    yield finding(
        FindingKind.LEGS_RESOLVED_DIFFERENTLY,
        f"{role}: the worker must have {wanted}, it has {right}", place=role, left=wanted, right=right,
    )


def _check_equal(
    one: Resolved, other: Resolved, names: tuple[str, str] = ("the oracle", "the subject")
) -> Iterator[Finding]:
    left, right = _settings(one), _settings(other)
    for name in LOADED:
        # Some workers tell neither; what one alone tells is nothing that both share.
        if name in one.settings or name in other.settings:
            left[name], right[name] = (side.settings.get(name, "unknown") for side in (one, other))
    for name, value in left.items():
        if value != right[name]:
            yield finding(
                FindingKind.LEGS_RESOLVED_DIFFERENTLY,
                f"{name} is {value} in {names[0]} and {right[name]} in {names[1]}",
                place=name, left=str(value), right=str(right[name]),
            )


def _settings(resolved: Resolved) -> dict[str, object]:
    """Everything that both legs must share; the number of blocks in the pool may differ, it changes no bit."""
    return {
        "layout": resolved.layout,
        "stride order": stride_order(resolved),
        "page shape": list(resolved.shape[1:]),
        "layers": resolved.num_layers,
        "dtype": resolved.dtype,
        "backend": resolved.backend,
        "backend class": words(resolved.backend_class),
        "batch invariance": resolved.batch_invariant,
        "block size": resolved.block_size,
        "kernel block size": resolved.kernel_block_size,
        "threads": resolved.threads,
    }


def stride_order(resolved: Resolved) -> str:
    """Dimensions by falling stride, e.g. ``LBHNC``; those of size 1 are left out, their strides mean nothing."""
    sizes = (resolved.num_layers, *resolved.shape)
    axes = [axis for axis, size in enumerate(sizes[: len(resolved.strides)]) if size > 1]
    ordered = sorted(axes, key=lambda axis: -resolved.strides[axis])
    return "".join(DIMENSIONS[axis] for axis in ordered)
