// What one instruction of a warp asks of shared memory, in the notation of the command `cookbook banks`:
// ldmatrix.x4@16x16, ld128@32x8, st64@8x8/down; `/RSxCS` takes every RS-th row and every CS-th vector.

export const LANES = 32;
const KNOWN = "ld8 to ld128, st8 to st128, cp.async4, 8, 16, ldmatrix.x1, .x2, .x4, stmatrix.x1, .x2, .x4, " +
  "ldmatrix.m16n16.x1.trans.b8, .x2.trans.b8";

/** {name, rows, columns, rowStep, columnStep, down, width, matrices, matrixRows, load} of a text. */
export function parse(text) {
  const [name, rest = ""] = text.trim().split("@");
  const [shape, ...options] = rest.split("/");
  const access = { name, rowStep: 1, columnStep: 1, down: false, ...widthOf(name) };
  [access.rows, access.columns] = sides(shape, text);
  for (const option of options) {
    if (option === "down") access.down = true;
    else [access.rowStep, access.columnStep] = sides(option, text);
  }
  if (access.down && access.matrices) {
    throw new RangeError(`access: got /down with ${name}; needed none, for its matrices run down the rows anyway`);
  }
  return access;
}

function widthOf(name) {
  const wide = /^ldmatrix\.m16n16\.x([12])\.trans\.b8$/.exec(name);
  if (wide) return { width: 16, matrices: Number(wide[1]), matrixRows: 16, load: false };
  const moved = /^(?:(ld|st)(8|16|32|64|128)|cp\.async(4|8|16)|(ld|st)matrix\.x([124])(?:\.trans)?)$/.exec(name);
  if (!moved) throw new RangeError(`access: got "${name}" before the @; needed one of ${KNOWN}`);
  if (moved[5]) return { width: 16, matrices: Number(moved[5]), matrixRows: 8, load: false };
  return { width: moved[2] ? moved[2] / 8 : Number(moved[3]), matrices: 0, load: moved[1] === "ld" };
}

function sides(text, whole) {
  const found = /^(\d{1,5})[xX](\d{1,5})$/.exec(text);
  const given = found ? [Number(found[1]), Number(found[2])] : [0, 0];
  if (given.some((side) => side < 1)) {
    throw new RangeError(`access: got "${whole}"; needed NAME@ROWSxCOLUMNS, such as ldmatrix.x4@16x16 or ld128@32x8`);
  }
  return given;
}

export function accessText(a) {
  const steps = a.rowStep !== 1 || a.columnStep !== 1 ? `/${a.rowStep}x${a.columnStep}` : "";
  return `${a.name}@${a.rows}x${a.columns}${steps}${a.down ? "/down" : ""}`;
}

/** Elements of a lane's vector. */
export function vectorOf(access, elementBits) {
  if (access.matrixRows === 16 && elementBits !== 8) {
    const needed = `8, whose bytes it transposes, or ldmatrix.x${2 * access.matrices}.trans`;
    throw new RangeError(`dtype: got ${elementBits} bits for ${access.name}; needed ${needed}`);
  }
  if (access.width * 8 < elementBits) {
    const needed = `${access.width * 8} bits at most, a lane's vector`;
    throw new RangeError(`dtype: got ${elementBits} bits for ${access.name}; needed ${needed}`);
  }
  return (access.width * 8) / elementBits;
}

function checkLanes(access, elementBits) {
  const vector = vectorOf(access, elementBits);
  const text = `access: got ${accessText(access)} of ${elementBits}-bit elements`;
  if (access.columns % vector) throw new RangeError(`${text}; needed columns in multiples of ${vector}`);
  const lanes = (access.rows * access.columns) / vector;
  const each = access.matrixRows;
  if (access.matrices && (access.rows % each || lanes !== each * access.matrices)) {
    const fits = `${access.name}@${each * Math.min(access.matrices, 2)}x${vector * Math.max(1, access.matrices / 2)}`;
    throw new RangeError(`${text}; needed ${access.matrices} matrices of ${each}x${vector}, such as ${fits}`);
  }
  if (lanes > LANES) throw new RangeError(`${text}, which is ${lanes} lanes; needed ${LANES} at most`);
}

/** [row, column] of the first element of each active lane, from the corner of what is covered. */
export function lanePlaces(access, elementBits) {
  checkLanes(access, elementBits);
  const vector = vectorOf(access, elementBits);
  const across = access.columns / vector;
  return Array.from({ length: access.rows * across }, (_, lane) => {
    const fast = access.matrices || access.down ? access.rows : across;
    const [slow, quick] = [Math.floor(lane / fast), lane % fast];
    const [row, chunk] = fast === access.rows && (access.matrices || access.down) ? [quick, slow] : [slow, quick];
    return [row * access.rowStep, chunk * access.columnStep * vector];
  });
}

/** The highest [row, column] at which the access fits into the tile; throws where it does not fit at all. */
export function lastStart(access, tile) {
  const places = lanePlaces(access, tile.elementBits);
  const vector = vectorOf(access, tile.elementBits);
  const row = tile.rows - 1 - Math.max(...places.map((place) => place[0]));
  const column = tile.columns - vector - Math.max(...places.map((place) => place[1]));
  if (row < 0 || column < 0) {
    const needed = `${tile.rows - row} x ${tile.columns - column}`;
    throw new RangeError(`tile: got ${tile.rows} x ${tile.columns}; needed ${needed} at least for ${accessText(access)}`);
  }
  if (tile.rows > 1 && tile.columns % vector) {
    const text = `${accessText(access)} of ${tile.elementBits}-bit elements`;
    throw new RangeError(`tile: got ${tile.columns} columns for ${text}; needed a multiple of ${vector}, a lane's vector`);
  }
  return [row, column];
}

/** [row, column] of each lane, null for an inactive one, from text such as "0,0 1,0 - 3,8". */
export function parseLanes(text) {
  const given = text.trim().split(/[\s;]+/).filter(Boolean);
  if (given.length > LANES || !given.length) {
    throw new RangeError(`lanes: got ${given.length}; needed 1 to ${LANES}: row,column of each, - for none`);
  }
  return given.map((item) => {
    if (item === "-") return null;
    const found = /^(\d{1,5}),(\d{1,5})$/.exec(item);
    if (!found) throw new RangeError(`lanes: got "${item}"; needed row,column, or - for an inactive lane`);
    return [Number(found[1]), Number(found[2])];
  });
}

/**
 * The byte address that each of 32 lanes supplies, -1 for none. Throws where a lane's vector leaves the tile, or does
 * not lie in one aligned piece.
 *
 * places: [row, column] by lane or null; addresses: of each element of the tile, row by row.
 */
export function laneAddresses(places, width, tile, addresses) {
  const size = tile.elementBits / 8;
  const vector = width / size;
  const found = new Int32Array(LANES).fill(-1);
  places.forEach((place, lane) => {
    if (!place) return;
    const [row, column] = place;
    if (row >= tile.rows || column + vector > tile.columns) {
      const most = `rows to ${tile.rows - 1} and columns to ${tile.columns - vector}`;
      throw new RangeError(`lane ${lane}: got (${row}, ${column}); needed ${most} for ${width} bytes`);
    }
    const first = row * tile.columns + column;
    const start = addresses[first];
    let whole = start % width === 0;
    for (let i = 1; i < vector; i++) whole &&= addresses[first + i] === start + i * size;
    if (!whole) {
      const bytes = Array.from({ length: vector }, (_, i) => addresses[first + i]);
      throw new RangeError(
        `lane ${lane}: got its ${vector} elements at bytes ${bytes.join(", ")}; needed ${width} bytes in one aligned piece`,
      );
    }
    found[lane] = start;
  });
  return found;
}

/** `places` moved to (row, column) of the tile. */
export function movedTo(places, [row, column]) {
  return places.map((place) => place && [place[0] + row, place[1] + column]);
}

/** The rows and columns at which an access can start: at multiples of what it covers where these divide the tile. */
export function starts(access, tile) {
  const vector = vectorOf(access, tile.elementBits);
  const columns = startsAlong(Math.floor(tile.columns / vector), access.columns / vector, access.columnStep);
  return [startsAlong(tile.rows, access.rows, access.rowStep), columns.map((column) => column * vector)];
}

function startsAlong(size, count, step) {
  const found = [];
  if (size % (count * step)) {
    for (let i = 0; i < size - (count - 1) * step; i++) found.push(i);
    return found;
  }
  for (let block = 0; block < size / (count * step); block++) {
    for (let i = 0; i < step; i++) found.push(block * count * step + i);
  }
  return found;
}
