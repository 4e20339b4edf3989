# SPDX-License-Identifier: Apache-2.0
"""Sharing: what both engines are told, what a scenario may ask, and how each outcome is judged."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from harness import models
from harness.compare import judge
from harness.connectors import ADAPTERS
from harness.engines.own_folder import adapter_path, model_path
from harness.errors import LegError, ScenarioError
from harness.hits import shared_hits
from harness.parts import joined, parts
from harness.plan import make_plan
from harness.prompt_sets import make_pass
from harness.records import (
    SHARING_PHASES,
    Certainty,
    Ending,
    Filling,
    FindingKind,
    Model,
    Outcome,
    Phase,
    PromptSpec,
    Reference,
    Role,
    Rule,
)
from harness.report.content import _rows
from harness.row import sharing_words
from harness.scenario import read_scenario
from harness.sharing import CONTROL, DIFFERENCES
from tests.unit.handmade import (
    BLOCK,
    HIT,
    Case,
    clean,
    dead,
    digest_block,
    edit,
    edit_prompt,
    edit_step,
    make_resolved,
    make_step,
    side,
)
from tests.unit.handmade_sharing import FULL, given, shared_case

TEXT = """name: shared
platforms: [cpu]
model: tiny
subject: example
axes:
  layout: [LBHNC]
  backend: [REFERENCE]
  batch_invariant: [true]
  differs: [nothing, VALUES]
prompts: {count: 2, prefix_tokens: 64, tail_tokens: 8}
"""


def find(name: str) -> Model:
    return Model(
        alias=name, path=f"/models/{name}", source="stand-in", digest=f"d-{name}", num_layers=4, num_kv_heads=4,
        head_dim=32, vocab_size=1024,
    )


def planned(tmp_path: Path, value: str, text: str = TEXT):
    path = tmp_path / "shared.yaml"
    path.write_text(text.replace("nothing, VALUES", "nothing" if value == CONTROL else f"nothing, {value}"))
    plan = make_plan([read_scenario(path)], platform="cpu", find_model=find, identity={})
    return plan, plan.cells[-1]


# --- what both engines are told ---------------------------------------------------------------------------------


@pytest.mark.parametrize("value", DIFFERENCES)
def test_only_the_difference_is_told_to_the_filling_engine(tmp_path, value):
    plan, cell = planned(tmp_path, value)
    oracle, subject = plan.leg(cell.oracle), plan.leg(cell.subject)
    first, second = parts(subject)
    assert (first.phases, second.phases) == (SHARING_PHASES[:3], SHARING_PHASES[3:])
    assert first.digest == second.digest == subject.digest
    # The reading engine is the oracle's but for its store.
    for name in ("layout", "backend", "batch_invariant", "model", "engine", "env", "request"):
        assert getattr(second, name) == getattr(oracle, name), name
    told = {name for name in Filling.__dataclass_fields__ if getattr(first, name) != getattr(second, name)}
    assert told == {
        CONTROL: set(), "weights": {"model"}, "weights_same_name": {"model"}, "revision": {"engine"},
        "dtype": {"engine"}, "kv_cache_dtype": {"engine"}, "block_size": {"engine"}, "layout": {"layout", "env"},
        "backend": {"backend", "env"}, "batch_invariance": {"batch_invariant", "env"}, "lora": {"request"},
        "cache_salt": {"request"}, "hash_seed": {"env"}, "threads": {"env"},
    }[value]
    assert cell.id == f"LBHNC-REFERENCE-bi1-{value}"
    assert cell.sharing.rule is DIFFERENCES[value].rule
    assert bool(cell.sharing.shows) is (value != CONTROL)


def test_values_of_some_differences(tmp_path):
    def told(value):
        plan, cell = planned(tmp_path, value)
        return parts(plan.leg(cell.subject))

    other, own = told("weights")
    assert (other.model.path, own.model.path, other.model_name) == ("/models/tiny-other", "/models/tiny", None)
    other, own = told("weights_same_name")
    assert (other.model.alias, own.model.alias) == ("tiny-other", "tiny")
    assert other.model_name == own.model_name == "model"
    other, own = told("block_size")
    assert (other.engine["block_size"], own.engine["block_size"]) == (32, 16)
    other, own = told("layout")
    assert (other.layout, other.env["VLLM_KV_CACHE_LAYOUT"], own.layout) == ("BHLNC", "BHLNC", "LBHNC")
    other, own = told("cache_salt")
    assert (other.request, own.request) == ({"cache_salt": "filled"}, {})
    other, own = told("lora")
    assert other.engine["enable_lora"] is own.engine["enable_lora"] is True


def test_every_difference_makes_a_leg_of_its_own_and_they_share_their_controls(tmp_path):
    values = [value for value in DIFFERENCES if value != CONTROL]
    plan, _ = planned(tmp_path, ", ".join(values))
    assert len({cell.subject for cell in plan.cells}) == len(DIFFERENCES) == len(plan.cells)
    control = next(cell for cell in plan.cells if cell.axes["differs"] == CONTROL)
    assert control.sharing.control is None and control.further == ()
    own = {cell.axes["differs"] for cell in plan.cells if cell.sharing.control not in (None, control.subject)}
    # Those whose reading engine is another one than the plain control's.
    assert own == {"weights_same_name", "lora"}
    assert all(plan.leg(digest).filling is None for cell in plan.cells for digest in cell.further)


def test_what_each_phase_must_hit():
    way = make_pass(PromptSpec(count=2, prefix_tokens=64, tail_tokens=8), 1024, 16)

    def hits(rule, filled=16):
        found = {one.phase: one for one in shared_hits(way, 16, filled, rule) if one.role is Role.SUBJECT}
        return [found[phase].external for phase in SHARING_PHASES], found[Phase.RESTORE].certain

    full, none = (64, 64), (0, 0)
    assert hits(Rule.MUST_HIT) == ([none, none, full, full, full], Certainty.SPLIT)
    assert hits(Rule.MUST_NOT_HIT) == ([none, none, full, none, full], Certainty.SPLIT)
    assert hits(Rule.MAY_HIT) == ([none, none, full, full, full], Certainty.LIMIT)
    assert hits(Rule.MAY_HIT, filled=48)[0][2] == (48, 48)


def test_two_engines_that_were_told_to_differ_are_no_crash():
    first = clean().subject
    second = replace(first, resolved=make_resolved(Role.SUBJECT, threads=2))
    whole = joined(first, second, filling=True)
    assert (whole.ending, whole.filled, whole.resolved.threads) == (Ending.OK, first.resolved, 2)


def test_both_engines_find_their_models_under_one_name_and_an_adapter_is_made_for_the_leg(tmp_path, monkeypatch):
    tiny, other = (models.find_model(name, cache=tmp_path / "cache") for name in ("tiny", "tiny-other"))
    (tmp_path / "leg" / "kv").mkdir(parents=True)
    monkeypatch.setenv("KVPARITY_STORE", str(tmp_path / "leg" / "kv"))
    leg = replace(clean().legs["subject-leg"], model=tiny)
    assert model_path(leg) == tiny.path
    seen = []
    for model in (other, tiny):
        path = model_path(replace(leg, model=model, model_name="model"))
        seen.append((path, str(Path(path).resolve())))
    assert seen == [(str(tmp_path / "leg" / "model"), one.path) for one in (other, tiny)]
    adapter = Path(adapter_path("filled", tiny))
    assert json.loads((adapter / "adapter_config.json").read_text())["target_modules"] == ["q_proj", "k_proj", "v_proj"]
    first = (adapter / "adapter_model.safetensors").read_bytes()
    header = json.loads(first[8 : 8 + int.from_bytes(first[:8], "little")])
    assert header["base_model.model.model.layers.3.self_attn.v_proj.lora_B.weight"]["shape"] == [128, 8]
    assert len(header) == 1 + 4 * 3 * 2
    monkeypatch.delenv("KVPARITY_STORE")
    with pytest.raises(LegError, match="KVPARITY_STORE names no folder"):
        adapter_path("filled", tiny)


# --- what a scenario may ask ------------------------------------------------------------------------------------


SURVIVING = ", ".join(alias for alias, one in ADAPTERS.items() if one.survives_restart)


@pytest.mark.parametrize(("old", "new", "line", "sentence"), [
    ("[nothing, VALUES]", "[weights]", 9, "axes.differs: needs the value `nothing`, the control"),
    ("[nothing, VALUES]", "[nothing, wieghts]", 9, "axes.differs[1]: `wieghts` is no differs; did you mean `weights`?"),
    ("subject: example", "subject: embedded", 4, "subject: the store of `embedded` ends with its engine, so nothing "
     f"can be shared; valid with the axis `differs`: {SURVIVING}."),
    ("  differs", "  connector: [example, noop]\n  differs", 9, "axes.connector[1]: the store of `noop` ends with"),
    ("[cpu]", "[cpu, rocm]", 9, "axes.differs: is made for CPU hosts; give `platforms: [cpu]`."),
    ("  differs", "  restore: [new_engine]\n  differs", 10, "axes.differs: the engine that reads is always a new one"),
    ("{count: 2,", "{set: aligned, count: 2,", 9, "axes.differs: prompts of the set `aligned` find each other's"),
    ("model: tiny", "model: qwen3-0.6b", 9, "axes.differs[1]: `weights` needs a model of which there are other "
     "weights, got `qwen3-0.6b`; valid models: tiny."),
])
def test_what_cannot_be_asked(tmp_path, old, new, line, sentence):
    path = tmp_path / "x.yaml"
    path.write_text(TEXT.replace(old, new).replace("VALUES", "weights"))
    with pytest.raises(ScenarioError) as caught:
        read_scenario(path)
    assert any(f"x.yaml:{line}: {sentence}" in problem for problem in str(caught.value).splitlines()), caught.value


def test_the_page_has_every_difference_with_its_rule():
    page = (Path(__file__).parents[2] / "docs" / "scenarios.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| (must hit|must not hit|may hit) \| ([^|]+) \|$", page, re.MULTILINE)
    assert rows == [(name, one.rule.replace("_", " "), one.why) for name, one in DIFFERENCES.items()]


def test_other_weights_are_other_weights(tmp_path):
    tiny, other = (models.find_model(name, cache=tmp_path) for name in ("tiny", "tiny-other"))
    assert tiny.digest != other.digest
    assert replace(other, alias="tiny", path=tiny.path, digest=tiny.digest) == tiny


# --- how it is judged -------------------------------------------------------------------------------------------


def judged(case: Case):
    verdict = judge(case.cell, case.legs, case.oracle, case.subject, case.further)
    return verdict.outcome, [one.kind for one in verdict.findings], verdict


@pytest.mark.parametrize(("rule", "hits", "words"), [
    (Rule.MUST_HIT, FULL, "must hit: 16 of 16 tokens shared"),
    (Rule.MUST_NOT_HIT, 0, "must not hit: nothing shared"),
    (Rule.MAY_HIT, 0, "may hit: nothing shared"),
    (Rule.MAY_HIT, HIT, "may hit: 8 of 16 tokens shared"),
    (Rule.MAY_HIT, FULL, "may hit: 16 of 16 tokens shared"),
])
def test_what_passes_says_what_was_shared(rule, hits, words):
    case = shared_case(rule, hits=hits)
    outcome, kinds, verdict = judged(case)
    assert (outcome, kinds) == (Outcome.PASS, [])
    # Given or computed, every full block is compared.
    assert (verdict.compared.blocks, verdict.compared.blocks_equal) == (4, 4)
    assert sharing_words(case.cell, case.subject) == words


def test_a_forbidden_hit_fails_although_its_kv_is_the_same():
    outcome, kinds, verdict = judged(shared_case(Rule.MUST_NOT_HIT, hits=FULL))
    assert (outcome, kinds) == (Outcome.FAIL, [FindingKind.FORBIDDEN_HITS])
    assert verdict.findings[0].message == (
        "subject restore: 16 of 16 tokens came from KV that was stored under another configuration (weights), none may"
    )


def test_what_the_scheduler_counts_and_what_the_prompts_were_promised_must_add_up():
    case = shared_case(Rule.MAY_HIT, hits=HIT)
    assert judged(case)[:2] == (Outcome.PASS, [])
    less = edit_prompt(case, Role.SUBJECT, Phase.RESTORE, 0, cached_tokens=0)
    assert judged(less)[:2] == (Outcome.VACUOUS, [FindingKind.EXTERNAL_HITS])
    local = edit(case, Role.SUBJECT, Phase.RESTORE, local_tokens=HIT)
    assert judged(local)[1] == [FindingKind.LOCAL_HITS, FindingKind.EXTERNAL_HITS]


def test_a_hit_that_changes_a_bit_fails_whatever_the_rule():
    for rule in (Rule.MUST_NOT_HIT, Rule.MAY_HIT):
        case = shared_case(rule, hits=FULL)
        for phase in (Phase.RESTORE, Phase.RESTORE_AGAIN):
            case = edit_step(case, Role.SUBJECT, phase, 1, 2, bits=make_step(1, 2).bits + 1)
            case = edit_prompt(case, Role.SUBJECT, phase, 1, kv=(digest_block(1, 0), digest_block(1, 1, ((1, 0, 0),))))
        outcome, kinds, _ = judged(case)
        assert outcome is Outcome.FAIL
        assert {FindingKind.LOGPROBS, FindingKind.KV_DIGESTS} <= set(kinds)
        assert (FindingKind.FORBIDDEN_HITS in kinds) is (rule is Rule.MUST_NOT_HIT)


def test_kv_that_nobody_claimed_to_give_is_compared_too():
    case = edit_prompt(
        shared_case(Rule.MUST_NOT_HIT), Role.SUBJECT, (Phase.RESTORE, Phase.RESTORE_AGAIN), 0,
        kv=(digest_block(0, 0), digest_block(0, 1, ((0, 0, 0),))),
    )
    assert judged(case)[:2] == (Outcome.FAIL, [FindingKind.KV_DIGESTS])


def test_where_nothing_else_may_hit_the_second_restore_must():
    outcome, kinds, _ = judged(shared_case(Rule.MUST_NOT_HIT, again=0))
    assert (outcome, kinds) == (Outcome.VACUOUS, [FindingKind.EXTERNAL_HITS])


def test_a_control_that_did_not_hit_all_makes_the_others_vacuous():
    case = shared_case(Rule.MUST_NOT_HIT)
    short = side(case, Role.SUBJECT, phases=case.subject.phases)
    control = given(clean(), Phase.RESTORE, HIT).subject
    for further in ({"control-leg": control}, {"control-leg": dead(Role.SUBJECT, Ending.CRASHED)}, {}):
        outcome, kinds, verdict = judged(replace(short, further=further))
        assert (outcome, kinds) == (Outcome.VACUOUS, [FindingKind.EXTERNAL_HITS])
        assert verdict.findings[0].place == "control restore"


def test_a_fill_that_did_not_come_back_to_its_own_engine_is_none():
    case = given(shared_case(Rule.MUST_NOT_HIT), Phase.OWN_RESTORE, 0)
    assert judged(case)[:2] == (Outcome.VACUOUS, [FindingKind.EXTERNAL_HITS])
    case = edit_prompt(
        shared_case(Rule.MUST_NOT_HIT), Role.SUBJECT, Phase.OWN_RESTORE, 1, kv=(digest_block(1, 1), digest_block(1, 1))
    )
    assert judged(case)[:2] == (Outcome.FAIL, [FindingKind.KV_DIGESTS])
    case = edit_prompt(shared_case(Rule.MUST_NOT_HIT), Role.SUBJECT, Phase.OWN_RESTORE, 1, kv=(None, None))
    assert judged(case)[:2] == (Outcome.VACUOUS, [FindingKind.DIGESTS_MISSING])


def test_a_folder_without_a_file_in_it_holds_nothing():
    case = shared_case(Rule.MUST_NOT_HIT)
    subject = replace(case.legs["subject-leg"], kv_transfer_config={"kv_connector_extra_config": {"path": "{folder}"}})
    case = replace(case, legs={**case.legs, "subject-leg": subject})
    assert judged(side(case, Role.SUBJECT, left_bytes=9))[:2] == (Outcome.PASS, [])
    assert judged(side(case, Role.SUBJECT, left_bytes=0))[:2] == (Outcome.VACUOUS, [FindingKind.NOTHING_DELIVERED])


def test_a_difference_that_was_not_taken_is_vacuous():
    def vacuous(case: Case, words: str) -> None:
        outcome, kinds, verdict = judged(case)
        assert outcome is Outcome.VACUOUS
        assert set(kinds) == {FindingKind.DIFFERENCE_NOT_TAKEN}
        assert words in verdict.findings[0].message

    case = shared_case(Rule.MUST_NOT_HIT)
    vacuous(side(case, Role.SUBJECT, filled=None), "nothing says what the engine that filled the store resolved")
    vacuous(side(case, Role.SUBJECT, filled=case.subject.resolved), "weights is w0 in both engines")
    also = {**case.subject.filled.settings, "hash seed": "h1"}
    vacuous(side(case, Role.SUBJECT, filled=replace(case.subject.filled, settings=also)),
            "hash seed was h1 and then h0")
    vacuous(side(case, Role.SUBJECT, filled=replace(case.subject.filled, threads=2)), "but threads was 2 and then 1")
    vacuous(side(case, Role.SUBJECT, filled=replace(case.subject.filled, connector=None)), "had no KV connector")
    fillings = {
        "to be filled with layout BHLNC": Filling(layout="BHLNC"),
        "to be filled with block size 8": Filling(engine={"block_size": 8}),
        "to be filled with dtype float32, the worker used None": Filling(
            engine={"block_size": BLOCK, "dtype": "float32"}),
        "to be filled with threads 2, the worker used 1": Filling(env={"OMP_NUM_THREADS": "2"}),
        "with what requests carry {'lora': 'x'}, the worker used {}": Filling(request={"lora": "x"}),
    }
    for words, filling in fillings.items():
        leg = replace(case.legs["subject-leg"], filling=filling)
        outcome, kinds, verdict = judged(replace(case, legs={**case.legs, "subject-leg": leg}))
        assert outcome is Outcome.VACUOUS and FindingKind.DIFFERENCE_NOT_TAKEN in kinds
        assert any(words in one.message for one in verdict.findings)


def test_oracle_and_reading_engine_must_have_loaded_the_same():
    case = shared_case(Rule.MUST_NOT_HIT)
    same = side(case, Role.ORACLE, resolved=replace(case.oracle.resolved, settings=case.subject.resolved.settings))
    assert judged(same)[:2] == (Outcome.PASS, [])
    other = replace(case.oracle.resolved, settings={**case.subject.resolved.settings, "weights": "w9"})
    outcome, kinds, verdict = judged(side(case, Role.ORACLE, resolved=other))
    assert (outcome, kinds) == (Outcome.VACUOUS, [FindingKind.LEGS_RESOLVED_DIFFERENTLY])
    assert verdict.findings[0].message == "weights is w9 in the oracle and w0 in the subject"


def test_what_requests_carry_is_a_setting_of_their_engine():
    case = shared_case(Rule.MUST_NOT_HIT, shows=("request cache_salt",))
    assert judged(case)[:2] == (Outcome.VACUOUS, [FindingKind.DIFFERENCE_NOT_TAKEN])
    leg = replace(case.legs["subject-leg"], filling=Filling(request={"cache_salt": "filled"}))
    case = replace(case, legs={**case.legs, "subject-leg": leg})
    salted = edit(case, Role.SUBJECT, Phase.POPULATE, carried={"cache_salt": "filled"})
    assert judged(salted)[:2] == (Outcome.PASS, [])


def test_kv_that_must_be_another_one_must_give_other_answers():
    case = shared_case(Rule.MUST_NOT_HIT)
    case = replace(case, cell=replace(case.cell, sharing=replace(case.cell.sharing, alters=True)))
    outcome, kinds, verdict = judged(case)
    assert (outcome, kinds) == (Outcome.VACUOUS, [FindingKind.DIFFERENCE_NOT_TAKEN])
    assert "answered bitwise as the reading one recomputes" in verdict.findings[0].message
    for phase in (Phase.POPULATE, Phase.LOCAL_HIT):
        case = edit_step(case, Role.SUBJECT, phase, 0, 1, token=77)
    assert judged(case)[:2] == (Outcome.PASS, [])


def test_where_kernels_are_not_batch_invariant_each_restore_has_a_reference_of_its_own():
    case = shared_case(Rule.MUST_NOT_HIT)
    case = replace(case, cell=replace(
        case.cell, axes={**case.cell.axes, "batch_invariant": False}, reference=Reference.LOCAL_HIT))
    for role in Role:
        resolved = getattr(case, role.value).resolved
        case = side(case, role, resolved=replace(resolved, batch_invariant=False))
    case = side(case, Role.SUBJECT, filled=replace(case.subject.filled, batch_invariant=False))
    case = replace(case, legs={name: replace(leg, batch_invariant=False) for name, leg in case.legs.items()})
    other = make_step(1, 2).bits + 1
    # A hit rounds otherwise than a recompute: in the oracle, and in the restore that hits what the first one stored.
    case = edit_step(case, Role.ORACLE, Phase.LOCAL_HIT, 1, 2, bits=other)
    assert judged(case)[:2] == (Outcome.FAIL, [FindingKind.LOGPROBS])
    assert judged(edit_step(case, Role.SUBJECT, Phase.RESTORE_AGAIN, 1, 2, bits=other))[:2] == (Outcome.PASS, [])


def test_a_report_has_a_row_for_each_difference_of_one_layout():
    part = pd.DataFrame({"differs": ["nothing", "weights"], "layout": ["LBHNC", "LBHNC"]})
    assert _rows(part) == "differs"
    assert _rows(part.assign(layout=["LBHNC", "BHLNC"])) == _rows(part.assign(differs=pd.NA)) == "layout"
