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
 * requests: {places, width, load, starts} of each; `starts` lists where else an access can begin, from its own place.
 *
 * Returns {found, best, tried, counting}: `found` is null where none is free, `best` has the fewest wavefronts,
 * `counting` says which request no layout at all can serve, if there is one.
 */
export function find(tile, requests) {
  const raw = requests.map((request) => rawAddresses(tile, request));
  const vectorBits = Math.log2(Math.max(WORD, ...requests.map((request) => request.width)));
  let [best, least, tried] = [null, Infinity, 0];
  let found = null;
  for (const swizzle of candidates(bytesOf(tile), vectorBits)) {
    tried += 1;
    const excess = raw.reduce((sum, each, i) => sum + excessOf(each.own, requests[i].width, swizzle), 0);
    if (excess < least) [best, least] = [swizzle, excess];
    if (excess === 0 && raw.every((each, i) => each.others().every((at) => isFree(at, requests[i].width, swizzle)))) {
      found = swizzle;
      break;
    }
  }
  return { found, best: found ?? best, tried, counting: found ? null : counted(raw, requests, 1 << vectorBits) };
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

function bytesOf(tile) {
  return (Math.max(...tile.offsets) + 1) * (tile.elementBits / 8);
}

function rawAddresses(tile, { places, width, starts }) {
  const size = tile.elementBits / 8;
  const addresses = tile.offsets.map((offset) => offset * size);
  const at = (start) => laneAddresses(movedTo(places, start), width, tile, addresses);
  let others;
  return { own: at([0, 0]), others: () => (others ??= starts.slice(0, MOST_STARTS).map(at)) };
}

const moved = (addresses, swizzle) => addresses.map((address) => (address < 0 ? -1 : swizzle.apply(address)));

function excessOf(addresses, width, swizzle) {
  return wavefronts(moved(addresses, swizzle), width).excess;
}

/** Whether no two lanes of a phase ask one bank for two words. */
function isFree(addresses, width, swizzle) {
  const unit = Math.max(width, WORD);
  const groups = (BANKS * WORD) / unit;
  const asked = new Int32Array(groups);
  for (let lane = 0; lane < addresses.length; lane++) {
    if (lane % groups === 0) asked.fill(-1);
    if (addresses[lane] < 0) continue;
    const vector = Math.floor(swizzle.apply(addresses[lane]) / unit);
    if (asked[vector % groups] >= 0 && asked[vector % groups] !== vector) return false;
    asked[vector % groups] = vector;
  }
  return true;
}

/** The request that asks for one word each of more vectors at once than fit across the banks; null if there is none. */
function counted(raw, requests, kept) {
  const places = (BANKS * WORD) / kept;
  for (const [index, { own }] of raw.entries()) {
    for (const phase of wavefronts(own, requests[index].width).phases) {
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
