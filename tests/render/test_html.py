# SPDX-License-Identifier: Apache-2.0
"""The HTML report as text: what is in it, what can never be markup in it, and how large it gets."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from harness.records import Agreement, Ending, FindingKind, Outcome, Phase, Role
from harness.report.divergence import ROUNDING, comparisons
from harness.report.dossier import dossier_of
from harness.report.html import render_html
from harness.report.marks import MARKS, NOT_RUN
from harness.report.picture import PARTLY, WHOLLY, Damage, find_damage, outline
from tests.render.conftest import find_browser
from tests.render.handrun import as_cell, cases, damaged, make_run
from tests.unit.handmade import RESTORED, clean, dead, edit, edit_step, make_step

HOSTILE = "</script><script>hit()</script><img src=//evil.example/x onerror=hit()>\"'`&{{ 7*7 }}\x1b[31m"


class Page(HTMLParser):
    """Tags, their attributes and the text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def attributes(self, tag: str, name: str) -> list[str | None]:
        return [attrs.get(name) for one, attrs in self.tags if one == tag]


def hostile_run():
    case = replace(
        clean(), oracle=None, subject=replace(
            dead(Role.SUBJECT, Ending.CRASHED, HOSTILE, stage="restore", kind=HOSTILE), log=HOSTILE,
            log_tail=(HOSTILE, "plain"),
        ),
    )
    case = as_cell(case, f"x{HOSTILE}", layout=HOSTILE, backend=HOSTILE)
    cell = replace(case.cell, scenario=HOSTILE, path=HOSTILE)
    return replace(make_run([replace(case, cell=cell)]), versions={HOSTILE: HOSTILE}, folder=HOSTILE, platform=HOSTILE)


def test_hostile_names_words_and_log_lines_are_text():
    clean_page, page = Page(render_html(make_run(cases()))), Page(render_html(hostile_run()))
    assert Counter(tag for tag, _ in page.tags)["script"] == 1
    assert not [tag for tag, _ in page.tags if tag in {"img", "iframe", "object", "base"}]
    assert any(value == f"{HOSTILE}::x{HOSTILE}" for value in page.attributes("details", "data-name"))
    # Attributes that run code or load something come from the templates alone.
    for tag, attrs in page.tags:
        for name, value in attrs.items():
            assert not name.startswith("on"), (tag, name)
            assert name not in {"src", "srcdoc", "action", "style"}, (tag, name)
            if name == "href":
                assert value == "data:," or value.startswith("#c"), value
    assert {tag for tag, _ in page.tags} <= {tag for tag, _ in clean_page.tags} | {"pre"}
    # Terminal colours of a log are not shown as rubbish.
    assert "[31m\nplain" not in page.text and "{{ 7*7 }}\nplain" in page.text


def test_a_command_with_a_quote_is_one_word_for_the_shell():
    case = as_cell(clean(), "a'b")
    page = Page(render_html(make_run([case])))
    assert r"pytest 'scenarios/matrix.yaml::a'\''b'" in page.text


def test_a_run_without_cells_and_cells_without_a_result():
    assert "0 cells: none in 61 s" in render_html(make_run([]))
    run = make_run(cases())
    page = Page(render_html(replace(run, verdicts=run.verdicts[:6])))
    assert "2 of 8 planned cells have no result in this run folder." in page.text
    tiles = [attrs["title"] for tag, attrs in page.tags if tag == "a"]
    assert tiles.count("LHBNC-REFERENCE-bi1: not run") == 1


def test_only_hashed_scripts_and_styles_may_run_and_nothing_may_be_loaded():
    policy = next(attrs["content"] for tag, attrs in Page(render_html(make_run([]))).tags
                  if attrs.get("http-equiv") == "Content-Security-Policy")
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'" and rules["img-src"] == "data:"
    assert rules["script-src"].startswith("'sha256-") and rules["style-src"].startswith("'sha256-")
    assert "http" not in policy


def test_cells_behind_the_size_limit_keep_outcome_finding_and_command_and_say_so():
    run = make_run([as_cell(damaged(), f"cell-{number}", layout="BHLNC") for number in range(60)])
    whole, cut = render_html(run), render_html(run, most_bytes=60_000)
    assert len(cut) < len(whole) / 3
    left_out = cut.count("the evidence of this cell is left out here")
    assert 30 < left_out < 60 and "left out here" not in whole
    page = Page(cut)
    assert sum(attrs.get("class") == "cell" for tag, attrs in page.tags) == 60
    assert page.text.count("pytest 'scenarios/matrix.yaml::cell-") == 60
    assert page.text.count("Next: ") >= 60


def test_four_hundred_cells_are_a_few_mebibytes():
    made = [as_cell(damaged() if number % 4 == 0 else clean(), f"cell-{number}") for number in range(400)]
    text = render_html(make_run(made))
    assert len(text) < 6 * 2**20 and "left out here" not in text


def pair_of(case):
    from harness.compare.pair import Pair

    return Pair(cell=case.cell, legs=case.legs, oracle=case.oracle, subject=case.subject)


def verdict_of(case):
    run = make_run([case])
    return run, run.verdicts[0]


def test_the_plot_has_a_bar_per_difference_on_a_logarithmic_axis():
    case = as_cell(edit_step(clean(), Role.SUBJECT, RESTORED, 1, 1, bits=make_step(1, 1).bits ^ 1), "x")
    _, verdict = verdict_of(case)
    comparison, = comparisons(pair_of(case), verdict.findings)
    assert (comparison.left, comparison.right, comparison.more) == ("oracle recompute", "subject restore", 0)
    part, = comparison.divergences
    assert [row.state for row in part.rows] == ["equal", "bits", "equal"] and part.prompt == 1
    assert [point.kind for point in part.plot.points] == ["equal", "bits", "equal"]
    # 6e-8 nat, between 1e-8 at the bottom and 10 at the top.
    bar = part.plot.points[1]
    assert 0 < bar.height < 0.15 * part.plot.base and bar.y + bar.height == pytest.approx(part.plot.base)
    assert part.plot.divergence is None and ROUNDING == 0.06


def test_a_vacuous_restore_whose_values_do_not_differ_has_no_divergence():
    case = as_cell(edit(clean(), Role.SUBJECT, RESTORED, external_tokens=15), "x")
    _, verdict = verdict_of(case)
    assert verdict.outcome is Outcome.VACUOUS
    assert list(comparisons(pair_of(case), verdict.findings)) == []


def test_the_unstable_side_is_shown_against_itself():
    case = as_cell(edit_step(clean(), Role.ORACLE, Phase.RECOMPUTE_AGAIN, 0, 0, bits=make_step(0, 0).bits ^ 1), "x")
    _, verdict = verdict_of(case)
    assert [one.kind for one in verdict.findings] == [FindingKind.ORACLE_UNSTABLE]
    comparison, = comparisons(pair_of(case), verdict.findings)
    assert (comparison.left, comparison.right) == ("oracle recompute", "oracle recompute_again")


def test_damage_is_outlined_in_runs_along_a_layer():
    damage = Damage(prompt=0, marks=("..##x", "#####"))
    assert outline(damage, WHOLLY) == "M2 0h2v1h-2zM0 1h5v1h-5z"
    assert outline(damage, PARTLY) == "M4 0h1v1h-1z"
    case = as_cell(damaged(), "x", layout="BHLNC")
    assert [one.marks for one in find_damage(pair_of(case), "oracle recompute")] == [("xx", "xx")] * 2


def test_a_log_outside_the_run_folder_is_not_read(tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    folder = tmp_path / "run"
    (folder / "legs").mkdir(parents=True)
    (folder / "legs" / "a.log").write_text("first\nlast\n")
    case = as_cell(damaged(), "x", layout="BHLNC")
    for log, lines in (("legs/a.log", ("first", "last")), ("../secret.txt", ()), (str(secret), ()), ("", ())):
        changed = replace(case, subject=replace(case.subject, log=log))
        run = replace(make_run([changed]), folder=str(folder))
        dossier = dossier_of(run, changed.cell, run.verdicts[0], "fail", "c0")
        assert dossier.logs[1].lines == lines, log


def test_every_outcome_has_a_letter_of_its_own():
    assert set(MARKS) == {*Outcome, NOT_RUN}
    letters = [mark.letter for mark in MARKS.values()]
    assert len(set(letters)) == len(letters) and {len(letter) for letter in letters} == {1}


def test_a_missing_browser_skips_and_fails_where_one_is_required(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("KVPARITY_BROWSER", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no browser on PATH.*apt-get install chromium"):
        find_browser()
    monkeypatch.setenv("KVPARITY_BROWSER", "required")
    with pytest.raises(pytest.fail.Exception, match="KVPARITY_BROWSER=required, and no browser on PATH"):
        find_browser()


def test_a_cell_shows_what_its_recompute_was_held_against():
    run = make_run([as_cell(clean(), "x")])
    truth = Agreement(
        left="recompute", right="transformers float32", prompts=2, tokens=6, tokens_equal=5, near_ties=1, logprobs=18,
        logprobs_equal=0, largest=0.0625, median=0.0125, gap=0.004, within=True,
    )
    page = Page(render_html(replace(run, verdicts=(replace(run.verdicts[0], agreements=(truth,)),))))
    for words in ("Ground truth", "transformers float32", "5/6", "0/18", "0.062", "0.0125", "0.004"):
        assert words in page.text
    assert "Ground truth" not in Page(render_html(run)).text
