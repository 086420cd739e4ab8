"""One tile of a GEMM in the modelled memories, put there by CuTe's layouts, multiplied by the words CuTe issues."""

import dataclasses

import dsl_tcgen05 as dsl
import numpy as np

from cookbook.layouts import evaluate
from cookbook.model import BlackwellDescriptor, SharedMemory, TensorMemory, TmemAddress, from_float32, to_float32
from cookbook.model.small_floats import decode, encode, encode_ue8m0
from cookbook.model.tcgen05 import KINDS, InstructionDescriptor, mma
from cookbook.model.tmem import cp

BF16, F16, TF32 = ("bfloat16",) * 2, ("float16",) * 2, ("tfloat32",) * 2
FP4, FP8 = ("e2m1",) * 2, ("e4m3", "e5m2")
UE8M0, UE4M3 = ("ue8m0", 32), ("ue4m3", 16)


def random_patterns(shape, dtype, seed):
    """Patterns of small numbers, so that sums of their products are exact."""
    rng = np.random.default_rng(seed)
    if dtype in ("ue8m0", "ue4m3"):
        return (encode_ue8m0 if dtype == "ue8m0" else encode_ue4m3)(2.0 ** rng.integers(-2, 3, shape))
    values = rng.choice([-3, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3], shape).astype(np.float32)
    if dtype == "tfloat32":
        return values.view(np.uint32) | rng.integers(0, 1 << 13, shape, np.uint32)  # low bits that are not looked at
    return from_float32(values, dtype) if dtype in ("float16", "bfloat16") else encode(values, dtype)


def encode_ue4m3(values):
    return encode(values, "ue4m3")


def numbers(patterns, dtype):
    if dtype == "tfloat32":
        return (patterns >> 13 << 13).view(np.float32)
    return to_float32(patterns, dtype) if dtype in ("float16", "bfloat16") else decode(patterns, dtype)


class Stage:
    """One tile of a case: operands in the memories of each CTA, where CuTe's layouts put them, and what CuTe issues."""

    def __init__(self, case):
        self.case = case
        self.multiplied, self.copied = dsl.issued(case)
        self.tv = evaluate(lambda: dsl.make_mma(case), arch=dsl.ARCH)
        self.places = dsl.operands(case)
        self.d_layout, self.a_layout = dsl.fragments(case)
        self.smems = [SharedMemory(200 * 1024) for _ in range(case.ctas)]
        self.tmems = [TensorMemory() for _ in range(case.ctas)]
        for tmem in self.tmems:
            tmem.alloc(512)
        rows = {"a": case.m, "b": case.n}
        self.patterns = {x: random_patterns((rows[x], case.k), case.types[x == "b"], x == "b") for x in "ab"}
        if case.a_in_tmem:
            self.fill_tmem()
        else:
            self.fill(dsl.A_BASE, "a")
        self.fill(dsl.B_BASE, "b")
        if case.scale[1]:
            self.fill_scales()

    def coords(self, name):
        """(CTA, value, 2): which element of A, B or D each value of CuTe's (thread, value) layout is."""
        extent = self.case.n if name == "b" else self.case.m
        index = getattr(self.tv, name).table()
        return np.stack([index % extent, index // extent], axis=-1)

    def fill(self, base, name):
        place, bits = self.places[name == "b"], KINDS[self.case.kind].bits
        offsets = place.outer.table()[:, 0, :]  # (values of one block, blocks of K), in elements
        step = KINDS[self.case.kind].k
        for smem, at in zip(self.smems, self.coords(name), strict=True):
            for block in range(offsets.shape[1]):
                values = self.patterns[name][at[:, 0], at[:, 1] + step * block]
                self.put(smem, base, place.swizzle, offsets[:, block], values, bits)

    @staticmethod
    def put(smem, base, swizzle, offsets, values, bits):
        if bits == 4:  # K-major alone: an even k and the next share a byte
            order = np.argsort(offsets)
            offsets, values = offsets[order], values[order]
            assert (offsets[1::2] == offsets[::2] + 1).all() and not (offsets[::2] % 2).any()
            offsets, values = offsets[::2], values[::2] | values[1::2] << 4
        smem.write(swizzle(base + offsets * bits // 8), values[:, None])

    def fill_tmem(self):
        table = self.a_layout.table()[:, 0, :]  # 16-bit elements
        for tmem, at in zip(self.tmems, self.coords("a"), strict=True):
            for block in range(table.shape[1]):
                values = self.patterns["a"][at[:, 0], at[:, 1] + 16 * block]
                order = np.argsort(table[:, block])
                low, high = table[order, block].reshape(-1, 2).T
                assert (high == low + 1).all()
                values = values[order].reshape(-1, 2).astype(np.uint32)
                lanes, columns = low // 2 >> 16, low // 2 & 0xFFFF
                tmem.write(lanes, dsl.A_TMEM + columns, values[:, 0] | values[:, 1] << 16)

    def fill_scales(self):
        """Scale factors in shared memory, in CuTe's layout, then by CuTe's tcgen05.cp into tensor memory."""
        case, (dtype, block) = self.case, self.case.scale
        per_cta = case.m // case.ctas
        smem_layouts, _ = evaluate(lambda: dsl.scale_layouts(case), arch=dsl.ARCH)
        self.scales = {}
        for name, rows, layout in (("a", case.m, smem_layouts[0]), ("b", case.n, smem_layouts[1])):
            codes = random_patterns((rows, case.k // block), dtype, 7 + (name == "b"))
            self.scales[name] = codes
            table = layout.table()[:, 0, :]  # ((rows, K of one instruction), blocks of K)
            padded = table.shape[0] // KINDS[case.kind].k
            table = table.reshape(KINDS[case.kind].k, padded, -1).transpose(1, 2, 0).reshape(padded, -1)[:, ::block]
            for cta, smem in enumerate(self.smems):
                mine = codes[cta * per_cta :][:per_cta] if name == "a" else codes
                base = dsl.SFA_BASE if name == "a" else dsl.SFB_BASE
                smem.write(base + table[: len(mine)], mine[:, :, None])
        for copy in self.copied:
            shape, _, multicast = copy.shape.partition(".")
            for smem, tmem in zip(self.smems, self.tmems, strict=True):
                cp(smem, tmem, copy.address, copy.descriptor, shape, multicast)

    def true(self):
        left, right = (
            numbers(self.patterns[x], t).astype(np.float64) for x, t in zip("ab", self.case.types, strict=True)
        )
        if self.case.scale[1]:
            dtype, block = self.case.scale
            left = left * np.repeat(decode(self.scales["a"], dtype), block, axis=1)
            right = right * np.repeat(decode(self.scales["b"], dtype), block, axis=1)
        return left @ right.T

    def multiply(self, change=lambda i, word: word, idesc=lambda x: x):
        """D by the model, from CuTe's words, each changed by `change`; where CuTe's layouts say that D lies."""
        for i, word in enumerate(self.multiplied):
            word = change(i, word)
            scale = {"scale_a": word.scale_a, "scale_b": word.scale_b, "block": word.block} if word.block else {}
            a = TmemAddress.of(word.a) if self.case.a_in_tmem else word.a
            instruction = idesc(InstructionDescriptor.decode(word.idesc, word.kind))
            smems, tmems = (self.smems, self.tmems) if self.case.ctas == 2 else (self.smems[0], self.tmems[0])
            mma(smems, tmems, word.d, a, word.b, instruction, accumulate=i > 0, **scale)
        return self.gathered()

    def gathered(self):
        found = np.full((self.case.m, self.case.n), np.nan, np.float32)
        address = self.d_layout.table()[:, 0, 0]
        for tmem, at in zip(self.tmems, self.coords("c"), strict=True):
            found[at[:, 0], at[:, 1]] = tmem.read(address >> 16, address & 0xFFFF).view(np.float32)
        return found


def field(name, **change):
    """The words with a descriptor's fields changed: functions of the field's value."""

    def changed(_, word):
        descriptor = BlackwellDescriptor.decode(getattr(word, name))
        new = {key: value(descriptor) for key, value in change.items()}
        return word._replace(**{name: dataclasses.replace(descriptor, **new).encode()})

    return changed


def caught(stage, **faults):
    """How a fault shows: the product is refused, or another one; empty if it does not."""
    try:
        return "" if np.array_equal(stage.multiply(**faults), stage.true()) else "another product"
    except ValueError:
        return "refused: ValueError"
