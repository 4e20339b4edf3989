# SPDX-License-Identifier: Apache-2.0
"""What vLLM's own classes answer for ROCm, CUDA and CPU, on any machine: against a table written down by hand, and
against the expectations of the shipped scenarios."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from harness import coverage
from harness.records import LAYOUTS, Outcome

# Each platform's answers cost one import of vLLM in a child.
pytestmark = pytest.mark.engine

SCENARIOS = Path(__file__).parents[2] / "scenarios"
FILES = {"rocm": "rocm.yaml", "cuda": "cuda.yaml", "cpu": "matrix.yaml"}

ALL = set(LAYOUTS)
#: (platform, backend) -> layouts without a connector, layouts with one, whether batch invariant. Read in vLLM 0.32 and
#: 0.33 (vllm/v1/attention/backends/*.py: supported_kv_cache_layouts, supports_batch_invariance, supports_kv_connector).
TABLE = {
    ("rocm", "TRITON_ATTN"): (ALL, ALL, True),
    ("rocm", "ROCM_AITER_FA"): ({"LBHNC", "LHBNC"}, {"LBHNC", "LHBNC"}, False),
    ("rocm", "ROCM_AITER_FA_SHUFFLE"): ({"LBHNC", "LHBNC"}, {"LBHNC", "LHBNC"}, False),
    ("rocm", "ROCM_AITER_UNIFIED_ATTN"): ({"LBHNC", "LHBNC"}, {"LBHNC"}, False),
    ("rocm", "ROCM_ATTN"): ({"LBHNC", "LHBNC"}, set(), False),
    ("cuda", "TRITON_ATTN"): (ALL, ALL, True),
    ("cuda", "FLASH_ATTN"): (ALL, ALL, True),
    ("cuda", "FLEX_ATTENTION"): ({"LBNHC"}, {"LBNHC"}, True),
    ("cpu", "REFERENCE"): (ALL, ALL, True),
    ("cpu", "REFERENCE_SHUFFLE"): ({"LBHNC", "LHBNC"}, {"LBHNC", "LHBNC"}, False),
    ("cpu", "CPU_ATTN"): ({"LBHNC"}, {"LBHNC"}, False),
}


@pytest.fixture(scope="module")
def told():
    """Platform -> its scenario's coverage, and the answers about each leg and about the same legs unpinned."""
    known = {}

    def tell(platform):
        if platform not in known:
            plan, _ = coverage.load([SCENARIOS / FILES[platform]], platform=platform, model=None)
            pinned = [coverage._question(leg) for leg in plan.legs]
            question = {"platform": platform, "here": coverage.machine_platform(),
                        "legs": pinned + [{**leg, "pinned": False} for leg in pinned]}
            answer = coverage.ask(question)
            answers, unpinned = answer["answers"][: len(pinned)], answer["answers"][len(pinned) :]
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(coverage, "ask", lambda _: {**answer, "answers": answers})
                found = coverage.predict(plan, platform, coverage.machine_platform())
            known[platform] = SimpleNamespace(
                plan=plan, coverage=found, cells={one.cell.id: one for one in found.predictions},
                legs=list(zip(plan.legs, answers, unpinned, strict=True)),
            )
        return known[platform]

    return tell


@pytest.mark.parametrize(("platform", "backend"), TABLE)
def test_what_runs_is_what_the_table_says(told, platform, backend):
    alone, beside_connector, batch_invariant = TABLE[platform, backend]
    for connector, layouts in ((False, alone), (True, beside_connector)):
        runs = {
            flag: {leg.layout for leg, answer, _ in told(platform).legs
                   if (leg.backend, leg.batch_invariant, leg.kv_transfer_config is not None) ==
                   (backend, flag, connector) and answer["prediction"] == "runs"}
            for flag in (False, True)
        }
        assert runs == {False: layouts, True: layouts if batch_invariant else set()}, f"connector: {connector}"


@pytest.mark.parametrize("platform", FILES)
def test_expected_rejections_are_the_predicted_ones(told, platform):
    """Each cell predicted to be refused has an expectation whose text is in the reason, and the other way round."""
    for one in told(platform).cells.values():
        if one.prediction == "unknown":
            continue
        expectation = one.cell.expectation
        expected = expectation is not None and expectation.outcome is Outcome.REJECTED
        assert (one.prediction == "rejected") == expected, one.cell.id
        assert not expected or expectation.match in one.reason, (one.cell.id, one.reason)


@pytest.mark.parametrize(("platform", "counts"), [
    ("rocm", {"runs": 17, "rejected": 43}), ("cuda", {"runs": 26, "rejected": 10, "unknown": 12}),
    ("cpu", {"runs": 15, "rejected": 21})])
def test_how_many_cells_cover_something(told, platform, counts):
    found = [one.prediction for one in told(platform).cells.values()]
    if "unknown" not in found:  # flashinfer is installed here
        counts = {**counts, "runs": counts["runs"] + counts.pop("unknown", 0) // 2}
        counts["rejected"] = len(found) - counts["runs"]
    assert {word: found.count(word) for word in set(found)} == counts


def test_aiter_with_batch_invariance_is_refused_and_would_be_triton(told):
    for backend in ("ROCM_AITER_FA", "ROCM_AITER_FA_SHUFFLE", "ROCM_AITER_UNIFIED_ATTN"):
        for layout in LAYOUTS:
            one = told("rocm").cells[f"{layout}-{backend}-bi1"]
            assert (one.prediction, one.reason) == (
                "rejected", "batch invariance not supported; auto-selection would run TRITON_ATTN instead")
            assert (one.would_run, one.would_run_layout, one.saying) == ("TRITON_ATTN", layout, "nothing")


def test_refusals_have_vllms_whole_words(told):
    words = {(leg.backend, leg.layout, leg.batch_invariant): answer["words"] for leg, answer, _ in told("rocm").legs
             if leg.kv_transfer_config is not None}
    assert words["ROCM_AITER_FA", "LBHNC", True] == (
        "Selected backend AttentionBackendEnum.ROCM_AITER_FA is not valid for this configuration. "
        "Reason: ['batch invariance not supported']")
    assert words["ROCM_AITER_FA", "BHLNC", False] == (
        "VLLM_KV_CACHE_LAYOUT=BHLNC does not satisfy every supported set; valid layouts: ['LBHNC', 'LHBNC'].")


def test_a_refused_layout_names_the_one_that_would_be_used(told):
    one = told("rocm").cells["BHLNC-ROCM_AITER_FA_SHUFFLE-bi0"]
    assert one.reason.endswith("; left unset, LHBNC would be used instead")
    assert (one.would_run, one.would_run_layout) == ("ROCM_AITER_FA_SHUFFLE", "LHBNC")


def test_a_connector_moves_auto_selection_away_from_rocm_attn(told):
    one = told("rocm").cells["LBHNC-ROCM_ATTN-bi0"]
    assert one.reason == "KV connector not supported; auto-selection would run ROCM_AITER_UNIFIED_ATTN instead"


def test_the_shuffled_cache_has_two_head_slots(told):
    """Page 65536 bytes a layer for Qwen3-0.6B's 8 KV heads of 128 in blocks of 16."""
    geometry = {}
    for backend in ("ROCM_AITER_FA", "ROCM_AITER_FA_SHUFFLE"):
        covers = told("rocm").cells[f"LHBNC-{backend}-bi0"].covers
        assert covers["class"] == "vllm.v1.attention.backends.rocm_aiter_fa.AiterFlashAttentionBackend"
        geometry[backend] = (covers["layouts"], covers["head_slots"], covers["runs_per_page"], covers["run_bytes"])
    assert geometry == {"ROCM_AITER_FA": (["LBHNC", "LHBNC"], 8, 8, 8192),
                        "ROCM_AITER_FA_SHUFFLE": (["LHBNC", "LBHNC"], 2, 2, 32768)}


def test_unpinned_legs_become_what_auto_selection_runs(told):
    becomes = {(leg.backend, leg.layout, leg.batch_invariant): unpinned for leg, _, unpinned in told("rocm").legs
               if leg.kv_transfer_config is not None}
    silently = becomes["ROCM_AITER_FA", "LBHNC", True]
    assert (silently["prediction"], silently["would_run"]) == ("becomes", "TRITON_ATTN")
    assert silently["reason"].startswith("batch invariance not supported; auto-selection would run TRITON_ATTN")
    assert becomes["ROCM_AITER_FA", "LBHNC", False]["prediction"] == "runs"


def test_flashinfer_is_unknown_where_its_package_is_missing(told):
    from importlib.util import find_spec

    if find_spec("flashinfer") is not None or coverage.machine_platform() == "cuda":
        pytest.skip("flashinfer is installed, or this machine itself is asked")
    one = told("cuda").cells["LBHNC-FLASHINFER-bi0"]
    assert (one.prediction, one.would_run) == ("unknown", None)
    assert one.reason == ("vLLM's class of FLASHINFER cannot be loaded on this machine (ModuleNotFoundError: No module "
                          "named 'flashinfer')")


@pytest.mark.parametrize(("platform", "assumed"), [("rocm", "an MI350X (gfx950) with AITER installed"),
                                                   ("cuda", "a device of compute capability 9.0 with FlashAttention "
                                                            "built")])
def test_what_is_taken_for_granted_is_said(told, platform, assumed):
    expected = None if coverage.machine_platform() == platform else assumed
    assert told(platform).coverage.assumed == expected


@pytest.mark.parametrize("platform", FILES)
def test_both_legs_of_a_cell_get_the_same_environment(told, platform):
    for one in told(platform).cells.values():
        own = {name: value for name, value in one.subject.env.items() if not name.startswith("KVPARITY_OVERLAY")}
        assert own == one.oracle.env
