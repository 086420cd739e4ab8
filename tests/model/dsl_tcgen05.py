"""What CuTe itself issues for tcgen05: small kernels compiled for sm_100a, and the constants of their PTX.

The operands lie at addresses known at compile time, so every descriptor is a constant in the PTX.
"""

import re
import tempfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

import cutlass
import cutlass.cute as cute
import cutlass.utils.blockscaled_layout as blockscaled
from cutlass.cute.nvgpu import OperandMajorMode, tcgen05

from cookbook.layouts import Layout, evaluate
from cookbook.swizzle import Swizzle

ARCH = "sm_100a"
A_BASE, B_BASE, SFA_BASE, SFB_BASE = 2048, 65536, 131072, 139264  # bytes of shared memory
A_TMEM, SFA_TMEM, SFB_TMEM = 384, 256, 320  # columns of tensor memory; D is at 0
FOUR_LINES = "MN_SW128_32B_of_4_lines"
MAJORS = {"K": OperandMajorMode.K, "MN": OperandMajorMode.MN}
DTYPES = {
    "float16": cutlass.Float16,
    "bfloat16": cutlass.BFloat16,
    "tfloat32": cutlass.TFloat32,
    "e4m3": cutlass.Float8E4M3FN,
    "e5m2": cutlass.Float8E5M2,
    "e2m1": cutlass.Float4E2M1FN,
    "ue4m3": cutlass.Float8E4M3FN,
    "ue8m0": cutlass.Float8E8M0FNU,
}


class Case(NamedTuple):
    """One tiled MMA with a tile as large as its instruction in M and N; `atoms` are of shared memory, A's and B's."""

    kind: str
    m: int
    n: int
    k: int  # of the tile
    types: tuple[str, str]
    atoms: tuple[str, str] = ("K_SW128", "K_SW128")
    ctas: int = 1
    scale: tuple[str, int] = ("", 0)  # type of the scale factors, elements to one
    a_in_tmem: bool = False

    def __str__(self):
        words = (self.kind, self.m, self.n, *self.types, *self.atoms, f"{self.ctas}cta", *filter(None, self.scale))
        return "-".join(map(str, words)) + "-tmem" * self.a_in_tmem

    @property
    def majors(self):
        return tuple(name.split("_")[0] for name in self.atoms)


class Issued(NamedTuple):
    """The operands of one tcgen05.mma: unsigned, as they stand in the PTX."""

    kind: str
    ctas: int
    block: int  # 0: not scaled
    d: int
    a: int
    b: int
    idesc: int
    scale_a: int
    scale_b: int


class Copied(NamedTuple):
    """The operands of one tcgen05.cp."""

    shape: str
    address: int
    descriptor: int


class Operand(NamedTuple):
    """Where CuTe puts ((MN, K), 1, blocks of K) of a CTA's operand: elements, the swizzle acting on bytes."""

    outer: Layout
    swizzle: Swizzle


def make_mma(case: Case):
    group = (tcgen05.CtaGroup.ONE, tcgen05.CtaGroup.TWO)[case.ctas - 1]
    source = tcgen05.OperandSource.TMEM if case.a_in_tmem else tcgen05.OperandSource.SMEM
    a, b = (DTYPES[name] for name in case.types)
    majors = [MAJORS[name] for name in case.majors]
    shape = (case.m, case.n)
    op = {
        "f16": lambda: tcgen05.MmaF16BF16Op(a, cutlass.Float32, (*shape, 16), group, source, *majors),
        "tf32": lambda: tcgen05.MmaTF32Op((*shape, 8), group, source, *majors),
        "f8f6f4": lambda: tcgen05.MmaF8F6F4Op(a, b, cutlass.Float32, (*shape, 32), group, source, *majors),
        "mxf8f6f4": lambda: tcgen05.MmaMXF8F6F4Op(a, b, (*shape, 32), group, source, *majors),
        "mxf4": lambda: tcgen05.MmaMXF4Op((*shape, 64), group, source),
        "mxf4nvf4": lambda: tcgen05.MmaMXF4NVF4Op(DTYPES[case.scale[0]], (*shape, 64), group, source),
    }[case.kind]()
    return cute.make_tiled_mma(op)


def smem_layouts(case: Case):
    """Composed layouts of A and B, inside a jit function."""
    mma = make_mma(case)
    shapes = mma.partition_shape_A((case.m, case.k)), mma.partition_shape_B((case.n, case.k))
    found = []
    for atom, dtype, shape in zip(case.atoms, case.types, shapes, strict=True):
        found.append(tcgen05.tile_to_mma_shape(make_atom(atom, DTYPES[dtype]), shape))
    return found


def make_atom(name: str, dtype):
    """An atom of CuTe's by name, or the same of four lines: the smallest that 32-byte atoms repeat after."""
    if name != FOUR_LINES:
        return tcgen05.make_smem_layout_atom(getattr(tcgen05.SmemLayoutAtomKind, name), dtype)
    width = 1024 // dtype.width
    return cute.make_composed_layout(cute.make_swizzle(2, 5, 2), 0, cute.make_layout((width, 4), stride=(1, width)))


def scale_layouts(case: Case):
    """(SFA, SFB) layouts in shared and in tensor memory, of bytes, inside a jit function."""
    mma, tiler, block = make_mma(case), (case.m, case.n, case.k), case.scale[1]
    smem, tmem = [], []
    for in_smem, in_tmem in (
        (blockscaled.make_smem_layout_sfa, blockscaled.make_tmem_layout_sfa),
        (blockscaled.make_smem_layout_sfb, blockscaled.make_tmem_layout_sfb),
    ):
        smem.append(cute.slice_(in_smem(mma, tiler, block, 1), (None, None, None, 0)))
        tmem.append(in_tmem(mma, tiler, block, smem[-1]))
    return smem, tmem


@cache
def operands(case: Case) -> list[Operand]:
    """A's and B's places, of one CTA."""

    def plain():
        return [(x.outer, (x.inner.num_bits, x.inner.num_base, x.inner.num_shift)) for x in smem_layouts(case)]

    return [Operand(outer, Swizzle(*inner)) for outer, inner in evaluate(plain, arch=ARCH)]


@cache
def fragments(case: Case) -> tuple[Layout, Layout | None]:
    """CuTe's layouts of D and, if it lies in tensor memory, of A: to 32-bit and to element addresses."""

    def plain():
        mma = make_mma(case)
        d = mma.make_fragment_C(mma.partition_shape_C((case.m, case.n))).layout
        return d, mma.make_fragment_A(mma.partition_shape_A((case.m, case.k))).layout if case.a_in_tmem else None

    return evaluate(plain, arch=ARCH)


def _pointer(dtype, address, space):
    return cute.make_ptr(dtype, address, space, assumed_align=1024 if space == cute.AddressSpace.smem else 16)


def _placed(layout, dtype, address):
    pointer = _pointer(dtype, address, cute.AddressSpace.smem)
    return cute.make_tensor(cute.recast_ptr(pointer, layout.inner, dtype=dtype), layout.outer)


@cute.jit
def _copy_scales(case: cutlass.Constexpr, smem, tmem, dtype: cutlass.Constexpr):
    source, target = cute.filter_zeros(smem), cute.filter_zeros(tmem)
    group = tcgen05.CtaGroup.ONE if case.ctas == 1 else tcgen05.CtaGroup.TWO
    tiled = tcgen05.make_s2t_copy(cute.make_copy_atom(tcgen05.Cp4x32x128bOp(group), dtype), target)
    mine = tiled.get_slice(0)
    descriptors = tcgen05.get_s2t_smem_desc_tensor(tiled, mine.partition_S(source))
    cute.copy(tiled, descriptors, mine.partition_D(target))


@cute.kernel
def _kernel(case: cutlass.Constexpr, layout_a: cute.ComposedLayout, layout_b: cute.ComposedLayout):
    mma = make_mma(case)
    for field in (tcgen05.Field.ACCUMULATE, tcgen05.Field.NEGATE_A, tcgen05.Field.NEGATE_B):
        mma.set(field, False)
    a_type, b_type = (DTYPES[name] for name in case.types)
    b = mma.make_fragment_B(_placed(layout_b, b_type, B_BASE))
    if cutlass.const_expr(case.a_in_tmem):
        a = mma.make_fragment_A(mma.partition_shape_A((case.m, case.k)))
        a = cute.make_tensor(_pointer(a_type, A_TMEM, cute.AddressSpace.tmem), a.layout)
    else:
        a = mma.make_fragment_A(_placed(layout_a, a_type, A_BASE))
    d = mma.make_fragment_C(mma.partition_shape_C((case.m, case.n)))
    if cutlass.const_expr(case.scale[1]):
        sf_type, (smem, tmem) = DTYPES[case.scale[0]], scale_layouts(case)
        space = cute.AddressSpace.tmem
        sfa = cute.make_tensor(_pointer(sf_type, SFA_TMEM, space), tmem[0])
        sfb = cute.make_tensor(_pointer(sf_type, SFB_TMEM, space), tmem[1])
        space = cute.AddressSpace.smem
        _copy_scales(case, cute.make_tensor(_pointer(sf_type, SFA_BASE, space), smem[0]), sfa, sf_type)
        _copy_scales(case, cute.make_tensor(_pointer(sf_type, SFB_BASE, space), smem[1]), sfb, sf_type)
    for k in cutlass.range_constexpr(cute.size(b, mode=[2])):
        at = (None, None, k)
        if cutlass.const_expr(case.scale[1]):
            cute.gemm(mma, d, [a[at], sfa[at]], [b[at], sfb[at]], d)
        else:
            cute.gemm(mma, d, a[at], b[at], d)


@cute.jit
def _launch(case: cutlass.Constexpr):
    layout_a, layout_b = smem_layouts(case)
    _kernel(case, layout_a, layout_b).launch(
        grid=(case.ctas, 1, 1), block=(128, 1, 1), cluster=(case.ctas, 1, 1), smem=200 * 1024
    )


@cache
def issued(case: Case) -> tuple[list[Issued], list[Copied]]:
    """The tcgen05.mma and tcgen05.cp of a kernel that multiplies one tile."""
    with tempfile.TemporaryDirectory() as folder:
        cute.compile(_launch, case, options=f"--gpu-arch {ARCH} --keep-ptx --dump-dir {folder}")
        (file,) = Path(folder).glob("*.ptx")
        return _parsed(file.read_text())


_MMA = re.compile(r"tcgen05\.mma\.cta_group::(\d)\.kind::(\w+)(?:\.block_scale\.block(\d+))?\S* (.*);")
_CP = re.compile(r"tcgen05\.cp\.cta_group::\d\.(\S+) (.*);")


def _parsed(ptx: str) -> tuple[list[Issued], list[Copied]]:
    constants, multiplied, copied = {}, [], []
    for line in ptx.splitlines():
        if move := re.search(r"mov\.b(32|64)\s+(%\w+), (-?\d+);", line):
            constants[move[2]] = int(move[3]) % (1 << int(move[1]))
        if found := _MMA.search(line):
            names = re.findall(r"%\w+", re.sub(r"\{.*?\}", "", found[4]))
            values = [constants[name] for name in names if not name.startswith("%p")]
            multiplied.append(Issued(found[2], int(found[1]), int(found[3] or 0), *values, *[0] * (6 - len(values))))
        if found := _CP.search(line):
            copied.append(Copied(found[1], *(constants[name] for name in re.findall(r"%\w+", found[2]))))
    return multiplied, copied
