"""Facts 21 to 31: the tensor cores' layouts and the order of tiles, by the recipes, the library and CuTe."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import cookbook
from cookbook import access, banks
from cookbook import atoms as atoms_library
from cookbook.layouts import Layout, SmemLayout, evaluate, tile_coords
from cookbook.model import SharedMemory, ldmatrix, operand_descriptors, tma_load
from cookbook.model.tma import SWIZZLES, swizzle_mode
from cookbook.recipe import catalog
from cookbook.swizzle import Swizzle

STUDIES = ("mma_smem_atoms", "fragments_and_ldmatrix", "matrix_descriptors", "thread_block_swizzle")
GEMMS = ("hopper/tma_wgmma_gemm", "ampere/ldmatrix_gemm")


def study(name: str):
    return cookbook.load(f"foundations/{name}")


@pytest.fixture(scope="module")
def atoms() -> dict[str, SmemLayout]:
    """The eight, of bf16, by CuTe's own function."""
    from cutlass import BFloat16
    from cutlass.cute.nvgpu import warpgroup

    kinds = study("mma_smem_atoms").KINDS.values()

    def made(dtype):
        return {
            kind: warpgroup.make_smem_layout_atom(getattr(warpgroup.SmemLayoutAtomKind, kind), dtype) for kind in kinds
        }

    return evaluate(made, BFloat16)


@pytest.mark.parametrize("name", STUDIES)
def test_every_fact_of_a_study_holds(name: str) -> None:
    found = study(name).facts()
    assert len(found) == len({fact for fact, _, _ in found})
    assert [detail for _, holds, detail in found if not holds] == []


def test_each_fact_from_21_to_31_is_in_a_study() -> None:
    told = {fact.split("_")[1] for name in STUDIES for fact, _, _ in study(name).facts()}
    assert told == {str(number) for number in range(21, 32)}


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_needs_nothing_of_this_package(name: str) -> None:
    assert "cookbook" not in catalog.normal_form(catalog.without_lab(catalog.find(name).file.read_text()))


# --- E: the tensor cores' layouts -----------------------------------------------------------------------------


def chunk_starts(layout: SmemLayout, kind: str) -> np.ndarray:
    """Byte offset of each 16-byte chunk: (row of the contiguous mode, chunk along it)."""
    offsets = layout.byte_offsets()
    return (offsets if kind.startswith("K") else offsets.T)[:, ::8]


def held(layout: SmemLayout, kind: str) -> list[list[int]]:
    """Chunk numbers by line and slot."""
    slots = np.argsort(chunk_starts(layout, kind).reshape(-1))
    return slots.reshape(-1, 8).tolist()


def test_fact_21_eight_atoms_of_eight_rows_keep_16_bytes_and_their_direction(atoms) -> None:
    assert len(atoms) == 8
    for kind, layout in atoms.items():
        offsets = layout.byte_offsets() if kind.startswith("K") else layout.byte_offsets().T
        chunks = offsets.reshape(8, -1, 8)
        assert (chunks == chunks[..., :1] + 2 * np.arange(8)).all() and not (chunks[..., 0] % 16).any()
        assert layout.is_bijective() and layout.size_bytes == 8 * offsets.shape[1] * 2


def test_fact_21_inter_is_a_contiguous_block_and_not_the_linear_layout(atoms) -> None:
    assert sorted(atoms["K_INTER"].byte_offsets().reshape(-1)) == list(range(0, 128, 2))
    linear = Layout((8, 64), (64, 1)).table()[:, :8] * 2  # the same 8 x 16 bytes in a tile of 128-byte rows
    assert linear.max() == 7 * 128 + 14


def test_fact_22_chunk_orders(atoms) -> None:
    sw32 = [[0, 1, 2, 3, 4, 5, 6, 7], [9, 8, 11, 10, 13, 12, 15, 14]]
    sw64 = [*sw32, [18, 19, 16, 17, 22, 23, 20, 21], [27, 26, 25, 24, 31, 30, 29, 28]]
    for major in ("K", "MN"):
        assert held(atoms[f"{major}_SW32"], major) == sw32
        assert held(atoms[f"{major}_SW64"], major) == sw64
        assert held(atoms[f"{major}_SW128"], major) == [[8 * r + (p ^ r) for p in range(8)] for r in range(8)]


def test_fact_22_linear_rows_conflict_2_4_and_8_ways_and_atoms_never(atoms) -> None:
    linear = [banks.wavefronts(access.ldmatrix(size * np.arange(8), 1).addresses, 16).actual for size in (32, 64, 128)]
    assert linear == [2, 4, 8]
    for kind, layout in atoms.items():
        for column in chunk_starts(layout, kind).T:
            assert banks.wavefronts(access.ldmatrix(column, 1).addresses, 16).actual == 1


@pytest.mark.parametrize(
    ("bits", "chunks"),
    [(0, [0, 4, 8, 12, 16, 20, 24, 28]), (1, [0, 1, 4, 5, 8, 9, 12, 13]), (2, list(range(8)))],
)
def test_fact_23_chunks_of_the_first_line_of_an_8_by_64_byte_tile(bits: int, chunks: list[int]) -> None:
    from cutlass import BFloat16, cute

    recipe = study("mma_smem_atoms")
    tile = evaluate(lambda dtype: cute.tile_to_shape(recipe.atom("K", bits, dtype), (8, 32), order=(0, 1)), BFloat16)
    first = np.flatnonzero(chunk_starts(tile, "K").reshape(-1) < 128).tolist()
    assert first == chunks == recipe.chunks_of_first_line(bits)


def test_fact_23_the_widest_that_divides_except_mn_major_32_bit() -> None:
    from cutlass import BFloat16, Float32

    recipe = study("mma_smem_atoms")
    names = recipe.ask_cute(recipe.selectors_agree, BFloat16, "K")
    assert [names[extent][0] for extent in (8, 16, 32, 64, 96, 72)] == [
        "K_INTER", "K_SW32", "K_SW64", "K_SW128", "K_SW64", "K_INTER",
    ]  # fmt: skip
    assert all(len(set(found)) == 1 for found in names.values())
    exception = recipe.ask_cute(recipe.selectors_agree, Float32, "MN")
    assert {found[2] for extent, found in exception.items() if extent % 32 == 0} == {"MN_SW128_32B"}
    assert all(len(set(found)) == 1 for extent, found in exception.items() if extent % 32)
    assert recipe.ask_cute(recipe.atom_of_32_bytes) == "S<2,5,2> o 0 o (32,8):(1,32)"


def test_fact_23_wider_atoms_take_fewer_requests_and_from_32_bytes_up_as_many_sectors() -> None:
    recipe = study("mma_smem_atoms")
    assert [recipe.requests_and_sectors(bits) for bits in range(3)] == [(8, 8), (4, 4), (2, 4)]
    for bits in range(3):  # by bytes: chunk c of a tile of 64-byte rows lies at byte 16 c
        touched = {byte // 32 for chunk in recipe.chunks_of_first_line(bits) for byte in (16 * chunk, 16 * chunk + 15)}
        assert len(touched) == recipe.requests_and_sectors(bits)[1]


def test_the_page_shows_the_atoms_of_tf32_that_the_rule_of_the_package_selects() -> None:
    text = catalog.find("foundations/mma_smem_atoms").file.read_text()
    (cell,) = (c for c in catalog.cells(text) if "def of_tf32(" in "\n".join(text.splitlines()[c.start : c.stop]))
    made: dict = {}
    exec("\n".join(text.splitlines()[cell.start : cell.stop]).partition("\n\n\nfor ")[0], made)
    assert "lab" in cell.tags and made["of_tf32"](64) == "MN_SW128_32B"
    assert all(made["of_tf32"](extent).startswith("refused: tile: got") for extent in (8, 16, 24, 40, 48))


@pytest.mark.parametrize("extent", [0, 4, 7, 12])
def test_fact_23_an_extent_that_no_atom_divides_is_refused(extent: int) -> None:
    from cutlass import BFloat16

    with pytest.raises(ValueError, match="extent: got"):
        study("mma_smem_atoms").widest(extent, BFloat16)


def test_fact_24_byte_swizzle_over_element_strides(atoms) -> None:
    byte = atoms["K_SW128"].byte_offsets()[1, 0]
    assert (byte, byte // 2) == (144, 72)
    assert atoms["K_SW128"].swizzle(64) == 64  # the trap: the number of the element swizzled as if it were bytes
    assert atoms["K_SW128"].swizzle.in_elements(16)(64) == 72
    recipe = study("mma_smem_atoms")
    assert list(recipe.ask_cute(recipe.where_is_element_1_0).values()) == [64, 72, 72]


def test_fact_25_tv_layouts_of_m16n8k8_and_the_inverse() -> None:
    from cutlass import BFloat16, Float32, cute
    from cutlass.cute.nvgpu import warp

    def layouts():
        mma = cute.make_mma_atom(warp.MmaF16BF16Op(BFloat16, Float32, (16, 8, 8)))
        back = cute.composition(cute.right_inverse(mma.tv_layout_A), cute.make_layout((16, 8)))
        return mma.tv_layout_A, back, mma.tv_layout_B

    a, back, b = evaluate(layouts)
    assert (repr(a), repr(b)) == ("((4,8),(2,2)):((32,1),(16,8))", "((4,8),2):((16,1),8)")
    assert repr(back) == "((8,2),(2,4)):((4,64),(32,1))"
    for t, v in np.ndindex(32, 4):  # both ways
        m, k = tile_coords(a, (16, 8))[t, v]
        assert back.table()[m, k] == t + 32 * v
    recipe = study("fragments_and_ldmatrix")
    by_hand = [[recipe.held_by(t, v) for v in range(4)] for t in range(32)]
    assert (np.array(by_hand) == tile_coords(a, (16, 8))).all()


@pytest.mark.parametrize(
    ("mn_major", "trans", "t0", "t22"),
    [
        (False, False, ["M0K0", "M0K1"], ["M5K4", "M5K5"]),
        (True, False, ["M0K0", "M1K0"], ["M4K5", "M5K5"]),
        (True, True, ["M0K0", "M0K1"], ["M5K4", "M5K5"]),
    ],
)
def test_fact_26_what_threads_0_and_22_hold_after_ldmatrix(mn_major, trans, t0, t22) -> None:
    smem = SharedMemory(128)
    names = np.arange(64, dtype=np.uint16).reshape(8, 8)  # 8 m + k
    smem.write(16 * np.arange(8), names.T.copy() if mn_major else names)
    pairs = ldmatrix(smem, 16 * (np.arange(32) % 8), 1, trans)[:, 0]
    assert pairs.shape == (32, 2)  # two 16-bit elements a thread
    for lane, wanted in ((0, t0), (22, t22)):
        assert [f"M{x // 8}K{x % 8}" for x in pairs[lane].tolist()] == wanted


@pytest.mark.parametrize("num", [1, 2, 4])
def test_fact_26_matrix_q_takes_its_rows_from_lanes_8q_on(num: int) -> None:
    smem = SharedMemory(512)
    smem.write(16 * np.arange(32), np.arange(256, dtype=np.uint16).reshape(32, 8))
    rows = np.roll(16 * np.arange(32), 8)  # lanes 8q.. point to the matrix before
    found = ldmatrix(smem, rows, num)
    for q in range(num):
        assert found[0, q].tolist() == [(64 * (q - 1)) % 256, (64 * (q - 1)) % 256 + 1]


def test_fact_26_two_block_shapes_free_at_once() -> None:
    four, sixteen = Swizzle(5, 2, 5), Swizzle(2, 4, 3)
    row, column = 4 * np.arange(32), 128 * np.arange(32)
    assert [banks.wavefronts(x, 4).actual for x in (four(row), four(column), column)] == [1, 1, 32]
    two_rows, eight_rows = 16 * np.arange(8), 64 * np.arange(8)
    eights = [np.r_[x, np.full(24, -1)] for x in (sixteen(two_rows), sixteen(eight_rows), eight_rows)]
    assert [banks.wavefronts(x, 16).actual for x in eights] == [1, 1, 4]


@pytest.mark.parametrize(
    ("bits", "order", "place"),
    [
        (0, (1, 0), lambda m, k: 64 * ((m // 8) * 4 + k // 8)),
        (0, (0, 1), lambda m, k: 64 * ((k // 8) * 2 + m // 8)),
        (1, (1, 0), lambda m, k: 128 * ((m // 8) * 2 + k // 16)),
        (1, (0, 1), lambda m, k: 128 * ((k // 16) * 2 + m // 8)),
    ],
)
def test_fact_27_tilings_of_16_by_64_bytes(bits: int, order: tuple[int, int], place) -> None:
    tile = evaluate(study("mma_smem_atoms").tiled, bits, order, element_bits=16)
    assert tile.is_bijective() and tile.size_bytes == 1024
    for m in (0, 8):
        for k in range(0, 32, 8 << bits):
            assert tile.byte_offsets()[m, k] == 2 * place(m, k)


def test_fact_27_a_tma_box_writes_the_column_major_tiling() -> None:
    tile = np.arange(512, dtype=np.uint16).reshape(16, 32)
    smem = SharedMemory(1024)
    for box in range(2):
        tma_load(smem, 512 * box, tile, (0, 16 * box), (16, 16), 32)
    for order, same in (((0, 1), True), ((1, 0), False)):
        layout = evaluate(study("mma_smem_atoms").tiled, 1, order, element_bits=16)
        assert np.array_equal(smem.view(np.uint16)[layout.byte_offsets() // 2], tile) == same


@pytest.mark.parametrize("major", ["K", "MN"])
@pytest.mark.parametrize("bits", range(4))
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_fact_28_descriptors_derived_from_the_layout_equal_the_librarys(major, bits, order) -> None:
    recipe = study("matrix_descriptors")
    layout = SmemLayout(Layout(*recipe.shape_and_stride(major, bits, order)), Swizzle(bits, 4, 3), 16)
    derived = recipe.blocks(major, bits, order)
    model = operand_descriptors(layout, rows=128, base=2048, major=major)
    assert [recipe.hopper(d) for d in derived] == [d.encode() for d in model]
    for d, k in zip(derived, range(0, 64, 16), strict=True):
        theirs = atoms_library.descriptor(layout, major, "sm_100a", rows=128, origin=(0, k), base=2048)
        assert recipe.blackwell(d) == theirs.encode()


@pytest.mark.parametrize("major", ["K", "MN"])
def test_fact_28_the_tensor_core_reads_what_the_layout_has_and_not_with_the_distances_exchanged(major: str) -> None:
    recipe = study("matrix_descriptors")
    for bits in range(4):
        for order in ((0, 1), (1, 0)):
            assert recipe.misread(major, bits, order) == 0
            assert recipe.misread(major, bits, order, exchanged=True) > 0


def test_fact_28_blackwells_word_is_hoppers_with_a_constant() -> None:
    recipe = study("matrix_descriptors")
    for bits in range(4):
        d = recipe.Descriptor(2080, 16, 1024, bits)
        assert recipe.blackwell(d) == recipe.hopper(d) | 1 << 46


def test_fact_29_tma_swizzles_are_these_alone() -> None:
    assert set(SWIZZLES.values()) == {Swizzle(bits, 4, 3) for bits in range(4)}
    recipe = study("mma_smem_atoms")
    for other in ((3, 4, 4), (3, 3, 3), (2, 4, 2), (4, 4, 4)):
        with pytest.raises(ValueError, match="TMA"):
            recipe.check_tma_swizzle(*other)
        with pytest.raises(ValueError, match="which TMA writes"):
            swizzle_mode(Swizzle(*other))


@pytest.mark.parametrize(("width", "phases"), [(4, 1), (8, 2), (16, 4)])
def test_fact_30_phases_by_width(width: int, phases: int) -> None:
    counted = banks.wavefronts(width * np.arange(32), width)
    assert (len(counted.phases), counted.actual) == (phases, phases)
    assert len(study("fragments_and_ldmatrix").wavefronts_of_phases([width * i for i in range(32)], width)) == phases


def test_fact_30_phases_are_not_recombined() -> None:
    addresses = study("fragments_and_ldmatrix").two_slots_each
    assert [phase.wavefronts for phase in banks.wavefronts(np.array(addresses), 16).phases] == [4, 4, 4, 4]
    slots = np.array(addresses) // 16 % 8
    assert np.bincount(slots).tolist() == [4] * 8  # recombined freely it would be 4 in all


def test_fact_30_stmatrix_as_ldmatrix() -> None:
    rows = 128 * np.arange(32)
    for read, write in ((access.ldmatrix(rows, n), access.stmatrix(rows, n)) for n in (1, 2, 4)):
        assert banks.wavefronts(read.addresses, 16) == banks.wavefronts(write.addresses, 16)


# --- F: the order of tiles --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "mean"),
    [
        ("row by row", 8816),
        ("groups of 8", 5696),
        ("groups of 16", 4672),
        ("groups of 32", 5600),
        ("Hilbert", 5248),
    ],
)
def test_fact_31_rows_and_columns_touched_per_wave(name: str, mean: int) -> None:
    tiles = np.array(study("thread_block_swizzle").orders[name])
    assert len(np.unique(tiles, axis=0)) == 64 * 32
    touched = [
        128 * len(np.unique(tiles[i : i + 132, 0])) + 256 * len(np.unique(tiles[i : i + 132, 1]))
        for i in range(0, 2048, 132)
    ]
    assert len(touched) == 16 and np.mean(touched) == mean


def test_fact_31_a_hilbert_curve_steps_to_a_neighbour() -> None:
    hilbert = study("thread_block_swizzle").hilbert
    curve = np.array([hilbert(step, 64) for step in range(64 * 64)])
    assert len(np.unique(curve, axis=0)) == 64 * 64
    assert (np.abs(np.diff(curve, axis=0)).sum(axis=1) == 1).all()


@pytest.mark.parametrize("gemm", GEMMS)
@pytest.mark.parametrize(("grid", "group"), [((64, 32), 16), ((10, 6), 8), ((7, 3), 16), ((1, 5), 4)])
def test_fact_31_the_gemms_number_their_tiles_so(gemm: str, grid, group, monkeypatch) -> None:
    from cutlass import cute

    module = cookbook.load(gemm)
    config = dataclasses.replace(module.CONFIG, raster_group=group)
    shape = (grid[0] * config.tile_m, grid[1] * config.tile_n)
    ctas = range(0, grid[0] * grid[1], max(1, grid[0] * grid[1] // 40))

    def tiles():
        found = []
        for cta in ctas:
            monkeypatch.setattr(cute.arch, "block_idx", lambda cta=cta: (cta, 0, 0))
            found.append(module.tile_of_cta(shape, config))
        return found

    assert evaluate(tiles) == [study("thread_block_swizzle").in_groups(cta, group, grid) for cta in ctas]


def test_fact_31_trap_a_last_group_that_is_lower() -> None:
    recipe = study("thread_block_swizzle")
    assert recipe.missed(lambda cta: recipe.in_groups(cta, 8, (10, 6)), (10, 6)) == 0
    assert recipe.missed(lambda cta: recipe.without_min(cta, 8, (10, 6)), (10, 6)) == 8
    with pytest.raises(ValueError, match="group: got 8"):
        recipe.ask_cute(recipe.raster, 8, (10, 6))
