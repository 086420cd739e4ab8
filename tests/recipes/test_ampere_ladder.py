"""The Ampere ladder: what each variant's layouts and code must be, and that a variant is chosen by its name."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from cookbook.check import compiled as compiling
from cookbook.check import layout as layout_check
from cookbook.check import levels
from cookbook.layouts import evaluate
from cookbook.recipe import catalog

cutlass = pytest.importorskip("cutlass")

SMEM, PIPELINED, TUNED = "ampere/smem_gemm", "ampere/pipelined_gemm", "ampere/tuned_gemm"
WITH_VARIANTS = [SMEM, PIPELINED, "ampere/persistent_gemm", TUNED]


def layout_of_a(variant: str):
    module = catalog.load(SMEM)
    return evaluate(module.smem_layouts, cutlass.BFloat16, module.VARIANTS[variant]).a


# --- smem_gemm ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variant", "wavefronts"),
    [  # of the copies into padded rows each takes its own: see test_layout_check
        ("plain", {"g2s": 4, "s2r": 32}),
        ("padded", {"s2r": 4}),
        ("swizzled", {"g2s": 4, "s2r": 4}),
    ],
)
def test_wavefronts_of_each_layout(variant, wavefronts):
    module = catalog.load(SMEM)
    found = layout_check.predicted_wavefronts(module, cutlass.BFloat16, module.VARIANTS[variant])
    assert found == wavefronts | {"r2s": 1, "s2g": 4}


def test_where_row_1_and_stage_1_begin():
    """Rows 128 or 144 bytes apart, or chunk 0 of row 1 in slot 1; a stage is 128 rows."""
    first = {variant: layout_of_a(variant).byte_offsets() for variant in ("plain", "padded", "swizzled")}
    assert {variant: int(at[1, 0, 0]) for variant, at in first.items()} == {
        "plain": 128,
        "padded": 144,
        "swizzled": 144,
    }
    assert {int(at[0, 0, 1]) // 128 for at in first.values()} == {128, 144}
    assert first["swizzled"][1, 8, 0] == 128  # and chunk 1 of row 1 in slot 0


def test_swizzled_rows_are_the_atoms_of_ldmatrix_gemm():
    other = catalog.load("ampere/ldmatrix_gemm")
    config = dataclasses.replace(other.CONFIG, stages=3)
    theirs = evaluate(other.smem_layouts, cutlass.BFloat16, config).a
    assert np.array_equal(layout_of_a("swizzled").byte_offsets(), theirs.byte_offsets())


def test_conflicts_that_are_not_expected_fail(monkeypatch):
    module = catalog.load(SMEM)
    monkeypatch.setattr(module, "expected_excess", lambda config: {})
    for variant, config in module.VARIANTS.items():
        found = layout_check.check_layouts(module, cutlass.BFloat16, config)
        bad = {finding.name for finding in found if not finding.ok}
        assert bad == ({"s2r_a.wavefronts", "s2r_b.wavefronts"} if variant == "plain" else set())


# --- pipelined_gemm --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loads", ["together", "apart", "spread"])
@pytest.mark.parametrize("tile_k", [32, 64, 128])
@pytest.mark.parametrize("counts", [(4, 8), (4, 2), (8, 1), (1, 1), (3, 5)])
def test_every_piece_is_loaded_once_none_in_the_last_k_block(loads, tile_k, counts):
    module = catalog.load(PIPELINED)
    config = module.Config(tile_k=tile_k, loads=loads)
    order = module.order_of_loads(*counts, config)
    assert len(order) == config.k_blocks - 1
    for operand, count in enumerate(counts):
        assert [m for block in order for m in range(*block[operand])] == list(range(count))


def test_orders_of_loads_differ_as_their_names_say():
    module = catalog.load(PIPELINED)
    orders = {
        loads: module.order_of_loads(4, 8, module.Config(loads=loads)) for loads in ("together", "apart", "spread")
    }
    counts = {loads: [sum(end - first for first, end in block) for block in order] for loads, order in orders.items()}
    assert counts == {"together": [12, 0, 0], "apart": [4, 8, 0], "spread": [4, 4, 4]}
    assert orders["apart"][0] == ((0, 4), (0, 0)) and orders["apart"][1] == ((4, 4), (0, 8))


def test_each_step_changes_one_parameter():
    variants = [dataclasses.asdict(config) for config in catalog.load(PIPELINED).VARIANTS.values()]
    for before, after in itertools.pairwise(variants):
        assert len([field for field in before if before[field] != after[field]]) == 1


def test_five_stages_of_half_the_depth_compile_without_spills():
    module = catalog.load(PIPELINED)
    config = module.Config(stages=5, tile_k=32)
    try:
        compiled = compiling.compile_module(module, PIPELINED, "sm_90a", "float16", config)
    except compiling.NoDisassembler as missing:
        pytest.skip(str(missing))
    assert compiled.spills == 0 and compiled.smem_bytes <= compiled.smem_limit


# --- tuned_gemm ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90a", "sm_100a"])
@pytest.mark.parametrize("operand", ["a", "b"])
def test_addresses_made_by_hand_are_those_of_the_layout(arch, operand):
    """As `fetch_fragment` computes them: a k-block flips bits, fragments and stages are added."""
    module = catalog.load(TUNED)
    config = module.config_for(arch, "256x192")
    layout = getattr(evaluate(module.smem_layouts, cutlass.BFloat16, config), operand)
    at, warps = layout.byte_offsets(), config.warps_m if operand == "a" else config.warps_n
    rows, row_bytes, step = at.shape[0], 2 * config.tile_k, 16 * warps
    plain = (np.arange(step) * row_bytes)[:, None] + 2 * np.arange(16)  # of piece 0 and k-block 0, not swizzled
    first = plain ^ ((plain >> 3) & (0x70 if config.tile_k % 64 == 0 else 0x30))
    for stage, k, piece in itertools.product(range(config.stages), range(config.k_blocks), range(rows // step)):
        by_hand = ((first + stage * rows * row_bytes) ^ (32 * k)) + piece * step * row_bytes
        assert np.array_equal(by_hand, at[piece * step : (piece + 1) * step, 16 * k : 16 * k + 16, stage])


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90a", "sm_100a"])
def test_fragments_in_place_are_those_that_the_mma_needs(arch):
    """`multiply_in_place`, followed in numbers: each slot holds the (k-tile, k-block, piece) it is multiplied as."""
    config = catalog.load(TUNED).config_for(arch, "256x192")
    slots, blocks, pieces = config.b_slots, config.k_blocks, config.fragments_n
    held, tile = {j: (0, 0, j) for j in range(slots)}, 0
    for k_tile in range(3):
        for k, j in itertools.product(range(blocks), range(pieces)):
            slot = (k * pieces + j) % slots
            assert held[slot] == (k_tile, k, j)
            if k == blocks - 1 and j == pieces - slots:
                tile += 1
            further, later = divmod(j + slots, pieces)
            held[slot] = (tile, (k + further) % blocks, later)


def test_the_larger_tile_takes_fewer_wavefronts_but_is_coarser():
    module = catalog.load(TUNED)
    small, large = module.VARIANTS.values()
    assert module.through_smem(small) == pytest.approx(2 / 64 + 1 / 128 + 1 / 256)
    assert module.through_smem(large) == pytest.approx(1 / 64 + 1 / 96 + 1 / 256 + 1 / 192)
    assert [module.waves(c, 4096, 4096, 132) for c in (small, large)] == [4, 3]  # of tiles half as large again
    assert [module.waves(c, 8192, 8192, 132) for c in (small, large)] == [16, 11]
    assert module.waves(small, 128 * 132, 256, 132) == 1 and module.waves(small, 128 * 132 + 1, 256, 132) == 2
    assert module.choose(4096, 4096, 4096, 132) == "128x256" and module.choose(8192, 8192, 8192, 132) == "256x192"


def test_auto_is_the_variant_that_costs_least():
    module = catalog.load(TUNED)
    for shape in itertools.product((1, 300, 4096, 9000), (8, 2000, 8192), (8, 520, 4096)):
        costs = {name: module.cost(config, *shape, sms=108) for name, config in module.VARIANTS.items()}
        assert costs[module.choose(*shape, sms=108)] == min(costs.values()) > 0


# --- what all recipes with variants share -----------------------------------------------------------------------


@pytest.mark.parametrize("name", WITH_VARIANTS)
def test_every_target_has_every_variant_and_no_two_are_equal(name):
    module, recipe = catalog.load(name), catalog.find(name)
    assert module.CONFIG in module.VARIANTS.values()
    for target in recipe.targets:
        found = compiling.variants(module, target)
        assert list(found) == list(module.VARIANTS) and len(set(found.values())) == len(found)
        assert all(config.smem_bytes <= compiling.smem_limit(target) for config in found.values())
        assert module.config_for(target) in found.values()


LEVELS = {
    "layout": lambda recipe: levels.layout_levels(recipe, "float16", ("sm_90a",)),
    "model": lambda recipe: levels.model_levels(recipe, "float16", (40, 56, 72), ("sm_90a",)),
    "compiled": lambda recipe: levels.compiled_levels(recipe, "sm_90a", "float16"),
}


@pytest.mark.parametrize("level", ["layout", "model", pytest.param("compiled", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", WITH_VARIANTS)
def test_a_check_covers_every_variant(name, level):
    found = LEVELS[level](catalog.find(name))
    assert [each.variant for each in found] == list(catalog.load(name).VARIANTS)
    assert all(each.status in (levels.PASSED, levels.NOT_CHECKED) for each in found), found


@pytest.mark.parametrize("name", WITH_VARIANTS)
def test_an_unknown_variant_is_named(name):
    import torch

    a = torch.zeros(8, 8, dtype=torch.float16)
    with pytest.raises(ValueError, match="variant: got 'none such'; needed one of "):
        catalog.load(name).matmul(a, a.T, variant="none such")


@pytest.mark.parametrize(("name", "variant"), [("ampere/tuned_gemm", "256x192"), ("blackwell/geforce_gemm", "wide")])
def test_slots_that_do_not_divide_the_fragments_are_refused(name, variant):
    known = catalog.load(name).VARIANTS
    config = next(each for key, each in known.items() if key.startswith(variant))
    with pytest.raises(ValueError, match="b_slots: got 3; needed a divisor of 16, the fragments of a k-tile, "):
        dataclasses.replace(config, tile_m=128, tile_n=128, warps_m=2, warps_n=2, b_slots=3)
    with pytest.raises(ValueError, match=r"b_slots: got 8; needed .*, and at most 4"):
        dataclasses.replace(config, tile_m=128, tile_n=128, warps_m=2, warps_n=2, b_slots=8)
