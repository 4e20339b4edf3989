# SPDX-License-Identifier: Apache-2.0
"""docs/scenarios.md says what the reader accepts: every key, default, axis and backend, and examples that parse."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.axes import FURTHER_AXES, REQUIRED_AXES, cell_id, points
from harness.backends import ALIAS_ENV, BACKENDS
from harness.prompt_sets import SETS
from harness.records import DEADLINES_S, LAYOUTS, DecodeSpec, Limits, PromptSpec
from harness.scenario import KNOWN_CONNECTORS, read_scenario
from harness.scenario_model import HARNESS_ENGINE_KEYS, HARNESS_ENV_KEYS, KNOWN_MODELS, SECTIONS

DOC = (Path(__file__).parents[2] / "docs/scenarios.md").read_text()
EXAMPLES = re.findall(r"^```yaml\n(.*?)^```", DOC, re.MULTILINE | re.DOTALL)


def rows(heading: str) -> dict[str, list[str]]:
    """First cell (without quotes) -> the row's cells, of the first table below a heading."""
    section = re.split(rf"^#+ {re.escape(heading)}\n", DOC, maxsplit=1, flags=re.MULTILINE)[1]
    section = re.split(r"^#", section, maxsplit=1, flags=re.MULTILINE)[0]
    found = {}
    for line in section.splitlines():
        if line.startswith("| `"):
            cells = [cell.strip() for cell in line.strip("|").split(" |")]
            found[cells[0].strip("`")] = cells
    return found


@pytest.mark.parametrize(("heading", "section"), [
    ("The keys", ()), ("prompts", ("prompts",)), ("decode", ("decode",)), ("ground_truth", ("ground_truth",)),
    ("evidence", ("evidence",)), ("deadlines", ("deadlines",)), ("overrides", ("overrides",)), ("expect", ("expect",))])
def test_each_section_has_a_row_for_each_of_its_keys_and_no_other(heading, section):
    assert list(rows(heading)) == list(SECTIONS[section].model_fields)


@pytest.mark.parametrize(("heading", "section"), [("The keys", ()), ("overrides", ("overrides",)),
                                                  ("expect", ("expect",))])
def test_required_keys_are_said_to_be_required(heading, section):
    required = {name for name, field in SECTIONS[section].model_fields.items() if field.is_required()}
    assert {name for name, cells in rows(heading).items() if cells[2] == "required"} == required


@pytest.mark.parametrize(("heading", "record"), [
    ("prompts", PromptSpec()), ("decode", DecodeSpec()), ("ground_truth", Limits())])
def test_defaults(heading, record):
    assert {name: cells[2].strip("`") for name, cells in rows(heading).items()} == {
        name: str(getattr(record, name)) for name in rows(heading)}


def test_default_deadlines():
    assert {name: float(cells[2]) for name, cells in rows("deadlines").items()} == DEADLINES_S


def test_subject_options():
    options = {name for known in KNOWN_CONNECTORS.values() for name in known}
    assert set(rows("subject")) == {"connector", "kv_transfer_config", *options}
    for known in KNOWN_CONNECTORS.values():
        for name, option in known.items():
            assert all(f"`{value}`" in rows("subject")[name][1] for value in option.values), name
    assert all(f"`{alias}`" in rows("subject")["connector"][3] for alias in KNOWN_CONNECTORS)


def test_axes():
    assert tuple(rows("axes")) == REQUIRED_AXES + FURTHER_AXES
    assert all(f"`{layout}`" in rows("axes")["layout"][1] for layout in LAYOUTS)


def test_backends():
    said = {alias: (cells[1], cells[2].strip("`"), set(re.findall(r"`(\w+)=(\w+)`", cells[3])))
            for alias, cells in rows("backends").items()}
    assert said == {alias: (", ".join(backend.platforms), backend.vllm_name, set(backend.env.items()))
                    for alias, backend in BACKENDS.items()}


def test_what_the_harness_keeps_for_itself():
    for name in (*HARNESS_ENGINE_KEYS, *HARNESS_ENV_KEYS, *ALIAS_ENV, *KNOWN_MODELS):
        assert f"`{name}" in DOC, name


def test_examples_parse(tmp_path):
    assert len(EXAMPLES) == 6
    cells = {}
    for number, text in enumerate(EXAMPLES):
        path = tmp_path / f"{number}.yaml"
        path.write_text(text)
        scenario = read_scenario(path)
        cells[scenario.name] = len({cell_id(axes) for axes in points(scenario.axes)})
    assert cells == {"example": 12, "own-connector": 1, "two-paths": 32, "shared-folder": 3, "edges": 2, "patient": 1}


def test_prompt_sets():
    assert {name: cells[1] for name, cells in rows("prompt sets").items()} == {
        name: chosen.sentence[0].upper() + chosen.sentence[1:] for name, chosen in SETS.items()}
    assert all(f"`{name}`" in rows("prompts")["set"][1] for name in SETS)
