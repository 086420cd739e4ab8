"""MN-major operands simulated in numpy: ldmatrix.trans after cp.async, MN-major descriptors after TMA."""

from __future__ import annotations

import dataclasses
import types

import numpy as np
import pytest

cutlass = pytest.importorskip("cutlass")
torch = pytest.importorskip("torch")

import cutlass.cute as cute  # noqa: E402
from cutlass.cute.nvgpu import warp  # noqa: E402
from walked import integers, rounded  # noqa: E402

from cookbook.check.evaluated import evaluated, vector_for  # noqa: E402
from cookbook.check.layout import check_layouts, predicted_wavefronts  # noqa: E402
from cookbook.check.model.product import simulate, simulate_evaluated  # noqa: E402
from cookbook.check.model.wgmma import boxes_of  # noqa: E402
from cookbook.layouts import Layout, SmemLayout  # noqa: E402
from cookbook.recipe import catalog, majors  # noqa: E402
from cookbook.swizzle import Swizzle  # noqa: E402

RECIPES = [recipe.name for recipe in catalog.recipes() if len(recipe.majors) > 1]
AMPERE, HOPPER = "ampere/majors_gemm", "hopper/tma_wgmma_gemm"
CASES = [(name, which) for name in RECIPES for which in catalog.find(name).majors]


@pytest.mark.parametrize("shape", [(128, 256, 64), (200, 328, 136), (8, 8, 8), (264, 520, 72)])
@pytest.mark.parametrize(("name", "which"), CASES)
def test_equals_the_product_on_integers(name, which, shape):
    module = catalog.load(name)
    a, b = integers(*shape)
    got = simulate(module, a, b, cutlass.BFloat16, majors.configured(module.CONFIG, which))
    assert np.array_equal(got, rounded(a @ b))


@pytest.mark.parametrize("name", RECIPES)
def test_extents_that_no_operand_is_contiguous_along_are_free(name):
    module = catalog.load(name)
    for which, shape in (("nt", (136, 264, 77)), ("nt", (8, 8, 1)), ("nn", (72, 33, 40)), ("tt", (33, 72, 40))):
        a, b = integers(*shape)
        got = simulate(module, a, b, cutlass.BFloat16, majors.configured(module.CONFIG, which))
        assert np.array_equal(got, rounded(a @ b)), (which, shape)


@pytest.mark.parametrize("which", majors.MAJORS)
@pytest.mark.parametrize("changes", [{"tile_m": 32, "warps_m": 1}, {"tile_k": 32}, {"tile_n": 128}])
def test_other_configurations(changes, which):
    """32 rows make an M-major A choose the 64-byte swizzle; tile_k = 32 does the same for K-major operands."""
    module = catalog.load(AMPERE)
    config = dataclasses.replace(majors.configured(module.CONFIG, which), **changes)
    a, b = integers(104, 264, 72)
    assert np.array_equal(simulate(module, a, b, cutlass.BFloat16, config), rounded(a @ b))
    extents = {"a": config.tile_k if config.a_major == "k" else config.tile_m}
    extents["b"] = config.tile_k if config.b_major == "k" else config.tile_n
    found = {f.name: f for f in check_layouts(module, cutlass.BFloat16, config)}
    assert [name for name, finding in found.items() if not finding.ok] == []
    # Past L1 a line is filled from one line: of lines of 64 bytes in global memory it takes twice as many.
    for name, extent in extents.items():
        assert f"take {8 if 2 * extent < 128 else 4} " in found[f"g2s_{name}.wavefronts"].detail


@pytest.mark.parametrize(
    ("which", "shape", "says"),
    [
        ("nn", (12, 8, 8), "a: got M = 12; needed a multiple of 8"),
        ("tt", (8, 12, 8), "b: got N = 12; needed a multiple of 8"),
        ("tt", (8, 8, 12), "a: got K = 12; needed a multiple of 8"),
        ("nn", (8, 8, 12), "b: got K = 12; needed a multiple of 8"),
    ],
)
def test_part_of_a_vector_is_refused(which, shape, says):
    module = catalog.load(AMPERE)
    with pytest.raises(ValueError, match=says):
        simulate(module, *integers(*shape), cutlass.BFloat16, majors.configured(module.CONFIG, which))


@pytest.mark.parametrize("which", majors.MAJORS)
def test_every_copy_is_at_its_ideal(which):
    module = catalog.load(AMPERE)
    for config in (module.CONFIG, module.CONFIG_99K):
        config = majors.configured(config, which)
        assert predicted_wavefronts(module, cutlass.Float16, config) == {"g2s": 4, "s2r": 4, "r2s": 1, "s2g": 4}


@pytest.mark.parametrize("side", ["writer", "reader"])
@pytest.mark.parametrize("swizzle", [(0, 4, 3), (3, 3, 3), (3, 5, 3), (2, 4, 3), (3, 4, 4)])
@pytest.mark.parametrize("field", ["a", "b"])
def test_a_different_swizzle_on_one_side_is_caught(field, swizzle, side):
    module = catalog.load(AMPERE)
    config = majors.configured(module.CONFIG, "nt")
    right = evaluated(module, cutlass.BFloat16, config, vector_for(256))
    layout = dataclasses.replace(right.smem[field], swizzle=Swizzle(*swizzle))
    wrong = dataclasses.replace(right, smem=right.smem | {field: layout})
    a, b = integers(128, 256, 64)
    try:
        got = simulate_evaluated(*((wrong, right) if side == "writer" else (right, wrong)), a, b, "bfloat16", config)
    except ValueError as refused:
        assert "needed" in str(refused)
    else:
        assert (got != rounded(a @ b)).mean() > 0.25


def like(name, **changes):
    original = catalog.load(name)
    module = types.ModuleType(original.__name__)
    module.__dict__.update(vars(original) | changes)
    return module


def test_an_mn_major_tile_without_trans_is_caught():
    """The lines run along M, the fragments along K: no lane's row of 8 is in one place."""
    original = catalog.load(AMPERE)

    def tiled_copies(dtype, config, vec=8):
        plain = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(transpose=False, num_matrices=4), dtype)
        copy = cute.make_tiled_copy_A(plain, original.tiled_mma(dtype, config))
        return original.tiled_copies(dtype, config, vec)._replace(s2r_a=copy)

    module, config = like(AMPERE, tiled_copies=tiled_copies), majors.configured(original.CONFIG, "nn")
    bad = {f.name: f.detail for f in check_layouts(module, cutlass.BFloat16, config) if not f.ok}
    assert set(bad) == {"s2r_a.wavefronts"} and "needed 8 adjacent elements" in bad["s2r_a.wavefronts"]
    with pytest.raises(ValueError, match="needed 8 adjacent elements"):
        simulate(module, *integers(128, 256, 64), cutlass.BFloat16, config)


def test_pieces_across_the_lines_of_global_memory_are_caught():
    """cp.async as for a K-major A, from an M-major one."""
    original = catalog.load(AMPERE)
    right = evaluated(original, cutlass.BFloat16, majors.configured(original.CONFIG, "nn"), vector_for(256))
    k_major = evaluated(original, cutlass.BFloat16, original.CONFIG, vector_for(256))
    mixed = dataclasses.replace(
        right,
        smem=right.smem | {"a": k_major.smem["a"]},
        copies=right.copies | {name: k_major.copies[name] for name in ("g2s_a", "s2r_a")},
    )
    a, b = integers(128, 256, 64)
    with pytest.raises(ValueError, match="g2s_a: got vectors that do not run along M"):
        simulate_evaluated(mixed, mixed, a, b, "bfloat16", majors.configured(original.CONFIG, "nn"))


# --- wgmma ----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Majors:
    """What the simulation asks of a configuration."""

    tile_m: int
    tile_n: int
    tile_k: int
    a_major: str
    b_major: str


def mn_major(rows, depth, stages, bits, k_first):
    """A tile of MN-major atoms (8 << bits, 8) for 16-bit elements, the atoms along K next to each other or last."""
    width = 8 << bits
    across, down = rows // width, depth // 8
    m_step, k_step = (8 * width * down, 8 * width) if k_first else (8 * width, 8 * width * across)
    outer = Layout(((width, across), (8, down), stages), ((1, m_step), (width, k_step), rows * depth))
    return SmemLayout(outer, Swizzle(bits, 4, 3), 16)


@pytest.mark.parametrize("k_first", [True, False])
@pytest.mark.parametrize("bits", [0, 1, 2, 3])
@pytest.mark.parametrize("which", ["nn", "tt", "nt"])
def test_wgmma_reads_mn_major_tiles_that_tma_wrote(which, bits, k_first):
    """The Hopper recipe's MMA, with other bits for the majors, and its epilogue; MN-major layouts for its own."""
    module = catalog.load(HOPPER)
    found, c = evaluated(module, cutlass.BFloat16, module.CONFIG, vector_for(328)), module.CONFIG
    config = Majors(c.tile_m, c.tile_n, c.tile_k, *majors.MAJORS[which])
    rows = dict(zip("ab", (c.tile_m, c.tile_n), strict=True))
    turned = {
        name: mn_major(rows[name], c.tile_k, c.stages, bits, k_first)
        for name, major in zip("ab", majors.MAJORS[which], strict=True)
        if major != "k"
    }
    taken = tuple("K" if major == "k" else "MN" for major in majors.MAJORS[which])
    found = dataclasses.replace(found, smem=found.smem | turned, mma=dataclasses.replace(found.mma, majors=taken))
    a, b = integers(200, 328, 72)
    assert np.array_equal(simulate_evaluated(found, found, a, b, "bfloat16", config), rounded(a @ b))


def test_boxes_of_an_mn_major_tile():
    boxes = boxes_of(mn_major(128, 64, 2, 3, k_first=True), along=0)
    assert (boxes.shape, boxes.mode, boxes.origins) == ((64, 64), 128, [(0, 0), (0, 64)])
    assert boxes.starts.tolist() == [[0, 8192], [16384, 24576]]
    boxes = boxes_of(mn_major(128, 64, 1, 3, k_first=False), along=0)
    assert boxes.shape == (8, 64) and len(boxes.origins) == 16
    with pytest.raises(ValueError, match="needed rows packed 128 bytes apart"):
        boxes_of(mn_major(128, 64, 1, 3, k_first=True))


def test_the_wrong_major_has_no_descriptor():
    module = catalog.load(HOPPER)
    found = evaluated(module, cutlass.BFloat16, module.CONFIG, vector_for(256))
    config = Majors(module.CONFIG.tile_m, module.CONFIG.tile_n, module.CONFIG.tile_k, "m", "k")
    with pytest.raises(ValueError, match="needed"):
        simulate_evaluated(found, found, *integers(128, 256, 64), "bfloat16", config)


@pytest.mark.parametrize("which", majors.MAJORS)
def test_the_majors_of_wgmma_are_those_of_its_instruction(which):
    """Not those of the configuration: a recipe whose MMA forgets them is found out."""
    module = catalog.load("hopper/majors_gemm")
    config = majors.configured(module.CONFIG, which)
    found = evaluated(module, cutlass.BFloat16, config).mma.majors
    assert found == tuple("K" if major == "k" else "MN" for major in majors.MAJORS[which])
    forgetful = like("hopper/majors_gemm", tiled_mma=lambda dtype, _: module.tiled_mma(dtype, module.CONFIG))
    bad = {f.name: f.detail for f in check_layouts(forgetful, cutlass.BFloat16, config) if not f.ok}
    turned = {name for name, major in zip("ab", majors.MAJORS[which], strict=True) if major != "k"}
    assert set(bad) == {f"{name}.{what}" for name in turned for what in ("major", "descriptor")}
    if turned:
        assert "the instruction takes it K-major" in bad[f"{min(turned)}.major"]
        with pytest.raises(ValueError, match="needed rows"):
            simulate(forgetful, *integers(128, 256, 64), cutlass.BFloat16, config)


def test_mma_sync_takes_no_major():
    module = catalog.load(AMPERE)
    assert evaluated(module, cutlass.BFloat16, module.CONFIG).mma.majors is None
