"""What hopper/pingpong_gemm and hopper/majors_gemm say of themselves, where no GPU is needed to see it."""

from __future__ import annotations

import ast
import dataclasses
import random
import re

import numpy as np
import pytest
from edits import In
from mutations import Mutation, mutant
from rules import lost, recorded
from walked import integers

cutlass = pytest.importorskip("cutlass")
pytest.importorskip("torch")

from cookbook.check import compiled as compiling  # noqa: E402
from cookbook.check import layout  # noqa: E402
from cookbook.check.model.product import simulate  # noqa: E402
from cookbook.layouts import evaluate  # noqa: E402
from cookbook.recipe import catalog, imports, majors  # noqa: E402
from cookbook.swizzle import Swizzle  # noqa: E402

PINGPONG, MAJORS, TUNED = "hopper/pingpong_gemm", "hopper/majors_gemm", "hopper/tuned_gemm"
RULE = "hopper/tile_heuristics"
OVERLAPPED, SWAP_AB = "hopper/overlapped_epilogue_gemm", "hopper/swap_ab_gemm"


@pytest.fixture(scope="module")
def ptx():
    """PTX by variant."""
    module = catalog.load(PINGPONG)
    found = compiling.compile_modules(module, PINGPONG, "sm_90a", "bfloat16", module.VARIANTS.values())
    return {variant: compiled.ptx for variant, compiled in zip(module.VARIANTS, found, strict=True)}


def test_nothing_touches_global_memory_before_the_pdl_wait(ptx):
    access = re.compile(r"\b(cp\.async\.bulk\.tensor|ld\.global|st\.global|cp\.reduce)")
    for variant, config in catalog.load(PINGPONG).VARIANTS.items():
        code = ptx[variant]
        assert code.count("griddepcontrol.wait") == code.count("griddepcontrol.launch_dependents") == config.pdl
        if config.pdl:
            assert code.index("griddepcontrol.wait") < access.search(code).start()
            assert code.index("mbarrier.init") < code.index("griddepcontrol.wait"), "barriers need not wait"


def test_the_next_kernel_is_launched_after_the_last_load(ptx):
    for variant, config in catalog.load(PINGPONG).VARIANTS.items():
        if config.pdl:
            loads = [m.end() for m in re.finditer(r"cp\.async\.bulk\.tensor\S*shared::cluster\.global", ptx[variant])]
            assert loads and max(loads) < ptx[variant].index("griddepcontrol.launch_dependents")


def test_only_pingpong_warpgroups_signal_each_other(ptx):
    """One `barrier.arrive` of 256 threads, behind the tile; the wait for it before."""
    for variant, config in catalog.load(PINGPONG).VARIANTS.items():
        assert bool(re.search(r"\b(bar|barrier)(\.cta)?\.arrive", ptx[variant])) == config.pingpong


@pytest.mark.parametrize("which", majors.MAJORS)
@pytest.mark.parametrize("tile", [(128, 192), (128, 256), (256, 160), (64, 96), (192, 32)])
def test_layouts_of_any_major_are_those_of_cutes_helpers(which, tile):
    """Atoms of 128, 64 and 32 bytes, where the tile's extent asks for them."""
    import cutlass.utils.hopper_helpers as helpers
    from cutlass.tensor_utils import LayoutEnum

    module = catalog.load(MAJORS)
    sizes = {"tile_m": tile[0], "tile_n": tile[1], "epi_n": 32, "epi_stages": 1, "overlapped": 0}
    pingpong = tile[0] % 128 > 0  # two warpgroups share multiples of 128 rows
    config = dataclasses.replace(majors.configured(module.CONFIG, which), pingpong=pingpong, **sizes)
    a, b = (LayoutEnum.ROW_MAJOR if x == "k" else LayoutEnum.COL_MAJOR for x in (config.a_major, config.b_major))
    mnk = (config.tile_m, config.tile_n, config.tile_k)

    def theirs():
        make_a, make_b = helpers.make_smem_layout_a, helpers.make_smem_layout_b
        return make_a(a, mnk, cutlass.Float16, config.stages), make_b(b, mnk, cutlass.Float16, config.stages)

    ours = evaluate(module.smem_layouts, cutlass.Float16, config)
    assert (ours.a, ours.b) == evaluate(theirs, element_bits=16)


@pytest.mark.parametrize("which", majors.MAJORS)
def test_160_columns_take_the_64_byte_mode_along_their_lines(which):
    module = catalog.load(MAJORS)
    for variant, config in module.VARIANTS.items():
        found = evaluate(module.smem_layouts, cutlass.BFloat16, majors.configured(config, which))
        assert found.a.swizzle == Swizzle(3, 4, 3)
        half = variant == "256x160" and majors.MAJORS[which][1] == "n"
        assert found.b.swizzle == Swizzle(2 if half else 3, 4, 3)


@pytest.mark.parametrize("some", [slice(1), pytest.param(slice(1, None), marks=pytest.mark.slow)], ids=["one", "rest"])
@pytest.mark.parametrize(("which", "dtype"), [*((which, "bfloat16") for which in majors.MAJORS), ("nt", "float16")])
def test_no_kernel_spills_and_each_has_the_bits_of_its_majors(which, dtype, some):
    module = catalog.load(MAJORS)
    configs = [majors.configured(config, which) for config in module.VARIANTS.values()][some]
    try:
        found = compiling.compile_modules(catalog.load(MAJORS), MAJORS, "sm_90a", dtype, configs)
    except compiling.NoDisassembler as missing:
        pytest.skip(str(missing))
    for one in found:
        assert one.spills == 0
        multiply = re.findall(r"HGMMA.*", one.sass)
        for bit, major in zip((".tnspA", ".tnspB"), majors.MAJORS[which], strict=True):
            assert {bit in each for each in multiply} == {major != "k"}


# --- what is tuned_gemm's ---------------------------------------------------------------------------------------------

EACH = {"Config", "VARIANTS", "DEFAULT", "CONFIG", "config_for", "compile_for", "prepare", "GEMM", "matmul"}
CHOICE = {"CALIBRATION", "calibrate", "cost", "choose"}
ABOUT_MAJORS = {"check_majors", "staged", "smem_layouts", "wgmma_of_majors", "tiled_mma", "operand_layout", "gemm"}
SWAPPED = ["208x256", *(f"{rows}x128 pingpong" for rows in (176, 160, 144, 112, 96))]  # tuned_gemm's alone


def defined(name: str) -> set[str]:
    """The names that a recipe's kernel cells define."""
    found = set()
    for node in ast.parse(catalog.without_lab(catalog.find(name).file.read_text(encoding="utf-8"))).body:
        if isinstance(node, (ast.Assign, ast.FunctionDef, ast.ClassDef)):
            found |= {t.id for t in getattr(node, "targets", []) if isinstance(t, ast.Name)} or {node.name}
    return found


def imported(name: str, of: str) -> set[str]:
    """The names that a recipe imports of another one."""
    taken = imports.imported(catalog.find(name).file.read_text(encoding="utf-8"))
    return {there for recipe, there in taken.values() if recipe == of}


def test_what_does_not_ask_for_the_majors_is_tuned_gemms():
    assert defined(MAJORS) == EACH | CHOICE | ABOUT_MAJORS
    assert {"kernel", "launch", "remap_of"} <= imported(MAJORS, TUNED)
    assert {"Calibration", "clusters", "cost_on"} <= imported(MAJORS, RULE)


def test_swap_ab_changes_epilogue_layout_and_launch_alone():
    changed = {"SWAPPED", "mirrored_atom", "smem_layouts", "tiled_copies", "matrices", "gemm"}
    assert defined(SWAP_AB) == EACH | changed and "kernel" in imported(SWAP_AB, OVERLAPPED)


def test_tuned_gemm_has_the_layouts_and_the_copies_of_swap_ab():
    """What is new is in the scheduler, the producer, and the loop of both schedules."""
    assert {"smem_layouts", "tiled_copies", "matrices"} <= imported(TUNED, SWAP_AB)
    assert {"store_subtile", "set_up"} <= imported(TUNED, OVERLAPPED)
    assert {"rasterize", "work_tile", "produce", "compute", "kernel"} <= defined(TUNED)


def test_only_overlapped_variants_store_within_the_main_loop():
    """Subtiles are stored twice in the code where some are overlapped: in the main loop, and after the last tile."""
    module = catalog.load(OVERLAPPED)
    for config in module.VARIANTS.values():
        ptx = compiling.compile_recipe(OVERLAPPED, "sm_90a", "bfloat16", config=config).ptx
        stores = len(re.findall(r"cp\.async\.bulk\.tensor\S*global\.shared", ptx))
        assert stores == config.subtiles + config.overlapped
        assert config.min_k_tiles == max(1, config.overlapped)


def test_the_variants_are_tuned_gemms():
    ours, theirs = (catalog.load(name).VARIANTS for name in (MAJORS, TUNED))
    assert list(ours) == [variant for variant in theirs if variant not in SWAPPED]
    assert [variant for variant, config in theirs.items() if config.swap_ab] == SWAPPED
    for variant, config in ours.items():
        own, other = dataclasses.asdict(config), dataclasses.asdict(theirs[variant])
        assert not other["swap_ab"]
        assert own.pop("a_major") == own.pop("b_major") == "k" and own.keys() == other.keys()
        assert own == other, variant


@pytest.mark.parametrize("name", [MAJORS, TUNED])
def test_the_heuristics_count_the_busiest_ctas_tiles(name):
    """Against giving the tiles to clusters one by one."""
    module, rule, draw = catalog.load(name), catalog.load(RULE), random.Random(5)

    def busiest(config, m, n, sms):
        """Tiles of the CTA that has the most."""
        rows, columns = -(-m // (config.tile_m * config.cluster_m)), -(-n // (config.tile_n * config.cluster_n))
        hands = [0] * (sms // config.cluster)
        for number in range(rows * columns):
            hands[number % len(hands)] += 1
        return max(hands)

    chosen = set()
    for _ in range(200):
        m, n, k = draw.randint(1, 20000), draw.randint(1, 20000), draw.randint(1, 8192)
        sms = draw.choice([114, 132])
        for config in module.VARIANTS.values():
            tile, at_once = config.tile_m * config.tile_n, (config.subtiles - config.overlapped) * config.epi_n / 64
            chip = module.CALIBRATION
            stop = 0 if config.pingpong else chip.round_clocks + chip.store_clocks * at_once
            seen = (n, m) if name == TUNED and config.swap_ab else (m, n)
            stage = max(tile * 64 / 2048, (config.tile_m + config.tile_n) * 64 * 2 / chip.load_rate)
            needed = busiest(config, *seen, sms) * (-(-k // 64) * stage + stop)
            assert rule.clocks(config, m, n, k, sms, chip) == pytest.approx(needed + tile / 16)
        costs = {name: module.cost(config, m, n, k, sms) for name, config in module.VARIANTS.items()}
        assert costs[module.choose(m, n, k, sms)] == min(costs.values())
        chosen.add(module.choose(m, n, k, sms))
    assert chosen == set(module.VARIANTS)


def test_the_heuristics_lose_little_of_what_was_recorded():
    """Of some twenty sizes. With a few rows no variant is made for the product, and a third may be lost."""
    module, measured = catalog.load(TUNED), recorded(TUNED)
    assert len(measured) >= 15
    losses = lost(measured, module.VARIANTS, lambda *shape: module.choose(*shape, 132))
    assert np.median(losses) == 0 and np.mean(losses) < 0.02 and np.mean(np.array(losses) < 0.01) > 0.9
    assert max(loss for shape, loss in zip(measured, losses, strict=True) if shape[0] > 64) < 0.01
    for one in module.VARIANTS:  # no variant is as good for all of them
        assert np.mean(lost(measured, module.VARIANTS, lambda *_, one=one: one)) > 0.12


# --- the variants of tuned_gemm that swap A and B ---------------------------------------------------------------------


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_only_variants_that_swap_transpose_their_stores(every):
    variants = catalog.load(TUNED).VARIANTS.values()
    some = variants if every else {config.swap_ab: config for config in variants}.values()  # one of each kind
    try:
        found = compiling.compile_modules(catalog.load(TUNED), TUNED, "sm_90a", "bfloat16", some)
    except compiling.NoDisassembler as missing:
        pytest.skip(str(missing))
    for config, compiled in zip(some, found, strict=True):
        assert set(re.findall(r"STSM\.16\.(\w+)\.4", compiled.sass)) == {"MT88" if config.swap_ab else "M88"}


@pytest.mark.parametrize(("recipe", "variant"), [(TUNED, "208x256"), (SWAP_AB, "208x256 swapped")])
@pytest.mark.parametrize(
    ("what", "edit"),
    [
        ("stmatrix does not transpose", In("tiled_copies").replace("_config.swap_ab", "False")),
        (
            "a subtile lies by rows",
            In("smem_layouts").replace("mirrored_atom(_dtype, 64)", "smem_atom(_dtype, 16)"),
        ),
        (
            "a subtile has no swizzle",
            In("mirrored_atom").replace("cute.make_swizzle(_bits, 4, 3)", "cute.make_swizzle(0, 4, 3)"),
        ),
        ("a subtile does not divide the tile", In().replace("Config(..., epi_n=208)", "Config(..., epi_n=96)")),
    ],
)
def test_a_fault_in_a_swapped_tile_is_caught_with_no_gpu(tmp_path, recipe, variant, what, edit):
    try:
        module = mutant(Mutation(recipe, what, edit), tmp_path)
    except catalog.NotLoaded as refused:  # by the tuned GEMM's Config
        assert recipe == TUNED and "tile_n: got 208; needed a multiple of epi_n, 96" in str(refused)
        return
    config = module.VARIANTS[variant]
    assert [f.name for f in layout.check_layouts(module, cutlass.BFloat16, config) if not f.ok], what


@pytest.mark.parametrize("variant", SWAPPED)
def test_swapped_tile_gives_the_product_of_several_ragged_tiles(variant):
    module, (a, b) = catalog.load(TUNED), integers(230, 300, 72, seed=5)
    assert np.array_equal(simulate(module, a, b, cutlass.BFloat16, module.VARIANTS[variant]), a @ b)
