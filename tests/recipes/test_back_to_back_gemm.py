"""The back-to-back GEMM where there is no GPU: accumulators as an operand, planted faults, and its host side."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from edits import In
from mutations import Mutation
from planted import Suite, check_caught
from pretend import pretended

from cookbook.check import compiled, ran
from cookbook.layouts import evaluate, tile_coords
from cookbook.products import chained as chains
from cookbook.recipe import catalog, chained, contract

NAME = "hopper/back_to_back_gemm"


@pytest.fixture(scope="module")
def module():
    return catalog.load(NAME)


# --- the kernel ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("middle", [64, 128, 256])
def test_eight_accumulators_are_one_wgmmas_elements_of_a(module, middle):
    config = module.fitted(module.CONFIG, middle)
    dtype = compiled.cutlass_dtype("bfloat16")
    held = np.array(tile_coords(evaluate(module.tiled_mma, dtype, config).c, (64, middle)))
    wanted = np.array(tile_coords(evaluate(module.second_mma, dtype, config).a, (64, 16)))
    for k in range(middle // 16):
        assert (held[:, 8 * k : 8 * k + 8] - [0, 16 * k] == wanted).all()


@pytest.mark.parametrize("columns", [1, 64, 65, 128, 129, 256])
def test_every_width_of_the_first_product_fits_without_spills(module, columns):
    for config in module.VARIANTS.values():
        fitting = module.fitted(config, columns)
        assert columns <= fitting.middle < 2 * max(columns, 64) and fitting.stages >= 4
        assert fitting.smem_bytes <= module.SMEM
    built = compiled.compile_module(module, NAME, "sm_90a", "bfloat16", fitting)
    assert built.spills == 0


def test_it_launches_a_cta_for_each_tile_of_rows_or_each_sm(module):
    for config in module.VARIANTS.values():
        found = [module.ctas(config, m, 132) for m in (1, config.tile_m + 1, 131 * config.tile_m, 100_000)]
        assert found == [1, 2, 131, 132]


FAULTS = {
    "layout": [("the swizzle is dropped",
                In("smem_atom").replace("cute.make_swizzle(_bits, 4, 3)", "cute.make_swizzle(0, 4, 3)"))],
    "product": [
        ("two registers of A change places", In("as_operand").replace("(1, 2, 4)", "(1, 4, 2)")),
        ("a block of 16 columns is one of 8", In("as_operand").replace("((1, 2, 4), 0, 8)", "((1, 2, 4), 0, 4)")),
        ("the second product takes the same blocks for each slab",
         In("second_product").replace("_slab * _blocks + _k", "_k")),
        ("the blocks of a slab change places",
         In("second_product").where("_, _blocks = _, cute.size(...)").replace("_tCrB[None, None, _k, _state.index]",
          "_tCrB[None, None, _blocks - 1 - _k, _state.index]")),
        ("the second product adds to the columns before", In("second_product").replace("_slab + _k > 0", "True")),
        ("a slab's product is overwritten", In("second_product").replace("_slab + _k > 0", "_k > 0")),
        ("the first product is not cleared", In("first_product").drop("_acc.fill(0.0)")),
        ("the second weight is the first one",
         In("gemm").where("_, _ldb, _, _ldb2 = (cute.assume(...) for _ in _)")
          .replace("cute.make_layout(_, stride=(_ldb2, 1))", "cute.make_layout(_, stride=(_ldb, 1))")),
        ("all columns of C take the first ones of the second weight",
         In("produce_slabs").replace("_b2.gX[None, _n, None]", "_b2.gX[None, 0, None]")),
        ("all CTAs load the same rows", In("produce").replace("_a.gX[None, _i, None]", "_a.gX[None, 0, None]")),
        ("rows of C are one tile further",
         In("consume").replace("_i * _config.warpgroups", "(_i + 1) * _config.warpgroups")),
        ("a CTA leaves out every second tile of rows",
         In("produce").replace("_tiles.step", "2 * _tiles.step") + In("produce_slabs").replace("_tiles.step",
          "2 * _tiles.step") + In("consume").replace("_tiles.step", "2 * _tiles.step")),
        ("a k-tile is left out", In("first_product").replace("_k_tiles - 1", "_k_tiles - 2")),
    ],
    "pipeline": [
        ("registers are read while wgmma writes them",
         In("first_product").replace("warpgroup.wait_group(0)", "warpgroup.wait_group(1)")),
        ("a stage is released early",
         In("first_product").replace("warpgroup.wait_group(1)", "warpgroup.wait_group(2)")),
        ("a slab is released while wgmma reads it",
         In("second_product").drop("warpgroup.wait_group(0)")),
        ("a stage is free when some warps have read it",
         In("make_pipeline").replace("4 * _config.warpgroups", "2 * _config.warpgroups")),
        ("a slab is full early",
         In("set_up").replace("_config.slab_bytes", "_config.slab_bytes // 2")),
        ("no fence between stmatrix and TMA", In("store").drop("cute.arch.fence_proxy('async.shared', space='cta')")),
        ("a buffer is written while TMA reads it",
         In("store").drop("if _storing:\n    cute.arch.cp_async_bulk_wait_group(0, read=True)")),
        ("barriers are used before they are set up", In("set_up").drop("cute.arch.sync_threads()")),
    ],
}  # fmt: skip
SUITES = [Suite((level,), [Mutation(NAME, *fault) for fault in faults]) for level, faults in FAULTS.items()]


@pytest.mark.parametrize(
    ("suite", "fault"), [(s, f) for s in SUITES for f in s.faults], ids=lambda x: getattr(x, "what", "")
)
def test_planted_fault_is_found(suite: Suite, fault: Mutation, tmp_path: Path) -> None:
    check_caught(fault, suite, tmp_path)


# --- what follows it -----------------------------------------------------------------------------------------


def test_a_recipe_whose_front_matter_says_so_is_chained(module):
    recipe = catalog.find(NAME)
    assert recipe.kind == "chained" and not recipe.product.of_two_matrices
    assert contract.Chained in contract.asked_of(recipe) and not contract.missing(recipe, module)
    assert {chained.columns(shape) for shape in ran.SHAPES} <= set(range(1, 257))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_what_is_run_is_held_against_two_products(monkeypatch, dtype):
    monkeypatch.setattr(chains.poisoning, "shared_memory", lambda: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    draw, guard = chains.drawn, ran.guarded
    monkeypatch.setattr(chains, "drawn", lambda shape, dtype: draw(shape, dtype, device="cpu"))
    monkeypatch.setattr(ran, "guarded", lambda *given, **more: guard(*given, **more, device="cpu"))

    def two(a, b, b2, out):
        return torch.matmul(torch.matmul(a, b), b2, out=out)

    def other_weight(a, b, b2, out):
        return two(a, b, b2.roll(1, 1), out)

    for shape in ((200, 96, 136), (3, 5, 8), (1, 1, 64)):
        case = chains.run_case(two, shape, dtype)
        assert case.ok and case.error <= case.torch_error, case.problem
    assert "relative error" in chains.run_case(other_weight, (200, 96, 136), dtype).problem


# --- the host side -------------------------------------------------------------------------------------------


def weight(rows: int, columns: int, line: int = 0) -> torch.Tensor:
    """(columns, rows), stored by columns, `line` elements apart."""
    return torch.zeros(rows, line or columns, dtype=torch.bfloat16)[:, :columns].T


def operands(m=32, n=48, k=64, middle=40):
    return {"a": weight(m, k).T, "b": weight(middle, k), "b2": weight(n, middle, 56)}


@pytest.fixture
def ours(monkeypatch):
    """The recipe where CPU tensors pass for CUDA's."""
    return pretended(NAME, monkeypatch)


def test_it_is_launched_with_both_weights_at_the_first_width(ours):
    given = operands()
    for _ in range(2):  # the second call finds a plan
        ours.matmul(**given)
    ((_, _, config), arguments) = ours.launched[-1]
    assert len(ours.GEMM.plans) == 1 and ours.GEMM.operands[2].name == "b2"
    assert config.middle == 64 and list(arguments[:2]) == [given["a"].data_ptr(), given["b"].data_ptr()]
    sizes = arguments[4]
    assert arguments[3] == given["b2"].data_ptr() and sizes.mnk == (32, 48, 64)
    assert (sizes.middle, sizes.strides[:2], sizes.stride_b2, sizes.ctas) == (40, (64, 64), 56, 1)


def test_taller_tile_is_for_more_rows_than_the_sms_have_tiles(module):
    assert [module.choose(m, 128, 4096, 132) for m in (1, 8192, 8448, 8449, 16384)] == ["64 rows"] * 3 + [
        "128 rows"
    ] * 2


WRONG = [
    ({"b": weight(264, 64), "b2": weight(48, 264)}, ValueError, "b: got N1 = 264; needed at most 256"),
    ({"b2": weight(48, 64)}, ValueError, r"b2: got shape \(64, 48\); needed \(40, N\), for b is \(64, 40\)"),
    ({"b2": weight(48, 40).float()}, TypeError, "b2: got torch.float32; needed torch.bfloat16"),
    ({"b2": weight(48, 40).contiguous()}, ValueError, "b2: got stride 48 along N1; needed 1: N1-major"),
    ({"b2": weight(48, 40, 44)}, ValueError,
     "b2: got N1 = 40, columns 88 bytes apart; needed columns a multiple of 16"),
    ({"b2": 1.0}, TypeError, "b2: got float; needed a torch.Tensor"),
    ({"out": torch.zeros(32, 40, dtype=torch.bfloat16)}, ValueError, r"out: got shape \(32, 40\); needed \(32, 48\)"),
    ({"out": torch.zeros(32, 48)}, TypeError, "out: got torch.float32; needed torch.bfloat16"),
    ({"variant": "256 rows"}, ValueError, "variant: got '256 rows'; needed one of auto,"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "error", "message"), WRONG, ids=[message[:40] for _, _, message in WRONG])
def test_what_it_cannot_take_is_named(ours, given, error, message):
    with pytest.raises(error, match=message):
        ours.matmul(**operands() | given)
    assert not ours.launched


def test_out_must_not_overlap_the_second_weight(ours):
    given = operands()
    memory = torch.zeros(48, 56, dtype=torch.bfloat16)
    out = memory.flatten()[: 32 * 48].view(32, 48)
    with pytest.raises(ValueError, match="out: got memory that overlaps b2; needed memory of its own"):
        ours.matmul(**given | {"b2": memory[:, :40].T}, out=out)
    assert not ours.launched
