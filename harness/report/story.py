# SPDX-License-Identifier: Apache-2.0
"""The story of one red or amber cell, in the order of a reader's questions: what, with which settings, where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.compare.pair import Pair
from harness.compare.sharing import differences
from harness.frame import outcome_word
from harness.records import (
    GREEN,
    OUTCOME_ORDER,
    RESTORES,
    Cell,
    Ending,
    Finding,
    FindingKind,
    Leg,
    Observation,
    Outcome,
    Phase,
    Role,
    Verdict,
)
from harness.report import RunView
from harness.report.divergence import side_of
from harness.report.hints import HINTS, SENTENCES
from harness.report.picture import draw
from harness.row import sharing_words

#: Verdicts that have a story, and whose legs' logs are shown.
TOLD = tuple(one for one in OUTCOME_ORDER if one not in (*GREEN, Outcome.UNAVAILABLE))
#: Findings of one kind that are printed; the rest is counted.
MOST_OF_A_KIND = 3
#: Characters of one setting's value, of one finding's message, and lines of a dead leg's log.
SETTING_CHARACTERS, MESSAGE_CHARACTERS, LOG_LINES = 80, 1000, 12

UNSTABLE = (FindingKind.ORACLE_UNSTABLE, FindingKind.SUBJECT_UNSTABLE)


@dataclass(frozen=True, kw_only=True)
class Story:
    """One cell's story.

    Attributes:
        name: ``scenario::cell``.
        word: outcome word as in the tables.
        sentence: what happened.
        settings: (name, oracle's, subject's) for the settings that differ.
        findings: lines, a finding's kind and message, its size under it.
        evidence: one line on hits, resolved configuration and the A/A control.
        localisation: where restored KV differs, and its picture; empty when it does not.
        logs: paths, and the last lines and the traceback of a dead leg.
        next_steps: one per kind.
        reproduce: command.
    """

    name: str
    word: str
    sentence: str
    settings: tuple[tuple[str, str, str], ...]
    findings: tuple[str, ...]
    evidence: str
    localisation: tuple[str, ...]
    logs: tuple[str, ...]
    next_steps: tuple[str, ...]
    reproduce: str


def tell(run: RunView, verdict: Verdict, pair: Pair) -> Story:
    """The story of a verdict that is neither a pass nor expected."""
    cell, findings = pair.cell, verdict.findings
    main = main_finding(verdict)
    kinds = dict.fromkeys(finding.kind for finding in findings)
    damage = [one for one in findings if one.kind is FindingKind.KV_DIGESTS]
    return Story(
        name=cell.name,
        word=outcome_word(verdict.outcome, verdict.verdict),
        sentence=sentence_of(main, pair) if main else "no finding",
        settings=tuple(settings_of(pair)),
        findings=tuple(_finding_lines([one for one in findings if one.kind is not FindingKind.KV_DIGESTS])),
        evidence=evidence_of(pair, verdict),
        localisation=tuple(
            line for one in damage for line in (f"{one.message} ({one.size})", *draw(pair, one.left, one.right))
        ),
        logs=tuple(_logs(run, pair)),
        next_steps=tuple(HINTS[kind] for kind in kinds),
        reproduce=command_of(cell),
    )


def sentence_of(finding: Finding, pair: Pair) -> str:
    """What the finding says of the cell, with the phase that its side is held against."""
    side = side_of(finding)
    _, reference = pair.references().get(side, (Role.ORACLE, pair.reference_phase))
    restored = side is None or side[1] in (*RESTORES, Phase.OWN_RESTORE)
    what = "restored KV" if restored else f"the {side[0]}'s {side[1]}, which restores nothing,"
    return SENTENCES[finding.kind].format(what=what, reference=reference)


def command_of(cell: Cell) -> str:
    """Shell command that runs the cell alone."""
    name = f"{cell.path}::{cell.id}".replace("'", "'\\''")
    return f"pytest '{name}'"


def main_finding(verdict: Verdict) -> Finding | None:
    """The finding that the cell's verdict rests on: a broken expectation, otherwise the first of the worst."""
    for outcome in (verdict.verdict, verdict.outcome):
        for kind in (FindingKind.EXPECTATION_UNMET, None):
            for one in verdict.findings:
                if one.outcome is outcome and kind in (None, one.kind):
                    return one
    return None


def _finding_lines(findings: list[Finding]):
    seen: dict[FindingKind, int] = {}
    diverged = {one.place for one in findings if one.kind is FindingKind.TOKENS}
    for one in findings:
        # A diverging token's line has its logprobs already.
        if one.kind is FindingKind.LOGPROBS and one.place in diverged:
            continue
        seen[one.kind] = seen.get(one.kind, 0) + 1
        if seen[one.kind] <= MOST_OF_A_KIND:
            yield f"{one.kind}: {_clip(one.message, MESSAGE_CHARACTERS)}"
            if one.kind is FindingKind.EXPECTATION_UNMET:
                yield f"  {one.left}; {_clip(one.right, MESSAGE_CHARACTERS)}"
            if one.size:
                allowed = f" (allowed {one.limit})" if one.limit else ""
                yield f"  {one.size}{allowed}"
    for kind, count in seen.items():
        if count > MOST_OF_A_KIND:
            yield f"{kind}: and {count - MOST_OF_A_KIND} more"


def settings_of(pair: Pair):
    """Rows of settings that differ between the two legs, as asked and as resolved."""
    oracle, subject = ({**_asked(leg), **_seen(observation)} for _, leg, observation in pair.sides())
    for name in dict.fromkeys([*subject, *oracle]):
        left, right = oracle.get(name, "-"), subject.get(name, "-")
        if left != right:
            yield name, _clip(left, SETTING_CHARACTERS), _clip(right, SETTING_CHARACTERS)
    if pair.cell.sharing is not None and pair.subject is not None:
        for name, (filled, read) in differences(pair.subject).items():
            yield f"{name}, store filled", _clip(read, SETTING_CHARACTERS), _clip(filled, SETTING_CHARACTERS)


def _asked(leg: Leg) -> dict[str, str]:
    plain = {"layout": leg.layout, "backend": leg.backend, "batch_invariant": leg.batch_invariant}
    return {
        **{name: str(value) for name, value in plain.items()},
        **_flat("engine", leg.engine),
        **_flat("env", leg.env),
        **_flat("kv_transfer_config", leg.kv_transfer_config or {}),
    }


def _flat(prefix: str, values: Mapping[str, Any]) -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(f"{prefix}.{name}", value)
        else:
            flat[f"{prefix}.{name}"] = str(value)
    return flat


def _seen(observation: Observation | None) -> dict[str, str]:
    if observation is None:
        return {"ending": "not run"}
    seen = {"ending": observation.ending.value}
    if observation.resolved is not None:
        for name in ("layout", "backend", "batch_invariant", "block_size", "dtype", "threads", "connector"):
            seen[f"resolved {name}"] = str(getattr(observation.resolved, name))
    return seen


def evidence_of(pair: Pair, verdict: Verdict) -> str:
    """``external hits 512/528 tokens; resolved BHLNC / TRITON_ATTN; A/A control equal``."""
    restore = pair.record(Role.SUBJECT, Phase.RESTORE)
    got = "no restore" if restore is None else f"{restore.external_tokens}/{pair.cell.expected_external_tokens} tokens"
    parts = [f"external hits {got}"]
    shared = sharing_words(pair.cell, pair.subject)
    if shared is not None and pair.cell.sharing.shows:
        parts.append(f"filled under another configuration ({pair.cell.sharing.difference}), {shared}")
    resolved = pair.subject.resolved if pair.subject else None
    if resolved is not None:
        cell = pair.cell
        as_asked = (resolved.layout, resolved.backend, resolved.batch_invariant) == (
            cell.layout, cell.backend, cell.batch_invariant,
        )
        flag = "on" if resolved.batch_invariant else "off"
        parts.append(
            f"resolved {resolved.layout} / {resolved.backend}, batch invariance {flag}"
            f" {'as asked' if as_asked else 'NOT as asked'}"
        )
    alive = all(one is not None and one.ending is Ending.OK for one in (pair.oracle, pair.subject))
    if alive:
        differs = [one.kind.value.split("_")[0] for one in verdict.findings if one.kind in UNSTABLE]
        parts.append(f"A/A control {'differs: ' + ', '.join(differs) if differs else _control(pair)}")
    compared = verdict.compared
    blocks = f"{compared.blocks_equal}/{compared.blocks} KV blocks" if pair.subject_leg.digests else "KV digests off"
    answers = (
        f"{compared.tokens_equal}/{compared.tokens} tokens, {compared.logprobs_equal}/{compared.logprobs} logprobs, "
    )
    unit = pair.subject_leg.level == "unit"
    parts.append(f"compared: {blocks}, without an engine" if unit else f"compared: {answers}{blocks}")
    return "; ".join(parts)


def _control(pair: Pair) -> str:
    phases = ((Role.ORACLE, Phase.RECOMPUTE_AGAIN), (Role.SUBJECT, Phase.RESTORE_AGAIN))
    if not all(pair.record(*one) for one in phases):
        return "not run"
    if pair.repeats:
        return "equal"
    other, phase = pair.references()[Role.SUBJECT, Phase.RESTORE_AGAIN]
    return f"equal for the oracle; the second restore is held against {other} {phase}"


def _logs(run: RunView, pair: Pair):
    for role, _, observation in pair.sides():
        if observation is None:
            yield f"{role}: not run"
            continue
        yield f"{role}: {run.folder}/{observation.log}" if observation.log else f"{role}: no log"
        if observation.ending is not Ending.OK:
            yield from (f"    {_clip(line, 200)}" for line in observation.log_tail[-LOG_LINES:])
            yield from (f"    {_clip(line, 200)}" for line in trace_lines(observation, LOG_LINES))


def trace_lines(observation: Observation, most: int) -> list[str]:
    """The end of a dead leg's traceback or stacks, which the child caught, so that its log may not have them.

    Where the engine refused the configuration its message says all.
    """
    if observation.failure is None or observation.ending is Ending.REFUSED:
        return []
    trace = observation.failure.trace.strip()
    return [] if trace in "\n".join(observation.log_tail) else trace.splitlines()[-most:]


def _clip(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 4]} ..."
