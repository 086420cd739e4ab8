// "Find me a swizzle": every legal Swizzle<B,M,S> of the tile's layout, and the reason over GF(2).

import { laneAddresses, movedTo } from "./access.js";
import { BANKS, WORD, wavefronts } from "./banks.js";
import { independent, rank } from "./gf2.js";
import { Swizzle } from "./swizzle.js";

const LINE_BITS = 7; // of 128 bytes
const MOST_STARTS = 4096;

/**
 * The first swizzle of byte addresses that leaves no request a conflict: fewest bits, smallest shift, highest base.
 *
 * requests: {places, width, starts} of each; `starts` lists where else an access can begin, from its own place.
 *
 * Returns {found, best, tried, counting}: `found` is null where none is free, `best` has the fewest wavefronts,
 * `counting` says which request no layout at all can serve, if there is one.
 */
export function find(tile, requests) {
  const addresses = tile.offsets.map((offset) => offset * (tile.elementBits / 8));
  const asked = requests.map(({ places, width, starts }) => {
    const at = (start) => laneAddresses(movedTo(places, start), width, tile, addresses);
    return { width, own: at([0, 0]), others: () => (linear(tile) ? [] : starts.slice(0, MOST_STARTS).map(at)) };
  });
  const vectorBits = Math.log2(Math.max(WORD, ...requests.map((request) => request.width)));
  const all = [...candidates(tile.bytes, vectorBits)];
  const isFree = (at, width, swizzle) => wavefrontsOf(at, width, swizzle, true) === 0;
  const index = all.findIndex(
    (swizzle) =>
      asked.every(({ own, width }) => isFree(own, width, swizzle)) &&
      asked.every(({ others, width }) => others().every((at) => isFree(at, width, swizzle))),
  );
  if (index >= 0) return { found: all[index], best: all[index], tried: index + 1, counting: null };
  const lost = all.map((swizzle) => asked.reduce((sum, { own, width }) => sum + wavefrontsOf(own, width, swizzle), 0));
  const best = all[lost.indexOf(Math.min(...lost))];
  return { found: null, best, tried: all.length, counting: counted(asked, 1 << vectorBits) };
}

/** Whether extents and strides are powers of two: then an access takes the same at all its places. */
function linear({ layout }) {
  return [layout.shape, layout.stride].flat(Infinity).every((each) => (each & (each - 1)) === 0);
}

/** Every legal swizzle that keeps vectors whole and is no more than the tile: those that can change a bank. */
function* candidates(bytes, vectorBits) {
  const bankBits = LINE_BITS - vectorBits;
  const n = Math.max(0, Math.log2(bytes & -bytes) - vectorBits);
  yield new Swizzle(0, LINE_BITS - 3, 3);
  for (let bits = 1; bits <= Math.min(bankBits, Math.floor(n / 2)); bits++) {
    for (let shift = bits; shift <= n - bits; shift++) {
      for (let base = Math.min(bankBits - bits, n - bits - shift); base >= 0; base--) {
        yield new Swizzle(bits, base + vectorBits, shift);
      }
    }
  }
}

/** Wavefronts above one a phase that an access takes under a swizzle; with `first`, 1 as soon as there is one. */
function wavefrontsOf(addresses, width, swizzle, first = false) {
  const unit = Math.max(width, WORD); // aligned vectors use the same banks or none in common
  const lanes = Math.min(addresses.length, (BANKS * WORD) / unit);
  const groups = (BANKS * WORD) / unit;
  let excess = 0;
  for (let start = 0; start < addresses.length; start += lanes) {
    const vectors = new Set();
    const asked = new Uint8Array(groups);
    let most = 0;
    for (let lane = start; lane < start + lanes; lane++) {
      if (addresses[lane] < 0) continue;
      const vector = Math.floor(swizzle.apply(addresses[lane]) / unit);
      if (vectors.has(vector)) continue;
      vectors.add(vector);
      most = Math.max(most, ++asked[vector % groups]);
      if (first && most > 1) return 1;
    }
    excess += Math.max(0, most - 1);
  }
  return excess;
}

/** The request that asks for one word each of more vectors at once than fit across the banks; null if there is none. */
function counted(asked, kept) {
  const places = (BANKS * WORD) / kept;
  for (const [index, { own, width }] of asked.entries()) {
    for (const phase of wavefronts(own, width).phases) {
      const byWord = new Map();
      for (const lane of phase.lanes) {
        if (own[lane] < 0) continue;
        const word = Math.floor((own[lane] % kept) / WORD);
        byWord.set(word, (byWord.get(word) ?? new Set()).add(Math.floor(own[lane] / kept)));
      }
      const vectors = Math.max(0, ...[...byWord.values()].map((set) => set.size));
      if (vectors > places) return { index, vectors, places, kept, least: Math.ceil(vectors / places) };
    }
  }
  return null;
}

/**
 * Why a phase takes as many wavefronts as it does: {basis, before, after, rank, size} of each phase, or null where its
 * addresses are no span over GF(2).
 *
 * basis: the addresses' differences that the bits of the lane's number make; before, after: the bank bits of each, with
 * no swizzle and with it; size: the span's dimension. A phase takes 2**(size - rank) wavefronts.
 */
export function reason(own, width, swizzle) {
  const unit = Math.max(width, WORD);
  const groups = (BANKS * WORD) / unit;
  return wavefronts(own, width).phases.map(({ lanes }) => {
    const active = lanes.filter((lane) => own[lane] >= 0);
    if (!active.length) return null;
    const differences = active.map((lane) => own[lane] ^ own[active[0]]).map((each) => each - (each % unit));
    const basis = independent(differences);
    if (new Set(differences).size !== 2 ** basis.length) return null;
    const [before, after] = [basis, basis.map((each) => swizzle.apply(each))].map((vectors) =>
      vectors.map((vector) => (vector / unit) & (groups - 1)),
    );
    return { basis, before, after, unit, groups, size: basis.length, rank: rank(after), rankBefore: rank(before) };
  });
}
