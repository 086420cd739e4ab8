"""Two Hopper GEMMs: what each swizzle mode asks for, and how a block's registers are shared out."""

from __future__ import annotations

import dataclasses
from functools import cache

import numpy as np
import pytest
from walked import integers

from cookbook import banks
from cookbook.check import compiled as compiling
from cookbook.check import layout as layout_check
from cookbook.check.evaluated import evaluated
from cookbook.check.model.product import simulate_evaluated
from cookbook.check.model.wgmma import boxes_of
from cookbook.layouts import evaluate
from cookbook.model import operand_descriptors
from cookbook.model.wgmma import operand_addresses
from cookbook.recipe import catalog

cutlass = pytest.importorskip("cutlass")

MODES, REGISTERS = "hopper/swizzle_modes_gemm", "hopper/warp_specialized_gemm"
WIDTHS = {"interleave": 16, "sw32": 32, "sw64": 64, "sw128": 128}  # bytes of a line


@cache
def compiled(name: str, config) -> compiling.Compiled:
    try:
        return compiling.compile_recipe(name, "sm_90a", "bfloat16", config=config)
    except compiling.NoDisassembler as missing:
        pytest.skip(str(missing))


# --- swizzle_modes_gemm -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", WIDTHS)
def test_a_mode_is_the_width_of_its_boxes_and_nothing_else(mode):
    module = catalog.load(MODES)
    config = module.VARIANTS[mode]
    layouts = evaluate(module.smem_layouts, cutlass.BFloat16, config)
    for layout, rows in ((layouts.a, 128), (layouts.b, 256)):
        boxes = boxes_of(layout)
        assert boxes.shape == (rows, WIDTHS[mode] // 2) and len(boxes.origins) == 128 // WIDTHS[mode]
    made = compiled(MODES, config)
    assert made.count("UTMALDG.2D") == 2 * 128 // WIDTHS[mode]
    widest = compiled(MODES, module.CONFIG)
    assert (made.count("HGMMA"), made.registers) == (widest.count("HGMMA"), widest.registers)


@pytest.mark.parametrize("mode", WIDTHS)
def test_core_matrices_are_free_of_conflicts_in_every_mode(mode):
    module = catalog.load(MODES)
    layouts = evaluate(module.smem_layouts, cutlass.BFloat16, module.VARIANTS[mode])
    for layout, rows in ((layouts.a, 64), (layouts.b, 256)):
        for descriptor in operand_descriptors(layout, rows):
            for lanes in operand_addresses(descriptor, rows).T.reshape(-1, 32):
                assert banks.wavefronts(lanes, 16).actual == 4


def test_two_modes_at_once_are_another_product():
    module = catalog.load(MODES)
    found = {mode: evaluated(module, cutlass.BFloat16, config) for mode, config in module.VARIANTS.items()}
    a, b = integers(64, 64, 64)
    for written in WIDTHS:
        for read in WIDTHS:
            product = simulate_evaluated(found[written], found[read], a, b, "bfloat16", module.CONFIG)
            error = np.linalg.norm(product - a @ b) / np.linalg.norm(a @ b)
            assert error < 4e-3 if written == read else error > 0.5  # rounded to bfloat16, once


# --- warp_specialized_gemm --------------------------------------------------------------------------------------


def test_what_a_launch_gives_a_thread():
    """A quarter of the file for the warps of a scheduler: nine warps fare as twelve do."""
    module = catalog.load(REGISTERS)
    of = {threads: module.Config(registers=None, producer_threads=threads).at_launch for threads in (32, 128)}
    assert of == {32: 168, 128: 168}


@pytest.mark.parametrize("producer_threads", [32, 128])
def test_larger_tile_spills_without_setmaxnreg_and_only_then(producer_threads):
    module = catalog.load(REGISTERS)
    large = module.VARIANTS["setmaxnreg, 256x192"]
    equal = dataclasses.replace(large, registers=None, producer_threads=producer_threads)
    spilling, roomy = compiled(REGISTERS, equal), compiled(REGISTERS, large)
    assert spilling.spills > 0 and spilling.registers == equal.at_launch
    assert roomy.spills == 0 and roomy.count("USETMAXREG.DEALLOC") == roomy.count("USETMAXREG.TRY_ALLOC") == 1


@pytest.mark.parametrize(
    ("registers", "threads", "why"),
    [
        ((32, 240), 128, r"got 32 \+ 2 x 240; needed at most 504 together"),
        ((24, 248), 128, r"got 24 \+ 2 x 248; needed at most 504 together"),
        ((24, 236), 128, "multiples of 8"),
        ((16, 240), 128, "multiples of 8 from 24 up"),
        ((176, 160), 128, "around the launch's 168"),
        ((24, 240), 32, "a producer warpgroup"),
    ],
)
def test_registers_that_would_hang_or_cannot_be_are_refused(registers, threads, why):
    with pytest.raises(ValueError, match=why):
        catalog.load(REGISTERS).Config(registers=registers, producer_threads=threads)


@pytest.mark.parametrize("vec", [8, 4, 2, 1])
def test_every_width_of_store_covers_the_wider_tile(vec):
    module = catalog.load(REGISTERS)
    config = module.VARIANTS["setmaxnreg, 256x192"]
    copies, layouts = (
        evaluate(of, cutlass.BFloat16, config, *more)
        for of, more in ((module.tiled_copies, (vec,)), (module.smem_layouts, ()))
    )
    counts = layout_check.copy_wavefronts("s2g_c", copies.s2g_c, layouts.c)
    assert sum(counts.values()) * 32 * vec == config.tile_m * config.tile_n
    assert all(actual == ideal for actual, ideal in counts)
