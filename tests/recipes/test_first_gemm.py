"""The first GEMM of Ampere and of Hopper: what their pages say of them, and the faults that must be found in them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from edits import In
from mutations import Mutation
from planted import Suite, check_caught

from cookbook.check import levels
from cookbook.check.evaluated import evaluated
from cookbook.check.layout import predicted_wavefronts
from cookbook.check.model.wgmma import boxes_of
from cookbook.layouts import Layout, SmemLayout
from cookbook.model import operand_descriptors
from cookbook.recipe import catalog
from cookbook.swizzle import Swizzle

cutlass = pytest.importorskip("cutlass")

AMPERE, HOPPER = "ampere/first_gemm", "hopper/first_gemm"
DEVICE_CODE = {  # the functions that run on the GPU
    AMPERE: ("make_load", "load_tile", "make_operand", "mainloop", "kernel"),
    HOPPER: ("partition_load", "mainloop", "kernel"),
}

SUITES = [
    Suite(
        ("layout", "model"),
        [
            Mutation(
                AMPERE,
                "rows are padded without a word in the configuration",
                In("row_by_row").replace(
                    "(_config.tile_k, 1, _rows * _config.tile_k)", "(_config.tile_k + 8, 1, _rows * _config.tile_k)"
                ),
            ),
            Mutation(HOPPER, "a core matrix is stored by columns", In("smem_atom").replace("(_width, 1)", "(1, 8)")),
            Mutation(
                HOPPER,
                "a swizzle of 128 bytes over lines of 16",
                In("smem_atom").replace("cute.make_swizzle(0, 4, 3)", "cute.make_swizzle(3, 4, 3)"),
            ),
        ],
    ),
    Suite(
        ("product",),
        [
            Mutation(
                AMPERE,
                "what lies outside of the matrix is read",
                In("load_tile").replace("cute.copy(..., pred=_)", "cute.copy(...)"),
            ),
            Mutation(
                AMPERE,
                "B's k-tile is always 0",
                In("mainloop").replace(
                    "load_tile(_load_b, _k_tile)\ncute.arch.cp_async_commit_group(...)",
                    "load_tile(_load_b, 0)\ncute.arch.cp_async_commit_group(...)",
                ),
            ),
            Mutation(
                AMPERE,
                "the edge of C is not guarded",
                In("kernel").replace("cute.elem_less(_tCcC[_i], _mC.shape)", "True"),
            ),
            Mutation(HOPPER, "the accumulators are not cleared", In("kernel").drop("_acc.fill(0.0)")),
            Mutation(
                HOPPER,
                "the edge of C is not guarded",
                In("kernel").replace("cute.elem_less(_tCcC[_i], _mC.shape)", "True"),
            ),
            Mutation(
                HOPPER,
                "a k-block is multiplied four times",
                In("mainloop").replace(
                    "cute.gemm(..., _tCrA[None, None, _k], _tCrB[None, None, _k], ...)",
                    "cute.gemm(..., _tCrA[None, None, 0], _tCrB[None, None, 0], ...)",
                ),
            ),
        ],
    ),
    Suite(
        ("pipeline",),
        [
            Mutation(AMPERE, "the copies are not waited for", In("mainloop").drop("cute.arch.cp_async_wait_group(0)")),
            Mutation(
                AMPERE,
                "a tile is overwritten while others read it",
                In("mainloop").drop("cute.arch.sync_threads()", after="for _ in _: ..."),
            ),
            Mutation(
                HOPPER,
                "a tile is read before it has come",
                In("mainloop").drop("cute.arch.mbarrier_wait(_arrived, _k_tile % 2)"),
            ),
            Mutation(HOPPER, "every phase is waited for as the first one", In("mainloop").replace("_k_tile % 2", "0")),
            Mutation(
                HOPPER,
                "a tile is overwritten while wgmma reads it",
                In("mainloop").replace("warpgroup.wait_group(0)", "warpgroup.wait_group(1)"),
            ),
            Mutation(
                HOPPER,
                "fewer bytes are announced than come",
                In("kernel").replace("_config.stage_bytes", "_config.stage_bytes - 16"),
            ),
        ],
    ),
]
PLANTED = [(suite, fault) for suite in SUITES for fault in suite.faults]


@pytest.mark.parametrize(("suite", "fault"), PLANTED, ids=[str(fault) for _, fault in PLANTED])
def test_a_planted_fault_is_caught(suite, fault, tmp_path: Path):
    check_caught(fault, suite, tmp_path)


@pytest.mark.parametrize(("name", "dtype", "target"), [(AMPERE, "float16", "sm_80"), (HOPPER, "bfloat16", "sm_90a")])
def test_every_level_that_needs_no_gpu_holds(name, dtype, target):
    report = levels.check(name, shapes=[(200, 136, 72)], dtypes=[dtype], targets=[target])
    assert report.failed == ()
    passed = {level.level for level in report.levels if level.status == levels.PASSED}
    assert {"layout", "model", "product", "pipeline"} <= passed


def device_lines(name: str) -> int:
    """Lines of the functions that run on the GPU, a signature in one: annotations that wrap are no more code."""
    tree = ast.parse(catalog.without_lab(catalog.find(name).file.read_text(encoding="utf-8")))
    lines = {f.name: len(ast.unparse(f).splitlines()) for f in tree.body if isinstance(f, ast.FunctionDef)}
    return sum(lines[function] for function in DEVICE_CODE[name])


def test_device_code_is_short_and_shorter_on_hopper():
    assert device_lines(HOPPER) < device_lines(AMPERE) < 100


def test_ldmatrix_takes_eight_times_its_ideal_on_ampere():
    module = catalog.load(AMPERE)
    assert predicted_wavefronts(module, cutlass.Float16, module.CONFIG) == {"g2s": 4, "s2r": 32}


def test_a_tile_on_hopper_is_eight_boxes_of_16_byte_lines():
    module = catalog.load(HOPPER)
    boxes = boxes_of(evaluated(module, cutlass.BFloat16, module.CONFIG).smem["a"])
    assert (boxes.mode, boxes.shape, len(boxes.origins)) == (0, (module.CONFIG.tile_m, 8), module.CONFIG.tile_k // 8)


def test_no_descriptor_says_where_a_row_major_tile_lies():
    row_major = SmemLayout(Layout((128, 64, 1), (64, 1, 8192)), Swizzle(0, 4, 3), 16)
    with pytest.raises(ValueError, match="no K-major descriptor of the 0-byte mode reads"):
        operand_descriptors(row_major, 64)
