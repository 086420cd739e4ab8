"""hopper/gemv: what is its own; what every recipe must hold, tests/recipes/test_recipes.py and others ask."""

from __future__ import annotations

import pytest
from edits import In
from marks import first_of_each
from mutations import Mutation, mutant

from cookbook.check import compiled, pipeline, product
from cookbook.measure import ceilings
from cookbook.recipe import catalog

NAME = "hopper/gemv"
MODULE = catalog.load(NAME)
FAULTS = {  # what is wrong: the edit, what level product says
    "lanes are not added up": (
        In("over_lanes").replace("cute.arch.warp_reduction_sum(_acc[_m, _r])", "_acc[_m, _r]"),
        "C[0, 0]: got a sum with A[0, 8] B[0, 8] not at all",
    ),
    "the last step reads behind K": (
        In("load").replace("_vector < _mX.shape[1]", "True"),
        "B: got a read of row 0, column 12312; needed one inside: B is 29 x 12312",
    ),
    "what no load fills keeps the step before": (
        In("load").drop("_rX[None, _u, _r].fill(0.0)"),
        "C[0, 0]: got a sum with A[0, ",
    ),
    "rows behind the weight are read": (
        In("load").replace("cutlass.min(_rows + _r, _mX.shape[2] - 1)", "_rows + _r"),
        "B: got a read of row 29, column 0",
    ),
    "vectors of a thread are another one's, too": (
        In("load").replace("_config.threads", "128"),
        "C[0, 0]: got a sum with A[0, 1024] B[0, 1024] 2 times",
    ),
    "every row of A is the first": (
        In("kernel")
        .where("_m0, _ = _ // _ * _.tile_m, _")
        .replace("load(_, _, _, _m0, ...)", "load(_, _, _, 0, ...)", times=2),
        " in it; needed A[1, k]",
    ),
    "sums go to the wrong row": (
        In("over_lanes").replace("_m * _acc.shape[1] + _r", "_m * _acc.shape[1] + (_r ^ 1)"),
        " in it; needed B[0, k]",
    ),
}


@pytest.mark.parametrize("what", first_of_each(FAULTS, lambda what: "got a read" in FAULTS[what][1]))
def test_a_planted_fault_is_told(what, tmp_path):
    edit, says = FAULTS[what]
    module = mutant(Mutation(NAME, what, edit), tmp_path)
    found = product.computed(pipeline.Run(module, "sm_90a", compiled.cutlass_dtype("bfloat16"), module.CONFIG))
    assert not found[-1].ok and says in found[-1].faults[0]


@pytest.mark.parametrize("variant", MODULE.VARIANTS)
@pytest.mark.parametrize("dtype", catalog.find(NAME).dtypes)
def test_the_loop_is_loads_and_fmas(variant, dtype):
    """An FMA for each product: none is a multiplication and an addition. No barrier, nothing in shared memory."""
    config = MODULE.VARIANTS[variant]
    made = compiled.compile_recipe(NAME, "sm_90a", dtype, config=config)
    (loop,) = [each for each in ceilings.loops(made.sass) if each["LDG.E.128"]]
    of_b, of_a = (rows * config.vectors for rows in (config.tile_n, config.tile_m))
    assert (loop["LDG.E.NA.128"], loop["LDG.E.128"]) == (of_b, of_a) and loop["FFMA"] == 8 * of_b * config.tile_m
    if dtype == "bfloat16":  # float16 takes fewer to become float32
        assert sum(loop.values()) == pytest.approx(MODULE.instructions(config) * of_b, rel=0.1)
    assert not any(name.startswith(("FMUL", "FADD", "LDS", "STS", "BAR")) for name in loop)
    assert made.registers * config.threads * config.per_sm <= 65536


def test_the_smallest_variant_with_room_for_all_rows_is_chosen():
    sizes = {m: MODULE.VARIANTS[MODULE.choose(m, 8192, 8192, 132)].tile_m for m in (1, 2, 3, 4, 5, 8, 9, 4096)}
    assert sizes == {1: 1, 2: 2, 3: 4, 4: 4, 5: 8, 8: 8, 9: 8, 4096: 8}


def test_rows_are_free_while_memory_is_the_longest():
    split_k = catalog.load("hopper/split_k_gemm")
    us = {}
    for config in MODULE.VARIANTS.values():
        shape = (config.tile_m, 8192, 8192, 132)
        other = split_k.cost(split_k.VARIANTS[split_k.choose(*shape)], *shape) / 1000
        us[config.tile_m] = MODULE.microseconds(config, *shape), other
    assert us[2][0] < 1.05 * us[1][0] and us[4][0] > 1.2 * us[1][0] and us[8][0] > 1.8 * us[1][0]
    assert all((ours < other) == (rows < 4) for rows, (ours, other) in us.items())
