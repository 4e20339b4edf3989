# SPDX-License-Identifier: Apache-2.0
"""Restores between two live engines: hits by rule, what a scenario may ask for, and what a pass needs as proof."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.axes import RESTORE_PATHS
from harness.compare import judge
from harness.connectors import ADAPTERS
from harness.errors import ScenarioError
from harness.hits import expected_hits
from harness.plan import make_plan
from harness.prompt_sets import make_pass
from harness.records import PREFILL_DECODE, FindingKind, Handover, Outcome, Phase, PromptSpec, Role, SubjectSpec
from harness.scenario import read_scenario
from harness.scenario_paths import paths_of
from tests.unit.handmade import (
    BLOCK,
    HIT,
    LENGTH,
    PROMPTS,
    RESTORED,
    Case,
    clean,
    digest_block,
    edit,
    edit_prompt,
    make_resolved,
    resolve,
    side,
)

SUBJECT = Role.SUBJECT

# --- the rule ----------------------------------------------------------------------------------------------------


def restore_of(name: str, phase: Phase = Phase.RESTORE, **rule: bool):
    way = make_pass(PromptSpec(set=name, count=3, prefix_tokens=64, tail_tokens=8), 1024, 16)
    hits = expected_hits(way, 16, hands_over=True, **rule)
    (one,) = (one for one in hits if (one.role, one.phase) == (SUBJECT, phase))
    return one.local, one.external, one.prefill


@pytest.mark.parametrize("phase", RESTORED)
@pytest.mark.parametrize(("name", "late", "local", "external", "prefill"), [
    ("partial", True, (0, 0, 0), (72, 72, 72), (64, 64, 64)),
    ("aligned", True, (0, 0, 0), (64, 64, 64), (48, 48, 48)),
    ("shorter_than_block", True, (0, 0, 0), (15, 14, 13), (0, 0, 0)),
    # Of prompts that are submitted together none finds what another one is still loading.
    ("same_four", True, (0,) * 4, (72,) * 4, (64,) * 4),
    ("same_four", False, (0, 64, 64, 64), (72, 8, 8, 8), (64,) * 4),
    ("local_then_external", True, (16, 16, 16), (56, 56, 56), (64, 64, 64)),
])
def test_whole_prompts_are_handed_over_less_what_the_decode_engine_has(name, late, local, external, prefill, phase):
    assert restore_of(name, phase, late_loads=late) == (local, external, prefill)


def test_the_phases_before_and_the_oracle_are_those_of_any_engine():
    way = make_pass(PromptSpec(set="same_four", prefix_tokens=64, tail_tokens=8), 1024, 16)
    one, two = expected_hits(way, 16, late_loads=True), expected_hits(way, 16, late_loads=True, hands_over=True)
    assert [(a, b) for a, b in zip(one, two, strict=True) if a != b and a.phase not in RESTORED] == []
    assert {hits.prefill for hits in two if hits.phase not in RESTORED} == {()}


# --- what a scenario may ask for -----------------------------------------------------------------------------------

TEXT = """\
name: x
platforms: [cpu]
model: tiny
subject: {subject}
axes:
  layout: [LBHNC]
  backend: [REFERENCE]
  batch_invariant: [{invariant}]
{axes}
prompts: {prompts}
decode: {decode}
engine: {{max_num_batched_tokens: 512, num_gpu_blocks_override: 20}}
"""


def read(tmp_path: Path, subject="nixl", axes="  restore: [prefill_decode]", invariant="true",
         prompts="{prefix_tokens: 48, tail_tokens: 8}", decode="{max_tokens: 12}"):
    path = tmp_path / "x.yaml"
    path.write_text(TEXT.format(subject=subject, axes=axes, invariant=invariant, prompts=prompts, decode=decode))
    return read_scenario(path)


def problem(tmp_path: Path, **changes: str) -> str:
    with pytest.raises(ScenarioError) as caught:
        read(tmp_path, **changes)
    return str(caught.value)


def test_every_connector_says_how_it_can_restore():
    assert all(set(adapter.paths) <= set(RESTORE_PATHS) and adapter.paths for adapter in ADAPTERS.values())
    assert {alias for alias, adapter in ADAPTERS.items() if PREFILL_DECODE in adapter.paths} == {"nixl"}
    assert paths_of(SubjectSpec(connector="custom", kv_transfer_config={"kv_connector": "Own"})) == RESTORE_PATHS
    whole = SubjectSpec(connector="custom", kv_transfer_config={"kv_connector": "NixlConnector"})
    assert paths_of(whole) == (PREFILL_DECODE,)


@pytest.mark.parametrize(("changes", "line", "words"), [
    ({"subject": "example"}, 9,
     "connector `example` cannot restore with `prefill_decode`; valid: same_engine, new_engine, partial."),
    ({"axes": "  restore: [new_engine, prefill_decode]"}, 9,
     "connector `nixl` cannot restore with `new_engine`; valid: prefill_decode."),
    ({"axes": ""}, 4,
     "connector `nixl` cannot restore with `same_engine`, which is meant without the axis `restore`; give"
     " `restore: [prefill_decode]`."),
    ({"subject": "example", "axes": "  connector: [example, nixl]"}, 9,
     "connector `nixl` cannot restore with `same_engine`"),
    ({"subject": "{kv_transfer_config: {kv_connector: NixlConnector}}", "axes": ""}, 4,
     "connector `NixlConnector` cannot restore with `same_engine`"),
    ({"prompts": "{set: many, count: 4, prefix_tokens: 64, tail_tokens: 8}", "decode": "{max_tokens: 20}"}, 10,
     "prompt set `many` cannot be restored with `prefill_decode`"),
    ({"invariant": "false", "decode": "{max_tokens: 12, submit: alone}"}, 10,
     "needs prompts of one token more than whole blocks of 16, got 56 tokens"),
    ({"invariant": "false", "prompts": "{prefix_tokens: 48, tail_tokens: 1}"}, 11, "needs `submit: alone`"),
])
def test_what_cannot_be_is_refused_with_its_line(tmp_path, changes, line, words):
    text = problem(tmp_path, **changes)
    assert f"x.yaml:{line}: " in text and words in text


def test_without_batch_invariance_a_local_hit_must_compute_what_a_handed_over_prompt_does(tmp_path):
    scenario = read(tmp_path, invariant="false", prompts="{prefix_tokens: 48, tail_tokens: 1}",
                    decode="{max_tokens: 12, submit: alone}")
    assert scenario.axes["restore"] == (PREFILL_DECODE,)


def test_the_subjects_leg_has_two_engines_and_the_oracles_one(tmp_path, model):
    scenario = read(tmp_path)
    plan = make_plan([scenario], platform="cpu", find_model=lambda name: model, identity={})
    (cell,) = plan.cells
    wanted = "prefill_decode" if ADAPTERS["nixl"].missing() is None else "unavailable"
    assert (plan.leg(cell.subject).engine_name, plan.leg(cell.oracle).engine_name) == (wanted, "vllm")
    assert plan.leg(cell.subject).kv_transfer_config["kv_buffer_device"] == "cpu"
    # 56 tokens each: three full blocks without the token that is computed again.
    assert (cell.hands_over, cell.expected_external_tokens, cell.expected_blocks) == (True, 3 * 56, 3 * 3)


# --- the evidence ------------------------------------------------------------------------------------------------

#: Bytes of one block of all layers in the hand-made model: layers, head slots, content, tokens, bytes of bfloat16.
BLOCK_BYTES = 2 * 2 * 8 * BLOCK * 2
BLOCKS = -(-LENGTH // BLOCK)


def handed() -> Case:
    """A pair of engines with nothing wrong."""
    case = clean()
    hits = tuple(
        replace(one, external=(LENGTH,) * PROMPTS, prefill=(HIT,) * PROMPTS)
        if one.role is SUBJECT and one.phase in RESTORED else one for one in case.cell.hits
    )
    case = replace(case, cell=replace(case.cell, axes={**case.cell.axes, "restore": PREFILL_DECODE}, hits=hits))
    case = edit(case, SUBJECT, RESTORED, external_tokens=PROMPTS * LENGTH, delivered_tokens=None,
                loaded_bytes=PROMPTS * BLOCKS * BLOCK_BYTES)
    for index in range(PROMPTS):
        handover = Handover(cached_tokens=HIT, tokens=LENGTH, blocks=tuple(range(BLOCKS)))
        case = edit_prompt(case, SUBJECT, RESTORED, index, cached_tokens=LENGTH, handover=handover)
    return side(case, SUBJECT, prefill=make_resolved(SUBJECT))


def verdict_of(case: Case):
    return judge(case.cell, case.legs, case.oracle, case.subject)


def test_a_pair_with_nothing_wrong_passes_and_its_full_blocks_are_compared():
    verdict = verdict_of(handed())
    assert (verdict.outcome, verdict.findings) == (Outcome.PASS, ())
    assert verdict.compared.blocks == PROMPTS * (LENGTH - 1) // BLOCK


def again(case: Case, **changes) -> Case:
    return edit_prompt(case, SUBJECT, Phase.RESTORE_AGAIN, 1, **changes)


HANDED = Handover(cached_tokens=HIT, tokens=LENGTH, blocks=(0, 1, 2))


@pytest.mark.parametrize(("change", "kind", "words"), [
    (lambda case: again(case, handover=None), "external_hits", "nothing says that another engine held its KV ready"),
    (lambda case: again(case, handover=replace(HANDED, tokens=HIT)), "external_hits",
     "the prefill engine held 8 tokens in 3 blocks ready, exactly 9 tokens in 3 blocks expected"),
    (lambda case: again(case, handover=replace(HANDED, blocks=(0, 1))), "external_hits", "9 tokens in 2 blocks ready"),
    (lambda case: again(case, handover=replace(HANDED, cached_tokens=0)), "local_hits",
     "the prefill engine found 0 of its tokens in its own cache, exactly 8 expected"),
    (lambda case: edit(case, SUBJECT, Phase.RESTORE, loaded_bytes=BLOCK_BYTES), "nothing_delivered",
     f"the connector read {BLOCK_BYTES} bytes, 6 blocks have {6 * BLOCK_BYTES}"),
    (lambda case: edit(case, SUBJECT, Phase.RESTORE, external_tokens=PROMPTS * HIT), "external_hits",
     "16 external hit tokens, exactly 18 expected"),
])
def test_evidence_that_is_missing_or_one_off_is_vacuous(change, kind, words):
    verdict = verdict_of(change(handed()))
    assert (verdict.outcome, [str(one.kind) for one in verdict.findings]) == (Outcome.VACUOUS, [kind])
    assert words in verdict.findings[0].message


def test_a_block_more_than_was_handed_over_is_an_overrun():
    verdict = verdict_of(edit(handed(), SUBJECT, Phase.RESTORE, loaded_bytes=7 * BLOCK_BYTES))
    assert (verdict.outcome, [one.kind for one in verdict.findings]) == (Outcome.FAIL, [FindingKind.OVERRUN])


@pytest.mark.parametrize(("changes", "kind", "words"), [
    ({"layout": "BLHNC"}, FindingKind.LAYOUT_NOT_AS_ASKED, "the prefill engine: layout LBHNC was asked for"),
    ({"layout_by_strides": ("BLHNC",)}, FindingKind.STRIDES_NOT_AS_LAYOUT, "the prefill engine: the tensors' strides"),
    ({"backend": "CPU_ATTN"}, FindingKind.BACKEND_NOT_AS_ASKED, "the prefill engine: backend REFERENCE was asked for"),
    ({"batch_invariant": False}, FindingKind.BATCH_INVARIANCE_NOT_AS_ASKED, "the prefill engine: batch invariance"),
    ({"threads": 2}, FindingKind.LEGS_RESOLVED_DIFFERENTLY,
     "threads is 2 in the prefill engine and 1 in the decode engine"),
    ({"connector": None}, FindingKind.LEGS_RESOLVED_DIFFERENTLY, "connector is None in the prefill engine"),
])
def test_the_engine_that_prefills_is_held_to_what_was_asked_too(changes, kind, words):
    verdict = verdict_of(side(handed(), SUBJECT, prefill=make_resolved(SUBJECT, **changes)))
    assert verdict.findings[0].kind is kind and words in verdict.findings[0].message
    assert verdict.outcome is Outcome.VACUOUS and verdict.compared.prompts == 0


def test_what_the_engine_that_prefills_resolved_must_be_known():
    (finding,) = verdict_of(side(handed(), SUBJECT, prefill=None)).findings
    assert "the prefill engine: its worker never reported what it resolved" in finding.message


def test_the_engine_that_decodes_is_no_less_asked():
    assert verdict_of(resolve(handed(), SUBJECT, layout="BLHNC")).outcome is Outcome.VACUOUS


def test_damage_between_the_engines_is_found_by_digest():
    damaged = edit_prompt(
        handed(), SUBJECT, RESTORED, 0, kv=(digest_block(0, 0, ((1, 0, 0),)), digest_block(0, 1))
    )
    assert [one.kind for one in verdict_of(damaged).findings] == [FindingKind.KV_DIGESTS]
