# SPDX-License-Identifier: Apache-2.0
"""The HTML report in a real headless browser, from ``file://``, of a run with a cell of each sort.

Every page notes what the browser requests and complains about; each test ends with neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.report.html import render_html
from tests.render.fakerun import CRASHED, EXPECTED, FAIL, PASS, UNSTABLE, VACUOUS, VERDICTS, make_fake_run
from tests.render.test_html import HOSTILE, hostile_run

PHONE, DESKTOP = {"width": 390, "height": 844}, {"width": 1280, "height": 900}
COMMAND = "pytest '{}/scenarios/small.yaml::" + FAIL + "'"


@pytest.fixture(scope="module")
def report(browser, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report; a browser that is missing is told before the run is made."""
    return make_fake_run(tmp_path_factory.mktemp("fake")) / "report.html"


@pytest.fixture
def open_page(browser, report: Path) -> Iterator:
    """Opens the report in a context of its own; afterwards there was no console message and no other request."""
    contexts, said, asked, opened_paths = [], [], [], []

    def opened(viewport=DESKTOP, script: str | None = None, fragment: str = "", path: Path = report, **options):
        opened_paths.append(path)
        context = browser.new_context(viewport=viewport, **options)
        contexts.append(context)
        context.set_default_timeout(10_000)
        if script:
            context.add_init_script(script)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri() + fragment)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert said == []
    # Not even a file beside it.
    assert {url.split("#")[0] for url in asked} - {"data:,"} == set(map(Path.as_uri, opened_paths))


def shown(page) -> list[str]:
    """Names of the cells in the list that can be seen, in order."""
    return page.locator("details.cell:visible .name").all_inner_texts()


def cell(page, name: str):
    return page.locator(f"details.cell[data-name='small::{name}']")


def test_the_matrix_shows_every_cell_by_letter_and_leads_to_it(open_page):
    page = open_page()
    table = page.get_by_role("table", name="small")
    assert table.locator("thead tr:first-child th").all_inner_texts() == ["batch invariance off", "batch invariance on"]
    assert table.locator("thead tr:last-child th").all_inner_texts() == ["layout", *["REFERENCE", "CPU_ATTN"] * 2]
    rows = [text.split() for text in table.locator("tbody tr").all_inner_texts()]
    assert rows == [["LBHNC", "P", "U", "P", "E"], ["BHLNC", "V", "C", "F", "E"]]
    # Shape as well as colour: what is right is round, what is wrong is not.
    for letter, radius in (("P", "50%"), ("F", "0px"), ("V", "4px")):
        tile = table.get_by_text(letter, exact=True).first
        assert tile.evaluate("tile => getComputedStyle(tile).borderTopLeftRadius") == radius
    table.get_by_role("link", name=f"{FAIL}: fail").press("Enter")
    assert cell(page, FAIL).get_attribute("open") is not None
    assert page.evaluate("document.activeElement.closest('details').dataset.name") == f"small::{FAIL}"


def test_cells_come_worst_first_and_filters_filter(open_page):
    page = open_page()
    assert shown(page)[:4] == [FAIL, CRASHED, VACUOUS, UNSTABLE]
    assert sorted(shown(page)) == sorted(VERDICTS)
    page.get_by_role("button", name="vacuous").click()
    assert shown(page) == [VACUOUS]
    page.get_by_role("button", name="pass").click()
    assert shown(page) == [VACUOUS, "LBHNC-REFERENCE-bi0", PASS]
    assert page.get_by_role("button", name="pass").get_attribute("aria-pressed") == "true"
    page.get_by_label("layout").select_option("LBHNC")
    page.get_by_label("batch invariant").select_option("on")
    assert shown(page) == [PASS]
    assert page.locator("#shown").inner_text() == "1 of 8 cells"
    assert page.locator("a.tile:not(.dim)").count() == 1
    page.get_by_label("name").fill("nowhere")
    assert shown(page) == [] and page.locator("#shown").inner_text().startswith("0 of 8 cells: no cell fits")
    # A tile leads to its cell also where a filter hides that.
    page.locator("a.tile", has_text="F").click()
    assert len(shown(page)) == 8 and cell(page, FAIL).get_attribute("open") is not None
    page.get_by_label("backend").select_option("CPU_ATTN")
    page.get_by_role("button", name="Show all").click()
    assert len(shown(page)) == 8


def test_a_failing_cell_opens_its_evidence(open_page):
    page = open_page()
    failing = cell(page, FAIL)
    assert not failing.locator(".body").is_visible()
    failing.locator("summary").first.press("Enter")
    assert failing.locator(".kind").all_inner_texts() == ["tokens", "logprobs", "kv_digests"]
    assert failing.locator(".side").all_inner_texts() == ["reference", "restore"] * 3
    assert failing.locator(".hint").first.inner_text().startswith("Next: Read the KV localisation")
    assert failing.get_by_role("heading", name="First divergence: oracle recompute | subject restore").is_visible()
    rows = failing.locator(".steps tbody tr")
    assert rows.locator("td:last-child").all_inner_texts()[:3] == ["equal", "equal", "other bits 1.2e-07"]
    tokens = [row.split("\t") for row in rows.all_inner_texts()]
    assert [row[0] for row in tokens] == ["0", "1", "2", "3", "4", "5"]
    assert int(tokens[4][3]) == int(tokens[4][1]) + 1 and tokens[4][5].startswith("other token")
    assert tokens[5][5] == "other text"
    plot = failing.locator("svg.plot")
    assert "4 tokens equal before" in plot.get_attribute("aria-label")
    assert [plot.locator(kind).count() for kind in ("circle", "rect.bits", "rect.token", "line.divergence")] == [
        3, 1, 1, 1,
    ]
    picture = failing.locator("svg.damage")
    assert picture.get_attribute("aria-label") == "prompt 1: of 4 pages (layer x block) 0 differ wholly, 1 partly"
    # Layer 1 of block 0, in the lower left of two by two squares.
    assert picture.locator("path.partly").get_attribute("d") == "M0 1h1v1h-1z"
    box, whole = picture.locator("path.partly").bounding_box(), picture.bounding_box()
    assert box["width"] == pytest.approx(whole["width"] / 2, abs=2) and box["y"] > whole["y"] + 10
    hits = failing.locator("details.more").first.locator("tbody tr").all_inner_texts()
    assert [row.split("\t")[:5] for row in hits if "restore" in row] == [
        ["subject", "restore", "2", "0", "64"], ["subject", "restore_again", "2", "0", "64"],
    ]
    resolved = failing.locator("details.more").nth(1)
    resolved.locator("summary").click()
    assert "layout\tBHLNC\tBHLNC\tBHLNC" in resolved.locator("tbody tr").all_inner_texts()


def test_every_other_sort_of_cell_opens_what_there_is_to_know(open_page):
    page = open_page()
    cell(page, CRASHED).locator("summary").first.click()
    assert cell(page, CRASHED).locator("pre").last.inner_text().splitlines()[-1] == "RuntimeError: planted crash"
    cell(page, VACUOUS).locator("summary").first.click()
    assert cell(page, VACUOUS).locator(".side").all_inner_texts()[:2] == ["asked or expected", "found"]
    assert "external hits 63/64 tokens" in cell(page, VACUOUS).inner_text()
    cell(page, UNSTABLE).locator("summary").first.click()
    assert "First divergence: oracle recompute | oracle recompute_again" in cell(page, UNSTABLE).inner_text()
    cell(page, EXPECTED).locator("summary").first.click()
    assert "planted refusal" in cell(page, EXPECTED).inner_text()
    cell(page, PASS).locator("summary").first.click()
    assert "compared: 16/16 tokens, 64/64 logprobs, 4/4 KV blocks" in cell(page, PASS).inner_text()


def copy_command(page) -> str:
    """What the button says after the click."""
    failing = cell(page, FAIL)
    failing.locator("summary").first.click()
    page.get_by_role("button", name=f"Copy the command that runs {FAIL} alone").click()
    said = failing.locator(".copied")
    said.filter(has_text="c").wait_for()
    return said.inner_text()


def test_the_command_is_copied(open_page, report):
    page = open_page(permissions=["clipboard-read", "clipboard-write"])
    assert copy_command(page) == "copied"
    assert page.evaluate("navigator.clipboard.readText()") == COMMAND.format(report.parents[2])


def test_without_clipboard_the_old_way_copies(open_page, report):
    page = open_page(
        script="Object.defineProperty(navigator, 'clipboard', {value: undefined});"
               "addEventListener('copy', () => { window.copied = String(getSelection()); });"
    )
    assert copy_command(page) == "copied"
    assert page.evaluate("copied") == COMMAND.format(report.parents[2])


def test_where_nothing_may_copy_the_command_is_left_selected(open_page, report):
    page = open_page(
        script="navigator.clipboard.writeText = () => Promise.reject(new Error('no'));"
               "document.execCommand = () => false;"
    )
    assert copy_command(page).startswith("selected: copy it")
    assert page.evaluate("String(getSelection())") == COMMAND.format(report.parents[2])


def test_a_phone_scrolls_in_one_direction_only(open_page):
    page = open_page(viewport=PHONE, has_touch=True, is_mobile=True)
    page.locator("details.cell").evaluate_all(
        "cells => cells.forEach(cell => { cell.open = true;"
        " cell.querySelectorAll('details').forEach(one => { one.open = true; }); })"
    )
    assert page.evaluate("[document.documentElement.scrollWidth, innerWidth]") == [390, 390]
    # Large enough for a thumb.
    assert page.locator("button:visible").evaluate_all(
        "buttons => Math.min(...buttons.map(button => button.getBoundingClientRect().height))"
    ) >= 32


def test_dark_and_light_differ_and_both_can_be_read(open_page):
    colours = {}
    for scheme in ("light", "dark"):
        page = open_page(color_scheme=scheme)
        text, ground = page.evaluate(
            "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
        )
        colours[scheme] = ground
        assert contrast(text, ground) > 7
        # Words of outcomes and letters on tiles: the least that WCAG allows for text.
        assert min(contrast(*pair) for pair in page.locator(".word, .quiet, .sentence").evaluate_all(
            "words => words.map(word => [getComputedStyle(word).color,"
            " getComputedStyle(document.body).backgroundColor])")) >= 4.5
        assert min(contrast(*pair) for pair in page.locator(".tile.good, .tile.bad").evaluate_all(
            "tiles => tiles.map(tile => [getComputedStyle(tile).color, getComputedStyle(tile).backgroundColor])"
        )) >= 4.5
    assert colours == {"light": "rgb(255, 255, 255)", "dark": "rgb(15, 20, 25)"}


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two colours as computed styles give them (WCAG 2, relative luminance)."""
    def luminance(colour: str) -> float:
        parts = [float(part) / 255 for part in colour.removeprefix("rgb(").removesuffix(")").split(",")]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_a_link_to_a_cell_opens_it(open_page):
    page = open_page(fragment="#c6")
    assert page.locator("details.cell[open]").evaluate_all("cells => cells.map(cell => cell.id)") == ["c6"]


def test_every_control_can_be_reached_and_has_a_name(open_page):
    page = open_page()
    names = page.locator("button, select, input, a.tile").evaluate_all(
        "all => all.map(one => [one.tabIndex, (one.getAttribute('aria-label') || one.innerText"
        " || one.closest('label')?.innerText || '').trim()])"
    )
    assert len(names) > 20 and all(place == 0 for place, _ in names)
    hidden = page.locator("details:not([open]) .copy").count()
    assert sum(not name for _, name in names) == 0 and hidden == 8


def test_hostile_names_words_and_log_lines_do_nothing(open_page, tmp_path):
    path = tmp_path / "hostile.html"
    path.write_text(render_html(hostile_run()), encoding="utf-8")
    page = open_page(path=path, script="window.hits = 0; window.hit = () => { window.hits += 1; };")
    page.locator("details.cell summary").first.click()
    assert page.locator("pre").first.inner_text().splitlines()[0] == HOSTILE.replace("\x1b[31m", "")
    assert page.evaluate("hits") == 0 and page.locator("img").count() == 0
    page.get_by_label("name").fill("onerror")
    assert page.locator("#shown").inner_text() == "1 of 1 cells"
