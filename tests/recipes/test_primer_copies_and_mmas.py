"""The primer's page on copies and MMAs: what it says of three real GEMMs, and its exercises."""

from __future__ import annotations

import inspect
from types import SimpleNamespace

import cutlass
import cutlass.cute as cute
import pytest
from cutlass.cute.nvgpu import warp

from cookbook.check import exercises
from cookbook.layouts import evaluate
from cookbook.recipe import catalog

NAME = "primer/copies_and_mmas"


@pytest.fixture(scope="module")
def page():
    return catalog.load(NAME)


def test_every_claim_holds(page):
    assert [name for name, holds, _ in page.facts() if not holds] == []


@pytest.mark.parametrize(
    ("name", "places"),
    [
        ("ampere/smem_gemm", ("registers", "registers")),
        ("hopper/tma_wgmma_gemm", ("descriptors of shared memory", "registers")),
        ("blackwell/tma_tcgen05_gemm", ("descriptors of shared memory", "tensor memory")),
    ],
)
def test_where_each_tensor_core_reads_from(page, name, places):
    recipe = catalog.find(name)
    assert evaluate(page.where, catalog.load(name), arch=recipe.targets[0]) == places


def test_the_tensors_of_the_main_loop_are_as_the_text_says(page):
    found = evaluate(page.fragments, catalog.load("ampere/smem_gemm"))
    assert found["sA"].startswith("tensor<ptr<f16, smem, align<1024>, S<3,4,3>> o (128,64,")
    assert "rmem" in found["tCrA"] and "o ((2,2,2),4,4):" in found["tCrA"] and "o ((2,2,2),4,4):" in found["tCsA"]
    assert "rmem" in found["tXrA"] and "o ((8,1),4,4):" in found["tXrA"] and "o ((8,1),4,4):" in found["tXsA"]


def test_the_main_loop_has_the_lines_that_the_table_explains():
    source = inspect.getsource(inspect.unwrap(catalog.load("ampere/smem_gemm").mainloop))
    for line in ("cp_async_wait_group", "sync_threads", "load_tile(", "[None, None, k, read]", "cute.gemm(mma, acc,"):
        assert line in source
    assert "read = " in source and "write = " in source


# --- the exercises ----------------------------------------------------------------------------------------------------


def name_of(part, memory, matrix):
    own = {"CTA": "", "MMA": "tC"}.get(part, "t" + part[-1])
    return own + {"global": "g", "shared": "s", "registers": "r", "coordinates": "c"}[memory] + matrix


def registers_of(tile_m, tile_n, warps_m, warps_n):
    threads = 32 * warps_m * warps_n
    return tile_m * tile_n // threads, tile_m // warps_m * 16 // 32 // 2


def grid(**strides):
    atom = warp.MmaF16BF16Op(cutlass.Float16, cutlass.Float32, (16, 8, 16))
    return cute.make_tiled_mma(atom, cute.make_layout((2, 2, 1), **strides))


def wide(down, across):
    atom = warp.MmaF16BF16Op(cutlass.Float16, cutlass.Float32, (16, 8, 16))
    return cute.make_tiled_mma(atom, cute.make_layout((down, across, 1)))


def test_right_answers_are_right():
    answers = SimpleNamespace(
        name_of=name_of, registers_of=registers_of, right_of_each_other=lambda: grid(stride=(2, 1, 0))
    )
    assert [one.line for one in exercises.tried(NAME, answers) if one.status != exercises.RIGHT] == []


@pytest.mark.parametrize(
    ("name", "answer", "said"),
    [
        (
            "name_of",
            lambda part, memory, matrix: "t" + matrix + memory[0] + matrix,
            "CTA global A: got 'tAgA'; needed 'gA'",
        ),
        ("name_of", lambda part, memory, matrix: "tC" + memory[0] + matrix, "CTA global A: got 'tCgA'; needed 'gA'"),
        (
            "name_of",
            lambda part, memory, matrix: {"CTA": "g", "copy of A": "tAs", "MMA": "tCr"}[part] + matrix,
            "CTA shared A: got 'gA'; needed 'sA'",
        ),
        (
            "name_of",
            lambda part, memory, matrix: name_of("copy of A" if memory == "shared" else part, memory, matrix),
            "CTA shared A: got 'tAsA'; needed 'sA'",
        ),
        ("registers_of", lambda m, n, wm, wn: (128, 16), "(128, 64, 4, 1): got [128, 16]; needed [64, 8]"),
        (
            "registers_of",
            lambda m, n, wm, wn: (m * n // 128, m // wm * 16 // 32 // 2),
            "(32, 64, 2, 4): got [16, 4]; needed [8, 4]",
        ),
        (
            "registers_of",
            lambda m, n, wm, wn: (m * n // (32 * wm * wn), n // wn * 16 // 32 // 2),
            "(128, 64, 4, 1): got [64, 16]; needed [64, 8]",
        ),
        (
            "registers_of",
            lambda m, n, wm, wn: (m * n // 32 // wm // wn, m * 16 // 32 // 2),
            "got [128, 32]; needed [128, 16]",
        ),
        ("right_of_each_other", lambda: grid(stride=(1, 2, 0)), "warp of C[0, 8]: got 2; needed 1"),
        ("right_of_each_other", lambda: wide(1, 4), "warp of C[16, 0]: got 0; needed 2"),
        ("right_of_each_other", lambda: wide(4, 1), "warp of C[0, 8]: got 0; needed 1"),
        ("right_of_each_other", grid, "warp of C[0, 8]: got 2; needed 1"),
    ],
)
def test_wrong_answers_are_told_what_they_gave_and_must_give(name, answer, said):
    found = {one.name: one for one in exercises.tried(NAME, SimpleNamespace(**{name: answer}))}
    assert found[name].status == exercises.WRONG and said in found[name].detail
