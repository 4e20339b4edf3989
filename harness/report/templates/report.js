
"use strict";
(() => {
  const cells = [...document.querySelectorAll("details.cell")];
  const tiles = new Map([...document.querySelectorAll("a.tile")].map((tile) => [tile.dataset.cell, tile]));
  const chips = [...document.querySelectorAll("button.chip")];
  const selects = [...document.querySelectorAll("select[data-axis]")];
  const search = document.getElementById("search");
  const shown = document.getElementById("shown");

  // Several chips mean any of these outcomes; none pressed means all.
  function filter() {
    const outcomes = new Set(
      chips.filter((chip) => chip.getAttribute("aria-pressed") === "true").map((chip) => chip.dataset.outcome));
    const wanted = selects.filter((select) => select.value)
      .map((select) => ["a" + select.dataset.axis, select.value.slice(1)]);
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const cell of cells) {
      const name = cell.dataset.name.toLowerCase();
      const fits = (!outcomes.size || outcomes.has(cell.dataset.outcome))
        && wanted.every(([axis, value]) => cell.dataset[axis] === value)
        && words.every((word) => name.includes(word));
      cell.hidden = !fits;
      tiles.get(cell.id)?.classList.toggle("dim", !fits);
      count += fits;
    }
    shown.textContent = `${count} of ${cells.length} cells`
      + (count ? "" : ": no cell fits these filters; Show all takes them back");
  }

  function showAll() {
    chips.forEach((chip) => chip.setAttribute("aria-pressed", "false"));
    selects.forEach((select) => { select.value = ""; });
    search.value = "";
    filter();
  }

  function openCell(id) {
    const cell = document.getElementById(id);
    if (!cell || !cell.matches("details.cell")) return;
    if (cell.hidden) showAll();
    cell.open = true;
    cell.scrollIntoView({ block: "start" });
    cell.querySelector("summary").focus({ preventScroll: true });
  }

  function select(code) {
    const range = document.createRange();
    range.selectNodeContents(code);
    const selection = getSelection();
    selection.removeAllRanges();
    selection.addRange(range);
  }

  // Without clipboard permission: the old command; where that is refused too, the text is left selected.
  async function copy(button) {
    const code = document.getElementById(button.dataset.for);
    const said = button.parentElement.querySelector(".copied");
    try {
      await navigator.clipboard.writeText(code.textContent);
      said.textContent = "copied";
    } catch {
      select(code);
      let done = false;
      try { done = document.execCommand("copy"); } catch { done = false; }
      said.textContent = done ? "copied" : "selected: copy it with Ctrl+C or the menu";
    }
  }

  document.getElementById("filters").addEventListener("submit", (event) => event.preventDefault());
  for (const chip of chips) {
    chip.addEventListener("click", () => {
      chip.setAttribute("aria-pressed", String(chip.getAttribute("aria-pressed") !== "true"));
      filter();
    });
  }
  selects.forEach((one) => one.addEventListener("change", filter));
  search.addEventListener("input", filter);
  document.getElementById("reset").addEventListener("click", showAll);
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button.copy");
    if (button) copy(button);
    const tile = event.target.closest("a.tile");
    if (tile) {
      event.preventDefault();
      history.replaceState(null, "", tile.getAttribute("href"));
      openCell(tile.dataset.cell);
    }
  });
  addEventListener("hashchange", () => openCell(location.hash.slice(1)));
  // A browser may have kept the filters over a reload.
  filter();
  openCell(location.hash.slice(1));
})();
