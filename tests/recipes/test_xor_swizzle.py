"""XOR from the ground up: the page's own functions against the package and CuTe."""

from __future__ import annotations

import importlib

import cutlass.cute as cute
import numpy as np
import pytest
from references import actual

from cookbook.check.kernels.judging import BANKS
from cookbook.layouts import evaluate
from cookbook.recipe import catalog
from cookbook.recipe.cells import cells
from cookbook.testing import check

PAGE = catalog.load("foundations/xor_swizzle")
LANES = np.arange(32)


def test_small_tiles():
    assert PAGE.swizzled_rows(2, 2) == [[0, 1], [1, 0]]
    assert PAGE.swizzled_rows(2, 3)[1][2] == 3
    assert PAGE.swizzled_rows(4, 6)[2:] == [[2, 3, 0, 1, 6, 7], [3, 2, 1, 0, 7, 6]]
    assert PAGE.places_inside(2, 3) == 5 and PAGE.places_inside(4, 6) < 24 and PAGE.places_inside(4, 8) == 32


def test_divisible_by_four_is_not_enough():
    assert {cols: PAGE.stays_inside(8, cols) for cols in (8, 12, 16, 20, 24)} == {
        8: True,
        12: False,
        16: True,
        20: False,
        24: True,
    }


def test_the_law_is_the_next_power_of_two_of_the_rows():
    for rows in range(1, 40):
        for cols in range(1, 100):
            block = 2 ** int(np.ceil(np.log2(rows)))
            inside = bool(((np.arange(cols) ^ np.arange(rows)[:, None]) < cols).all())
            assert inside == (cols % block == 0) == PAGE.law(rows, cols), (rows, cols)


def test_conflicts_fall_by_one_with_each_swizzled_row():
    for col in range(8):
        assert [PAGE.column_wavefronts(row, col) for row in range(8)] == [8, 7, 6, 5, 4, 3, 2, 1]


def test_the_toy_transpose_stores_for_nothing_extra():
    plain, before = PAGE.transpose(PAGE.GIVEN, PAGE.plain_store, PAGE.plain_load)
    mended, after = PAGE.transpose(PAGE.GIVEN, PAGE.store, PAGE.load)
    assert plain == mended == np.array(PAGE.GIVEN).T.tolist()
    assert before == [1] * 8 + [8] * 8 and after == [1] * 16


def test_the_wrong_load_gives_back_the_input():
    wrong, turns = PAGE.transpose(PAGE.GIVEN, PAGE.store, PAGE.wrong_load)
    assert wrong == PAGE.GIVEN != np.array(PAGE.GIVEN).T.tolist()
    assert turns == [1] * 16  # no counter would tell
    assert [PAGE.load(i, t) for i in range(2) for t in range(2)] == [(0, 0), (1, 1), (0, 1), (1, 0)]


def test_without_a_barrier_elements_are_read_too_early():
    output = PAGE.transpose_without_barrier(PAGE.GIVEN)
    early = {(i, t) for i in range(8) for t in range(8) if output[i][t] is None}
    assert early == {(i, t) for i in range(8) for t in range(8) if i > t}  # who wants what a later thread stores


def test_16_x_16_in_tiles_with_pitch_16_and_tile_offset_8():
    matrix = np.random.default_rng(0).integers(0, 1000, (16, 16))
    out, spent = PAGE.transpose_tiled(matrix.ravel().tolist(), 16)
    assert (np.array(out).reshape(16, 16) == matrix.T).all()
    assert spent == 4 * 16


@pytest.mark.parametrize(("bits", "column"), [(0, 32), (5, 1)])
def test_the_kernels_layout_on_the_real_banks(bits, column):
    layout = evaluate(PAGE.smem_layout, bits, element_bits=32)
    assert layout.is_bijective() and layout.size_bytes == PAGE.CONFIG.smem_bytes
    places = layout.byte_offsets()
    assert {actual(places[:, col]) for col in range(32)} == {column}
    assert {actual(places[row]) for row in range(32)} == {1}
    if bits:
        assert (places == 4 * (32 * LANES[:, None] + (LANES ^ LANES[:, None]))).all()


def test_the_kernels_entry_point_refuses_what_it_cannot_take():
    import torch

    with pytest.raises(ValueError, match=r"x: got \(3, 3\) torch.float32 on cpu; needed"):
        PAGE.transpose_tile(torch.zeros(3, 3))


def test_the_index_of_16_x_16_needs_the_matrix_pitch():
    flat = np.arange(256).reshape(16, 16)
    read = {f: [f(*place) for place in PAGE.PLACES] for f in (PAGE.index_of, PAGE.wrong_index)}
    assert read[PAGE.index_of] == flat.ravel().tolist()
    right = [n for n, index in enumerate(read[PAGE.wrong_index]) if index == n]
    assert right == list(range(16)) and max(read[PAGE.wrong_index]) < 80  # the first row, and nothing below row 4


def from_lab(name):
    """A function of the page's lab cells: a module has none of them."""
    text = catalog.find("foundations/xor_swizzle").file.read_text(encoding="utf-8")
    lines, found = text.splitlines(), {"cute": cute}
    (cell,) = (each for each in cells(text) if f"def {name}(" in "\n".join(lines[each.start : each.stop]))
    exec("\n".join(lines[cell.start : cell.stop]), found)
    return found[name]


def test_a_kernel_for_one_tile_is_right_for_half_of_four():
    """The page's simulation of the published indices, against the tiles on the diagonal."""
    found = from_lab("one_tile_kernel")
    assert found(32) == (1024, 1024, 0)
    assert found(64) == (2048, 4096, 2048)
    rows, cols = np.divmod(np.arange(64 * 64), 64)
    assert (rows // 32 == cols // 32).sum() == found(64)[0], "those that stay where they are"


def test_grid_kernel_is_followed_with_no_race_and_no_conflict(tmp_path, monkeypatch):
    """The lab cell's kernel, in a file of its own: a plain tile in place of the swizzled one is found."""
    text = catalog.find("foundations/xor_swizzle").file.read_text(encoding="utf-8").splitlines()
    sources = ["\n".join(text[each.start : each.stop]) for each in cells("\n".join(text))]
    (cell,) = (source for source in sources if "def launch_on_a_grid(" in source)
    names = "CONFIG, DTYPE, SmemAllocator, cute, cutlass, pointers, smem_layout"
    head = f"from cookbook.recipes.foundations.xor_swizzle import {names}\n"
    for name, bits in (("swizzled_grid", 5), ("plain_grid", 0)):
        kernel = cell.split("\ncompiled = ")[0].replace("smem_layout(5)", f"smem_layout({bits})")
        (tmp_path / f"{name}.py").write_text(head + kernel)
        monkeypatch.syspath_prepend(tmp_path)
        report = check(importlib.import_module(name).launch_on_a_grid, *PAGE.pointers(16, 16))
        assert report.ok == (bits == 5), str(report)
    assert {one.rule for one in report.found} == {BANKS}


def test_grid_reads_each_tile_and_writes_it_across_the_diagonal():
    tiles = np.array(evaluate(from_lab("tiles_by_cute"))).reshape(2, 2, 32, 32)
    matrix = np.arange(64 * 64).reshape(64, 64)
    for by, bx in np.ndindex(2, 2):
        assert (tiles[by, bx] == matrix[32 * by : 32 * by + 32, 32 * bx : 32 * bx + 32]).all()
        assert (matrix.T.ravel()[tiles[bx, by]] == matrix.ravel()[tiles[by, bx]].T).all()
