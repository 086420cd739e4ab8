"""The level product accuses no recipe, says what it cannot follow, and finds what is planted in a recipe's source."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from edits import In
from mutations import Mutation, mutant
from planted import Caught, Suite, check, got

from cookbook.check import compiled, levels, product
from cookbook.check.pipeline import Run
from cookbook.check.product import problems
from cookbook.recipe import catalog, grouped
from cookbook.recipe.majors import configured
from cookbook.simulate import warp

GEMMS = [recipe.name for recipe in catalog.recipes() if recipe.product.is_gemm]
UNSTAGED, STAGED = "hopper/first_gemm", "ampere/ldmatrix_gemm"
HOPPER, AMPERE, TCGEN05 = "hopper/tma_wgmma_gemm", "ampere/pipelined_gemm", "blackwell/tma_tcgen05_gemm"
SPLIT_K, FP8, MXFP8 = "hopper/split_k_gemm", "hopper/fp8_gemm", "blackwell/mxfp8_gemm"
PAIR, MULTICAST, CLC = "blackwell/two_cta_gemm", "hopper/multicast_gemm", "blackwell/persistent_clc_gemm"


class Planted(NamedTuple):
    """A fault in a recipe's source, and words that must be said of it."""

    mutation: Mutation
    says: str

    def __str__(self) -> str:
        return str(self.mutation)


def planted(recipe: str, what: str, edit: In, says: str, variant: str = "") -> Planted:
    return Planted(Mutation(recipe, what, edit, variant), says)


FAULTS = [
    planted(
        UNSTAGED,
        "the last of an even number of k-tiles is left out",
        In("mainloop").replace("cutlass.range(_count, unroll=1)", "cutlass.range((_count - 1) // 2 * 2 + 1, unroll=1)"),
        "not at all (",
    ),
    planted(
        HOPPER,
        "B's k-tile is always 0",
        In("produce")
        .where("for _load in _loads: cute.copy(...)")
        .replace(
            "_load.gX[None, _k_tile]",
            "_load.gX[None, _k_tile if cutlass.const_expr(_load is _loads[0]) else 0]",
        ),
        "C[0, 0]: got a sum with A[0, 64] times B[0, 0] in it; needed products of equal k",
    ),
    planted(
        HOPPER,
        "the accumulators are not cleared",
        In("consume").drop("_acc.fill(0.0)"),
        "an MMA adds to accumulators: got what nothing has written; needed zeros, or accumulators",
    ),
    planted(
        HOPPER,
        "the accumulators are cleared in each k-block",
        In("consume").replace(
            "_mma.set(warpgroup.Field.ACCUMULATE, True)", "_mma.set(warpgroup.Field.ACCUMULATE, False)"
        ),
        "C[0, 0]: got a sum with A[0, 0] B[0, 0] not at all (344 of 344 k are not there once)",
    ),
    planted(
        HOPPER,
        "a k-block is multiplied four times",
        In("issue_wgmmas").replace(
            "cute.gemm(..., _tCrA[None, None, _k, _stage], _tCrB[None, None, _k, _stage], ...)",
            "cute.gemm(..., _tCrA[None, None, 0, _stage], _tCrB[None, None, 0, _stage], ...)",
        ),
        "C[0, 0]: got a sum with A[0, 0] B[0, 0] 4 times",
    ),
    planted(
        HOPPER,
        "both warpgroups multiply the first 64 rows",
        In("multiply").replace("_mma.get_slice(_tidx)", "_mma.get_slice(_tidx % 128)"),
        "C[64, 0]: got a sum with A[0, 0] in it; needed A[64, k]",
    ),
    planted(
        HOPPER,
        "both warpgroups store to the first 64 rows",
        In("store").replace("_copies.r2s_c.get_slice(_tidx)", "_copies.r2s_c.get_slice(_tidx % 128)"),
        "C[64, 0]: got A[64, 256]; needed a sum",
    ),
    planted(
        HOPPER,
        "C is guarded along M alone",
        In("store").replace("cute.elem_less(_tCcC[0, _m, _n], _limit)", "_tCcC[0, _m, _n][0] < _limit[0]"),
        "C: got a store to row 6, column 536; needed one inside: C is 216 x 536",
    ),
    planted(
        HOPPER,
        "the MMA takes f16 where operands are bf16",
        In("wgmma").replace("warpgroup.MmaF16BF16Op(_dtype, ...)", "warpgroup.MmaF16BF16Op(cutlass.Float16, ...)"),
        "an MMA on f16: got elements of B, which are bf16",
    ),
    planted(
        HOPPER,
        "TMA writes without the swizzle that wgmma reads with",
        In("make_load").replace(
            "cute.select(_x, mode=[0, 1])",
            "cute.make_composed_layout(cute.make_swizzle(0, 4, 3), 0, cute.select(_x.outer, mode=[0, 1]))",
        ),
        "C[0, 1]: got a sum with A[0, 0] times B[1, 8] in it; needed products of equal k",
    ),
    planted(
        HOPPER,
        "tiles are numbered as if all groups were full",
        In("tile_of_cta").replace("cutlass.min(_tiles_m - _first, _config.swizzle_size)", "_config.swizzle_size"),
        "got no store; needed one",
    ),
    planted(
        MULTICAST,
        "a CTA of the last, ragged cluster has no tile",
        In("tile_of_cta").replace(
            "cute.ceil_div(_shape_mn[0], _config.tile_m * _config.cluster_m)",
            "_shape_mn[0] // (_config.tile_m * _config.cluster_m)",
        ),
        "C[256, 0]: got no store; needed one",
        "2x1",
    ),
    planted(
        SPLIT_K,
        "the last part of K is left out",
        In("part_of").replace("_k_tiles + _config.split_k - 1", "_k_tiles"),
        "not at all",
        "64x64 in 2",
    ),
    planted(
        SPLIT_K,
        "both parts are the first",
        In("part_of").replace("_rank * _each", "0"),
        "A[0, 0] B[0, 0] 2 times",
        "64x64 in 2",
    ),
    planted(
        FP8,
        "a thread's second row has the scale factor of its first",
        In("scaled").replace("_epi.thread // 32 * 16 + _lane // 4 + 8 * _j", "_epi.thread // 32 * 16 + _lane // 4"),
        "C[8, 0]: got scale factors of A[0, 0]; needed scale factors of A[8, 0]",
        "promoted",
    ),
    planted(
        AMPERE,
        "a row beyond the matrix is loaded",
        In("make_load").replace("_coords[0, _m, 0, 0][0] < _mX.shape[0]", "_coords[0, _m, 0, 0][0] <= _mX.shape[0]"),
        "A: got a read of row 216, column 0; needed one inside: A is 216 x",
    ),
    planted(
        AMPERE,
        "what lies before K is not filled with zeros",
        In("load_first_tile").drop("_dst[None, None, _k].fill(0)"),
        "C[16, 0]: got a sum with what nothing has written in it; needed A[16, k]",
    ),
    planted(
        PAIR,
        "both CTAs of a pair store the leader's rows",
        In("store").replace("_m * PAIR + _place.half", "_m * PAIR"),
        "C[0, 0]: got a second store",
    ),
    planted(
        MXFP8,
        "A has the scale factors of B",
        In("consume")
        .where("_.set(tcgen05.Field.SFB, _b.steps.iterator + _)")
        .replace(
            "_.set(tcgen05.Field.SFA, _a.steps.iterator + _a.steps.layout(_at))",
            "_.set(tcgen05.Field.SFA, _b.steps.iterator + _b.steps.layout(_at))",
        ),
        "times scale factors of B[0, 20] in it",
    ),
    planted(
        TCGEN05,
        "the accumulators are never cleared",
        In("consume").replace("_mma.set(tcgen05.Field.ACCUMULATE, False)", "_mma.set(tcgen05.Field.ACCUMULATE, True)"),
        "an MMA adds to accumulators: got what nothing has written",
    ),
    planted(
        TCGEN05,
        "the guard looks at the element before a vector",
        In("store").replace("_tCcC[0, _m, _n]", "_tCcC[-1, _m, _n]"),
        "C: got a store to row 3, column 536; needed one inside: C is 216 x 536",
    ),
    planted(
        HOPPER,
        "nothing is launched",
        In("gemm").replace("_kernel(...).launch(...)", "_kernel(...).launch(...) if False else None"),
        "the host function: got no launch; needed one",
    ),
    planted(
        HOPPER,
        "rows of C are promised to begin at multiples of 16 bytes",
        In("gemm").where("tiled_copies(_, _, _vec)").replace("cute.assume(_, divby=_vec)", "cute.assume(_, divby=8)"),
        "needed a multiple of 8, as the kernel promises",
    ),
    planted(
        MULTICAST,
        "a small C has no columns of tiles",
        In("tile_of_cta").replace(
            "cute.ceil_div(_shape_mn[1], _config.tile_n * _config.cluster_n)", "_shape_mn[1] // 4096"
        ),
        "got a division by 0; needed another divisor",
        "2x1",
    ),
    planted(
        MULTICAST,
        "the grid is no whole number of clusters",
        In("gemm").replace(
            "_clusters_m * _clusters_n * _config.cluster", "_clusters_m * _clusters_n * _config.cluster + 1"
        ),
        "; needed whole clusters of (2, 1, 1)",
        "2x1",
    ),
    planted(
        SPLIT_K,
        "the parts are rounded before they are added",
        In("kernel")
        .where("store(_share, _tCcC, _mC, ...)")
        .insert_after(
            "consume(_, _multiplier, ...)",
            "_multiplier.acc.store(_multiplier.acc.load().to(_mC.element_type).to(cutlass.Float32))",
        ),
        "got arithmetic on an accumulator that is rounded already; needed one rounding, at the end",
        "64x64 in 2",
    ),
    planted(
        FP8,
        "what nothing has written is stored before the first tile",
        In("begin_tile").replace("_i > 0", "_i >= 0"),
        "C[0, 0]: got a second store; needed one",
    ),
]


SUITES = [Suite(("product",), [fault.mutation for fault in FAULTS])]


def default(module, recipe: catalog.Recipe):
    """The configuration that a recipe has if nothing is said."""
    return compiled.config_for(module, recipe.targets[0])


ALL, RAGGED, SMALL = slice(None), slice(1), slice(1, 2)  # of a recipe's problems


def products():
    """Every recipe and each of its majors with all problems. Quick are those of the first recipe of each kind on each
    track; the problem of another recipe that is ragged everywhere, with k-tiles for more than all stages; and of
    further majors the problem of less than a tile, as they differ in how a tile is loaded."""
    seen = set()
    for name in GEMMS:
        recipe = catalog.find(name)
        first = (recipe.track, recipe.kind) not in seen
        seen.add((recipe.track, recipe.kind))
        for number, which in enumerate(recipe.majors):
            whole = first and not number
            yield pytest.param(name, which, ALL, marks=() if whole else pytest.mark.slow, id=f"{name}-{which}-all")
            if not whole:
                yield pytest.param(name, which, SMALL if number else RAGGED, id=f"{name}-{which}")


@pytest.mark.parametrize(("name", "which", "some"), list(products()))
def test_a_recipe_computes_its_product(name, which, some):
    recipe, module = catalog.find(name), catalog.load(name)
    arch, dtype = recipe.targets[0], compiled.cutlass_dtype(recipe.dtypes[0])
    config = next(iter((compiled.variants(module, arch) or {"": default(module, recipe)}).values()))
    run = Run(module, arch, dtype, configured(config, which), recipe.product)
    chosen = product.cases(module, run.config, recipe.product)[some]
    assert len(chosen) >= (3 if some == ALL else 1)
    found = [product.compute(run, case) for case in chosen]
    assert [one.faults for one in found] == [()] * len(found)
    for one, case in zip(found, chosen, strict=True):
        rows = one.problem.m * (grouped.ENDS if recipe.kind == "grouped_k" else 1)
        owners = recipe.product.judged(case.config, one.problem, case.corner.beyond).owners or (0,) * rows
        assert one.stores == sum(owner >= 0 for owner in owners) * one.problem.n


@pytest.mark.parametrize(
    "name", [FP8, "hopper/grouped_wgrad_gemm", "hopper/fp8_grouped_gemm", "hopper/fused_epilogue_gemm"]
)
def test_any_two_numbers_of_a_launch_differ_in_some_problem(name):
    """So a size, stride or count in place of another computes something else."""
    recipe, module = catalog.find(name), catalog.load(name)
    config, dtype = default(module, recipe), compiled.cutlass_dtype(recipe.dtypes[0])
    numbers, run = [], Run(module, recipe.targets[0], dtype, config, recipe.product)
    for case in product.cases(module, config, recipe.product):
        numbers.append(problems.given(run, run.traced(case.config, case.options), case).arguments)
    columns = [column for column in zip(*numbers, strict=True) if all(type(x) is int for x in column)]
    assert len(columns) >= 7 and len(set(columns)) == len(columns)


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 5])
def test_a_stage_index_that_never_advances_is_met(stages):
    """The first is loaded again, and the one after it: an even number of k-tiles, two more than there are stages."""
    module = catalog.load(STAGED)
    config = replace(module.CONFIG, stages=stages)
    k_tiles = -(-problems.usual(module, config)[0].problem.k // config.tile_k)
    assert k_tiles >= stages + 2 and k_tiles % 2 == 0


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_planted_fault_is_told(fault, tmp_path: Path):
    name, variant = fault.mutation.recipe, fault.mutation.variant
    recipe, module = catalog.find(name), mutant(fault.mutation, tmp_path)
    config = module.VARIANTS[variant] if variant else default(module, recipe)
    dtype = compiled.cutlass_dtype("bfloat16")
    found = product.computed(Run(module, recipe.targets[0], dtype, config, recipe.product))
    assert not found[-1].ok and fault.says in found[-1].faults[0]
    assert not product.findings(found)[-1].ok
    check(Caught("product", got(found[-1].faults[0])), name, fault.mutation.what, variant)


def test_what_cannot_be_followed_is_named(monkeypatch):
    """Never passed in silence: the level fails, with the operation and its line."""
    monkeypatch.delitem(warp.TABLE, "cute.gemm")
    recipe = catalog.find(HOPPER)
    (level,) = levels.product_levels(levels.Runs(recipe, "bfloat16", recipe.targets))
    assert level.status == "failed"
    assert level.reason.startswith("the kernel cannot be followed: line ") and "cute.gemm" in level.reason


def test_all_clusters_have_work_whoever_takes_it():
    """A cluster that takes over the work of others: each of C's elements is stored once, by one of them."""
    recipe, module = catalog.find(CLC), catalog.load(CLC)
    config = module.VARIANTS["dynamic"]
    run = Run(module, recipe.targets[0], compiled.cutlass_dtype("bfloat16"), config)
    for sms in (2, 6, 148):
        found = product.compute(run, product.Case(product.Problem(5 * config.tile_m, 24, 24, sms), config))
        assert found.ok and found.stores == 5 * config.tile_m * 24
