// What the playground shows, as a flat record, and its form in the address bar: only what differs from the defaults.

export const DEFAULTS = Object.freeze({
  bits: 16,
  layout: "row", // row, column, the name of an atom, or shape:stride
  rows: 64,
  columns: 64,
  padding: 0,
  swizzle: "0,4,3", // B,M,S on bytes
  access: "", // as an instruction, or NAME@lanes: then `lanes` says where; "": one that fits the tile
  at: "0,0", // row,column of the access
  lanes: "",
  also: "", // other accesses that a swizzle must serve, or "none"; "": one that fits the tile
  view: "matrix", // or memory
  stages: 4,
  tiles: 12,
  load: 6,
  mma: 1,
});
const LENGTH = 600; // characters of a value: 32 lanes and any layout

/** The state that a query such as "?recipe=hopper/tuned_gemm&operand=b&bits=16" says. */
export function fromQuery(query, recipes) {
  const given = new URLSearchParams(query);
  const origin = { recipe: given.get("recipe") ?? "", operand: given.get("operand") ?? "" };
  const state = { ...opened(origin, recipes) };
  for (const [key, value] of Object.entries(DEFAULTS)) {
    const text = given.get(key);
    if (text === null || text.length > LENGTH) continue;
    state[key] = typeof value === "number" ? Number(text) : text || (key === "also" ? "none" : "");
  }
  return state;
}

/** What a recipe's operand is: its layout, an access and the stages; the defaults where there is no such recipe. */
export function opened({ recipe, operand }, recipes) {
  const found = Object.hasOwn(recipes, recipe) ? recipes[recipe] : null;
  if (!found) return { ...DEFAULTS, recipe: "", operand: "" };
  const name = Object.hasOwn(found.tiles, operand) ? operand : Object.keys(found.tiles)[0];
  const { layout, bits, swizzle, access, lanes = "" } = found.tiles[name];
  const pipeline = found.stages ? { stages: found.stages } : {};
  return { ...DEFAULTS, ...pipeline, layout, bits, swizzle: swizzle.join(","), access, lanes, also: "none", recipe, operand: name };
}

/** The query of a state, with its "?"; "" of the defaults. */
export function toQuery(state, recipes) {
  const base = opened(state, recipes);
  const query = new URLSearchParams();
  if (state.recipe) query.set("recipe", state.recipe);
  if (state.recipe && state.operand !== Object.keys(recipes[state.recipe].tiles)[0]) query.set("operand", state.operand);
  for (const key of Object.keys(DEFAULTS)) {
    if (String(state[key]) !== String(base[key])) query.set(key, state[key]);
  }
  const text = query.toString().replace(/%(2C|28|29|3A|40|2F)/g, decodeURIComponent).replaceAll("+", "%20");
  return text ? `?${text}` : "";
}
