"""foundations/matrix_transpose: every access by the bank model, every element by the model, every kernel compiled."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import cutlass
import numpy as np
import pytest
import torch
from edits import In

from cookbook import banks
from cookbook.check import compiled, moves
from cookbook.check import counted as counting
from cookbook.check import levels as checking
from cookbook.check.model import transpose as simulated_transpose
from cookbook.layouts import Layout, SmemLayout
from cookbook.products import transpose
from cookbook.recipe import catalog, entry
from cookbook.solve.design import column_swizzle
from cookbook.swizzle import Swizzle

NAME = "foundations/matrix_transpose"
RECIPE = catalog.find(NAME)
DTYPES = {"float32": cutlass.Float32, "bfloat16": cutlass.BFloat16}
VARIANTS = ("naive", "padded", "swizzled", "vectorised", "tma")


@pytest.fixture(scope="module")
def module():
    return catalog.load(NAME)


def config_of(module, variant: str, dtype: str = "float32"):
    return module.configs_for("sm_90a", DTYPES[dtype])[variant]


def predicted(module, config, dtype: str = "float32") -> dict[str, int]:
    return moves.predicted_wavefronts(module, DTYPES[dtype], config)


# --- wavefronts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_move_takes_the_wavefronts_that_the_text_says(module, variant, dtype):
    column = {"naive": {"float32": 32, "bfloat16": 16}[dtype]}.get(variant, 1)
    scalar = {"r2s_x": 1, "s2g_x": column}
    wanted = {"vectorised": {"r2s_y": 4, "s2g_y": 4}, "tma": {"s2r_x": 4, "r2s_y": 4}}.get(variant, scalar)
    assert predicted(module, config_of(module, variant, dtype), dtype) == wanted


def test_a_column_of_32x32_floats_is_32_way(module):
    config = config_of(module, "naive")
    layout = moves.layouts(module, cutlass.Float32, config)["x"]
    assert (config.tile_m, config.tile_n) == (32, 32)
    for one in moves.accesses(layout, module.moves(config)["s2g_x"], config.threads):
        assert sorted(set(np.diff(one.addresses))) == [128] and banks.wavefronts(one.addresses, 4).actual == 32


def test_padding_by_one_word(module):
    config = config_of(module, "padded")
    layout = moves.layouts(module, cutlass.Float32, config)["x"]
    column = moves.accesses(layout, module.moves(config)["s2g_x"], config.threads)[0].addresses // 4
    assert column.tolist() == [33 * row for row in range(32)] and column[-1] == 1023
    assert (column % 32).tolist() == list(range(32))
    assert config.smem_bytes == 32 * 33 * 4  # what it costs: 128 bytes, and TMA cannot write it


@pytest.mark.parametrize(("pitch", "worst"), [(32, 16), (33, 2), (34, 1)])
def test_16_bit_elements_want_a_gap_of_a_word_not_of_an_element(module, pitch, worst):
    columns = SmemLayout(Layout((32, 32), (pitch, 1)), Swizzle(0, 4, 3), 16).byte_offsets().T
    assert max(banks.wavefronts(column, 2).actual for column in columns) == worst
    assert config_of(module, "padded", "bfloat16").padding + 32 == 34


@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.parametrize("row", [32, 64, 128, 256])
def test_the_closed_form_of_the_recipe_is_the_librarys(module, row, bits):
    assert Swizzle(*module.column_swizzle(row, bits)) == column_swizzle(row, bits, 1).in_bytes(bits)


def test_the_swizzles_that_the_text_names(module):
    assert module.column_swizzle(32, 32) == (5, 2, 5) and module.column_swizzle(64, 16) == (5, 2, 5)
    assert Swizzle(5, 2, 5).in_elements(32) == Swizzle(5, 0, 5)
    assert Swizzle(5, 2, 5).in_elements(16) == Swizzle(5, 1, 5)


@pytest.mark.parametrize("variant", ["vectorised", "tma"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tile", [(64, 64), (64, 128), (128, 64), (128, 128), (64, 256), (256, 64)])
def test_every_shape_of_tile_is_free_of_conflicts_and_right(module, variant, dtype, tile):
    config = replace(config_of(module, variant, dtype), tile_m=tile[0], tile_n=tile[1], threads=64)
    assert [f for f in transpose.check_layouts(module, DTYPES[dtype], config) if not f.ok] == []
    assert transpose.simulated_mismatches(module, (136, 264), DTYPES[dtype], config) == 0


@pytest.mark.parametrize(("dtype", "wavefronts"), [("float32", 16), ("bfloat16", 32)])
def test_lanes_side_by_side_load_freely_store_into_few_slots(module, dtype, wavefronts):
    """Two block shapes must be free at once; under the swizzle that TMA gives, only a diagonal of lanes is."""
    config, lane = config_of(module, "tma", dtype), np.arange(32)
    layout, v = moves.layouts(module, DTYPES[dtype], config), config.vector
    x, y = layout["x"].byte_offsets(), layout["y"].byte_offsets()
    across, down = lane % 8, lane // 8
    assert banks.wavefronts(x[v * down, v * across], 16).actual == 4
    assert banks.wavefronts(y[v * across, v * down], 16).actual == wavefronts
    diagonal = across ^ down  # (it would be free without the swizzle too: eight columns are eight slots)
    assert banks.wavefronts(x[v * diagonal, v * across], 16).actual == 4
    assert banks.wavefronts(y[v * across, v * diagonal], 16).actual == 4
    plain = replace(layout["y"], swizzle=Swizzle(0, 4, 3)).byte_offsets()
    assert banks.wavefronts(plain[v * across, v * diagonal], 16).actual == 4


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_tensor_cores_swizzle_does_not_serve_vectorised(module, dtype):
    """Its own swizzle takes the row's number divided by a vector; SW128 takes the number itself."""
    config = config_of(module, "vectorised", dtype)
    layout, store = moves.layouts(module, DTYPES[dtype], config)["y"], module.moves(config)["r2s_y"]
    sw128 = replace(layout, swizzle=Swizzle(3, 4, 3))
    assert min(actual for actual, _ in moves.move_wavefronts(sw128, store, config.threads)) > 4


# --- the model --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("shape", [(160, 224), (8, 8), (264, 72)])
def test_every_element_arrives(module, shape, variant, dtype):
    assert transpose.simulated_mismatches(module, shape, DTYPES[dtype], config_of(module, variant, dtype)) == 0


@pytest.mark.parametrize("variant", ["naive", "padded", "swizzled"])
@pytest.mark.parametrize("shape", [(1, 1), (1, 50), (50, 1), (33, 31), (65, 97)])
def test_odd_shapes_arrive_an_element_at_a_time(module, shape, variant):
    assert transpose.simulated_mismatches(module, shape, cutlass.BFloat16, config_of(module, variant, "bfloat16")) == 0


@pytest.mark.parametrize("variant", ["swizzled", "vectorised", "tma"])
def test_a_swizzle_on_one_side_only_is_another_matrix(module, variant):
    config = config_of(module, variant)
    right = moves.layouts(module, cutlass.Float32, config)
    first = next(iter(right))  # of tma: x's tile, which TMA writes and threads read
    plain = right | {first: replace(right[first], swizzle=Swizzle(0, 4, 3))}
    x = transpose.random_bits((64, 64), 32)
    simulated = simulated_transpose.simulate_layouts(right, plain, module.moves(config), x, config)
    assert (simulated != x.T).mean() > 0.5


@pytest.mark.parametrize("variant", ["swizzled", "vectorised"])
def test_threads_exchange_what_they_hold(module, variant):
    """Whence the barrier: a thread that loads what it stored itself needs none, and transposes nothing."""
    config = config_of(module, variant)
    (layout,) = moves.layouts(module, cutlass.Float32, config).values()
    stored, loaded = (moves.addresses(layout, m, config.threads) for m in module.moves(config).values())
    assert (stored != loaded).mean() > 0.9


@pytest.mark.parametrize(
    "edit",
    [
        In("smem_layouts").replace("_c.variant == 'swizzled'", "_c.variant == 'nothing'"),
        In("column_swizzle").replace("_base + log2(_size)", "_base"),
        In("block_swizzle").replace("log2(_pitch) + log2(_vector)", "log2(_pitch)"),
        In("smem_layouts").replace("(3, 4, 3)", "(3, 3, 3)"),
        In("block_of").replace("_p ^ _k", "_k"),
        In("moves").replace(
            "_i, _j = block_of(...)\nreturn _v * _j + _step % _v, _v * _i",
            "_i, _j = block_of(...)\nreturn _v * _j + _step % 2, _v * _i",
        ),
    ],
    ids=["no swizzle", "elements as bytes", "rows not divided", "bytes as elements", "no diagonal", "rows"],
)
def test_a_planted_fault_is_caught_with_no_gpu(tmp_path: Path, edit: In):
    file = tmp_path / f"{NAME}.py"
    file.parent.mkdir()
    file.write_text(edit.of(RECIPE.file.read_text(encoding="utf-8")), encoding="utf-8")
    mutant = catalog.load(NAME, tmp_path)
    bad = []
    for dtype in DTYPES.values():
        for config in mutant.configs_for("sm_90a", dtype).values():
            bad += [finding for finding in transpose.check_layouts(mutant, dtype, config) if not finding.ok]
    assert bad


# --- the harness ------------------------------------------------------------------------------------------------


QUICK = set(zip(RECIPE.targets, RECIPE.dtypes, strict=False))  # each dtype, for a target of its own
COMPILED = [
    pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow)
    for case in itertools.product(RECIPE.targets, RECIPE.dtypes)
]


@pytest.mark.parametrize(("target", "dtype"), COMPILED)
def test_every_variant_compiles_without_spills(target, dtype):
    levels = checking.compiled_levels(RECIPE, target, dtype)
    assert [(level.variant, level.reason) for level in levels if level.status != "passed"] == []
    assert all(level.figures["spills"] == 0 for level in levels)
    assert [level.variant for level in levels] == list(VARIANTS if target != "sm_80" else VARIANTS[:4])


def test_a_transpose_in_registers_permutes_16_bits_only(module):
    counts = {d: compiled.compile_recipe(NAME, "sm_90a", d, config=config_of(module, "tma", d)) for d in DTYPES}
    assert counts["bfloat16"].count("PRMT") == 32 and counts["float32"].count("PRMT") == 0  # an 8x8 block: 32 registers


def counted(config_wavefronts: dict[str, int]) -> list[counting.Line]:
    return [counting.Line(opcode, 10, 10 * each, 10 * each) for opcode, each in config_wavefronts.items()]


def test_counted_wavefronts_are_held_against_each_variants_own(module):
    wide, scalar = {"STS.128": 4, "LDS.128": 4}, {"STS": 1, "LDS": 1}
    kernels = [counted(x) for x in ({"STS": 1, "LDS": 32}, scalar, scalar, wide, wide)]
    figures, problems = transpose.compare(module, cutlass.Float32, "sm_90", kernels)
    assert problems == [] and figures["naive LDS"]["predicted_each"] == 32 and len(figures) == 10
    kernels[1] = counted({"STS": 1, "LDS": 2})
    assert transpose.compare(module, cutlass.Float32, "sm_90", kernels)[1] == [
        "padded: LDS: 2.00 wavefronts each, predicted 1"
    ]
    assert "4 kernels were counted" in transpose.compare(module, cutlass.Float32, "sm_90", kernels[:4])[1][0]


def test_check_goes_through_every_level_of_every_variant():
    report = checking.check(NAME, dtypes=["float32"], targets=["sm_90a"], shapes=[(40, 72)])
    assert report.ok
    for name in ("layout", "model", "compiled"):
        levels = [level for level in report.levels if level.level == name]
        assert [(level.variant, level.status) for level in levels] == [(variant, "passed") for variant in VARIANTS]


def test_a_shape_that_a_variant_refuses_is_named():
    levels = checking.model_levels(RECIPE, "float32", (33, 31), ("sm_90a",))
    found = {level.variant: (level.status, level.reason) for level in levels}
    assert found["swizzled"] == ("passed", "")
    assert found["vectorised"][0] == found["tma"][0] == "not checked" and "16 bytes" in found["tma"][1]


# --- the entry point --------------------------------------------------------------------------------------------


def refuse(module, error, *parts, **kwargs):
    with pytest.raises((TypeError, ValueError)) as raised:
        module.transpose(**kwargs)
    assert type(raised.value) is error and all(part in str(raised.value) for part in parts), raised.value


def test_bad_input_is_named_before_anything_is_launched(module):
    x = torch.randn(16, 24)
    refuse(module, TypeError, "x: got list", "torch.Tensor", x=[[1.0]])
    refuse(module, TypeError, "x: got torch.int32", "torch.bfloat16", x=x.int())
    refuse(module, ValueError, "x: got 3 dimension(s)", "2", x=x[None])
    refuse(module, ValueError, "x: got shape (0, 24)", "empty", x=x[:0])
    refuse(module, ValueError, "sides of at most 2147482624", x=torch.empty(2**31 - 1, 1, device="meta"))
    refuse(module, ValueError, "x: got stride 24 along its rows", "1", x=x.t())
    refuse(module, ValueError, "x: got rows 0 elements apart", "24", x=x[:1].expand(4, 24))
    refuse(module, ValueError, "x: got requires_grad", "no_grad", x=x.clone().requires_grad_())
    refuse(module, ValueError, "variant: got 'fast'", "vectorised", x=x, variant="fast")
    refuse(module, ValueError, "out: got shape (16, 24)", "(24, 16)", x=x, out=x.clone())
    refuse(module, TypeError, "out: got torch.float16", "torch.float32", x=x, out=x.half().t().contiguous())
    refuse(module, ValueError, "out: got memory that overlaps x", x=x, out=x.view(24, 16))
    refuse(module, ValueError, "out: got stride 24", x=x, out=x.clone().t())
    refuse(module, ValueError, "x: got device cpu", "CUDA", x=x)


def test_what_is_legal_gets_as_far_as_the_device(module):
    wide = torch.randn(40, 50)
    for x in (wide[:, :33], wide[::2], wide[:1], wide[:, :1], wide[3:4, 5:6]):
        out = torch.empty(x.shape[1], x.shape[0] + 3)[:, : x.shape[0]]
        refuse(module, ValueError, "x: got device cpu", x=x, out=out)


def test_which_variants_can_take_what(module):
    def able(m, n, x_gap=0, out_gap=0, capability=(9, 0), dtype=torch.bfloat16):
        x = torch.empty(m, n + x_gap, dtype=dtype)[:, :n]
        reasons = module.usable(x, torch.empty(n, m + out_gap, dtype=dtype)[:, :m], capability)
        return [name for name, reason in reasons.items() if not reason]

    assert able(64, 128) == ["vectorised", "tma", "padded", "swizzled", "naive"]
    assert able(64, 128, capability=(8, 9)) == ["vectorised", "padded", "swizzled", "naive"]
    assert able(64, 60, x_gap=4) == ["tma", "padded", "swizzled", "naive"]  # rows of x end inside 16 bytes
    assert able(60, 128, out_gap=4) == ["padded", "swizzled", "naive"]  # and rows of out, which TMA would write past
    assert able(60, 128) == able(64, 128, x_gap=1) == ["padded", "swizzled", "naive"]
    assert able(60, 128, dtype=torch.float32)[:2] == ["vectorised", "tma"]
    assert able(1, 8) == ["padded", "swizzled", "naive"]  # out's rows are 2 bytes apart


def test_overlap_agrees_with_counting_bytes():
    buffer, generator = torch.zeros(400), torch.Generator().manual_seed(0)

    def integer(low, high):
        return int(torch.randint(low, high, (1,), generator=generator))

    def view(row):
        return buffer.as_strided((integer(2, 6), integer(1, 6)), (row, 1), integer(0, 120))

    for _ in range(300):
        row = integer(6, 12)
        x, y = view(row), view(row)
        buffer.zero_()
        x += 1
        share = pytest.raises(ValueError, match="memory that overlaps y") if (y != 0).any() else nullcontext()
        with share:
            entry.check_apart(x, y=y)


# --- what a GPU has to tell, as far as the machine code shows it ----------------------------------------------------


def order_of(sass: str, *mnemonics: str) -> list[str]:
    """Which of these instructions stand in the code, in their order."""
    words = (line.split("*/", 1)[-1].split() for line in sass.splitlines() if "/*" in line)
    found = (next((word for word in line if not word.startswith("@")), "") for line in words)
    return [name for name in found if name.startswith(mnemonics)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_tma_barrier_is_used_after_all_threads_know_it(module, dtype):
    """Made, told, used: arrived at, loaded for, waited on. And y's tile is told to TMA's proxy before it is stored."""
    sass = compiled.compile_recipe(NAME, "sm_90a", dtype, config=config_of(module, "tma", dtype)).sass
    short = [
        name.split(".")[0] + "." + name.split(".")[1]
        for name in order_of(sass, "SYNCS", "BAR", "UTMA", "FENCE")[1:]
        if name != "UTMACMDFLUSH"
    ]
    once = [name for name, before in zip(short, [None, *short], strict=False) if name != before]
    assert once == [
        *("SYNCS.EXCH", "BAR.SYNC", "SYNCS.ARRIVE", "UTMALDG.2D", "SYNCS.PHASECHK"),
        *("FENCE.VIEW", "BAR.SYNC", "UTMASTG.2D"),
    ]


def test_other_order_of_tiles_is_another_kernel_and_no_variant(module):
    (name, other), ours = *module.beside("sm_90a", cutlass.Float32).items(), config_of(module, "vectorised")
    assert name not in module.VARIANTS and other == replace(ours, by_rows=True) != ours
    by_columns, by_rows = compiled.compile_modules(catalog.load(NAME), NAME, "sm_90a", "float32", (ours, other))
    assert by_rows.sass != by_columns.sass and by_rows.spills == 0
    for needed in module.INSTRUCTIONS["vectorised"]:
        assert by_rows.count(needed) == by_columns.count(needed)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_variants_are_tried_in_the_order_of_their_records(module, dtype):
    from cookbook.measure import records

    timed = [r for r in records.select(NAME, "timed", dtype) if set(module.VARIANTS) <= set(r["peers"])]
    assert timed
    for record in timed:
        by_time = sorted(module.VARIANTS, key=lambda name: record["peers"][name]["median_ms"])
        assert tuple(by_time) == module.FASTEST_FIRST
