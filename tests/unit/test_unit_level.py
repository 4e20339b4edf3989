# SPDX-License-Identifier: Apache-2.0
"""A store without an engine, in this process and with a two-layer model's dimensions: what passes, what never does."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.compare import judge
from harness.engines import open_engine
from harness.leg import run_phases
from harness.plan import make_plan
from harness.plugin import overlay
from harness.prompt_sets import make_pass
from harness.records import SCHEMA_VERSION, Ending, FindingKind, Observation, Outcome, Role
from harness.scenario import read_scenario
from harness.unit import stores
from harness.unit.pages import StrayBytes

SCENARIOS = Path(__file__).parents[2] / "scenarios"
PATHS = ("bulk", "ranges")


@pytest.fixture
def plan_of(model):
    def plan(name):
        scenario = read_scenario(SCENARIOS / name)
        return make_plan([scenario], platform="cpu", find_model=lambda _: model, identity={})

    return plan


@pytest.fixture
def verdict_of(plan_of):
    """Run both legs of one cell here and judge it."""

    def verdict(name, cell_id):
        plan = plan_of(name)
        cell = next(cell for cell in plan.cells if cell.id == cell_id)
        legs = {leg.digest: leg for leg in plan.legs}
        seen = [observe(legs[digest]) for digest in (cell.oracle, cell.subject)]
        return judge(cell, legs, *seen)

    return verdict


def observe(leg):
    records = []
    engine = open_engine(leg, lambda stage: None)
    resolved = engine.resolved()
    way = make_pass(leg.prompts, leg.model.vocab_size, resolved.block_size)
    run_phases(leg, engine, way, lambda stage: None, resolved.block_size, records)
    return Observation(schema=SCHEMA_VERSION, leg=leg.digest, ending=Ending.OK, resolved=resolved,
                       phases=tuple(records), failure=None, environment={}, seconds={}, peak_bytes=0)


@pytest.mark.parametrize("transfer", PATHS)
@pytest.mark.parametrize("layout", ["LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC"])
def test_the_embedded_store_is_exact_in_every_layout(verdict_of, layout, transfer):
    verdict = verdict_of("unit.yaml", f"{layout}-REFERENCE-bi1-{transfer}")
    assert (verdict.verdict, verdict.findings) == (Outcome.PASS, ())
    assert (verdict.compared.blocks, verdict.compared.blocks_equal) == (3, 3)


class Faulty(stores.Embedded):
    """The embedded store with one thing wrong."""

    fault = ""

    def store(self, keys, blocks):
        moved = super().store(keys, blocks)
        if self.fault == "store_changes_a_guard":
            self.pages.storage[-1] ^= 1
        return moved

    def load(self, keys, blocks):
        if self.fault == "nothing_moved":
            return 0
        if self.fault == "claims_what_it_did_not_move":
            return len(keys) * self.pages.block_bytes
        moved = super().load(keys, blocks)
        if self.fault == "a_bit":
            next(iter(self.pages.kv_caches.values()))[blocks[0], 1, 0, 0] += 1
        if self.fault == "load_changes_a_guard":
            other = next(block for block in range(self.pages.num_blocks) if block not in blocks)
            next(iter(self.pages.kv_caches.values()))[other, 0, 0, 0] += 1
        return moved

    def __init__(self, options, pages):
        super().__init__(options, pages)
        self.pages = pages


@pytest.fixture
def faulty(monkeypatch):
    def plant(fault):
        monkeypatch.setattr(Faulty, "fault", fault)
        monkeypatch.setattr(stores, "Embedded", Faulty)

    return plant


@pytest.mark.parametrize(("fault", "outcome", "kinds"), [
    ("", Outcome.PASS, []),
    ("a_bit", Outcome.FAIL, [FindingKind.KV_DIGESTS]),
    ("claims_what_it_did_not_move", Outcome.FAIL, [FindingKind.KV_DIGESTS]),
    ("nothing_moved", Outcome.FAIL, [FindingKind.NOTHING_DELIVERED] * 4 + [FindingKind.KV_DIGESTS]),
])
def test_a_store_that_restores_other_bytes_fails(verdict_of, faulty, fault, outcome, kinds):
    faulty(fault)
    verdict = verdict_of("unit.yaml", "BHLNC-REFERENCE-bi1-ranges")
    assert (verdict.verdict, [finding.kind for finding in verdict.findings]) == (outcome, kinds)


@pytest.mark.parametrize(("fault", "words"), [
    ("load_changes_a_guard", r"^the load changed [12] bytes outside of the blocks that it was given$"),
    ("store_changes_a_guard", r"^the store changed 1 bytes outside of the blocks that it was given$"),
])
def test_a_transfer_that_touches_a_guard_ends_its_leg(verdict_of, faulty, fault, words):
    faulty(fault)
    with pytest.raises(StrayBytes, match=words):
        verdict_of("unit.yaml", "LBHNC-REFERENCE-bi1-bulk")


@pytest.fixture(scope="module")
def importable(upstream_umbp):
    """UMBP of vLLM 0.33.0, importable."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(overlay.RUNTIME_VARIABLE, "")
        patch.setenv(overlay.VARIABLE, str(upstream_umbp))
        yield


@pytest.mark.parametrize("transfer", PATHS)
@pytest.mark.parametrize("layout", ["LBHNC", "LBNHC", "BLHNC", "BLNHC"])
def test_upstream_umbp_is_exact_where_a_page_is_one_run(importable, verdict_of, layout, transfer):
    verdict = verdict_of("umbp_unit.yaml", f"{layout}-REFERENCE-bi1-{transfer}")
    assert (verdict.verdict, verdict.findings) == (Outcome.PASS, ())


@pytest.mark.parametrize("transfer", PATHS)
def test_upstream_umbp_restores_wrong_pages_in_bhlnc_and_refuses_lhbnc(importable, verdict_of, transfer):
    verdict = verdict_of("umbp_unit.yaml", f"BHLNC-REFERENCE-bi1-{transfer}")
    assert (verdict.outcome, verdict.findings[0].kind) == (Outcome.FAIL, FindingKind.KV_DIGESTS)
    # The second layer's last head slot is what a page taken for one run still reaches of this model's two layers.
    assert "pages, 3 of 3 blocks" in verdict.findings[0].size
    # 2 heads of 16 tokens of K and V of 8 bf16 numbers: a page of 1024 bytes, a run of 512.
    with pytest.raises(ValueError, match=r"^KV region bytes \(1024\) exceed its stride \(512\)"):
        verdict_of("umbp_unit.yaml", f"LHBNC-REFERENCE-bi1-{transfer}")


def test_both_legs_are_unit_legs_that_generate_nothing(plan_of):
    plan = plan_of("unit.yaml")
    assert {leg.engine_name for leg in plan.legs} == {"unit"}
    assert {leg.decode.max_tokens for leg in plan.legs} == {0}
    # An oracle for each layout, shared by both paths.
    assert [leg.role for leg in plan.legs].count(Role.ORACLE) == 6
    assert "level" not in str(next(leg for leg in plan.legs if leg.role is Role.SUBJECT).kv_transfer_config)


def test_another_backends_layouts_are_refused(plan_of, make_leg):
    leg = make_leg(backend="REFERENCE_SHUFFLE", layout="BHLNC", engine_name="unit")
    with pytest.raises(ValueError, match=r"^REFERENCE_SHUFFLE does not take the layout BHLNC; valid layouts: "):
        open_engine(leg, lambda stage: None)


@pytest.mark.parametrize(("old", "new", "words"), [
    ("platforms: [cpu]", "platforms: [cpu, rocm]", "`unit` uses tensors in main memory; give `platforms: [cpu]`."),
    ("[REFERENCE]", "[CPU_ATTN]", "so CPU_ATTN would prove nothing; valid backends: REFERENCE, REFERENCE_SHUFFLE."),
    ("[true]", "[false, true]", "give `batch_invariant: [true]`."),
    ("level: unit", "level: unit, load: sync", "`unit` has no `load`"),
    ("level: unit", "level: unit, fault: bit_flipped", "`unit` has no `fault`"),
    ("level: unit", "level: planner", "subject.level: cannot be the text `planner`; valid choices: engine, unit."),
])
def test_what_only_an_engine_can_show_cannot_be_asked_for(tmp_path, old, new, words):
    path = tmp_path / "x.yaml"
    path.write_text((SCENARIOS / "unit.yaml").read_text().replace(old, new))
    with pytest.raises(Exception, match="x.yaml:") as caught:
        read_scenario(path)
    assert words in str(caught.value)
