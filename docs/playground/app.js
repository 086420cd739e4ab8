// The page: a form, the state behind it, and the pictures of what follows from the state.

import { laneAddresses, lanePlaces, lastStart, movedTo, parse, parseLanes, starts } from "./access.js";
import { service, wavefronts } from "./banks.js";
import { allocation, code } from "./cute.js";
import { Crossbar } from "./draw-crossbar.js";
import { matrixTable, proofTable } from "./draw-matrix.js";
import { TileView } from "./draw-tile.js";
import { drawTimeline } from "./draw-timeline.js";
import { atomLayout, atomSwizzle, byteAddresses, layoutText, parseLayout, rowMajor, tileOf } from "./layout.js";
import { idle, schedule } from "./pipeline.js";
import { diagonal, kindOf, preset } from "./presets.js";
import { find, reason } from "./solve.js";
import { DEFAULTS, fromQuery, opened, toQuery } from "./state.js";
import { html } from "./svg.js";
import { Swizzle } from "./swizzle.js";

const EXAMPLES = {
  "a column of bf16": { access: "ld128@32x8" },
  "ldmatrix under SW128": { layout: "K_SW128", swizzle: "3,4,3" },
  "padded rows": { padding: 8 },
  "32 x 32 fp32, transposed": { bits: 32, rows: 32, columns: 32, access: "ld32@32x1", also: "st32@1x32" },
  "no swizzle can": { bits: 32, rows: 32, columns: 32, access: "ld32@32x1", also: "st128@4x32" },
};
const byId = (id) => document.getElementById(id);
const form = byId("pg-form");
const timing = byId("pg-pipeline");
const views = [...document.getElementsByName("pg-view")];
let recipes = {};
let state = { ...DEFAULTS };
let shown = null; // what the last state that made sense gave
let saving = 0;

// --- from the state to figures --------------------------------------------------------------------------------------

function layoutOf({ layout, bits, rows, columns, padding }) {
  if (layout === "row") return rowMajor(rows, columns, padding);
  if (layout === "column") return { shape: [rows, columns], stride: [1, rowMajor(rows, columns).shape[0]] };
  return layout.includes(":") ? parseLayout(layout) : atomLayout(layout, bits, rows, columns);
}

function pair(text, name) {
  const found = text.split(",").map(Number);
  if (found.length !== 2 || !found.every((each) => Number.isInteger(each) && each >= 0)) {
    throw new RangeError(`${name}: got "${text}"; needed row,column`);
  }
  return found;
}

/** {places, width, load, starts, text} of an access at a place of the tile. */
function request(text, tile, at, lanes) {
  if (text.endsWith("@lanes")) {
    const { width, load } = parse(text.replace("@lanes", "@1x1"));
    return { places: parseLanes(lanes || diagonal(width, tile)), width, load, starts: [], text };
  }
  const access = parse(text);
  const most = lastStart(access, tile);
  if (at[0] > most[0] || at[1] > most[1]) {
    throw new RangeError(`first row, first column: got ${at}; needed ${most} at most for ${text}`);
  }
  const [rows, columns] = starts(access, tile);
  const elsewhere = rows.flatMap((row) => columns.map((column) => [row - at[0], column - at[1]]));
  const places = movedTo(lanePlaces(access, tile.elementBits), at);
  return { places, width: access.width, load: access.load, starts: elsewhere, text };
}

function compute(now) {
  const swizzle = new Swizzle(...now.swizzle.split(",").map(Number));
  const tile = tileOf(layoutOf(now), now.bits);
  const addresses = byteAddresses(tile, swizzle);
  const own = request(now.access, tile, pair(now.at, "first row, first column"), now.lanes);
  const others = now.also.split(/[;\s]+|,(?=\s*[a-z])/).filter(Boolean);
  const requests = [own, ...others.map((text) => request(text, tile, [0, 0], ""))];
  const raw = byteAddresses(tile, new Swizzle(0, 4, 3));
  const counts = requests.map(({ places, width, load }) => {
    const count = (table) => wavefronts(laneAddresses(places, width, tile, table), width, load);
    return { now: count(addresses), before: count(raw) };
  });
  const asked = laneAddresses(own.places, own.width, tile, addresses);
  const rawAsked = laneAddresses(own.places, own.width, tile, raw);
  const steps = service(asked, own.width, counts[0].now.phases);
  return { swizzle, tile, addresses, own, requests, counts, steps, rawAsked, search: find(tile, requests) };
}

// --- from figures to the page ---------------------------------------------------------------------------------------

const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

function showResult({ counts, own, swizzle, tile }) {
  const { now, before } = counts[0];
  const most = now.exact ? now.actual : `${now.actual} to ${now.atMost}`;
  const word = now.atMost === 1 ? "wavefront" : "wavefronts";
  const big = html("strong", { class: now.excess ? "pg-bad" : "pg-good" }, `${most} ${word}`);
  const said = now.excess
    ? ` for ${own.text}, where ${now.ideal} would do: ${plural(now.excess, "wavefront")} lost to bank conflicts.`
    : ` for ${own.text}: no bank conflict.`;
  const without = swizzle.bits ? ` Unswizzled: ${before.actual}.` : "";
  const drawn = tile.transposed ? "; drawn with the contiguous mode along the rows" : "";
  const size = ` Tile: ${tile.rows} x ${tile.columns}, ${layoutText(tile.layout)}, ${tile.bytes} bytes${drawn}.`;
  const about = html("span", { class: "pg-note" }, size);
  byId("pg-result").replaceChildren(big, said + without, about);
}

function showFound({ search, requests, counts, swizzle, rawAsked, own, tile }) {
  const { found, best, tried, counting } = search;
  const these = requests.length === 1 ? "this access" : "all of these";
  let head = `No Swizzle<B,M,S> of this layout serves ${these}: all ${tried} were tried. The best is ${best}.`;
  const order = "fewest bits first, then the smallest shift";
  if (found) head = `${found} serves ${these} with no bank conflict. It is the first that does, of ${tried} tried: ${order}.`;
  if (found && !found.bits) head = "No swizzle is needed: nothing conflicts.";
  const parts = [html("p", { class: found ? "pg-good" : "pg-bad" }, head)];
  if (counting) {
    const { index, vectors, places, kept, least } = counting;
    const why = `vectors of ${kept} bytes stay whole, ${requests[index].text} asks for one word each of ${vectors} of them at once`;
    const said = `${why}, and the banks hold ${places} side by side. That takes ${least} wavefronts at least.`;
    parts.push(html("p", {}, `No layout can, and counting proves it: ${said}`));
  }
  parts.push(scrolled("Wavefronts of one instruction", countsTable(requests, counts, tile, best)));
  parts.push(...proof(swizzle, rawAsked, own));
  if (String(best) !== String(swizzle) && (best.bits || swizzle.bits)) parts.push(...proof(best, rawAsked, own));
  if (layoutText(tile.layout) === layoutText(rowMajor(tile.rows, tile.columns)) && !own.text.endsWith("@lanes")) {
    const command = `cookbook swizzle solve --tile ${tile.rows}x${tile.columns} --bits ${tile.elementBits} ` +
      requests.map(({ text }) => `--access ${text}`).join(" ");
    const why = found
      ? "The command line says the same:"
      : "The command line goes on to layouts whose rows or columns are permuted, and to any XORs:";
    parts.push(html("p", {}, why), html("pre", {}, command));
  }
  byId("pg-find").replaceChildren(...parts);
}

/** A box that scrolls where its content is wider than the page. */
function scrolled(name, content) {
  return html("div", { class: "pg-scroll", tabindex: "0", role: "region", "aria-label": name }, content);
}

function countsTable(requests, counts, tile, best) {
  const table = byteAddresses(tile, best);
  const head = ["access", "unswizzled", "now", `with ${best}`, "ideal"].map((text) => html("th", { scope: "col" }, text));
  const rows = requests.map(({ text, places, width, load }, i) => {
    const bestCount = wavefronts(laneAddresses(places, width, tile, table), width, load);
    const figures = [counts[i].before.actual, counts[i].now.actual, bestCount.actual, bestCount.ideal];
    return html("tr", {}, html("th", { scope: "row" }, text), ...figures.map((figure) => html("td", {}, figure)));
  });
  return html("table", { class: "pg-proof" }, html("thead", {}, html("tr", {}, ...head)), html("tbody", {}, ...rows));
}

/** Why the access takes what it takes under a swizzle, in the words of linear algebra. */
function proof(swizzle, rawAsked, own) {
  const reasons = reason(rawAsked, own.width, swizzle);
  const first = reasons.find(Boolean);
  if (!first || reasons.some((each) => each && String(each.basis) !== String(first.basis))) {
    const said = "the addresses of a phase are no span over GF(2), so they were counted one by one";
    return [html("p", {}, `Under ${swizzle}: ${said}.`)];
  }
  const { size, rank } = first;
  const meet = 2 ** (size - rank);
  const free = `have independent bank bits (rank ${rank}). No XOR of them is 0 in all bank bits, so no two of the ${2 ** size} ` +
    "addresses of a phase share a bank.";
  const lost = `have bank bits of rank ${rank} alone: 2^(${size} - ${rank}) = ${meet} addresses of a phase meet in each bank, ` +
    `so a phase takes ${plural(meet, "wavefront")}.`;
  const said = `the ${plural(size, "difference")} between lanes ${rank === size ? free : lost}`;
  const table = size ? [scrolled(`Bank bits under ${swizzle}`, proofTable(first, swizzle))] : [];
  return [html("h3", {}, `Why: ${own.text} under ${swizzle}`), html("p", {}, `Over GF(2), ${said}`), ...table];
}

const tileView = new TileView(byId("pg-tile"), {
  said: (row, column, address) => {
    const bank = Math.floor(address / 4) % 32;
    byId("pg-cell").textContent = `Element (${row}, ${column}): byte ${address}, line ${Math.floor(address / 128)}, bank ${bank}.`;
  },
  chosen: (row, column) => change({ at: `${row},${column}` }),
});
const crossbar = new Crossbar(byId("pg-crossbar"), (step) => {
  if (shown) drawTile(step.phase);
});

function drawTile(phase) {
  const { tile, addresses, own, steps } = shown;
  const lanes = steps.map((step) => {
    const [row, column] = own.places[step.lane];
    return { ...step, row, column, width: own.width, now: step.phase === phase };
  });
  tileView.update({ tile, addresses, view: state.view, width: own.width, lanes });
}

function render() {
  const error = byId("pg-error");
  try {
    const next = compute(state);
    error.hidden = true;
    shown = next;
    showResult(shown);
    crossbar.update(shown.counts[0].now, shown.steps);
    if (!shown.steps.length) drawTile(0);
    showFound(shown);
    byId("pg-matrix").replaceChildren(matrixTable(shown.swizzle, Math.ceil(Math.log2(shown.tile.bytes))));
    byId("pg-code").textContent = code(shown.tile, shown.swizzle) + allocation(shown.swizzle);
  } catch (reasonOf) {
    if (!(reasonOf instanceof RangeError)) throw reasonOf;
    error.textContent = `${reasonOf.message}. What is shown is the state before.`;
    error.hidden = false;
  }
  fill();
}

function renderPipeline() {
  const most = { stages: 16, tiles: 48, load: 32, mma: 32 };
  const within = ([key, top]) => Math.min(Math.max(1, Math.floor(state[key]) || 1), top);
  const [stages, tiles, load, mma] = Object.entries(most).map(within);
  const steps = schedule(stages, tiles, load, mma);
  const waits = idle(steps, mma);
  byId("pg-idle").textContent = `After the first k-tile the tensor cores wait ${waits.idle} of ${plural(waits.all, "unit")}. ` +
    `${plural(Math.ceil(load / mma) + 1, "stage")} would hide every load.`;
  drawTimeline(byId("pg-timeline"), steps, stages);
}

// --- the form -------------------------------------------------------------------------------------------------------

const set = (element, value) => {
  if (element !== document.activeElement || element.type !== "text") element.value = value;
};

/** The form as the state has it; a field that one is typing in is left alone. */
function fill() {
  const of = form.elements;
  const own = state.layout.includes(":");
  set(of["kind-of-layout"], own ? "own" : state.layout);
  for (const key of ["bits", "rows", "columns", "padding", "access", "also", "lanes", "recipe"]) set(of[key], state[key]);
  for (const key of ["rows", "columns"]) of[key].disabled = own;
  of.padding.disabled = state.layout !== "row";
  const [b, m, s] = state.swizzle.split(",");
  const [row, column] = state.at.split(",");
  for (const [key, value] of Object.entries({ B: b, M: m, S: s, row, column })) set(of[key], value);
  const lanes = state.access.endsWith("@lanes");
  byId("pg-lanes").hidden = !lanes;
  of.row.disabled = of.column.disabled = lanes;
  const names = state.recipe ? Object.keys(recipes[state.recipe].tiles) : [];
  of.operand.disabled = !names.length;
  of.operand.replaceChildren(...names.map((name) => html("option", {}, name)));
  of.operand.value = state.operand;
  views.forEach((view) => (view.checked = view.value === state.view));
  for (const key of ["stages", "tiles", "load", "mma"]) set(timing.elements[key], state[key]);
  if (!shown) return;
  set(of["layout-text"], layoutText(shown.tile.layout));
  of.kind.value = kindOf(state.access, shown.tile);
  const matrix = /matrix\.x(\d)/.exec(state.access);
  of.width.disabled = Boolean(matrix);
  of.matrices.disabled = !matrix;
  if (matrix) of.matrices.value = matrix[1];
  of.width.value = shown.own.width;
  for (const option of of.width.options) option.disabled = option.value * 8 < state.bits;
}

function change(changes) {
  const pipeline = Object.keys(changes).every((key) => ["stages", "tiles", "load", "mma"].includes(key));
  state = { ...state, ...changes };
  if (pipeline) renderPipeline();
  else render();
  clearTimeout(saving);
  saving = setTimeout(() => history.replaceState(null, "", location.pathname + toQuery(state, recipes) + location.hash), 150);
}

const number = (element) => (element.value === "" ? NaN : Number(element.value));

/** What a change of one field changes in the state. */
const CHANGES = {
  recipe: (of) => opened({ recipe: of.recipe.value, operand: "" }, recipes),
  operand: (of) => opened({ recipe: state.recipe, operand: of.operand.value }, recipes),
  "kind-of-layout": (of) => layoutChange(of["kind-of-layout"].value),
  "layout-text": (of) => ({ layout: of["layout-text"].value }),
  access: (of) => ({ access: of.access.value.trim(), at: "0,0" }),
  kind: (of) => accessChange(of),
  width: (of) => accessChange(of),
  matrices: (of) => accessChange(of),
  bits: (of) => bitsChange(number(of.bits)),
};

function layoutChange(kind) {
  if (kind === "own") return { layout: layoutText(shown.tile.layout) };
  const sides = state.layout.includes(":") ? { rows: shown.tile.rows, columns: shown.tile.columns } : {};
  return { layout: kind, ...sides, ...(kind.includes("_") ? { swizzle: atomSwizzle(kind).join(",") } : {}) };
}

function accessChange(of) {
  const text = preset(of.kind.value, Number(of.width.value), Number(of.matrices.value), shown.tile);
  const lanes = text.endsWith("@lanes") ? { lanes: state.lanes || diagonal(Number(of.width.value), shown.tile) } : {};
  return { access: text, at: "0,0", ...lanes };
}

/** Another element, the accesses of the same kinds. */
function bitsChange(bits) {
  const [kind, width] = [kindOf(state.access, shown.tile), Math.max(shown.own.width, bits / 8)];
  const matrices = Number(/\.x(\d)/.exec(state.access)?.[1] ?? 4);
  const tile = { ...shown.tile, elementBits: bits };
  return { bits, access: preset(kind, width, matrices, tile), also: preset("row", 16, 4, tile), at: "0,0" };
}

function edited(event) {
  const of = form.elements;
  const { name } = event.target;
  if (CHANGES[name]) return change(CHANGES[name](of));
  if (["B", "M", "S"].includes(name)) return change({ swizzle: ["B", "M", "S"].map((key) => of[key].value || "0").join(",") });
  if (["row", "column"].includes(name)) return change({ at: `${of.row.value || 0},${of.column.value || 0}` });
  if (["rows", "columns", "padding"].includes(name)) return change({ [name]: number(event.target) });
  return name in DEFAULTS ? change({ [name]: event.target.value }) : null;
}

async function copy() {
  const said = byId("pg-copied");
  try {
    await navigator.clipboard.writeText(byId("pg-code").textContent);
    said.textContent = "Copied.";
  } catch {
    getSelection().selectAllChildren(byId("pg-code")); // where the browser denies the clipboard: Ctrl+C remains
    said.textContent = "Selected: press Ctrl+C.";
  }
}

function listen() {
  form.addEventListener("input", edited);
  form.addEventListener("submit", (event) => event.preventDefault());
  timing.addEventListener("submit", (event) => event.preventDefault());
  timing.addEventListener("input", (event) => change({ [event.target.name]: number(event.target) }));
  views.forEach((view) => view.addEventListener("change", () => change({ view: view.value })));
  byId("pg-none").addEventListener("click", () => change({ swizzle: "0,4,3" }));
  byId("pg-use").addEventListener("click", () => {
    const { bits, base, shift } = shown.search.best;
    change({ swizzle: `${bits},${bits ? base : 4},${bits ? shift : 3}` });
  });
  byId("pg-copy").addEventListener("click", copy);
  for (const [name, changes] of Object.entries(EXAMPLES)) {
    const button = html("button", { type: "button" }, name);
    button.addEventListener("click", () => change({ ...DEFAULTS, recipe: "", operand: "", ...changes }));
    byId("pg-examples").append(button);
  }
  new MutationObserver(() => tileView.draw()).observe(document.body, { attributeFilter: ["data-md-color-scheme"] });
  addEventListener("popstate", () => open());
}

function open() {
  state = fromQuery("", recipes);
  if (location.search && !shown) render(); // what stays where the address makes no sense
  state = fromQuery(location.search, recipes);
  render();
  renderPipeline();
}

async function begin() {
  try {
    const answer = await fetch(new URL("recipes.json", import.meta.url));
    if (answer.ok) recipes = await answer.json();
  } catch {
    recipes = {}; // the page works without them
  }
  const names = Object.entries(recipes).map(([name, { title }]) => html("option", { value: name }, `${name}: ${title}`));
  form.elements.recipe.append(...names);
  listen();
  open();
}

begin();
