// The page: a form, the state behind it, and the pictures of what follows from the state.

import { laneAddresses } from "./access.js";
import { AT, layoutOf, pair, request } from "./asked.js";
import { service, wavefronts } from "./banks.js";
import { code, program } from "./cute.js";
import { Crossbar } from "./draw-crossbar.js";
import { matrixTable, proofTable } from "./draw-matrix.js";
import { TileView } from "./draw-tile.js";
import { showPipeline } from "./draw-timeline.js";
import { atomSwizzle, byteAddresses, layoutText, rowMajor, tileOf } from "./layout.js";
import { diagonal, kindOf, matricesOf, preset, standard, standardStore } from "./presets.js";
import { find, reason } from "./solve.js";
import { DEFAULTS, fromQuery, opened, toQuery } from "./state.js";
import { html, plural } from "./svg.js";
import { Swizzle } from "./swizzle.js";

const EXAMPLES = {
  "a column of bf16": { access: "ld128@32x8" },
  "ldmatrix under SW128": { layout: "K_SW128", swizzle: "3,4,3" },
  "padded rows": { padding: 8 },
  "32 x 32 fp32, transposed": { bits: 32, rows: 32, columns: 32, access: "ld32@32x1", also: "st32@1x32" },
  "no swizzle can": { bits: 32, rows: 32, columns: 32, access: "ld32@32x1", also: "st128@4x32" },
};
const OF_TILE = ["rows", "columns", "padding", "bits", "layout"]; // fields of the state
const byId = (id) => document.getElementById(id);
const form = byId("pg-form");
const timing = byId("pg-pipeline");
const views = [...document.getElementsByName("pg-view")];
let recipes = {};
let state = { ...DEFAULTS };
let shown = null; // what the last state that made sense gave
let saving = 0;

// --- from the state to figures --------------------------------------------------------------------------------------

/**
 * What follows from the state. A field that makes no sense takes nothing else with it: `faults` says what is wrong with
 * it, and in its place stands what was shown before, or what fits.
 */
function compute(now) {
  const faults = [];
  const first = (...ways) => {
    for (const [index, way] of ways.entries()) {
      try {
        return way();
      } catch (error) {
        if (!(error instanceof RangeError) || index === ways.length - 1) throw error;
        if (!index) faults.push(error.message);
      }
    }
  };
  const before = shown?.fields;
  const repairs = [{}, ...OF_TILE.map((key) => ({ [key]: before?.[key] })), before];
  const { tile, fields } = first(...repairs.map((repair) => () => tileAnd({ ...ofTile(now), ...repair })));
  const none = new Swizzle(0, 4, 3);
  const given = () => whole(new Swizzle(...now.swizzle.split(",").map(Number)), tile);
  const swizzle = first(given, () => whole(shown.swizzle, tile), () => none);
  const [addresses, raw] = [swizzle, none].map((each) => byteAddresses(tile, each));
  const asked = (text, at = [0, 0]) => {
    const made = request(text, tile, at, now.lanes);
    for (const table of [addresses, raw]) laneAddresses(made.places, made.width, tile, table);
    return made;
  };
  const fits = (text) => first(() => asked(text) && true, () => false);
  const quietly = (choose) => {
    const known = faults.length;
    const text = choose(tile, fits);
    faults.length = known;
    return text;
  };
  const chosen = () => asked(quietly(standard), first(() => pair(now.at, AT), () => [0, 0]));
  const own = now.access
    ? first(() => asked(now.access, pair(now.at, AT)), () => asked(shown.own.text), () => asked(quietly(standard)))
    : first(chosen, () => asked(quietly(standard)));
  const also = now.also === "" ? quietly(standardStore) : now.also === "none" ? "" : now.also;
  const others = also.split(/[;\s]+|,(?=\s*[a-z])/).filter(Boolean);
  const requests = [own, ...others.flatMap((text) => first(() => [asked(text)], () => []))];
  const counts = requests.map(({ places, width, load }) => {
    const count = (table) => wavefronts(laneAddresses(places, width, tile, table), width, load);
    return { now: count(addresses), before: count(raw) };
  });
  const [lanes, rawAsked] = [addresses, raw].map((table) => laneAddresses(own.places, own.width, tile, table));
  const steps = service(lanes, own.width, counts[0].now.phases);
  const search = first(() => find(tile, requests), () => ({ found: null, best: none, tried: 0, counting: null }));
  return { swizzle, tile, fields, addresses, own, also, requests, counts, steps, rawAsked, search, faults };
}

const ofTile = (now) => Object.fromEntries(OF_TILE.map((key) => [key, now[key]]));
const tileAnd = (fields) => ({ tile: tileOf(layoutOf(fields), fields.bits), fields });

/** A swizzle that splits no element. */
function whole(swizzle, tile) {
  if (swizzle.inElements(tile.elementBits)) return swizzle;
  const least = Math.log2(tile.elementBits / 8);
  throw new RangeError(`M: got ${swizzle.both(tile.elementBits)}; needed ${least} at least`);
}

// --- from figures to the page ---------------------------------------------------------------------------------------

function showResult({ counts, own, swizzle, tile }) {
  const { now, before } = counts[0];
  const most = now.exact ? now.actual : `${now.actual} to ${now.atMost}`;
  const word = now.atMost === 1 ? "wavefront" : "wavefronts";
  const big = html("strong", { class: now.excess ? "pg-bad" : "pg-good" }, `${most} ${word}`);
  const what = readBy(own) ?? own.text;
  const said = now.excess
    ? ` for ${what}, where ${now.ideal} would do: ${plural(now.excess, "wavefront")} lost to bank conflicts.`
    : ` for ${what}: no bank conflict.`;
  const without = swizzle.bits ? ` Unswizzled: ${before.actual}. ${swizzle.both(tile.elementBits)}.` : "";
  const drawn = tile.transposed ? "; drawn with the contiguous mode along the rows" : "";
  const size = ` Tile: ${tile.rows} x ${tile.columns}, ${layoutText(tile.layout)}, ${tile.bytes} bytes${drawn}.`;
  const about = html("span", { class: "pg-note" }, size);
  byId("pg-result").replaceChildren(big, said + without, about);
}

/** What a recipe's tile is read by, where no instruction of a warp does; null while another access is looked at. */
function readBy(own) {
  const tile = recipes[state.recipe]?.tiles[state.operand];
  if (!tile?.read_by || own.text !== tile.access) return null;
  const rows = own.places.filter(Boolean).length;
  return `${rows} rows of ${own.width} bytes, which ${tile.read_by} reads (counted as ${own.text})`;
}

function showFound({ search, requests, counts, swizzle, rawAsked, own, tile }) {
  const { found, best, tried, counting } = search;
  const these = requests.length === 1 ? "this access" : "all of these";
  let head = `No Swizzle<B,M,S> of this layout serves ${these}: all ${tried} were tried. The best is ${best.both(tile.elementBits)}.`;
  const order = "fewest bits first, then the smallest shift";
  if (found) head = `${found.both(tile.elementBits)} serves ${these} with no bank conflict. It is the first that does, of ${tried} tried: ${order}.`;
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
  shown = compute(state);
  error.textContent = `${shown.faults.join(". ")}. Elsewhere the page follows the other fields.`;
  error.hidden = !shown.faults.length;
  showResult(shown);
  crossbar.update(shown.counts[0].now, shown.steps);
  if (!shown.steps.length) drawTile(0);
  showFound(shown);
  byId("pg-matrix").replaceChildren(matrixTable(shown.swizzle, Math.ceil(Math.log2(shown.tile.bytes))));
  const { tile, swizzle } = shown;
  byId("pg-code").textContent = program(code(tile, swizzle), swizzle, tile.elementBits);
  fill();
}

function renderPipeline() {
  byId("pg-idle").textContent = showPipeline(state, byId("pg-timeline"));
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
  for (const key of ["bits", "rows", "columns", "padding", "lanes", "recipe"]) set(of[key], state[key]);
  for (const key of ["rows", "columns"]) of[key].disabled = own;
  of.padding.disabled = state.layout !== "row";
  const [b, m, s] = state.swizzle.split(",");
  const [row, column] = state.at.split(",");
  for (const [key, value] of Object.entries({ B: b, M: m, S: s, row, column })) set(of[key], value);
  set(of.access, state.access || (shown?.own.text ?? ""));
  set(of.also, state.also === "none" ? "" : state.also || (shown?.also ?? ""));
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
  of.kind.value = kindOf(shown.own.text, shown.tile);
  const matrices = matricesOf(shown.own.text);
  of.width.disabled = Boolean(matrices);
  of.matrices.disabled = !matrices;
  if (matrices) of.matrices.value = matrices;
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
  also: (of) => ({ also: of.also.value.trim() || "none" }),
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

/** Another element, the accesses of the same kinds, where they were chosen. */
function bitsChange(bits) {
  const [kind, width] = [kindOf(shown.own.text, shown.tile), Math.max(shown.own.width, bits / 8)];
  const tile = { ...shown.tile, elementBits: bits };
  const access = state.access && preset(kind, width, Number(matricesOf(shown.own.text) ?? 4), tile);
  return { bits, access, also: state.also === "none" ? "none" : "", at: "0,0" };
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
