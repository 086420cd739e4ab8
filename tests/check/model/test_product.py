import dataclasses
import types
from typing import NamedTuple

import numpy as np
import pytest

cutlass = pytest.importorskip("cutlass")
import cutlass.cute as cute  # noqa: E402

torch = pytest.importorskip("torch")

from cookbook.check import counted  # noqa: E402
from cookbook.check.evaluated import evaluated, vector_for  # noqa: E402
from cookbook.check.layout import check_layouts, predicted_wavefronts  # noqa: E402
from cookbook.check.model.epilogue import BoxStores  # noqa: E402
from cookbook.check.model.fragments import fragment_coords, places_in  # noqa: E402
from cookbook.check.model.product import simulate, simulate_evaluated  # noqa: E402
from cookbook.check.model.wgmma import boxes_of  # noqa: E402
from cookbook.layouts import Layout, SmemLayout  # noqa: E402
from cookbook.recipe import catalog  # noqa: E402
from cookbook.swizzle import Swizzle  # noqa: E402

HOPPER, AMPERE = "hopper/tma_wgmma_gemm", "ampere/ldmatrix_gemm"
DTYPES = {torch.float16: cutlass.Float16, torch.bfloat16: cutlass.BFloat16}


def integers(m, n, k, dtype=torch.bfloat16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    a, b = (torch.randint(-3, 4, shape, generator=generator).to(dtype) for shape in ((m, k), (n, k)))
    return a, b.T


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("shape", [(128, 256, 64), (200, 333, 64), (1, 1, 8), (129, 255, 328), (3, 514, 72)])
@pytest.mark.parametrize("name", [HOPPER, AMPERE])
def test_equals_torch_on_integers(name, shape, dtype):
    module = catalog.load(name)
    a, b = integers(*shape, dtype)
    product = simulate(module, a, b, DTYPES[dtype], module.CONFIG)
    assert product.dtype == np.float32
    assert np.array_equal(product, (a.float() @ b.float()).to(dtype).float().numpy())


@pytest.mark.parametrize("name", [HOPPER, AMPERE])
def test_equals_torch_to_rounding(name):
    """Products of normals: within one step of the output's format of the exact value, relative to the sum's size."""
    module = catalog.load(name)
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn(s, 200, generator=generator).to(torch.bfloat16) for s in (130, 70))
    product = simulate(module, a.float().numpy(), b.float().numpy().T, cutlass.BFloat16, module.CONFIG)
    exact = (a.double() @ b.double().T).numpy()
    assert np.linalg.norm(product - exact) <= 2**-9 * np.linalg.norm(exact)
    assert np.abs(product - exact).max() <= 2**-8 * np.abs(exact).max()


@pytest.mark.parametrize(
    ("name", "changes"),
    [(HOPPER, {"tile_k": 32}), (HOPPER, {"tile_k": 48, "stages": 2}), (HOPPER, {"tile_n": 128}),
     (AMPERE, {"tile_k": 32}), (AMPERE, {"tile_n": 128, "warps_n": 2}), (AMPERE, {"tile_k": 128, "stages": 2})],
)  # fmt: skip
def test_other_configurations(name, changes):
    """tile_k = 32 and 48 make the recipes choose the 64- and the 32-byte swizzle; 128 makes a row of two atoms."""
    module = catalog.load(name)
    config = dataclasses.replace(module.CONFIG, **changes)
    a, b = integers(140, 150, 136)
    product = simulate(module, a, b, cutlass.BFloat16, config)
    assert np.array_equal(product, (a.float() @ b.float()).bfloat16().float().numpy())


def test_unswizzled_core_matrices():
    """INTER atoms, 8 rows of 16 bytes, read by the mode of no swizzle."""
    module = catalog.load(HOPPER)
    found = evaluated(module, cutlass.BFloat16, module.CONFIG)

    def stacked(rows):
        outer = Layout(((8, rows // 8), (8, 8), 4), ((8, 64), (1, 8 * rows), 64 * rows))
        return SmemLayout(outer, Swizzle(0, 4, 3), 16)

    plain = dataclasses.replace(found, smem=found.smem | {"a": stacked(128), "b": stacked(256)})
    a, b = (x.float().numpy() for x in integers(128, 256, 128))
    product = simulate_evaluated(plain, plain, a, b, "bfloat16", module.CONFIG)
    assert np.array_equal(product, (torch.from_numpy(a @ b)).bfloat16().float().numpy())


def reswizzled(found, field, swizzle):
    layout = dataclasses.replace(found.smem[field], swizzle=swizzle)
    return dataclasses.replace(found, smem=found.smem | {field: layout})


@pytest.mark.parametrize("side", ["writer", "reader"])
@pytest.mark.parametrize("field", ["a", "b", "c"])
@pytest.mark.parametrize("swizzle", [(0, 4, 3), (3, 3, 3), (3, 5, 3), (2, 4, 3), (3, 4, 4)])
@pytest.mark.parametrize("name", [HOPPER, AMPERE])
def test_a_different_swizzle_on_one_side_is_caught(name, swizzle, field, side):
    """Dropped, counted in elements, one too high, one bit short, one too far: wrong, or refused by an instruction."""
    module = catalog.load(name)
    a, b = (x.float().numpy() for x in integers(128, 256, 64))
    right = evaluated(module, cutlass.BFloat16, module.CONFIG, vector_for(256))
    wrong = reswizzled(right, field, Swizzle(*swizzle))
    pair = (wrong, right) if side == "writer" else (right, wrong)
    try:
        product = simulate_evaluated(*pair, a, b, "bfloat16", module.CONFIG)
    except ValueError as refused:
        assert "needed" in str(refused)
    else:
        mistaken = product != torch.from_numpy(a @ b).bfloat16().float().numpy()
        assert mistaken.mean() > 0.25


@pytest.mark.parametrize("name", [HOPPER, AMPERE])
def test_rounds_as_the_kernel_does(name):
    module = catalog.load(name)
    a, b = np.full((1, 8), 1.0, np.float32), np.full((8, 1), 1 + 2**-9, np.float32)
    assert simulate(module, a, b, cutlass.BFloat16, module.CONFIG) == 8.0  # b rounds to 1 in bfloat16, not in float16
    assert simulate(module, a, b, cutlass.Float16, module.CONFIG) == np.float16(8 * (1 + 2**-9))


def test_refuses():
    module = catalog.load(AMPERE)
    ones = np.ones((4, 12), np.float32)
    with pytest.raises(ValueError, match="K = 12; needed a multiple of 8"):
        simulate(module, ones, ones.T, cutlass.Float16, module.CONFIG)
    with pytest.raises(ValueError, match=r"a, b: got shapes \(4, 12\) and \(4, 12\)"):
        simulate(module, ones, ones, cutlass.Float16, module.CONFIG)
    with pytest.raises(ValueError, match="dtype"):
        simulate(module, ones, ones.T, cutlass.Float32, module.CONFIG)


def test_tma_takes_any_k_in_padded_rows():
    module = catalog.load(HOPPER)
    a, b = integers(5, 6, 77)
    product = simulate(module, a, b, cutlass.BFloat16, module.CONFIG)
    assert np.array_equal(product, (a.float() @ b.float()).numpy())


def test_boxes():
    atoms = SmemLayout(Layout(((8, 4), (64, 2), 2), ((64, 512), (1, 2048), 4096)), Swizzle(3, 4, 3), 16)
    boxes = boxes_of(atoms)
    assert (boxes.shape, boxes.mode, boxes.origins) == ((32, 64), 128, [(0, 0), (0, 64)])
    assert boxes.starts.tolist() == [[0, 4096], [8192, 12288]]
    across = SmemLayout(Layout(((8, 4), (64, 2), 1), ((64, 1024), (1, 512), 0)), Swizzle(3, 4, 3), 16)
    assert boxes_of(across).shape == (8, 64) and len(boxes_of(across).origins) == 8
    rows = SmemLayout(Layout((32, 128, 1), (128, 1, 0)), Swizzle(3, 4, 3), 16)
    with pytest.raises(ValueError, match="needed rows packed 128 bytes apart"):
        boxes_of(dataclasses.replace(rows, outer=Layout((32, 64, 1), (1, 32, 0))))


def test_places_in():
    held = np.array([[[0, 0], [0, 1]], [[1, 1], [1, 0]]])
    wanted = np.array([[[0, 1], [0, 0]], [[1, 1], [1, 0]]])
    assert places_in(held, wanted, "copy").tolist() == [[1, 0], [0, 1]]
    with pytest.raises(ValueError, match=r"copy: thread 0 is asked for \(1, 1\)"):
        places_in(held, wanted[::-1], "copy")
    with pytest.raises(ValueError, match="2 and 1 threads"):
        places_in(held, wanted[:1], "copy")


def test_fragment_coords_against_a_loop():
    tv = Layout(((4, 8, 2), ((2, 2), (1, 2))), ((64, 1, 16), ((32, 8), (0, 512))))  # a 32 x 32 tile of C, two warps
    coords = fragment_coords(tv, (32, 32), (64, 96))
    assert coords.shape == (64, 4, 2, 6, 2)
    for thread, value, i, j in np.ndindex(64, 4, 2, 6):
        index = tv(thread, value + 4 * (j % 2))
        assert coords[thread, value, i, j].tolist() == [index % 32 + 32 * i, index // 32 + 32 * (j // 2)]
    with pytest.raises(ValueError, match="multiple of the MMA's"):
        fragment_coords(tv, (32, 32), (48, 96))


def test_evaluation_is_kept():
    module = catalog.load(AMPERE)
    first = evaluated(module, cutlass.Float16, module.CONFIG)
    assert evaluated(module, cutlass.Float16, module.CONFIG) is first
    assert evaluated(module, cutlass.Float16, module.CONFIG, 1).copies["s2g_c"].src_vector == 1
    assert [vector_for(n) for n in (8, 12, 6, 333)] == [8, 4, 2, 1]
    assert not first.reads_by_descriptor


class ToBuffers(NamedTuple):
    r2s_c: cute.TiledCopy


def boxed(epi_n=64, buffers=4, copy_n=None, smem_bytes=None, **changes):
    """The Hopper recipe with another epilogue: C in pieces of 64 x epi_n, each through a buffer and out by TMA.

    Returns the module and its configuration; `copy_n` columns, if not epi_n, are what r2s_c covers.
    """
    original = catalog.load(HOPPER)

    def smem_layouts(dtype, config):
        atom = original.smem_atom(dtype, epi_n)
        c = cute.tile_to_shape(atom, (64, epi_n, buffers), order=(0, 1, 2))
        return original.smem_layouts(dtype, config)._replace(c=c)

    def tiled_copies(dtype, config):
        stmatrix = original.tiled_copies(dtype, config).r2s_c
        piece = original.tiled_mma(dtype, dataclasses.replace(config, tile_m=64, tile_n=copy_n or epi_n))
        return ToBuffers(cute.make_tiled_copy_C(stmatrix, piece))

    class Config(original.Config):
        pass

    beside = original.CONFIG.smem_bytes + buffers * 64 * epi_n * 2
    Config.smem_bytes = property(lambda _: smem_bytes or beside)
    module = types.ModuleType("boxed")
    module.__dict__.update(vars(original) | {"smem_layouts": smem_layouts, "tiled_copies": tiled_copies} | changes)
    return module, Config()


def failures(module, config):
    return {f.name: f.detail for f in check_layouts(module, cutlass.BFloat16, config) if not f.ok}


@pytest.mark.parametrize("shape", [(128, 256, 64), (200, 333, 64), (129, 520, 72)])
@pytest.mark.parametrize(
    ("module_and_config", "changes"),
    [
        (boxed(), {}),
        (boxed(epi_n=32, buffers=2), {}),  # the 64-byte swizzle
        (boxed(epi_n=128, buffers=1), {}),  # two boxes of 64 columns a piece
        (boxed(), {"tile_m": 64}),  # one warpgroup, as in pingpong
        (boxed(), {"tile_m": 256, "tile_n": 128}),  # four
    ],
    ids=["64", "32", "128", "one warpgroup", "four warpgroups"],
)
def test_boxes_of_c_by_tma(module_and_config, changes, shape):
    module, config = module_and_config
    config = dataclasses.replace(config, **changes)
    a, b = integers(*shape)
    product = simulate(module, a, b, cutlass.BFloat16, config)
    assert np.array_equal(product, (a.float() @ b.float()).bfloat16().float().numpy())


def test_boxes_belong_to_the_warpgroup_that_has_their_rows():
    """Two warpgroups one above the other; a tile twice as high as they are together goes in turns."""
    module, config = boxed()
    found = evaluated(module, cutlass.BFloat16, config)
    for tile_m, blocks in ((128, [(0, 0), (1, 64)]), (256, [(0, 0), (0, 128), (1, 64), (1, 192)])):
        coords = fragment_coords(found.mma.c, found.mma.tiler_mnk[:2], (tile_m, 256))
        pieces = BoxStores(found, found, coords.reshape(len(coords), -1, 2), "bfloat16", 1000).pieces
        assert [(p.warpgroup, p.row, p.column) for p in pieces] == [
            (group, row, column) for group, row in blocks for column in (0, 64, 128, 192)
        ]


def test_layouts_of_boxes_hold():
    module, config = boxed()
    assert not failures(module, config)
    found = {f.name: f for f in check_layouts(module, cutlass.BFloat16, config)}
    assert found["c.boxes"].detail == "4 buffers of 1 box(es) of 64 x 64, 128-byte mode"
    assert found["r2s_c.covers"].ok and "s2g_c.covers" not in found
    assert predicted_wavefronts(module, cutlass.BFloat16, config) == {"r2s": 4}
    figures, problems = counted.compare([counted.Line("STSM.16.M88.4", 8, 32, 32)], {"r2s": 4})
    assert not problems and figures["STSM.16.M88.4"]["predicted_each"] == 4


def test_buffers_lie_beside_the_operands():
    over = catalog.load(HOPPER).CONFIG.smem_bytes
    assert set(failures(*boxed(smem_bytes=over))) == {"smem.fits"}
    assert f"{over - 1024 + 4 * 64 * 64 * 2} bytes" in failures(*boxed(smem_bytes=over))["smem.fits"]


def test_wrong_boxes_are_findings():
    assert set(failures(*boxed(epi_n=96))) >= {"c.boxes"}  # 256 columns are not whole pieces of 96
    assert set(failures(*boxed(copy_n=32))) == set()  # the copy twice over covers the piece
    assert "r2s_c.wavefronts" in failures(*boxed(epi_n=64, copy_n=128))  # the copy is larger than the piece
    module, config = boxed()
    whole = types.ModuleType("whole")
    whole.__dict__.update(vars(module) | {"smem_layouts": catalog.load(HOPPER).smem_layouts})
    assert "needed modes (64, EPI_N, BUFFER)" in failures(whole, config)["c.boxes"]


@pytest.mark.parametrize("side", ["writer", "reader"])
@pytest.mark.parametrize("swizzle", [(0, 4, 3), (3, 3, 3), (3, 5, 3), (2, 4, 3), (3, 4, 4)])
def test_a_different_swizzle_of_the_boxes_is_caught(swizzle, side):
    module, config = boxed()
    a, b = (x.float().numpy() for x in integers(128, 256, 64))
    right = evaluated(module, cutlass.BFloat16, config)
    wrong = reswizzled(right, "c", Swizzle(*swizzle))
    pair = (wrong, right) if side == "writer" else (right, wrong)
    try:
        product = simulate_evaluated(*pair, a, b, "bfloat16", config)
    except ValueError as refused:
        assert "needed" in str(refused)
    else:
        assert (product != torch.from_numpy(a @ b).bfloat16().float().numpy()).mean() > 0.25
