// The layout as CuTe-DSL source, as cookbook.solve.design writes it: strides count elements, the swizzle acts on bytes.

import { Swizzle } from "./swizzle.js";

const source = (value) => (Array.isArray(value) ? `(${value.map(source).join(", ")})` : String(value));

/** `smem_layout()`, to be called inside a jit function. */
export function code(tile, swizzle) {
  const s = swizzle.bits ? swizzle : new Swizzle(0, 4, 3);
  const elements = swizzle.bits ? swizzle.inElements(tile.elementBits) : new Swizzle(0, 0, 0);
  const said = elements ? `; ${elements} in elements` : "";
  const { shape, stride } = tile.layout;
  return (
    "import cutlass.cute as cute\n\n\ndef smem_layout():\n" +
    `    outer = cute.make_layout(${source(shape)}, stride=${source(stride)})  # elements of ${tile.elementBits} bits\n` +
    `    swizzle = cute.make_swizzle(${s.bits}, ${s.base}, ${s.shift})  # bytes${said}\n` +
    "    return cute.make_composed_layout(swizzle, 0, outer)\n"
  );
}

const MOST_ALIGNED = 1024; // bytes: CuTe's allocator asserts it
const ALLOCATED =
  "    tile = smem.allocate_tensor(dtype, layout.outer, byte_alignment=alignment, swizzle=layout.inner)\n";
const ALIGNED_BY_HAND =
  "    size = cute.cosize(layout.outer) * dtype.width // 8\n" +
  `    room = smem.allocate(size + alignment, ${MOST_ALIGNED})  # CuTe aligns to no more\n` +
  "    start = cute.recast_ptr(room.align(alignment), layout.inner, dtype=dtype)\n" +
  "    tile = cute.make_tensor(start, layout.outer)\n";
const DTYPES = { 8: "Float8E4M3FN", 16: "BFloat16", 32: "Float32", 64: "Float64" };

/** `source` and a kernel that allocates the tile, as cookbook.solve.design.kernel_code writes it: a file that runs. */
export function program(source, swizzle, elementBits) {
  const alignment = swizzle.bits ? Math.max(16, swizzle.period) : 16;
  return (
    `import cutlass\n${source}\n\n` +
    "@cute.kernel\ndef kernel():\n    layout = smem_layout()\n" +
    "    smem = cutlass.memory.SmemAllocator()  # before 4.8: cutlass.utils\n" +
    `    dtype, alignment = cutlass.${DTYPES[elementBits]}, ${alignment}  # bytes: the swizzle reads address bits\n` +
    (alignment <= MOST_ALIGNED ? ALLOCATED : ALIGNED_BY_HAND) +
    "    cute.printf(\"%d elements\", cute.size(tile))\n\n\n" +
    "@cute.jit\ndef launch():\n    kernel().launch(grid=[1, 1, 1], block=[1, 1, 1])\n"
  );
}
