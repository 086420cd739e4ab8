"""Block-scaled GEMMs simulated in numpy, their scale factors followed, and faults that must be caught."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

cutlass = pytest.importorskip("cutlass")
torch = pytest.importorskip("torch")

import cutlass.utils.blockscaled_layout as blockscaled  # noqa: E402
from edits import In  # noqa: E402
from marks import first_of_each  # noqa: E402
from mutations import Mutation  # noqa: E402
from planted import Suite, caught, check_caught, exact, operands  # noqa: E402

from cookbook.check import compiled as compiling  # noqa: E402
from cookbook.check import ran, scaled, tensor_memory  # noqa: E402
from cookbook.check.evaluated import evaluated  # noqa: E402
from cookbook.check.layout import check_layouts  # noqa: E402
from cookbook.check.model.scaled import scale_path, simulate_scaled, simulate_scaled_evaluated  # noqa: E402
from cookbook.layouts import Layout, evaluate  # noqa: E402
from cookbook.model.scale_factors import to_atoms  # noqa: E402
from cookbook.recipe import catalog, formats  # noqa: E402

MXFP8, NVFP4 = "blackwell/mxfp8_gemm", "blackwell/nvfp4_gemm"
RECIPES = [r.name for r in catalog.recipes() if r.operands and formats.FORMATS[r.operands].by_mma]
BF16 = cutlass.BFloat16
CASES = [(name, variant) for name in RECIPES for variant in catalog.load(name).VARIANTS]


def looked_at(name, variant=None, **changes):
    module = catalog.load(name)
    config = dataclasses.replace(module.VARIANTS[variant] if variant else module.CONFIG, **changes)
    return module, config, evaluated(module, BF16, config)


def failures(findings):
    return {f.name for f in findings if not f.ok}


@pytest.mark.parametrize("shape", [(128, 256, 128), (200, 333, 64), (72, 40, 160), (136, 264, 1312), (1, 1, 32)])
@pytest.mark.parametrize(("name", "variant"), CASES)
def test_equals_torch_on_exact_numbers(name, variant, shape):
    """Whole and ragged tiles, atoms that are not full, one k-tile and more than stages, one tile and several."""
    module, config, _ = looked_at(name, variant)
    a, b = operands(name, *shape)
    assert np.array_equal(simulate_scaled(module, a, b, BF16, config), exact(a, b))


@pytest.mark.parametrize("name", RECIPES)
def test_normal_numbers_to_rounding(name):
    module, config, _ = looked_at(name)
    random, form = np.random.default_rng(3), catalog.find(name).operands
    a, b = (scaled.quantized(random.standard_normal((rows, 320)), form) for rows in (150, 300))
    got = simulate_scaled(module, a, b, BF16, config)
    reference = torch.from_numpy(a.values()).double() @ torch.from_numpy(b.values()).double().T
    assert ran.relative_error(torch.from_numpy(got), reference) <= ran.tolerance("bfloat16")


@pytest.mark.parametrize(
    "changes",
    [{"tile_n": 128}, {"stages": 2}, {"epi_n": 16}, {"epi_n": 64, "epi_stages": 1, "stages": 3},
     {"tile_n": 128, "acc_stages": 3, "stages": 3}],
)  # fmt: skip
@pytest.mark.parametrize("name", RECIPES)
def test_other_configurations(name, changes):
    module, config, _ = looked_at(name, **changes)
    assert not failures(check_layouts(module, BF16, config))
    a, b = operands(name, 140, 150, 288)
    assert np.array_equal(simulate_scaled(module, a, b, BF16, config), exact(a, b))


def test_a_deeper_k_tile_has_more_atoms():
    """Two rows of the swizzle's width along K, and twice as many atoms."""
    module, config, found = looked_at(MXFP8, tile_k=256, stages=2, tile_n=128)
    assert not failures(check_layouts(module, BF16, config))
    assert found.smem["sfa"].outer.sizes[1] == 8
    a, b = operands(MXFP8, 128, 128, 288)
    assert np.array_equal(simulate_scaled(module, a, b, BF16, config), exact(a, b))


def test_a_box_that_is_too_wide_for_tma_is_a_finding():
    module, config, _ = looked_at(NVFP4, tile_k=512, stages=2, tile_n=128)
    assert {"sfa.path", "sfb.path"} <= failures(check_layouts(module, BF16, config))


# --- against CuTe and the compiler ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "variant"), CASES)
def test_the_layouts_are_cutes(name, variant):
    """CuTe's helpers for scale factors in shared and in tensor memory, of one stage, byte by byte."""
    module, config, found = looked_at(name, variant)
    tiler = (config.tile_m, config.tile_n, config.tile_k)

    def cutes():
        mma, made = module.tiled_mma(cutlass.BFloat16, config), []
        for which in "ab":
            smem = getattr(blockscaled, f"make_smem_layout_sf{which}")(mma, tiler, module.BLOCK, config.stages)
            stage = cutlass.cute.slice_(smem, (None, None, None, 0))
            made.append((smem, getattr(blockscaled, f"make_tmem_layout_sf{which}")(mma, tiler, module.BLOCK, stage)))
        return made

    each = found.mma.shape_mnk[2] // module.BLOCK
    for which, rows, (smem, tmem) in zip("ab", tiler[:2], evaluate(cutes, arch="sm_100a"), strict=True):
        # ((rows, K of one instruction), 1, MMA_K, STAGE) -> bytes by (row, factor, stage)
        depth = found.mma.shape_mnk[2]
        table = smem.table()[:, 0].reshape(depth, rows, -1, config.stages)[:: module.BLOCK]
        by_factor = table.transpose(1, 2, 0, 3).reshape(rows, -1, config.stages)
        assert np.array_equal(found.smem[f"sf{which}"].byte_offsets(), by_factor)
        first = tmem.table()[0, 0]  # of each instruction
        assert np.array_equal(scale_path(found, found, which).steps[:, 0], first)
        assert len(first) == config.tile_k // module.BLOCK // each


ON_CHIPS = [(*case, arch) for case in CASES for arch in catalog.find(case[0]).targets]


@pytest.mark.parametrize(("name", "variant", "arch"), first_of_each(ON_CHIPS, lambda case: case[:2]))
def test_every_field_equals_the_compilers(name, variant, arch):
    _, config, found = looked_at(name, variant)
    built = compiling.compile_recipe(name, arch, "bfloat16", config=config)
    findings = tensor_memory.compiled_findings(found, built, "bfloat16")
    wanted = {"idesc.bits", "tmem.bits", "descriptors.bits", "scales.columns", "UTCCP.count", "LDTM.count"}
    assert {f.name for f in findings} >= wanted
    assert not failures(findings) and built.spills == 0


@pytest.fixture(scope="module")
def compiled():
    return compiling.compile_recipe(MXFP8, "sm_100a", "bfloat16")


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        ({"scaled": formats.FORMATS["nvfp4"]}, "idesc.bits"),
        ({"scaled": formats.FORMATS["mxfp8"]._replace(element="e5m2")}, "idesc.bits"),
        ({"scaled": formats.FORMATS["mxfp8"]._replace(sass="UTCOMMA")}, "UTCOMMA.count"),
        ({"scale_columns": (256, 280)}, "scales.columns"),
        ({"scale_columns": (260, 272)}, "scales.columns"),
    ],
)
def test_words_that_differ_are_findings(compiled, change, finding):
    _, _, found = looked_at(MXFP8)
    assert not failures(tensor_memory.compiled_findings(found, compiled, "bfloat16"))
    assert finding in failures(tensor_memory.compiled_findings(dataclasses.replace(found, **change), compiled, "x"))


def test_no_copy_of_atoms_is_a_finding(compiled):
    _, _, found = looked_at(MXFP8)
    fewer = dataclasses.replace(
        compiled, sass_counts={x: n for x, n in compiled.sass_counts.items() if "UTCCP" not in x}
    )
    assert failures(tensor_memory.compiled_findings(found, fewer, "bfloat16")) == {"UTCCP.count"}


# --- planted faults -------------------------------------------------------------------------------------------------

FAULTS = [
    (
        "rows of an atom in order",
        In("scale_layout").replace("(16, 4, _wide * ATOM_BYTES)", "(4, 128, _wide * ATOM_BYTES)"),
    ),
    (
        "atoms down before atoms along K",
        In("scale_layout").replace(
            "((16, 4, _wide * ATOM_BYTES), (1, ATOM_BYTES), _high * _wide * ATOM_BYTES)",
            "((16, 4, ATOM_BYTES), (1, _high * ATOM_BYTES), _high * _wide * ATOM_BYTES)",
        ),
    ),
    (
        "a box of the next stage",
        In("scale_views").replace(
            "(_wide * _words, 1, _high * _wide * _words)", "(_wide * _words, 1, _high * _wide * _words + 64)"
        ),
    ),
    ("the second atom over the first", In("scale_views").replace("(_, 4 * _column, _, _)", "(_, 0, _, _)")),
    ("a column to an atom", In("scale_views").replace("(_, 4 * _column, _, _)", "(_, _column, _, _)")),
    (
        "atoms along K first",
        In("scale_views").replace(
            "(((_lane, 32 * _lane), 1), 4 * _column, 4 * _high * _column, 4 * _high * _wide * _column)",
            "(((_lane, 32 * _lane), 1), 4 * _wide * _column, 4 * _column, 4 * _high * _wide * _column)",
        ),
    ),
    ("another stage's factors", In("scale_views").replace("_in_tmem[3]", "0")),
    ("one set of columns, read apart", In("scale_views").replace("4 * _high * _wide * _column", "0")),
    (
        "to_atoms puts the 4 before the 32",
        In("to_atoms").replace(
            "_whole.view(_high, 4, 32, _wide, ATOM_FACTORS).permute(0, 3, 2, 1, 4)",
            "_whole.view(_high, 4, 32, _wide, ATOM_FACTORS).permute(0, 3, 1, 2, 4)",
        ),
    ),
    (
        "to_atoms puts rows first",
        In("to_atoms").replace(
            "_whole.view(_high, 4, 32, _wide, ATOM_FACTORS).permute(0, 3, 2, 1, 4)",
            "_whole.view(_high, 4, 32, _wide, ATOM_FACTORS).permute(3, 0, 2, 1, 4)",
        ),
    ),
]


def of_columns(config: str) -> list[tuple[str, In]]:
    """Faults in the columns of tensor memory; `config` is the class that counts them."""
    return [
        (
            "factors over the sums",
            In(f"{config}.sfa_column").replace("self.acc_stages * self.tile_n", "self.acc_stages * self.tile_n - 4"),
        ),
        ("B's factors over A's", In(f"{config}.sfb_column").replace("self.stages * self.atoms_k", "self.atoms_k")),
        (
            "half of tensor memory",
            In(f"{config}.tmem_columns").replace("(_used - 1).bit_length()", "(_used - 1).bit_length() - 1"),
        ),
    ]


OF_MXFP8 = [
    ("every step reads byte 0", In("scale_views").replace("(_config.factors, _in_tmem[2])", "(0, _in_tmem[2])")),
    ("the steps' bytes are cells", In("scale_views").replace("(_config.factors, _in_tmem[2])", "(4, _in_tmem[2])")),
    ("scale factors of 16 elements", In("Config.block").replace("32", "16")),
    ("as many rows of factors as B has", In("operands").replace("_config.tile_m", "_config.tile_n")),
    *of_columns("Config"),
]
OF_NVFP4 = [
    ("every step reads the first cells", In("scale_views").replace("_in_tmem[2]", "0")),
    ("A's steps for B", In("scale_views").replace("_in_tmem[2]", "16")),
    (
        "bytes taken for elements",
        In("as_elements").replace("cute.recast_layout(ELEMENT.width, 8, _sX.layout)", "_sX.layout"),
    ),
    ("half a tile", In("Config.tile_bytes").replace("self.tile_k // PER_BYTE", "self.tile_k // PER_BYTE // 2")),
    ("as many rows of factors as B has", In("operands_of_elements").replace("_config.tile_m", "_config.tile_n")),
    *of_columns("Mxfp8Config"),
]
PLANTED = [Mutation(name, *fault) for name in RECIPES for fault in FAULTS]
PLANTED += [Mutation(MXFP8, *fault) for fault in OF_MXFP8] + [Mutation(NVFP4, *fault) for fault in OF_NVFP4]
# With one atom along K their order is no fault.
PLANTED = [m for m in PLANTED if "atoms along K" not in m.what or catalog.load(m.recipe).CONFIG.atoms_k > 1]
LEVELS = ("layout", "model")


@pytest.mark.parametrize("mutation", PLANTED, ids=str)
def test_a_planted_fault_is_caught(mutation, tmp_path):
    check_caught(mutation, SUITES[0], tmp_path)


@pytest.mark.parametrize("name", RECIPES)
def test_the_recipe_itself_is_not_accused(name, tmp_path):
    assert not caught(Mutation(name, "nothing", In()), LEVELS, tmp_path).level


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("side", ["writer", "reader"])
def test_boxes_of_another_size_on_one_side_are_caught(name, side):
    """TMA told of another box than the layout of the stages: wrong numbers, or refused."""
    module, config, right = looked_at(name)
    boxes = right.fragments["sfb.boxes"]
    high, words, stages = boxes.sizes
    other = Layout((high, words, stages), (words, 1, 0))  # all stages at the first one's place
    wrong = dataclasses.replace(right, fragments=right.fragments | {"sfb.boxes": other})
    a, b = operands(name, 128, config.tile_n, 3 * config.tile_k)
    pair = (wrong, right) if side == "writer" else (right, wrong)
    try:
        same = np.array_equal(simulate_scaled_evaluated(*pair, module, a, b, config), exact(a, b))
    except ValueError as refused:  # a byte that nobody wrote is no scale factor of nvfp4
        assert "needed" in str(refused)
        same = False
    assert same == (side == "reader")  # nobody reads by boxes


PIPELINE_FAULTS = [
    (
        "the bytes of scale factors are not expected",
        In("Config.stage_bytes").replace("self.tile_bytes + self.tile_k // self.block", "self.tile_bytes"),
    ),
    (
        "a stage is given back too early",
        In("consume")
        .where("_pipe.consumer_wait(_read)")
        .insert_after("_ = _read.index", "_pipe.consumer_release(_read)"),
    ),
    ("nobody waits for a stage", In("consume").drop("_pipe.consumer_wait(_read)")),
    (
        "scale factors over the sums of the other tile",
        In("Config.sfa_column").replace("self.acc_stages * self.tile_n", "self.tile_n"),
    ),
]


SUITES = [
    Suite(LEVELS, PLANTED),
    Suite(("pipeline",), [Mutation(MXFP8, *fault, "two narrow tiles") for fault in PIPELINE_FAULTS]),
]


@pytest.mark.parametrize("fault", SUITES[1].faults, ids=str)
def test_a_fault_in_the_order_of_steps_is_caught(fault, tmp_path):
    """By the level that explores the interleavings, of the variant with two tiles of sums."""
    check_caught(fault, SUITES[1], tmp_path)


# --- to_atoms -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("shape", [(128, 4), (1, 1), (130, 5), (384, 32), (77, 10)])
def test_to_atoms_is_the_order_of_the_ptx_isa(name, shape):
    form, module = formats.FORMATS[catalog.find(name).operands], catalog.load(name)
    codes = np.random.default_rng(0).integers(0, 120, shape, np.uint8)
    given = torch.from_numpy(codes)
    for scales in (given, given.view(getattr(torch, form.torch_scale)), given.T.contiguous().T):
        made = module.to_atoms(scales)
        assert made.dtype == torch.uint8 and made.is_contiguous()
        assert np.array_equal(made.numpy(), to_atoms(codes))
