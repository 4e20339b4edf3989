# SPDX-License-Identifier: Apache-2.0
"""Golden reports of one hand-made run with a cell of each sort. ``KVPARITY_GOLDEN=write`` writes the files anew."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from harness.records import Ending, FindingKind, Phase, Role
from harness.report import RunView
from harness.report.content import EVIDENCE, collect, counts, header
from harness.report.dossier import dossier_of
from harness.report.hints import HINTS, SENTENCES
from harness.report.html import render_html
from harness.report.markdown import render_markdown
from harness.report.text import render_text
from tests.render.handrun import REJECTED, as_cell, cases, damaged, make_run
from tests.unit.handmade import (
    RESTORED,
    Case,
    clean,
    dead,
    digest_block,
    edit,
    edit_prompt,
    make_step,
    side,
    unit,
)

GOLDEN = Path(__file__).parent / "golden"
FINDINGS = Path(__file__).parents[2] / "docs" / "findings.md"


@pytest.fixture(scope="module")
def run() -> RunView:
    return make_run(cases())


def check_golden(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("KVPARITY_GOLDEN") == "write":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{name} changed; if that is meant, KVPARITY_GOLDEN=write"


def test_the_text_report(run):
    check_golden("report.txt", render_text(run, width=120, color=False))


def test_the_markdown_report(run):
    check_golden("report.md", render_markdown(run))


def test_colour_changes_nothing_but_colour(run):
    coloured = render_text(run, width=120, color=True)
    assert "\x1b[" in coloured
    plain = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert [line.rstrip() for line in plain.splitlines()] == render_text(run, width=120, color=False).splitlines()


def test_piped_output_has_no_colour_and_the_default_width(run, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert render_text(run) == render_text(run, width=120, color=False)


def test_no_color_holds_on_a_terminal(run, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("NO_COLOR", "1")
    assert render_text(run) == render_text(run, width=120, color=False)
    monkeypatch.delenv("NO_COLOR")
    assert "\x1b[" in render_text(run)


@pytest.mark.parametrize("width", [30, 40, 60, 80, 120])
def test_no_line_but_paths_commands_and_pictures_is_wider_than_asked(run, width):
    text = render_text(run, width=width, color=False)
    free = ("  log of ", "  reproduce: ", "    layer", "      ")
    assert [line for line in text.splitlines() if len(line) > width and not line.startswith(free)] == []
    # Outcomes and cell names are never broken in two.
    words = text.split()
    for word in ("LBHNC-REFERENCE-bi0", "vacuous", "unavailable", "crashed"):
        assert word in words or f"{word}," in words, word


def test_a_narrow_terminal_gets_a_paragraph_per_row(run):
    text = render_text(run, width=40, color=False)
    assert "LBHNC-REFERENCE-bi1\n  against recompute, external tokens\n  16/16, tokens 6/6," in text
    assert "LBHNC\n  REFERENCE pass, CPU_ATTN fail (was\n  pass), TRITON_ATTN unavailable\n" in text
    # Where the words fit side by side there is a table.
    assert re.search(r"^layout  REFERENCE +CPU_ATTN +TRITON_ATTN$", render_text(run, width=44, color=False), re.M)


def test_header_and_counts_of_a_green_run():
    run = replace(make_run(cases()[:2]), reused_legs=0)
    assert header(run) == (
        "1 scenario -> 2 cells, 4 legs (0 shared); cpu, vllm 0.32.0, torch 2.13.0+cpu; model tiny (stand-in);"
        " results/20261130T0412Z-9f3c21aa"
    )
    assert counts(run) == "2 cells: 2 pass in 61 s"


def test_a_leg_that_was_started_twice_is_said_beside_the_counts():
    """It passed at the second start: what the machine failed, and a store that fails now and then, look alike."""
    first, second = cases()[:2]
    run = make_run([side(first, Role.SUBJECT, attempts=2), second])
    assert counts(run) == (
        "2 cells: 2 pass in 61 s; 1 cell with a leg that was started twice, its device busy or memory short"
    )


def test_each_scenario_has_its_tables():
    """One store's failure must not stand in the place of another's pass."""
    good, bad = as_cell(clean(), "good"), as_cell(damaged(), "bad", layout="BHLNC")
    made = [replace(case, cell=replace(case.cell, scenario=name)) for case, name in ((good, "matrix"), (bad, "umbp"))]
    tables = {title: table.to_numpy().tolist() for title, table in collect(make_run(made)).tables}
    assert tables == {"batch invariance on, against recompute (matrix)": [["pass"]],
                      "batch invariance on, against recompute (umbp)": [["fail"]]}


@pytest.mark.parametrize(("digests", "blocks", "sentence"), [
    (True, "4/4", "6 tokens, 18 logprobs and 4 KV blocks bitwise equal"),
    (False, "digests off", "6 tokens and 18 logprobs bitwise equal; KV digests off"),
])
def test_a_pass_without_digests_says_so(digests, blocks, sentence):
    case = cases()[0]
    legs = {name: replace(leg, digests=digests) for name, leg in case.legs.items()}
    made = make_run([replace(case, legs=legs)])
    (row,) = collect(made).evidence
    assert row[EVIDENCE.index("KV blocks")] == blocks
    assert dossier_of(made, made.plan.cells[0], made.verdicts[0], "pass", "c0").sentence == sentence


def with_a_unit_scenario(case: Case):
    """The clean pair in a scenario of its own beside a pair that no engine answered."""
    matrix, alone = as_cell(clean(), "whole"), as_cell(case, "alone")
    return make_run([matrix, replace(alone, cell=replace(alone.cell, scenario="store"))])


def test_a_pass_without_an_engine_says_so_wherever_it_stands():
    run = with_a_unit_scenario(unit())
    content, text, page = collect(run), render_markdown(run), render_html(run)
    assert [title for title, _ in content.tables] == [
        "batch invariance on, against recompute (matrix)",
        "batch invariance on, against recompute, without an engine (store)",
    ]
    assert [row[:3] for row in content.evidence] == [
        ("matrix::whole", "recompute", "16/16"), ("store::alone", "recompute, without an engine", "16/16"),
    ]
    assert "## Batch invariance on, against recompute, without an engine (store)" in text
    assert "<caption>matrix</caption>" in page and "<caption>store, without an engine</caption>" in page
    assert "4 KV blocks bitwise equal, without an engine" in page
    assert run.frame["level"].tolist() == ["engine", "unit"]


def test_a_store_that_is_not_here_does_not_hide_that_no_engine_was_asked_for():
    case = replace(unit(), oracle=None, subject=dead(Role.SUBJECT, Ending.UNAVAILABLE, "no such wheel"))
    missing = replace(case.legs["subject-leg"], engine_name="unavailable")
    case = replace(case, legs={**case.legs, "subject-leg": missing})
    assert [title for title, _ in collect(with_a_unit_scenario(case)).tables][1:] == [
        "batch invariance on, against recompute, without an engine (store)",
    ]


def test_a_failure_without_an_engine_says_so():
    case = edit_prompt(unit(), Role.SUBJECT, RESTORED, 0, kv=(digest_block(0, 0, ((0, 0, 0),)), digest_block(0, 1)))
    (story,) = collect(with_a_unit_scenario(case)).stories
    assert story.evidence.endswith("A/A control equal; compared: 3/4 KV blocks, without an engine")


def test_cells_without_a_verdict_are_counted(run):
    assert counts(replace(run, verdicts=run.verdicts[:2])) == "8 cells: 2 pass, 6 not run in 61 s"


def test_red_cells_come_worst_first(run):
    assert [(story.name, story.word) for story in collect(run).stories] == [
        ("matrix::BHLNC-REFERENCE-bi1", "fail"),
        ("matrix::LBHNC-CPU_ATTN-bi1", "fail (was pass)"),
        ("matrix::LHBNC-REFERENCE-bi1", "crashed"),
        ("matrix::LBNHC-REFERENCE-bi1", "vacuous"),
    ]


def test_many_findings_of_a_kind_are_counted():
    case = clean()
    for phase in RESTORED:
        record = case.subject.phase(phase)
        case = edit(case, Role.SUBJECT, phase, prompts=tuple(
            replace(record.prompts[0], index=index, digest=f"p{index}", steps=(replace(make_step(0, 0), token=7),) * 3)
            for index in range(5)
        ))
    oracle = case.oracle.phase(Phase.RECOMPUTE)
    for phase in (Phase.RECOMPUTE, Phase.RECOMPUTE_AGAIN):
        case = edit(case, Role.ORACLE, phase, prompts=tuple(
            replace(oracle.prompts[0], index=index, digest=f"p{index}") for index in range(5)
        ))
    story, = collect(make_run([as_cell(case, "many")])).stories
    assert "tokens: and 2 more" in story.findings
    assert sum(line.startswith("tokens: prompt") for line in story.findings) == 3


def test_markdown_stays_under_its_limit_and_says_what_it_left_out():
    many = [as_cell(damaged(), f"cell-{number}", layout="BHLNC") for number in range(60)]
    run = make_run([*many, *(as_cell(clean(), f"clean-{number}") for number in range(3))])
    whole = render_markdown(run)
    cut = render_markdown(run, most_bytes=20_000)
    assert len(whole.encode()) > 60_000
    assert len(cut.encode()) <= 20_000
    shown = cut.count("### fail")
    assert 5 < shown < 60
    assert f"{60 - shown} of 60 cells are left out here for size; see `{run.folder}/verdicts.jsonl`." in cut
    # The rows of what passes go before any story of what does not; the tables stay.
    assert "3 of 3 rows are left out here for size" in cut and "| BHLNC | fail |" in cut
    assert cut.endswith("**63 cells: 3 pass, 60 fail in 61 s**\n")


HUGE = "long words | <b> ``` " * 400


@pytest.mark.parametrize("ending", [Ending.OK, Ending.CRASHED, Ending.REFUSED], ids=["pass", "crashed", "rejected"])
def test_ten_thousand_cells_with_huge_words_fit_into_a_jobs_summary(ending):
    case = clean(replace(REJECTED, match=None)) if ending is Ending.REFUSED else clean()
    if ending is not Ending.OK:
        gone = replace(dead(Role.SUBJECT, ending, HUGE, kind=HUGE), log_tail=(HUGE,) * 50)
        case = replace(case, oracle=None, subject=replace(gone, failure=replace(gone.failure, trace=HUGE + "\n" * 99)))
    run = make_run([as_cell(case, "one")])
    names = [f"cell-{number}" for number in range(10_000)]
    run = replace(
        run, plan=replace(run.plan, cells=tuple(replace(run.plan.cells[0], id=name) for name in names)),
        verdicts=tuple(replace(run.verdicts[0], cell=name) for name in names),
    )
    text = render_markdown(run)
    size = len(text.encode())
    word = {Ending.OK: "pass", Ending.CRASHED: "crashed", Ending.REFUSED: "expected"}[ending]
    assert size <= 1024 * 1024
    assert text.endswith(f"**10000 cells: 10000 {word} in 61 s**\n")
    if ending is Ending.REFUSED:
        assert size < 10_000 and "cell-99 and 9900 more |" in text
    elif ending is Ending.OK:
        assert text.count("| cell-") == 10_000 and "left out" not in text
    else:
        shown = text.count("### crashed")
        assert f"{10_000 - shown} of 10000 cells are left out here for size" in text and shown > 100
    # Every fence is closed.
    assert text.count("```") % 2 == 0


def test_markdown_cells_cannot_break_the_table():
    words = "a|b\n<script> `c` *d*"
    case = as_cell(
        replace(clean(replace(REJECTED, match=None)), oracle=None, subject=dead(Role.SUBJECT, Ending.REFUSED, words)),
        "x", layout="LBNHC",
    )
    text = render_markdown(make_run([case]))
    assert r"a\|b &lt;script> \`c\` \*d\*" in text


def test_every_finding_kind_is_explained():
    assert set(HINTS) == set(SENTENCES) == set(FindingKind)
    sections = re.findall(r"^### `(\w+)`$", FINDINGS.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert sections == [kind.value for kind in FindingKind]


def test_every_section_of_the_findings_page_has_meaning_causes_and_next_step():
    for section in re.split(r"^### ", FINDINGS.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        for word in ("Means:", "Usual causes:", "Next:"):
            assert word in section, section.splitlines()[0]
