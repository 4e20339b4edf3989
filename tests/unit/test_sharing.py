# SPDX-License-Identifier: Apache-2.0
"""Sharing: what both engines are told, and what a scenario may ask."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from harness import models
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
    Model,
    Phase,
    PromptSpec,
    Role,
    Rule,
)
from harness.scenario import read_scenario
from harness.sharing import CONTROL, DIFFERENCES
from tests.unit.handmade import (
    clean,
    make_resolved,
)

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


@pytest.mark.parametrize(("leaves", "most"), [(None, 64), (0, 80), (1, 79)])
def test_a_store_that_gives_the_last_block_too_gives_it_to_another_engine(leaves, most):
    way = make_pass(PromptSpec(count=2, prefix_tokens=64, tail_tokens=16), 1024, 16)
    full, none, more = ((tokens, tokens) for tokens in (most, 0, most - 64))
    for rule, first in ((Rule.MUST_HIT, full), (Rule.MUST_NOT_HIT, none), (Rule.MAY_HIT, full)):
        found = {(one.role, one.phase): one for one in shared_hits(way, 16, 16, rule, leaves=leaves)}
        external = [found[Role.SUBJECT, phase].external for phase in SHARING_PHASES]
        assert external == [none, more, full, first, full]
        assert found[Role.SUBJECT, Phase.LOCAL_HIT].local == found[Role.ORACLE, Phase.LOCAL_HIT].local == (64, 64)


@pytest.mark.parametrize(("connector", "most"), [("example", 64), ("offloading_fs", 80), ("lmcache_mp", 79)])
def test_a_plan_knows_what_a_connector_leaves(tmp_path, connector, most):
    text = TEXT.replace("tail_tokens: 8", "tail_tokens: 16").replace("subject: example", f"subject: {connector}")
    plan, _ = planned(tmp_path, "weights", text)
    for cell in plan.cells:
        assert cell.full_external_tokens == 2 * most
        # The last block is compared where it comes back whole.
        assert cell.expected_blocks == 2 * (most // 16)


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
