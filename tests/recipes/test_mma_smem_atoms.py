"""The eight layout atoms of shared memory: the page's own functions against the package, its model and CuTe."""

from __future__ import annotations

import numpy as np
import pytest

from cookbook import access, banks
from cookbook.layouts import Layout, SmemLayout, evaluate
from cookbook.model import SharedMemory, tma_load
from cookbook.model.tma import SWIZZLES, swizzle_mode
from cookbook.recipe import catalog
from cookbook.recipe.cells import cells
from cookbook.swizzle import Swizzle

PAGE = catalog.load("foundations/mma_smem_atoms")


@pytest.fixture(scope="module")
def atoms() -> dict[str, SmemLayout]:
    """The eight, of bf16, by CuTe's own function."""
    from cutlass import BFloat16
    from cutlass.cute.nvgpu import warpgroup

    kinds = PAGE.KINDS.values()

    def made(dtype):
        return {
            kind: warpgroup.make_smem_layout_atom(getattr(warpgroup.SmemLayoutAtomKind, kind), dtype) for kind in kinds
        }

    return evaluate(made, BFloat16)


def chunk_starts(layout: SmemLayout, kind: str) -> np.ndarray:
    """Byte offset of each 16-byte chunk: (row of the contiguous mode, chunk along it)."""
    offsets = layout.byte_offsets()
    return (offsets if kind.startswith("K") else offsets.T)[:, ::8]


def held(layout: SmemLayout, kind: str) -> list[list[int]]:
    """Chunk numbers by line and slot."""
    slots = np.argsort(chunk_starts(layout, kind).reshape(-1))
    return slots.reshape(-1, 8).tolist()


def test_atoms_of_eight_rows_keep_16_bytes_and_direction(atoms) -> None:
    assert len(atoms) == 8
    for kind, layout in atoms.items():
        offsets = layout.byte_offsets() if kind.startswith("K") else layout.byte_offsets().T
        chunks = offsets.reshape(8, -1, 8)
        assert (chunks == chunks[..., :1] + 2 * np.arange(8)).all() and not (chunks[..., 0] % 16).any()
        assert layout.is_bijective() and layout.size_bytes == 8 * offsets.shape[1] * 2


def test_inter_is_a_contiguous_block_and_not_the_linear_layout(atoms) -> None:
    assert sorted(atoms["K_INTER"].byte_offsets().reshape(-1)) == list(range(0, 128, 2))
    linear = Layout((8, 64), (64, 1)).table()[:, :8] * 2  # the same 8 x 16 bytes in a tile of 128-byte rows
    assert linear.max() == 7 * 128 + 14


def test_chunk_orders(atoms) -> None:
    sw32 = [[0, 1, 2, 3, 4, 5, 6, 7], [9, 8, 11, 10, 13, 12, 15, 14]]
    sw64 = [*sw32, [18, 19, 16, 17, 22, 23, 20, 21], [27, 26, 25, 24, 31, 30, 29, 28]]
    for major in ("K", "MN"):
        assert held(atoms[f"{major}_SW32"], major) == sw32
        assert held(atoms[f"{major}_SW64"], major) == sw64
        assert held(atoms[f"{major}_SW128"], major) == [[8 * r + (p ^ r) for p in range(8)] for r in range(8)]


def test_linear_rows_conflict_2_4_and_8_ways_and_atoms_never(atoms) -> None:
    linear = [banks.wavefronts(access.ldmatrix(size * np.arange(8), 1).addresses, 16).actual for size in (32, 64, 128)]
    assert linear == [2, 4, 8]
    for kind, layout in atoms.items():
        for column in chunk_starts(layout, kind).T:
            assert banks.wavefronts(access.ldmatrix(column, 1).addresses, 16).actual == 1


@pytest.mark.parametrize(
    ("bits", "chunks"),
    [(0, [0, 4, 8, 12, 16, 20, 24, 28]), (1, [0, 1, 4, 5, 8, 9, 12, 13]), (2, list(range(8)))],
)
def test_chunks_of_the_first_line_of_an_8_by_64_byte_tile(bits: int, chunks: list[int]) -> None:
    from cutlass import BFloat16, cute

    tile = evaluate(lambda dtype: cute.tile_to_shape(PAGE.atom("K", bits, dtype), (8, 32), order=(0, 1)), BFloat16)
    first = np.flatnonzero(chunk_starts(tile, "K").reshape(-1) < 128).tolist()
    assert first == chunks == PAGE.chunks_of_first_line(bits)


def test_the_widest_that_divides_except_mn_major_32_bit() -> None:
    from cutlass import BFloat16, Float32

    names = PAGE.ask_cute(PAGE.selectors_agree, BFloat16, "K")
    assert [names[extent][0] for extent in (8, 16, 32, 64, 96, 72)] == [
        "K_INTER", "K_SW32", "K_SW64", "K_SW128", "K_SW64", "K_INTER",
    ]  # fmt: skip
    assert all(len(set(found)) == 1 for found in names.values())
    exception = PAGE.ask_cute(PAGE.selectors_agree, Float32, "MN")
    assert {found[2] for extent, found in exception.items() if extent % 32 == 0} == {"MN_SW128_32B"}
    assert all(len(set(found)) == 1 for extent, found in exception.items() if extent % 32)
    assert PAGE.ask_cute(PAGE.atom_of_32_bytes) == "S<2,5,2> o 0 o (32,8):(1,32)"


def test_wider_atoms_take_fewer_requests_as_many_sectors() -> None:
    assert [PAGE.requests_and_sectors(bits) for bits in range(3)] == [(8, 8), (4, 4), (2, 4)]
    for bits in range(3):  # by bytes: chunk c of a tile of 64-byte rows lies at byte 16 c
        touched = {byte // 32 for chunk in PAGE.chunks_of_first_line(bits) for byte in (16 * chunk, 16 * chunk + 15)}
        assert len(touched) == PAGE.requests_and_sectors(bits)[1]


def test_the_page_shows_the_atoms_of_tf32_that_the_rule_selects() -> None:
    text = catalog.find("foundations/mma_smem_atoms").file.read_text()
    (cell,) = (c for c in cells(text) if "def of_tf32(" in "\n".join(text.splitlines()[c.start : c.stop]))
    made: dict = {}
    exec("\n".join(text.splitlines()[cell.start : cell.stop]).partition("\n\n\nfor ")[0], made)
    assert "lab" in cell.tags and made["of_tf32"](64) == "MN_SW128_32B"
    assert all(made["of_tf32"](extent).startswith("refused: tile: got") for extent in (8, 16, 24, 40, 48))


@pytest.mark.parametrize("extent", [0, 4, 7, 12])
def test_an_extent_that_no_atom_divides_is_refused(extent: int) -> None:
    from cutlass import BFloat16

    with pytest.raises(ValueError, match="extent: got"):
        PAGE.widest(extent, BFloat16)


def test_byte_swizzle_over_element_strides(atoms) -> None:
    byte = atoms["K_SW128"].byte_offsets()[1, 0]
    assert (byte, byte // 2) == (144, 72)
    assert atoms["K_SW128"].swizzle(64) == 64  # the trap: the number of the element swizzled as if it were bytes
    assert atoms["K_SW128"].swizzle.in_elements(16)(64) == 72
    assert list(PAGE.ask_cute(PAGE.where_is_element_1_0).values()) == [64, 72, 72]


@pytest.mark.parametrize(
    ("bits", "order", "place"),
    [
        (0, (1, 0), lambda m, k: 64 * ((m // 8) * 4 + k // 8)),
        (0, (0, 1), lambda m, k: 64 * ((k // 8) * 2 + m // 8)),
        (1, (1, 0), lambda m, k: 128 * ((m // 8) * 2 + k // 16)),
        (1, (0, 1), lambda m, k: 128 * ((k // 16) * 2 + m // 8)),
    ],
)
def test_tilings_of_16_by_64_bytes(bits: int, order: tuple[int, int], place) -> None:
    tile = evaluate(PAGE.tiled, bits, order, element_bits=16)
    assert tile.is_bijective() and tile.size_bytes == 1024
    for m in (0, 8):
        for k in range(0, 32, 8 << bits):
            assert tile.byte_offsets()[m, k] == 2 * place(m, k)


def test_a_tma_box_writes_the_column_major_tiling() -> None:
    tile = np.arange(512, dtype=np.uint16).reshape(16, 32)
    smem = SharedMemory(1024)
    for box in range(2):
        tma_load(smem, 512 * box, tile, (0, 16 * box), (16, 16), 32)
    for order, same in (((0, 1), True), ((1, 0), False)):
        layout = evaluate(PAGE.tiled, 1, order, element_bits=16)
        assert np.array_equal(smem.view(np.uint16)[layout.byte_offsets() // 2], tile) == same


def test_tma_swizzles_are_these_alone() -> None:
    assert set(SWIZZLES.values()) == {Swizzle(bits, 4, 3) for bits in range(4)}
    for other in ((3, 4, 4), (3, 3, 3), (2, 4, 2), (4, 4, 4)):
        with pytest.raises(ValueError, match="TMA"):
            PAGE.check_tma_swizzle(*other)
        with pytest.raises(ValueError, match="which TMA writes"):
            swizzle_mode(Swizzle(*other))
