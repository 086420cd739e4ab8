// Swizzle<B,M,S>, as CuTe has it and as cookbook.swizzle.Swizzle computes it.

const OFFSET_BITS = 30; // the bit operators of JavaScript take signed words of 32 bits

export class Swizzle {
  /** Throws RangeError where the yyy and zzz bits overlap, or reach above bit 29. */
  constructor(bits, base, shift) {
    const text = `S<${bits},${base},${shift}>`;
    if (![bits, base, shift].every(Number.isInteger)) throw new RangeError(`B, M, S: got ${text}; needed integers`);
    if (bits < 0 || base < 0) throw new RangeError(`B, M: got ${bits}, ${base}; needed both >= 0`);
    if (Math.abs(shift) < bits) {
      throw new RangeError(`S: got ${shift} in ${text}; needed |S| >= B, or the yyy and zzz bits overlap`);
    }
    if (bits + base + Math.abs(shift) > OFFSET_BITS) {
      throw new RangeError(`B, M, S: got ${text}; needed B + M + |S| of ${OFFSET_BITS} at most`);
    }
    Object.assign(this, { bits, base, shift });
  }

  toString() {
    return `S<${this.bits},${this.base},${this.shift}>`;
  }

  /** The mask of the bits that are read. */
  get yyy() {
    return ((1 << this.bits) - 1) << (this.base + Math.max(this.shift, 0));
  }

  /** The mask of the bits that change. */
  get zzz() {
    return ((1 << this.bits) - 1) << (this.base - Math.min(this.shift, 0));
  }

  /** The pattern of offsets repeats after this many. */
  get period() {
    return 2 ** (this.bits + this.base + Math.abs(this.shift));
  }

  /** The swizzled offset of an integer >= 0. */
  apply(offset) {
    const source = offset & this.yyy;
    return offset ^ (this.shift >= 0 ? source >> this.shift : source << -this.shift);
  }

  /** n x n over GF(2), bit 0 first: column j holds the bits of the image of offset 2**j. */
  matrix(n) {
    if ((this.yyy | this.zzz) >> n) throw new RangeError(`n: got ${n}; needed the bits of ${this}`);
    const images = Array.from({ length: n }, (_, j) => this.apply(2 ** j));
    return images.map((_, i) => images.map((image) => (image >> i) & 1));
  }

  /** This swizzle of byte offsets, said in bytes and in elements. */
  both(elementBits) {
    if (!this.bits) return "no swizzle";
    const elements = this.inElements(elementBits);
    if (!elements) return `${this} over bytes, which would split ${elementBits}-bit elements`;
    return `${this} over bytes = ${elements} over ${elementBits}-bit elements`;
  }

  /** This swizzle of byte offsets, said in offsets of elements; null where it moves bytes inside an element. */
  inElements(elementBits) {
    const base = this.base - Math.log2(elementBits / 8);
    if (base < 0 && this.bits) return null;
    return new Swizzle(this.bits, Math.max(base, 0), this.shift);
  }
}
