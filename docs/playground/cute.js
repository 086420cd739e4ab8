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

/** How a kernel allocates it: the base must be a multiple of the swizzle's period, for it reads absolute address bits. */
export function allocation(swizzle) {
  const alignment = swizzle.bits ? Math.max(16, swizzle.period) : 16;
  return (
    "\n\n# in the kernel\nlayout = smem_layout()\nsmem = cutlass.memory.SmemAllocator()  # before 4.8: cutlass.utils\n" +
    `tile = smem.allocate_tensor(dtype, layout.outer, byte_alignment=${alignment}, swizzle=layout.inner)\n`
  );
}
