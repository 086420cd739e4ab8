// What the pages do beyond showing: filters above tables, buttons that copy a file, a switch that is kept, boxes that
// scroll by keyboard, views of the playground.
// Without this script every table is whole, every file is a link, and nothing is missing.

/** A choice for each column that `data-filters` names; rows that do not fit are hidden, and counted. */
function addFilters(box) {
  const table = box.querySelector("table");
  const heads = [...table.tHead.rows[0].cells].map((cell) => cell.textContent.trim());
  const rows = [...table.tBodies[0].rows];
  const bar = document.createElement("div");
  bar.className = "filters";
  const count = document.createElement("output");
  const choices = box.dataset.filters.split(",").map((name) => ({ name, column: heads.indexOf(name) }));
  const wanted = new URLSearchParams(location.search);
  for (const choice of choices) {
    const values = [...new Set(rows.map((row) => row.cells[choice.column].textContent.trim()))].filter(Boolean);
    choice.select = document.createElement("select");
    choice.select.add(new Option("all", ""));
    values.forEach((value) => choice.select.add(new Option(value, value)));
    if (values.includes(wanted.get(choice.name))) choice.select.value = wanted.get(choice.name);
    choice.select.addEventListener("change", show);
    const label = document.createElement("label");
    label.append(`${choice.name} `, choice.select);
    bar.append(label);
  }
  bar.append(count);
  box.prepend(bar);

  function show() {
    let shown = 0;
    for (const row of rows) {
      row.hidden = choices.some(({ column, select }) => select.value && row.cells[column].textContent.trim() !== select.value);
      shown += !row.hidden;
    }
    count.textContent = `${shown} of ${rows.length} rows`;
  }
  show();
}

/** The button copies the text of the file that `data-copy-file` names. */
function addCopy(button) {
  const label = button.textContent;
  button.hidden = false;
  button.addEventListener("click", async () => {
    try {
      const answer = await fetch(button.dataset.copyFile);
      if (!answer.ok) throw new Error(`${answer.status}`);
      await navigator.clipboard.writeText(await answer.text());
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not copied: use the download";
    }
    setTimeout(() => (button.textContent = label), 2000);
  });
}

/** The switch for the code of figures keeps its state from page to page. */
function keepChoice(box) {
  const key = "code-of-figures";
  box.checked = localStorage.getItem(key) === "shown";
  box.addEventListener("change", () => localStorage.setItem(key, box.checked ? "shown" : "hidden"));
}

/** A box that scrolls sideways can be reached by keyboard, and only then. */
function watchBoxes() {
  const selector = ".picture, .output, pre > code, .md-typeset table:not([class])";
  const watcher = new ResizeObserver((entries) => entries.forEach(({ target }) => reach(boxOf(target))));
  const boxOf = (element) => element.closest(".md-typeset__scrollwrap") ?? element; // the theme wraps tables, later
  document.querySelectorAll(selector).forEach((box) => watcher.observe(box));
  function reach(box) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else if (box.getAttribute("tabindex") === "0") box.removeAttribute("tabindex");
  }
}

/** The playground's views come when the first of them is nearly seen. */
function loadViews() {
  const views = document.querySelectorAll("swizzle-view, bank-view, barrier-timeline");
  const watcher = new IntersectionObserver((entries) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    watcher.disconnect();
    import(new URL("../playground/elements.js", import.meta.url));
  }, { rootMargin: "200px" });
  views.forEach((view) => watcher.observe(view));
}

document.querySelector(".md-search[role=dialog]")?.setAttribute("aria-label", "Search"); // the theme gives it no name
document.querySelectorAll(".filtered[data-filters]").forEach(addFilters);
document.querySelectorAll("button[data-copy-file]").forEach(addCopy);
document.querySelectorAll(".code-switch input").forEach(keepChoice);
watchBoxes();
loadViews();
