// A swizzle as a matrix over GF(2), and the proof that an access meets no conflict, or how many.

import { html } from "./svg.js";

const FIRST_BANK_BIT = 2; // of a byte address: words of 4 bytes
const BANK_BITS = [2, 3, 4, 5, 6];

/** A table: row i says which bits before make bit i after. */
export function matrixTable(swizzle, bits) {
  const n = Math.max(bits, 8, swizzle.bits ? Math.log2(swizzle.period) : 0);
  const matrix = swizzle.matrix(n);
  const columns = [...Array(n).keys()].reverse();
  const head = html("tr", {}, html("th", { scope: "col" }, "after \\ before"));
  for (const j of columns) {
    const read = swizzle.bits && (swizzle.yyy >> j) & 1;
    head.append(html("th", { scope: "col", class: read ? "pg-yyy" : "" }, j));
  }
  const body = columns.map((i) => {
    const bank = BANK_BITS.includes(i) ? " (bank)" : "";
    const row = html("tr", { class: bank ? "pg-bank" : "" }, html("th", { scope: "row" }, `bit ${i}${bank}`));
    for (const j of columns) {
      const one = matrix[i][j];
      const kind = one ? (i === j ? "pg-one" : "pg-moved") : "";
      row.append(html("td", { class: kind }, one ? "1" : "·"));
    }
    return row;
  });
  const caption = html("caption", {}, captionOf(swizzle));
  return html("table", { class: "pg-bits" }, caption, html("thead", {}, head), html("tbody", {}, ...body));
}

function captionOf(swizzle) {
  if (!swizzle.bits) return "No swizzle: the identity.";
  const range = (mask) => {
    const set = [...Array(31).keys()].filter((i) => (mask >> i) & 1);
    return set.length > 1 ? `bits ${set[0]} to ${set.at(-1)}` : `bit ${set[0]}`;
  };
  return `${swizzle} on byte addresses: ${range(swizzle.yyy)} are added (XOR) to ${range(swizzle.zzz)}.`;
}

/** The proof of one phase: the bank bits of the differences between its lanes, before and after. */
export function proofTable(reason, swizzle) {
  const { basis, before, after, unit, groups } = reason;
  const width = Math.log2(groups);
  const binary = (value) => (width ? value.toString(2).padStart(width, "0") : "–");
  const rows = basis.map((each, i) =>
    html("tr", {}, html("td", {}, `${each} bytes`), html("td", {}, binary(before[i])), html("td", {}, binary(after[i]))),
  );
  const bits = `bank bits ${FIRST_BANK_BIT + Math.log2(unit / 4)} to 6`;
  const head = ["between lanes", `${bits}, unswizzled`, `with ${swizzle}`].map((text) => html("th", { scope: "col" }, text));
  return html("table", { class: "pg-proof" }, html("thead", {}, html("tr", {}, ...head)), html("tbody", {}, ...rows));
}
