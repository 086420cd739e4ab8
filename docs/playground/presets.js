// The accesses that the menu offers, each as the text of one that fits the tile.

import { vectorOf } from "./access.js";

const WIDE = "ldmatrix.m16n16"; // 16 rows of 16 bytes, which it transposes byte by byte
export const KINDS = ["row", "column", "block", "ldmatrix", WIDE, "stmatrix", "lanes"];
const WIDTHS = [16, 8, 4, 2, 1]; // bytes a lane

/** The access of a kind: `width` bytes a lane, `matrices` of ldmatrix and stmatrix. */
export function preset(kind, width, matrices, tile) {
  const vector = Math.max(1, (width * 8) / tile.elementBits);
  const bits = Math.max(width * 8, tile.elementBits);
  if (kind === "row") {
    const columns = Math.min(32 * vector, Math.floor(tile.columns / vector) * vector);
    const rows = Math.max(1, Math.min(tile.rows, Math.floor((32 * vector) / columns)));
    return `st${bits}@${rows}x${columns}`;
  }
  if (kind === "column") return `ld${bits}@${Math.min(32, tile.rows)}x${vector}`;
  if (kind === "block") return `ld${bits}@${Math.min(8, tile.rows)}x${Math.min(4, Math.floor(tile.columns / vector)) * vector}`;
  if (kind === "lanes") return `ld${bits}@lanes`;
  if (kind === WIDE) {
    const count = Math.min(2, matrices);
    return `${WIDE}.x${count}.trans.b8@${16 * count}x16`;
  }
  const row = vectorOf({ width: 16, name: kind }, tile.elementBits);
  return `${kind}.x${matrices}@${matrices === 1 ? 8 : 16}x${matrices === 4 ? 2 * row : row}`;
}

/** Which kind a text is: block where it is none of the others. */
export function kindOf(text, tile) {
  if (text.endsWith("@lanes")) return "lanes";
  const name = text.split("@")[0];
  if (name.startsWith(WIDE)) return WIDE;
  if (/^(ld|st)matrix/.test(name)) return name.split(".")[0];
  const width = Number(/\d+$/.exec(name)?.[0] ?? 128) / (name.startsWith("cp.") ? 1 : 8);
  const plain = text.replace(/^(cp\.async|ld|st)\d+/, "");
  return ["row", "column"].find((kind) => preset(kind, width, 4, tile).replace(/^(ld|st)\d+/, "") === plain) ?? "block";
}

/** How many matrices a text says; null of another instruction. */
export function matricesOf(text) {
  return /^(?:ld|st)matrix(?:\.m16n16)?\.x(\d)/.exec(text)?.[1] ?? null;
}

/** The first access that `fits`, where none was chosen: an ldmatrix, or what reads a column; "" if none does. */
export function standard(tile, fits) {
  const matrices = [4, 2, 1].map((count) => preset("ldmatrix", 16, count, tile));
  return [...matrices, ...vectors("column", tile)].find(fits) ?? "";
}

/** The first access that `fits` and stores rows, where no other was chosen; "" if none does. */
export function standardStore(tile, fits) {
  return vectors("row", tile).find(fits) ?? "";
}

const vectors = (kind, tile) =>
  WIDTHS.filter((width) => width * 8 >= tile.elementBits).map((width) => preset(kind, width, 4, tile));

/** One lane a row, along the diagonal: free of conflicts in the unswizzled tile. */
export function diagonal(width, tile) {
  const vector = Math.max(1, (width * 8) / tile.elementBits);
  const across = Math.max(1, Math.floor(tile.columns / vector));
  return Array.from({ length: 32 }, (_, lane) => `${lane % tile.rows},${(lane % across) * vector}`).join(" ");
}
