# SPDX-License-Identifier: Apache-2.0
"""Which backend a real engine on a CPU runs: the one that was asked for, or none."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.plugin_engines import Engines

pytestmark = pytest.mark.engine


def test_cpu_attn_is_vllms_own(engines: Engines) -> None:
    resolved = engines.run("CPU_ATTN", "LBHNC", block_size=32)["resolved"]
    assert resolved["backend"] == "CPU_ATTN"
    assert resolved["backend_class"] == ["vllm.v1.attention.backends.cpu_attn.CPUAttentionBackend"]


@pytest.mark.parametrize(
    ("backend", "layout", "options", "words"),
    [
        (
            "REFERENCE_SHUFFLE",
            "BHLNC",
            {},
            "VLLM_KV_CACHE_LAYOUT=BHLNC does not satisfy every supported set; valid layouts: ['LHBNC', 'LBHNC'].",
        ),
        (
            "CPU_ATTN",
            "LBNHC",
            {"block_size": 32},
            "VLLM_KV_CACHE_LAYOUT=LBNHC does not satisfy every supported set; valid layouts: ['LBHNC'].",
        ),
        (
            "CPU_ATTN",
            "LBHNC",
            {},
            "Selected backend CPU_ATTN is not valid for this configuration. Reason: ['block_size not supported']",
        ),
        (
            "CPU_ATTN",
            "LBHNC",
            {"block_size": 32, "invariant": True},
            "Selected backend CPU_ATTN is not valid for this configuration. Reason: ['batch invariance not supported']",
        ),
        (
            "REFERENCE_SHUFFLE",
            "LHBNC",
            {"invariant": True},
            "Selected backend REFERENCE_SHUFFLE is not valid for this configuration. "
            "Reason: ['batch invariance not supported']",
        ),
        (
            "TRITON_ATTN",
            None,
            {"attention_backend": "CPU_ATTN"},
            "Selected backend TRITON_ATTN is not available on CPU; "
            "valid backends: REFERENCE, REFERENCE_SHUFFLE, CPU_ATTN.",
        ),
    ],
)
def test_an_invalid_combination_refuses_with_its_reason(
    engines: Engines, backend: str, layout: str | None, options: dict[str, Any], words: str
) -> None:
    assert engines.run(backend, layout, **options) == {"error": ["ValueError", words]}


def test_the_plugin_is_inert_without_the_variable(engines: Engines) -> None:
    said = engines.run(None, block_size=32, attention_backend="TRITON_ATTN")
    # vLLM's own behaviour: another backend than the one asked for, without a word.
    assert said["resolved"]["backend"] == "CPU_ATTN"
    assert said["patched"] is False
