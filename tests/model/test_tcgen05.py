"""tcgen05 against CuTe: its descriptors, read by the model from shared memory that CuTe's own layouts fill."""

import dataclasses

import dsl_tcgen05 as dsl
import numpy as np
import pytest
from dsl_tcgen05 import Case
from planted import WORDS, Caught, check
from tcgen05_stage import BF16, F16, FP4, FP8, TF32, UE4M3, UE8M0, Stage, caught, field, random_patterns

from cookbook import descriptors
from cookbook.layouts import Layout, SmemLayout, evaluate
from cookbook.model import BlackwellDescriptor, SharedMemory, TensorMemory, TmemAddress
from cookbook.model.small_floats import FORMATS, decode, pack
from cookbook.model.tcgen05 import KINDS, InstructionDescriptor, d_places, mma

MN_ATOMS = [f"MN_{name}" for name in ("INTER", "SW32", "SW64", "SW128")]
K_ATOMS = [f"K_{name}" for name in ("INTER", "SW32", "SW64", "SW128")]

PLAIN = [
    *(Case("f16", 128, 64, 64, BF16, (k, mn)) for k, mn in zip(K_ATOMS, MN_ATOMS, strict=True)),
    *(Case("f16", 64, 72, 64, F16, (mn, k)) for k, mn in zip(K_ATOMS, MN_ATOMS, strict=True)),
    Case("f16", 128, 256, 64, BF16),
    Case("f16", 128, 256, 64, BF16, ctas=2),
    Case("f16", 256, 256, 64, BF16, ctas=2),
    Case("f16", 128, 128, 64, F16, ("MN_SW64", "MN_SW128"), ctas=2),
    Case("f16", 256, 64, 64, F16, ("MN_SW128", "MN_SW64"), ctas=2),
    Case("f16", 128, 64, 64, BF16, a_in_tmem=True),
    Case("f16", 64, 64, 64, BF16, a_in_tmem=True),
    Case("f16", 256, 64, 64, BF16, ctas=2, a_in_tmem=True),
    Case("tf32", 128, 64, 32, TF32),
    Case("tf32", 128, 64, 32, TF32, ("MN_SW128_32B", "MN_SW128_32B")),
    Case("tf32", 128, 64, 32, TF32, (dsl.FOUR_LINES, dsl.FOUR_LINES)),
    Case("tf32", 64, 32, 32, TF32, ("MN_SW128_32B", "K_SW64")),
    Case("tf32", 256, 64, 32, TF32, ("K_SW128", "MN_SW128_32B"), ctas=2),
    Case("f8f6f4", 128, 64, 128, FP8),
    Case("f8f6f4", 64, 64, 64, FP8, ("K_SW64", "K_INTER")),
    Case("f8f6f4", 128, 128, 128, FP8, ("MN_SW128", "MN_SW64")),
    Case("f8f6f4", 256, 128, 128, FP8, ("K_SW128", "MN_SW32"), ctas=2),
]
SCALED = [
    Case("mxf8f6f4", 128, 64, 128, FP8, scale=UE8M0),
    Case("mxf8f6f4", 128, 256, 256, FP8, scale=UE8M0),
    Case("mxf8f6f4", 128, 128, 128, FP8, ("MN_SW128", "MN_SW128"), scale=UE8M0),
    Case("mxf8f6f4", 256, 128, 128, FP8, ctas=2, scale=UE8M0),
    Case("mxf4", 128, 128, 256, FP4, scale=UE8M0),
    Case("mxf4", 256, 256, 256, FP4, ctas=2, scale=UE8M0),
    Case("mxf4nvf4", 128, 128, 256, FP4, scale=UE4M3),
    Case("mxf4nvf4", 128, 64, 256, FP4, ("K_SW64", "K_SW32"), scale=("ue8m0", 16)),
    Case("mxf4nvf4", 256, 128, 256, FP4, ctas=2, scale=UE4M3),
]


@pytest.mark.parametrize("case", PLAIN + SCALED, ids=str)
def test_the_product_by_the_words_that_cute_issues(case):
    """CuTe's layouts of A, B, D and the scale factors, CuTe's descriptors; the model's instructions: exact."""
    stage = Stage(case)
    assert len(stage.multiplied) == case.k // KINDS[case.kind].k
    assert {word.ctas for word in stage.multiplied} == {case.ctas}
    assert np.array_equal(stage.multiply(), stage.true())


@pytest.mark.parametrize("case", PLAIN + SCALED, ids=str)
def test_instruction_descriptors_are_cutes(case):
    """100% of the bits, of every instruction of the tile."""
    kind = {"mxf4": "mxf4nvf4"}.get(case.kind, case.kind)  # CuTe issues the one as the other, by blocks of 32
    count = KINDS[case.kind].k // case.scale[1] if case.scale[1] else 4
    multiplied, _ = dsl.issued(case)
    for i, word in enumerate(multiplied):
        sf_id = i * count % 4 if case.scale[1] else 0
        majors = dict(zip(("a_major", "b_major"), case.majors, strict=True))
        ours = InstructionDescriptor(
            kind, case.m, case.n, *case.types, **majors, scale_type=case.scale[0], a_sf_id=sf_id, b_sf_id=sf_id
        )
        assert (word.kind, word.idesc) == (kind, ours.encode())
        assert InstructionDescriptor.decode(word.idesc, kind) == ours


@pytest.mark.parametrize("case", [c for c in PLAIN + SCALED if c.types != FP4], ids=str)
def test_shared_memory_descriptors_are_cutes(case):
    """Read off CuTe's layouts by `cookbook.descriptors`, all 64 bits but what the mode or the size leaves unused."""
    multiplied, _ = dsl.issued(case)
    bits = KINDS[case.kind].bits
    for name, place, major in zip("ab", dsl.operands(case), case.majors, strict=True):
        if name == "a" and case.a_in_tmem:
            continue
        rows = (case.m if name == "a" else case.n) // case.ctas
        base = dsl.A_BASE if name == "a" else dsl.B_BASE
        layout = SmemLayout(whole_operand(place.outer), place.swizzle, bits)
        for i, word in enumerate(multiplied):
            theirs = BlackwellDescriptor.decode(getattr(word, name))
            ours = descriptors.describe(layout, major, False, rows, (0, i * KINDS[case.kind].k), base)
            assert theirs.encode() == getattr(word, name)
            if ours.mode and major == "K":
                theirs = dataclasses.replace(theirs, lbo=ours.lbo)  # "not used, assumed 1": CuTe has 0 or 1
            unused = {x: 0 for x in ("lbo", "sbo") if not getattr(ours, x)}  # the operand has no next one
            assert dataclasses.replace(theirs, **unused) == ours


def whole_operand(outer):
    """((MN, K), 1, blocks of K) -> (MN, K)."""
    (mn, k), _, blocks = outer.shape
    (by_mn, by_k), _, by_block = outer.stride
    return Layout((mn, (*flat(k), *flat(blocks))), (by_mn, (*flat(by_k), *flat(by_block))))


def flat(mode):
    return mode if isinstance(mode, tuple) else (mode,)


# --- planted faults -----------------------------------------------------------------------------------------


SWAPPED = {"lbo": lambda d: d.sbo, "sbo": lambda d: d.lbo}
K_CASE = Case("f16", 128, 64, 64, BF16)
INTER_CASE = Case("f16", 128, 64, 64, BF16, ("K_INTER", "MN_INTER"))
MN_CASE = Case("f16", 128, 128, 64, BF16, ("MN_SW64", "MN_SW128"))
TF32_CASE = Case("tf32", 128, 64, 32, TF32, ("MN_SW128_32B", "MN_SW128_32B"))
FP8_CASE = Case("f8f6f4", 128, 64, 128, ("e4m3", "e5m2"))
DESCRIPTOR_FAULTS = {
    "swapped strides, K-major": (INTER_CASE, field("a", **SWAPPED)),
    "swapped strides, MN-major without swizzle": (INTER_CASE, field("b", **SWAPPED)),
    "swapped strides, MN-major": (MN_CASE, field("a", **SWAPPED)),
    "sbo in elements": (K_CASE, field("a", sbo=lambda d: d.sbo // 2)),
    "lbo in elements": (MN_CASE, field("a", lbo=lambda d: d.lbo // 2)),
    "start in elements": (K_CASE, field("b", start=lambda d: d.start // 2)),
    "advance along K in elements": (K_CASE, lambda i, w: w._replace(a=w.a - i)),
    "no advance along K": (K_CASE, lambda i, w: w._replace(b=w.b - 2 * i)),
    "no swizzle": (K_CASE, field("a", mode=lambda d: 0)),
    "64-byte swizzle of 128": (K_CASE, field("a", mode=lambda d: 64)),
    "32-byte swizzle of 64": (MN_CASE, field("a", mode=lambda d: 32)),
    "128-byte swizzle of 64": (MN_CASE, field("a", mode=lambda d: 128)),
    "32-byte atoms of 16": (MN_CASE, field("b", together=lambda d: 32)),
    "16-byte atoms of 32": (TF32_CASE, field("a", together=lambda d: 16)),
    "A and B change places": (K_CASE, lambda _, w: w._replace(a=w.b, b=w.a)),
    "K-major, said MN-major": (K_CASE, lambda _, w: w._replace(idesc=w.idesc | 1 << 15)),
    "MN-major, said K-major": (MN_CASE, lambda _, w: w._replace(idesc=w.idesc & ~(1 << 16))),
    "bfloat16 said float16": (K_CASE, lambda _, w: w._replace(idesc=w.idesc & ~(0x3F << 7))),
    "e4m3 and e5m2 change places": (FP8_CASE, lambda _, w: w._replace(idesc=w.idesc & ~(7 << 10) | 1 << 7)),
    "N too small": (K_CASE, lambda _, w: w._replace(idesc=w.idesc - (8 << 14))),
    "M of 64 for 128": (K_CASE, lambda _, w: w._replace(idesc=w.idesc - (64 << 20))),
    "A negated": (K_CASE, lambda _, w: w._replace(idesc=w.idesc | 1 << 13)),
    "D a column to the right": (K_CASE, lambda _, w: w._replace(d=1)),
    "D 16 lanes down": (K_CASE, lambda _, w: w._replace(d=16 << 16)),
}


@pytest.mark.parametrize("name", DESCRIPTOR_FAULTS)
def test_a_planted_fault_is_caught(name):
    case, change = DESCRIPTOR_FAULTS[name]
    check(Caught("model", caught(Stage(case), change=change)), WORDS, name)
    assert not caught(Stage(case))


def test_a_fault_in_the_second_cta_alone_is_caught():
    """Operands of the one CTA taken for the other's, or one half of D for the other."""
    case = Case("f16", 256, 64, 64, BF16, ctas=2)
    stage = Stage(case)
    stage.smems.reverse()
    assert caught(stage)
    stage = Stage(case)
    stage.multiply()
    stage.tmems.reverse()
    assert not np.array_equal(stage.gathered(), stage.true())


def test_an_operand_never_written_is_nan():
    stage = Stage(K_CASE)
    stage.smems[0].poison()
    assert np.isnan(stage.multiply()).all()


# --- the place of D -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("m", "ctas"), [(64, 1), (128, 1), (128, 2), (256, 2)])
@pytest.mark.parametrize("n", [16, 64, 256])
def test_the_place_of_d_is_cutes(m, n, ctas):
    case = Case("f16", m, n, 64, BF16, ctas=ctas)
    layout, _ = dsl.fragments(case)
    index = evaluate(lambda: dsl.make_mma(case), arch=dsl.ARCH).c.table()
    address = layout.table()[:, 0, 0]
    cta, lane, column = d_places(m, n, ctas)
    for owner, values in enumerate(index):
        row, col = values % m, values // m
        assert (cta[row, col] == owner).all()
        assert np.array_equal(lane[row, col] << 16 | column[row, col], address)


def test_two_products_of_64_rows_share_columns():
    """Layout F uses 16 lanes of each warp's 32: a second D at lane 16 does not touch the first."""
    stage = Stage(Case("f16", 64, 64, 64, BF16))
    stage.multiply(change=lambda _, w: w._replace(d=16 << 16))
    second = stage.tmems[0].read(np.arange(128)[:, None], np.arange(64)).view(np.float32)
    got = stage.multiply()
    assert np.array_equal(got, stage.true())
    both = stage.tmems[0].read(np.arange(128)[:, None], np.arange(64)).view(np.float32).reshape(4, 2, 16, 64)
    assert np.array_equal(both[:, 1].reshape(64, 64), stage.true())
    assert np.array_equal(second.reshape(4, 2, 16, 64)[:, 1], both[:, 1])


def test_accumulating_adds_to_what_is_there():
    stage = Stage(K_CASE)
    first = stage.multiply().copy()
    for word in stage.multiplied:
        idesc = InstructionDescriptor.decode(word.idesc, "f16")
        mma(stage.smems[0], stage.tmems[0], word.d, word.a, word.b, idesc)
    assert np.array_equal(stage.gathered(), 2 * first)


def test_negated_operands():
    for bit in (13, 14):
        got = Stage(K_CASE)
        result = got.multiply(change=lambda _, w, bit=bit: w._replace(idesc=w.idesc | 1 << bit))
        assert np.array_equal(result, -got.true())


@pytest.mark.parametrize("types", [("e2m1", "e4m3"), ("e2m3", "e3m2"), ("e5m2", "e2m1")], ids="-".join)
def test_narrow_types_among_8_bits_are_packed_16_to_a_chunk(types):
    """The first 8 or 12 bytes of 16 hold 16 elements of 4 or 6 bits; what pads them is not looked at."""
    smem, tmem = SharedMemory(16384), TensorMemory()
    patterns = [random_patterns((128, 32), types[0], 0), random_patterns((64, 32), types[1], 1)]
    for base, name, codes in zip((0, 8192), types, patterns, strict=True):
        bits = FORMATS[name].bits
        chunks = np.full((len(codes), 2, 16), 0xA5, np.uint8)
        chunks[..., : 2 * bits] = pack(codes.reshape(-1, 2, 16), bits)
        # no swizzle: 8 rows of a chunk, then the other chunk
        row, chunk = np.arange(len(codes))[:, None], np.arange(2)
        smem.write(base + row // 8 * 256 + chunk * 128 + row % 8 * 16, chunks)
    words = [BlackwellDescriptor(base, 128, 256, 0) for base in (0, 8192)]
    d = tmem.alloc(64)
    mma(smem, tmem, d, *words, InstructionDescriptor("f8f6f4", 128, 64, *types), accumulate=False)
    got = tmem.read(np.arange(128)[:, None], np.arange(64)).view(np.float32)
    left, right = (decode(x, name).astype(np.float64) for x, name in zip(patterns, types, strict=True))
    assert np.array_equal(got, left @ right.T)


# --- instruction descriptors --------------------------------------------------------------------------------


def test_fields_of_the_instruction_descriptor_bit_by_bit():
    word = InstructionDescriptor("f16", 128, 256, "bfloat16", a_major="MN", b_negate=True).encode()
    assert word == 1 << 4 | 1 << 7 | 1 << 10 | 1 << 14 | 1 << 15 | 32 << 17 | 8 << 24
    assert InstructionDescriptor("f16", 64, 8, "float16", d_type="float16").encode() == 1 << 17 | 4 << 24
    assert InstructionDescriptor("tf32", 256, 16, "tfloat32").encode() == 1 << 4 | 2 << 7 | 2 << 10 | 2 << 17 | 16 << 24
    mixed = InstructionDescriptor("f8f6f4", 64, 64, "e5m2", "e2m1")
    assert mixed.encode() == 1 << 4 | 1 << 7 | 5 << 10 | 8 << 17 | 4 << 24
    scaled = InstructionDescriptor("mxf8f6f4", 128, 64, "e4m3", "e3m2", a_sf_id=3, b_sf_id=1)
    assert scaled.encode() == 1 << 4 | 4 << 10 | 8 << 17 | 1 << 23 | 1 << 27 | 3 << 29
    fp4 = InstructionDescriptor("mxf4", 128, 64, "e2m1", a_sf_id=2)
    assert fp4.encode() == 1 << 7 | 1 << 10 | 8 << 17 | 1 << 23 | 1 << 27 | 2 << 29
    nvfp4 = InstructionDescriptor("mxf4nvf4", 256, 64, "e2m1", scale_type="ue4m3", b_sf_id=2)
    assert nvfp4.encode() == 2 << 4 | 1 << 7 | 1 << 10 | 8 << 17 | 2 << 27


@pytest.mark.parametrize("kind", KINDS)
def test_decode_inverts_encode_for_instructions(kind):
    spec, seen = KINDS[kind], set()
    for a in spec.types:
        for n in (8, 136, 256):
            for m in (128, 256) if spec.blocks else (64, 128, 256):
                for negate in (False, True):
                    for scale in spec.scale_types or ("",):
                        one = InstructionDescriptor(kind, m, n, a, a, a_negate=negate, scale_type=scale)
                        assert InstructionDescriptor.decode(one.encode(), kind) == one
                        seen.add(one.encode())
    assert len(seen) == len(spec.types) * 3 * (2 if spec.blocks else 3) * 2 * len(spec.scale_types or ("",))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (("f32", 128, 64, "bfloat16"), "kind: got 'f32'"),
        (("f16", 96, 64, "bfloat16"), "m: got 96"),
        (("mxf4", 64, 64, "e2m1"), "m: got 64"),
        (("f16", 128, 12, "bfloat16"), "n: got 12"),
        (("f16", 128, 264, "bfloat16"), "n: got 264"),
        (("f16", 128, 64, "e4m3"), "a_type: got 'e4m3'"),
        (("f16", 128, 64, "bfloat16", "float16"), "b_type: got 'float16'"),
        (("mxf4", 128, 64, "e4m3"), "a_type"),
        (("f16", 128, 64, "bfloat16", "", "float16"), "d_type"),
        (("tf32", 128, 64, "tfloat32", "", "float16"), "d_type"),
        (("f8f6f4", 128, 64, "e2m1", "", "float32", "MN"), "a_major: got 'MN'"),
        (("mxf4nvf4", 128, 64, "e2m1", "", "float32", "K", "MN"), "b_major"),
        (("f16", 128, 64, "bfloat16", "", "float32", "M"), "a_major: got 'M'"),
    ],
)
def test_illegal_instructions(fields, message):
    with pytest.raises(ValueError, match=message):
        InstructionDescriptor(*fields)


def test_illegal_scale_factors_and_words():
    for kind, change, message in (
        ("mxf4", {"a_sf_id": 1}, "a_sf_id: got 1"),
        ("mxf4", {"scale_type": "ue4m3"}, "scale_type: got 'ue4m3'"),
        ("mxf4nvf4", {"b_sf_id": 3}, "b_sf_id: got 3"),
    ):
        with pytest.raises(ValueError, match=message):
            InstructionDescriptor(kind, 128, 64, "e2m1", **change)
    good = InstructionDescriptor("f16", 128, 64, "bfloat16").encode()
    for bit in (0, 2, 3, 6, 23, 29, 30, 32):
        with pytest.raises(ValueError, match="word"):
            InstructionDescriptor.decode(good | 1 << bit, "f16")
    with pytest.raises(ValueError, match="word"):
        InstructionDescriptor.decode(good, "tf32")
    with pytest.raises(ValueError, match="d_type: got 'int32'"):
        InstructionDescriptor.decode(good + (1 << 4), "f16")


@pytest.mark.parametrize(
    ("kind", "m", "n", "ctas", "tmem", "message"),
    [
        ("f16", 256, 64, 1, False, "m: got 256"),
        ("f16", 64, 64, 2, False, "m: got 64"),
        ("f16", 128, 24, 2, False, "n: got 24"),
        ("f16", 128, 24, 1, True, "n: got 24"),
        ("f8f6f4", 128, 24, 1, False, "n: got 24"),
        ("f16", 128, 64, 3, False, "cta_group: got 3"),
    ],
)
def test_shapes_that_a_cta_group_does_not_have(kind, m, n, ctas, tmem, message):
    dtype = "bfloat16" if kind == "f16" else "e4m3"
    idesc = InstructionDescriptor(kind, m, n, dtype, b_major="MN")
    with pytest.raises(ValueError, match=message):
        idesc.check(ctas, tmem)


def test_mma_refuses():
    smem, tmem = SharedMemory(65536), TensorMemory()
    d, idesc = tmem.alloc(64), InstructionDescriptor("f16", 128, 64, "bfloat16")
    operand = BlackwellDescriptor(0, 16, 1024, 128)
    with pytest.raises(ValueError, match="needed one of each CTA"):
        mma([smem, smem], tmem, d, operand, operand, idesc)
    with pytest.raises(ValueError, match="needed both for the scaled kinds"):
        mma(smem, tmem, d, operand, operand, idesc, scale_a=d, scale_b=d)
    with pytest.raises(ValueError, match="a: got lane 16; needed 0"):
        mma(smem, tmem, d, TmemAddress(16, 0), operand, idesc)
    with pytest.raises(ValueError, match="needed K-major, not scaled, one row a lane"):
        mn_major = InstructionDescriptor("f16", 128, 64, "bfloat16", a_major="MN")
        mma(smem, tmem, d, TmemAddress(0, 0), operand, mn_major)
    with pytest.raises(ValueError, match="needed float32"):
        half = InstructionDescriptor("f16", 128, 64, "float16", d_type="float16")
        mma(smem, tmem, d, operand, operand, half)
    with pytest.raises(ValueError, match="columns: got 32 to 95"):
        mma(smem, tmem, d.right(32), operand, operand, idesc, accumulate=False)
    with pytest.raises(ValueError, match="not modelled"):
        mma(smem, tmem, d, dataclasses.replace(operand, base_offset=1), operand, idesc)
    with pytest.raises(ValueError, match="the bytes there are"):
        mma(smem, tmem, d, BlackwellDescriptor(65536, 16, 1024, 128), operand, idesc)
    with pytest.raises(ValueError, match="needed 16 for scale factors of ue4m3"):
        nvfp4 = InstructionDescriptor("mxf4nvf4", 128, 64, "e2m1")
        smem.view(np.uint8)[:] = 0
        mma(smem, tmem, d, operand, operand, nvfp4, scale_a=d, scale_b=d, block=32)
