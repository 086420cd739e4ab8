// What a state of the playground asks for: a layout, and one access of a warp to a tile.

import { lanePlaces, lastStart, movedTo, parse, parseLanes, starts } from "./access.js";
import { atomLayout, parseLayout, rowMajor } from "./layout.js";
import { diagonal } from "./presets.js";

export const AT = "first row, first column";

/** The layout that a state asks for: rows, columns, an atom, or shape:stride. */
export function layoutOf({ layout, bits, rows, columns, padding }) {
  if (layout === "row") return rowMajor(rows, columns, padding);
  if (layout === "column") return { shape: [rows, columns], stride: [1, rowMajor(rows, columns).shape[0]] };
  return layout.includes(":") ? parseLayout(layout) : atomLayout(layout, bits, rows, columns);
}

/** Two numbers >= 0 from text such as "0,8". */
export function pair(text, name) {
  const found = text.split(",").map(Number);
  if (found.length !== 2 || !found.every((each) => Number.isInteger(each) && each >= 0)) {
    throw new RangeError(`${name}: got "${text}"; needed row,column`);
  }
  return found;
}

/** {places, width, load, starts, text} of an access at a place of the tile. */
export function request(text, tile, at, lanes) {
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
