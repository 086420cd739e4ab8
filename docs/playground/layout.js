// CuTe's layouts in integers, and the tile that the playground shows: the byte address of each of its elements.

export const ATOM_BYTES = { SW128: 128, SW64: 64, SW32: 32, INTER: 16 };
const SWIZZLES = { SW128: [3, 4, 3], SW64: [2, 4, 3], SW32: [1, 4, 3], INTER: [0, 4, 3] };
const ELEMENTS = [8, 16, 32, 64];
const LINES = 8;
const MOST = 65536; // elements of a tile
const HIGHEST = 2 ** 24; // bytes: far above the 227 KiB of a CTA

/** {shape, stride}, nested arrays of integers, from text such as "((8,16),64):((64,512),1)". */
export function parseLayout(text) {
  const parts = text.replace(/\s/g, "").split(":");
  if (parts.length !== 2) throw new RangeError(`layout: got "${text}"; needed shape:stride, such as (8,64):(64,1)`);
  const [shape, stride] = parts.map((part) => intTuple(part));
  if (!congruent(shape, stride)) throw new RangeError(`layout: got "${text}"; needed a stride for each extent`);
  return { shape, stride };
}

function intTuple(text) {
  if (!/^[\d(),]+$/.test(text)) throw new RangeError(`layout: got "${text}"; needed integers >= 0 in parentheses`);
  try {
    return JSON.parse(text.replaceAll("(", "[").replaceAll(",)", "]").replaceAll(")", "]"));
  } catch {
    throw new RangeError(`layout: got "${text}"; needed parentheses that match, such as ((8,16),64)`);
  }
}

function congruent(shape, stride) {
  if (!Array.isArray(shape)) return Number.isInteger(shape) && shape >= 1 && Number.isInteger(stride);
  return Array.isArray(stride) && shape.length === stride.length && shape.every((s, i) => congruent(s, stride[i]));
}

export function layoutText({ shape, stride }, gap = "") {
  const text = (value) => (Array.isArray(value) ? `(${value.map(text).join(`,${gap}`)})` : String(value));
  return `${text(shape)}:${text(stride)}`;
}

/** Offsets of one mode, first index fastest. */
function modeOffsets(shape, stride) {
  if (!Array.isArray(shape)) return Array.from({ length: shape }, (_, i) => i * stride);
  return shape.reduce(
    (found, part, i) => modeOffsets(part, stride[i]).flatMap((outer) => found.map((inner) => inner + outer)),
    [0],
  );
}

const size = (shape) => (Array.isArray(shape) ? shape.reduce((product, part) => product * size(part), 1) : shape);

/**
 * The tile of a layout's first two modes, its columns along the contiguous one; further modes (stages) at 0.
 *
 * Returns {layout, elementBits, rows, columns, transposed, offsets, bytes}: row-major element offsets, no swizzle applied.
 */
export function tileOf(layout, elementBits) {
  if (!ELEMENTS.includes(elementBits)) {
    throw new RangeError(`dtype: got ${elementBits} bits; needed one of ${ELEMENTS.join(", ")}`);
  }
  const shapes = Array.isArray(layout.shape) ? layout.shape : [1, layout.shape];
  const strides = Array.isArray(layout.shape) ? layout.stride : [0, layout.stride];
  if (shapes.length < 2) return tileOf({ shape: [1, ...shapes], stride: [0, ...strides] }, elementBits);
  const counted = size(shapes[0]) * size(shapes[1]);
  if (counted > MOST) throw new RangeError(`layout: got ${counted} elements; needed ${MOST} at most`);
  let [down, along] = [0, 1].map((mode) => modeOffsets(shapes[mode], strides[mode]));
  const transposed = along[1] !== 1 && down[1] === 1;
  if (transposed) [down, along] = [along, down];
  const highest = (down.at(-1) + along.at(-1)) * (elementBits / 8);
  if (highest > HIGHEST) throw new RangeError(`layout: got byte ${highest}; needed addresses below ${HIGHEST}`);
  const offsets = new Int32Array(counted);
  down.forEach((row, i) => along.forEach((column, j) => (offsets[i * along.length + j] = row + column)));
  const bytes = highest + elementBits / 8;
  return { layout, elementBits, rows: down.length, columns: along.length, transposed, offsets, bytes };
}

/** Row-major, `padding` unused elements behind each row. */
export function rowMajor(rows, columns, padding = 0) {
  checkSides(rows, columns);
  if (!(Number.isInteger(padding) && padding >= 0 && padding <= 1024)) {
    throw new RangeError(`padding: got ${padding}; needed an integer from 0 to 1024`);
  }
  return { shape: [rows, columns], stride: [columns + padding, 1] };
}

/** An atom's rows, tiled over (mn, k): the next atom lies further along MN, as one TMA box writes K-major ones. */
export function atomLayout(name, elementBits, mn, k) {
  checkSides(mn, k);
  const [major, kind, wide] = name.split("_");
  if (wide && elementBits !== 32) throw new RangeError(`dtype: got ${elementBits} bits; needed 32 for ${name}`);
  const width = (ATOM_BYTES[kind] * 8) / elementBits;
  const [sizes, strides] = major === "K" ? [[LINES, width], [width, 1]] : [[width, LINES], [1, width]];
  if (mn % sizes[0] || k % sizes[1]) {
    throw new RangeError(`tile: got (${mn}, ${k}); needed multiples of (${sizes}) for ${name} of ${elementBits} bits`);
  }
  const counts = [mn / sizes[0], k / sizes[1]];
  const steps = [sizes[0] * sizes[1], sizes[0] * sizes[1] * counts[0]];
  return { shape: sizes.map((each, i) => [each, counts[i]]), stride: strides.map((each, i) => [each, steps[i]]) };
}

/** [B, M, S] on bytes of an atom. */
export function atomSwizzle(name) {
  return name === "MN_SW128_32B" ? [2, 5, 2] : SWIZZLES[name.split("_")[1]];
}

function checkSides(rows, columns) {
  for (const side of [rows, columns]) {
    if (!Number.isInteger(side) || side < 1) throw new RangeError(`tile: got ${side}; needed integers >= 1`);
  }
  if (rows * columns > MOST) throw new RangeError(`tile: got ${rows} x ${columns}; needed ${MOST} elements at most`);
}

/** Byte address of each element, row by row: offsets count elements, the swizzle acts on bytes. */
export function byteAddresses(tile, swizzle) {
  const size = tile.elementBits / 8;
  return tile.offsets.map((offset) => swizzle.apply(offset * size));
}
