"""Numbers that go through shared memory, barriers that wait for less than they might, and PTX of a kernel's own."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace

import cutlass
import cutlass.cute as cute
import pytest
from cutlass import Constexpr, Float32, Int32, Int64
from cutlass._mlir.dialects import llvm

from cookbook.recipe.moved import SmemAllocator
from cookbook.simulate import assembly, copies, multiply, partitions, types
from cookbook.simulate.types import lay, spelled
from cookbook.simulate.values import PLAIN, Atom, Basis, Box, CannotFollow, Lay, Pointer, View
from cookbook.simulate.views import _filter_zeros, _tile_to_shape
from cookbook.testing import check

LANES, THREADS = 32, 64


@cute.kernel
def scheduled(mX: cute.Tensor, synchronized: Constexpr):
    """Warp 0 says how many rounds warp 1 has."""
    tidx, _, _ = cute.arch.thread_idx()
    sN = SmemAllocator().allocate_tensor(Int32, cute.make_layout(1), 16)
    if tidx == 0:
        sN[0] = 3
    if cutlass.const_expr(synchronized):
        cute.arch.sync_threads()
    if tidx >= LANES:
        for number in cutlass.range(sN[0], unroll=1):
            mX[tidx + LANES * number] = 1.0


@cute.kernel
def presignalled(mX: cute.Tensor, waits: Constexpr):
    """Warp 0 arrives before all meet; warp 1 arrives in the phase after, and knows from there that it is the next."""
    lane, warp = cute.arch.lane_idx(), cute.arch.warp_idx()
    done = SmemAllocator().allocate_array(Int64, 1)
    if warp == 0:
        with cute.arch.elect_one():
            cute.arch.mbarrier_init(done, 1)
            cute.arch.mbarrier_arrive(done)
    cute.arch.mbarrier_init_fence()
    if cutlass.const_expr(waits):
        cute.arch.sync_threads()
    if warp == 1:
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(done)
    else:
        cute.arch.mbarrier_wait(done, 3)  # the lowest bit counts
        mX[lane] = 1.0


@cute.kernel
def left(mX: cute.Tensor, synchronized: Constexpr):
    """Half of the threads arrive, and nobody waits."""
    if cute.arch.warp_idx() == 0:
        cute.arch.barrier_arrive(barrier_id=1, number_of_threads=THREADS)


def async_copy(smem: cute.Pointer, gmem: cute.Pointer, taken: Int32) -> None:
    text = "{ .reg .pred p; .reg .u32 a; setp.ne.s32 p, $2, 0; cvt.u32.u64 a, $0; "
    text += "@p cp.async.ca.shared.global [a], [$1], 4; }"
    operands = [smem.toint().ir_value(), gmem.toint().ir_value(), Int32(taken).ir_value()]
    llvm.inline_asm(None, operands, text, "l,l,r", has_side_effects=True)


@cute.kernel
def copied(mX: cute.Tensor, waits: Constexpr):
    tidx, _, _ = cute.arch.thread_idx()
    sX = SmemAllocator().allocate_tensor(Float32, cute.make_layout(THREADS), 16)
    async_copy(sX.iterator + tidx, mX.iterator + tidx, tidx % 2)
    async_copy(sX.iterator + tidx, mX.iterator + tidx, 1 - tidx % 2)
    cute.arch.cp_async_commit_group()
    if cutlass.const_expr(waits):
        cute.arch.cp_async_wait_group(0)
    cute.arch.sync_threads()
    mX[tidx] = sX[THREADS - 1 - tidx]


@cute.jit
def launch(kernel: Constexpr, mX: cute.Tensor, flag: Constexpr):
    kernel(mX, flag).launch(grid=(1, 1, 1), block=(THREADS, 1, 1))


def rules(kernel, flag: bool) -> set[str]:
    found = check(launch, kernel, "f32[256]", flag, arch="sm_90a")
    assert not found.not_followed, found
    return {one.rule for one in found.found}


@pytest.mark.parametrize("kernel", [scheduled, copied])
def test_a_number_in_shared_memory_is_followed_and_a_race_found(kernel):
    assert rules(kernel, True) == set()
    assert "race" in rules(kernel, False)


def test_whoever_knows_of_arrivals_knows_that_a_phase_is_over():
    assert rules(presignalled, True) == set()
    assert "early arrival" in rules(presignalled, False)


def test_arrivals_that_nobody_waits_for_harm_nobody():
    assert rules(left, True) == set()


# --- a multicast that is decided when it is lowered --------------------------------------------------------------


def shared(rank: int, layout: str, extents=(64, 128), boxes=(((0, 256), 1024),), **more):
    tensor = View(Pointer("gmem", 0), Lay((64, 512), (1, 64)), 16)
    f = SimpleNamespace(place=SimpleNamespace(rank=rank))
    op = SimpleNamespace(attributes={"multicast_layout": f'"{layout}"'}, get=lambda name: more.get(name))
    box, found, ranks = copies._shared(f, op, Box(tensor, (0, 1), extents, PLAIN, 1), list(boxes))
    return box.part, found, ranks


def test_each_cta_at_one_offset_copies_its_part_to_all_of_them():
    """As the PTX of clusters of 2 x 1 and 2 x 2 shows: rows of A along n, of B along m."""
    assert shared(1, "(2,1):(1,0)") == ((64, 128), [((0, 256), 1024)], [1])
    assert shared(1, "(2,1):(0,1)") == ((64, 64), [((0, 320), 1024 + 64 * 64 * 2)], [0, 1])
    assert shared(3, "(2,2):(1,0)") == ((64, 64), [((0, 320), 1024 + 64 * 64 * 2)], [1, 3])
    assert shared(2, "(2,2):(0,1)") == ((64, 64), [((0, 256), 1024)], [2, 3])


@pytest.mark.parametrize("more", [{"use_2cta": "unit"}, {"extents": (64, 127)}, {"boxes": [((0, 0), 0)] * 2}])
def test_a_multicast_whose_parts_are_not_known_is_not_followed(more):
    with pytest.raises(CannotFollow, match="multicast"):
        shared(0, "(2,1):(0,1)", **more)


# --- pieces of PTX, and layouts ----------------------------------------------------------------------------------


def test_statements_of_ptx_are_divided():
    text = "{ .reg .u32 a; cvt.u32.u64 a, $2;\n\tldmatrix.sync.aligned.x2.m8n8.shared.b16 {$0,$1}, [a]; }"
    assert [part.strip() for part in assembly._lines(text) if part.strip()] == [
        "cvt.u32.u64 a, $2",
        "ldmatrix.sync.aligned.x2.m8n8.shared.b16 {$0,$1}, [a]",
    ]


def test_tiles_of_a_layout_follow_in_the_order_asked_for():
    text = '!cute.layout<"(((32,4),?),((32,4),?),(1,?)):(((16,4),?),((0,1),512),(0,?))">'
    op = SimpleNamespace(result_types=(text,))
    found = _tile_to_shape(None, op, [lay("((32,4),(32,4)):((16,4),(0,1))"), (256, 640, 2), (2, 1, 3)])
    assert found.shape == (((32, 4), 2), ((32, 4), 5), (1, 2))
    assert found.stride == (((16, 4), 2560), ((0, 1), 512), (0, 5120))


def test_a_coordinate_may_be_a_part_of_an_element_of_tma():
    layout, known = spelled('!cute.coord_tensor<"(0,0)", "(2,4):(1/2@0,1@1)">')
    assert known and 2 * layout.stride[0].value == 1 and types.tree("(1/2@0)") == ("1/2@0",)


def test_a_mode_of_one_element_has_the_stride_of_its_type():
    """The stride of a rest of one tile is that of the next tile, which there is not; a type may spell 0."""
    text = '!cute.coord_tensor<"(0,0)", "(128,1,?):(1@1,0,128@0)">'
    found = types.fitted(text, [128, 1, 2], [Basis(1, (1,)), Basis(128, (1,)), Basis(128, (0,))])
    assert found.stride[1] == 0 and found.shape == (128, 1, 2)
    with pytest.raises(CannotFollow, match="where its type"):
        types.fitted(text, [128, 1, 2], [Basis(1, (0,)), 0, Basis(128, (0,))])


def test_modes_of_stride_0_are_filtered():
    text = '!cute.coord_tensor<"(0,0)", "((512,1),?):((1/2@0,0),1@1)">'
    before = View(Pointer("coord", 0), Lay(((512, 32), 5), ((Basis(Fraction(1, 2), (0,)), 0), Basis(1, (1,)))), 32)
    op = SimpleNamespace(result_types=(text,))
    assert _filter_zeros(None, op, [before]).layout.shape == ((512, 1), 5)


def test_scale_factors_are_shared_out_like_what_they_scale():
    """128 rows of 32 factors, each for 32 elements along K: what is one extent of the operand is several here."""
    text = '!cute.coord_tensor<"(0,0,0)", "(((32,4),32),1,4,?):(((8@0,2@0),0),0,1/2@0,1@1)">'
    rows, along = Lay((32, 4), (Basis(8, (0,)), Basis(2, (0,)))), Lay((32, 4), (0, Basis(Fraction(1, 2), (0,))))
    modes = (rows, along, Lay(2, Basis(1, (1,))))
    found = partitions._tensor_layout(text, modes, 0, (128, 128, 32), False)
    assert found.shape == (((32, 4), 32), 1, 4, 2) and found.stride[3] == Basis(1, (1,))


def test_a_scaled_mma_of_several_steps_moves_the_factors_on():
    """Four steps of 32 along K: descriptors count 16 bytes, and each step has the next byte of a cell."""
    text = "!cute.tiled_mma<!cute_nvgpu.sm100.mma_bs<128x128x32, num_cta = 1>>"
    tile = Lay(((128, 128), 1, 1), ((1 << 16, 1), 0, 0))
    target = View(Pointer("tmem", 0), tile, 32)
    operand = View(Pointer("smem", 1024), Lay((1, 1, 4), (0, 0, 2)), 128)
    factors = View(Pointer("tmem", 512), Lay(((32, 4), 1, 4), ((1 << 18, 4), 0, 1)), 8)
    seen = []

    class Notes:
        def integer(self, value, what):
            return value

        def tcgen05_mma(self, op, text, shape, target, operands, adds, atom):
            at = [one.pointer.address for one in operands]
            seen.append((at, adds, atom.values["sf_a"].address, atom.values["sf_b"].address))

    def asked(sizes):
        op = SimpleNamespace(attributes={"operandSegmentSizes": sizes}, operand_types=(text,))
        op.get = lambda name, default=None: op.attributes.get(name, default)
        multiply._gemm(Notes(), op, [Atom(text, {"accum_c": 0}), target, operand, factors, operand, factors, target])

    asked((1, 1, 2, 2, 1))
    assert seen == [([1024 + 32 * k] * 2, k > 0, 512 + k, 512 + k) for k in range(4)]
    with pytest.raises(CannotFollow, match="operands are several"):
        asked((1, 1, 2, 1, 2))


@pytest.mark.parametrize(
    "kind, columns, lane, cells",
    [
        ("f32, 32 DP, 32 bit, x32", 32, 5, [(5, 0), (5, 1), (5, 2)]),
        ("bf16, 32 DP, 32 bit, x16", 32, 5, [(5, 0), (5, 1), (5, 2)]),
        ("f32, 16 DP, 32 bit, x16", 32, 17, [(1, 16), (1, 17), (1, 18)]),  # .16x32bx2: the upper lanes have the rest
        ("f32, 16 DP, 256 bit, x8", 64, 6, [(1, 4), (1, 5), (9, 4), (9, 5), (1, 12)]),
        ("bf16, 16 DP, 128 bit, x8", 64, 6, [(1, 4), (1, 5), (9, 4), (9, 5), (1, 12)]),
    ],
)
def test_registers_hold_the_cells_that_ptx_says(kind, columns, lane, cells):
    tall = int(kind.split()[1])
    copy = f'!cute.tiled_copy<!cute_nvgpu.atom.tmem_load<{kind}>, layout_copy_tv = <"((32,4),({columns},{tall})):((0,1)'
    copy += f',({4 * tall},4))">, tiler_mn = <"[(4,{tall}):({tall},1);{columns}:1]">>'
    places = partitions.share(copy, False, tuple(range(32)))
    found = [(int(place) % (4 * tall) // 4, int(place) // (4 * tall)) for place in places[lane]]
    assert found[: len(cells)] == cells
    assert sorted(places.ravel().tolist()) == sorted(
        4 * row + 4 * tall * n for row in range(tall) for n in range(columns)
    )


def test_tensor_memory_in_other_shapes_is_not_followed():
    text = '!cute_nvgpu.atom.tmem_load<f32, 16 DP, 64 bit, x1>, layout_copy_tv = <"((32,4),(2,16)):((0,1),(64,4))">'
    with pytest.raises(CannotFollow, match="16 lanes and 64 bits"):
        partitions.share(text + ', tiler_mn = <"[(4,16):(16,1);2:1]">', False, tuple(range(32)))
