"""The level product accuses no recipe, says what it cannot follow, and finds what is planted in a recipe's source."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from mutations import Mutation, mutant
from planted import Caught, Suite, check, got

from cookbook.check import compiled, levels, product
from cookbook.check.pipeline import trace_of
from cookbook.check.product import problems
from cookbook.recipe import catalog, grouped
from cookbook.recipe.majors import configured

GEMMS = [recipe.name for recipe in catalog.recipes() if recipe.kind == "gemm"]
HOPPER, AMPERE, TCGEN05 = "hopper/tma_wgmma_gemm", "ampere/pipelined_gemm", "blackwell/tma_tcgen05_gemm"
SPLIT_K, FP8, MXFP8 = "hopper/split_k_gemm", "hopper/fp8_gemm", "blackwell/mxfp8_gemm"
PAIR, MULTICAST, CLC = "blackwell/two_cta_gemm", "hopper/multicast_gemm", "blackwell/persistent_clc_gemm"
SFA = "a.steps.iterator + a.steps.layout((k, stage)))"
OPERANDS = "tCrA[None, None, k, stage], tCrB[None, None, k, stage]"


class Planted(NamedTuple):
    """A fault in a recipe's source, and words that must be said of it."""

    mutation: Mutation
    says: str

    def __str__(self) -> str:
        return str(self.mutation)


def planted(recipe: str, what: str, old: str, new: str, says: str, variant: str = "") -> Planted:
    return Planted(Mutation(recipe, what, old, new, variant), says)


FAULTS = [
    planted(
        HOPPER,
        "B's k-tile is always 0",
        "tBgB[None, k_tile]",
        "tBgB[None, 0]",
        "C[0, 0]: got a sum with A[0, 64] times B[0, 0] in it; needed products of equal k",
    ),
    planted(
        HOPPER,
        "the accumulators are not cleared",
        "acc.fill(0.0)",
        "pass",
        "an MMA adds to accumulators: got what nothing has written; needed zeros, or accumulators",
    ),
    planted(
        HOPPER,
        "the accumulators are cleared in each k-block",
        "mma.set(warpgroup.Field.ACCUMULATE, True)",
        "mma.set(warpgroup.Field.ACCUMULATE, False)",
        "C[0, 0]: got a sum with A[0, 0] B[0, 0] not at all (344 of 344 k are not there once)",
    ),
    planted(
        HOPPER,
        "a k-block is multiplied four times",
        OPERANDS,
        OPERANDS.replace(" k,", " 0,"),
        "C[0, 0]: got a sum with A[0, 0] B[0, 0] 4 times",
    ),
    planted(
        HOPPER,
        "both warpgroups multiply the first 64 rows",
        "mma.get_slice(tidx)",
        "mma.get_slice(tidx % 128)",
        "C[64, 0]: got a sum with A[0, 0] in it; needed A[64, k]",
    ),
    planted(
        HOPPER,
        "both warpgroups store to the first 64 rows",
        "thr = copies.r2s_c.get_slice(tidx)",
        "thr = copies.r2s_c.get_slice(tidx % 128)",
        "C[64, 0]: got A[64, 256]; needed a sum",
    ),
    planted(
        HOPPER,
        "C is guarded along M alone",
        "if cute.elem_less(tCcC[0, m, n], limit):",
        "if tCcC[0, m, n][0] < limit[0]:",
        "C: got a store to row 6, column 536; needed one inside: C is 216 x 536",
    ),
    planted(
        HOPPER,
        "the MMA takes f16 where operands are bf16",
        "op = warpgroup.MmaF16BF16Op(dtype",
        "op = warpgroup.MmaF16BF16Op(cutlass.Float16",
        "an MMA on f16: got elements of B, which are bf16",
    ),
    planted(
        HOPPER,
        "TMA writes without the swizzle that wgmma reads with",
        "cute.slice_(x, (None, None, 0))",
        "cute.make_composed_layout(cute.make_swizzle(0, 4, 3), 0, cute.select(x.outer, mode=[0, 1]))",
        "C[0, 1]: got a sum with A[0, 0] times B[1, 8] in it; needed products of equal k",
    ),
    planted(
        HOPPER,
        "tiles are numbered as if all groups were full",
        "height = cutlass.min(tiles_m - first, config.swizzle_size)",
        "height = config.swizzle_size",
        "got no store; needed one",
    ),
    planted(
        MULTICAST,
        "a CTA of the last, ragged cluster has no tile",
        "clusters_m = cute.ceil_div(shape_mn[0], config.tile_m * config.cluster_m)",
        "clusters_m = shape_mn[0] // (config.tile_m * config.cluster_m)",
        "C[256, 0]: got no store; needed one",
        "2x1",
    ),
    planted(
        SPLIT_K,
        "the last part of K is left out",
        "each = (k_tiles + config.split_k - 1) // config.split_k",
        "each = k_tiles // config.split_k",
        "not at all",
        "64x64 in 2",
    ),
    planted(
        SPLIT_K,
        "both parts are the first",
        "return Part(tile % down, tile // down, rank, rank * each, each)",
        "return Part(tile % down, tile // down, rank, 0, each)",
        "A[0, 0] B[0, 0] 2 times",
        "64x64 in 2",
    ),
    planted(
        FP8,
        "a thread's second row has the scale factor of its first",
        "rR[j] = me.sS[me.tidx // 32 * 16 + lane // 4 + 8 * j]",
        "rR[j] = me.sS[me.tidx // 32 * 16 + lane // 4]",
        "C[8, 0]: got scale factors of A[0, 0]; needed scale factors of A[8, 0]",
        "promoted",
    ),
    planted(
        AMPERE,
        "a row beyond the matrix is loaded",
        "inside[0, m, 0] = coords[0, m, 0, 0][0] < mX.shape[0]",
        "inside[0, m, 0] = coords[0, m, 0, 0][0] <= mX.shape[0]",
        "A: got a read of row 216, column 0; needed one inside: A is 216 x",
    ),
    planted(
        AMPERE,
        "what lies before K is not filled with zeros",
        "dst[None, None, k].fill(0)",
        "pass",
        "C[16, 0]: got a sum with what nothing has written in it; needed A[16, k]",
    ),
    planted(
        PAIR,
        "both CTAs of a pair store the leader's rows",
        "row = m * PAIR + work.place.half",
        "row = m * PAIR",
        "C[0, 0]: got a second store",
    ),
    planted(
        MXFP8,
        "A has the scale factors of B",
        "mma.set(tcgen05.Field.SFA, " + SFA,
        "mma.set(tcgen05.Field.SFA, " + SFA.replace("a.", "b."),
        "times scale factors of B[0, 20] in it",
    ),
    planted(
        TCGEN05,
        "the accumulators are never cleared",
        "mma.set(tcgen05.Field.ACCUMULATE, False)",
        "mma.set(tcgen05.Field.ACCUMULATE, True)",
        "an MMA adds to accumulators: got what nothing has written",
    ),
    planted(
        TCGEN05,
        "the guard looks at the element before a vector",
        "if cute.elem_less(tCcC[0, m, n], limit)",
        "if cute.elem_less(tCcC[-1, m, n], limit)",
        "C: got a store to row 3, column 536; needed one inside: C is 216 x 536",
    ),
    planted(
        HOPPER,
        "nothing is launched",
        "grid=(tiles, 1, 1), block=(config.threads, 1, 1), stream=stream\n    )",
        "grid=(tiles, 1, 1), block=(config.threads, 1, 1), stream=stream\n    ) if False else None",
        "the host function: got no launch; needed one",
    ),
    planted(
        HOPPER,
        "rows of C are promised to begin at multiples of 16 bytes",
        "(cute.assume(ldc, divby=vec), 1)",
        "(cute.assume(ldc, divby=8), 1)",
        "needed a multiple of 8, as the kernel promises",
    ),
    planted(
        MULTICAST,
        "a small C has no columns of tiles",
        "cute.ceil_div(shape_mn[1], config.tile_n * config.cluster_n)",
        "shape_mn[1] // 4096",
        "got a division by 0; needed another divisor",
        "2x1",
    ),
    planted(
        MULTICAST,
        "the grid is no whole number of clusters",
        "clusters_m * clusters_n * config.cluster, 1, 1)",
        "clusters_m * clusters_n * config.cluster + 1, 1, 1)",
        "; needed whole clusters of (2, 1, 1)",
        "2x1",
    ),
    planted(
        SPLIT_K,
        "the parts are rounded before they are added",
        "acc = multiply(pipe, group, sA, sB, tCcC, part.k_tiles, dtype, config)\n",
        "acc = multiply(pipe, group, sA, sB, tCcC, part.k_tiles, dtype, config)\n"
        "        acc.store(acc.load().to(dtype).to(cutlass.Float32))\n",
        "got arithmetic on an accumulator that is rounded already; needed one rounding, at the end",
        "64x64 in 2",
    ),
    planted(
        FP8,
        "what nothing has written is stored before the first tile",
        "if i > 0:",
        "if i >= 0:",
        "C[0, 0]: got a second store; needed one",
    ),
]


SUITES = [Suite(("product",), [fault.mutation for fault in FAULTS])]


def default(module, recipe: catalog.Recipe):
    """The configuration that a recipe has if nothing is said."""
    return compiled.config_for(module, recipe.targets[0])


def products():
    """Every recipe and each of its majors, all problems: quick for the majors that come first. Of the others a problem
    of less than a tile is quick: what differs is how a tile is loaded."""
    for name in GEMMS:
        for number, which in enumerate(catalog.find(name).majors):
            yield pytest.param(name, which, True, marks=pytest.mark.slow if number else ())
            if number:
                yield pytest.param(name, which, False)


@pytest.mark.parametrize(("name", "which", "every"), list(products()))
def test_a_recipe_computes_its_product(name, which, every):
    recipe, module = catalog.find(name), catalog.load(name)
    arch, dtype = recipe.targets[0], compiled.cutlass_dtype(recipe.dtypes[0])
    config = next(iter((compiled.variants(module, arch) or {"": default(module, recipe)}).values()))
    found = product.computed(module, arch, dtype, configured(config, which), every)
    assert [one.faults for one in found] == [()] * len(found) and len(found) >= (3 if every else 1)
    chosen = product.cases(module, configured(config, which))
    for one, case in zip(found, chosen if every else chosen[1:2], strict=True):
        rows = one.problem.m * (grouped.ENDS if recipe.grouped == "k" else 1)
        offs = problems.ends(module, one.problem, case.corner.beyond)
        owners = grouped.owners(rows, offs) if recipe.grouped == "m" else (0,) * rows
        assert one.stores == sum(owner >= 0 for owner in owners) * one.problem.n


@pytest.mark.parametrize(
    "name", [FP8, "hopper/grouped_wgrad_gemm", "hopper/fp8_grouped_gemm", "hopper/fused_epilogue_gemm"]
)
def test_any_two_numbers_of_a_launch_differ_in_some_problem(name):
    """So a size, stride or count in place of another computes something else."""
    recipe, module = catalog.find(name), catalog.load(name)
    config, dtype = default(module, recipe), compiled.cutlass_dtype(recipe.dtypes[0])
    numbers = []
    for case in product.cases(module, config):
        trace = trace_of(module, recipe.targets[0], dtype, case.config, **dict(case.options))
        numbers.append(problems.given(module, trace, case.config, case.problem, case.corner).arguments)
    columns = [column for column in zip(*numbers, strict=True) if all(type(x) is int for x in column)]
    assert len(columns) >= 7 and len(set(columns)) == len(columns)


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_planted_fault_is_told(fault, tmp_path: Path):
    name, variant = fault.mutation.recipe, fault.mutation.variant
    recipe, module = catalog.find(name), mutant(fault.mutation, tmp_path)
    config = module.VARIANTS[variant] if variant else default(module, recipe)
    found = product.computed(module, recipe.targets[0], compiled.cutlass_dtype("bfloat16"), config)
    assert not found[-1].ok and fault.says in found[-1].faults[0]
    assert not product.findings(found)[-1].ok
    check(Caught("product", got(found[-1].faults[0])), name, fault.mutation.what, variant)


def test_what_cannot_be_followed_is_named(monkeypatch):
    """Never passed in silence: the level fails, with the operation and its line."""
    from cookbook.check.product import follower

    monkeypatch.delitem(follower.HANDLERS, "cute.gemm")
    recipe = catalog.find(HOPPER)
    (level,) = levels.product_levels(recipe, "bfloat16", recipe.targets)
    assert level.status == "failed"
    assert level.reason.startswith("the kernel cannot be followed: line ") and "cute.gemm" in level.reason


def test_all_clusters_have_work_whoever_takes_it():
    """A cluster that takes over the work of others: each of C's elements is stored once, by one of them."""
    recipe, module = catalog.find(CLC), catalog.load(CLC)
    config = module.VARIANTS["dynamic"]
    trace = trace_of(module, recipe.targets[0], compiled.cutlass_dtype("bfloat16"), config)
    for sms in (2, 6, 148):
        found = product.compute(module, trace, config, product.Problem(5 * config.tile_m, 24, 24, sms))
        assert found.ok and found.stores == 5 * config.tile_m * 24
