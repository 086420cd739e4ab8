"""What hopper/pingpong_gemm and hopper/majors_gemm say of themselves, where no GPU is needed to see it."""

from __future__ import annotations

import ast
import dataclasses
import random
import re

import numpy as np
import pytest
from mutations import Mutation, mutant

cutlass = pytest.importorskip("cutlass")
pytest.importorskip("torch")

from cookbook.harness import catalog, compiling, layout_check, majors  # noqa: E402
from cookbook.harness.walk import walk  # noqa: E402
from cookbook.layouts import evaluate  # noqa: E402
from cookbook.swizzle import Swizzle  # noqa: E402

PINGPONG, MAJORS, TUNED = "hopper/pingpong_gemm", "hopper/majors_gemm", "hopper/tuned_gemm"


@pytest.fixture(scope="module")
def ptx():
    """PTX by variant."""
    module = catalog.load(PINGPONG)
    found = compiling.compile_recipes(PINGPONG, "sm_90a", "bfloat16", module.VARIANTS.values())
    return {variant: compiled.ptx for variant, compiled in zip(module.VARIANTS, found, strict=True)}


def test_nothing_touches_global_memory_before_the_kernel_before_has_ended(ptx):
    access = re.compile(r"\b(cp\.async\.bulk\.tensor|ld\.global|st\.global|cp\.reduce)")
    for variant, config in catalog.load(PINGPONG).VARIANTS.items():
        code = ptx[variant]
        assert code.count("griddepcontrol.wait") == code.count("griddepcontrol.launch_dependents") == config.pdl
        if config.pdl:
            assert code.index("griddepcontrol.wait") < access.search(code).start()
            assert code.index("mbarrier.init") < code.index("griddepcontrol.wait"), "barriers need not wait"


def test_the_next_kernel_is_let_in_after_the_last_load_was_asked_for(ptx):
    for variant, config in catalog.load(PINGPONG).VARIANTS.items():
        if config.pdl:
            loads = [m.end() for m in re.finditer(r"cp\.async\.bulk\.tensor\S*shared::cluster\.global", ptx[variant])]
            assert loads and max(loads) < ptx[variant].index("griddepcontrol.launch_dependents")


def test_only_those_who_take_turns_signal_each_other(ptx):
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
    config = dataclasses.replace(majors.configured(module.CONFIG, which), tile_m=tile[0], tile_n=tile[1])
    a, b = (LayoutEnum.ROW_MAJOR if x == "k" else LayoutEnum.COL_MAJOR for x in (config.a_major, config.b_major))
    mnk = (config.tile_m, config.tile_n, config.tile_k)

    def theirs():
        make_a, make_b = helpers.make_smem_layout_a, helpers.make_smem_layout_b
        return make_a(a, mnk, cutlass.Float16, config.stages), make_b(b, mnk, cutlass.Float16, config.stages)

    ours = evaluate(module.smem_layouts, cutlass.Float16, config)
    assert (ours.a, ours.b) == evaluate(theirs, element_bits=16)


@pytest.mark.parametrize("which", majors.MAJORS)
def test_160_columns_take_the_64_byte_mode_where_lines_run_along_them(which):
    module = catalog.load(MAJORS)
    for variant, config in module.VARIANTS.items():
        found = evaluate(module.smem_layouts, cutlass.BFloat16, majors.configured(config, which))
        assert found.a.swizzle == Swizzle(3, 4, 3)
        half = variant == "256x160" and majors.MAJORS[which][1] == "n"
        assert found.b.swizzle == Swizzle(2 if half else 3, 4, 3)


@pytest.mark.parametrize(("which", "dtype"), [*((which, "bfloat16") for which in majors.MAJORS), ("nt", "float16")])
def test_no_kernel_spills_and_each_has_the_bits_of_its_majors(which, dtype):
    module = catalog.load(MAJORS)
    configs = [majors.configured(config, which) for config in module.VARIANTS.values()]
    try:
        found = compiling.compile_recipes(MAJORS, "sm_90a", dtype, configs)
    except compiling.NoDisassembler as missing:
        pytest.skip(str(missing))
    for one in found:
        assert one.spills == 0
        multiply = re.findall(r"HGMMA.*", one.sass)
        for bit, major in zip((".tnspA", ".tnspB"), majors.MAJORS[which], strict=True):
            assert {bit in each for each in multiply} == {major != "k"}


# --- what is tuned_gemm's ---------------------------------------------------------------------------------------------

ABOUT_MAJORS = {"Config", "smem_atom", "smem_layouts", "wgmma", "tiled_mma", "gemm"}
ABOUT_STRIDES = {"check_out", "compiled", "make_plan", "matmul"}
TRANSPOSED = "208x256"  # a variant of tuned_gemm's, and what it needs beside the functions about majors
TUNED_ALONE = {TRANSPOSED, "128x192 in turn"}
ABOUT_TRANSPOSING = {"clocks", "tiled_copies"}


def defined(name: str) -> dict[str, str]:
    """What a recipe's kernel cells define, by name, without comments, docstrings and line breaks."""
    source = catalog.without_lab(catalog.find(name).file.read_text(encoding="utf-8"))
    found = {}
    for node in ast.parse(source).body:
        names = [t.id for t in getattr(node, "targets", []) if isinstance(t, ast.Name)] or [getattr(node, "name", "")]
        decorated = [ast.unparse(each) for each in getattr(node, "decorator_list", [])]
        said = "\n".join([*decorated, catalog.normal_form(ast.get_source_segment(source, node))])
        found |= dict.fromkeys(filter(None, names), said)
    return found


def test_what_does_not_ask_for_the_majors_is_tuned_gemms():
    ours, theirs = defined(MAJORS), defined(TUNED)
    assert set(theirs) - set(ours) == {"k_major_stride"}
    assert set(ours) - set(theirs) == {"operand_layout", "Major", "objection", "line_stride", "major_of"}
    changed = {name for name in set(ours) & set(theirs) if ours[name] != theirs[name]}
    assert changed == ABOUT_MAJORS | ABOUT_STRIDES | ABOUT_TRANSPOSING | {"VARIANTS"}
    assert {"kernel", "produce", "consume", "cooperate", "take_turns", "store_box", "cost", "choose"} <= set(ours)


def test_the_variants_are_tuned_gemms_but_for_one_box():
    ours, theirs = (catalog.load(name).VARIANTS for name in (MAJORS, TUNED))
    assert list(ours) == [variant for variant in theirs if variant not in TUNED_ALONE] and set(theirs) >= TUNED_ALONE
    assert [variant for variant, config in theirs.items() if config.transposed] == [TRANSPOSED]
    for variant, config in ours.items():
        own, other = dataclasses.asdict(config), dataclasses.asdict(theirs[variant])
        assert not other.pop("transposed")
        assert own.pop("a_major") == own.pop("b_major") == "k" and own.keys() == other.keys()
        different = {name: other[name] - own[name] for name in other if own[name] != other[name]}
        assert different == ({"late": 1} if variant == "256x160" else {})


@pytest.mark.parametrize("name", [MAJORS, TUNED])
def test_the_rule_counts_the_tiles_of_the_busiest_cta_and_takes_the_cheapest(name):
    """Against dealing the tiles out one by one."""
    module, draw = catalog.load(name), random.Random(5)

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
            tile, at_once = config.tile_m * config.tile_n, (config.boxes - config.late) * config.epi_n / 64
            stop = 0 if config.pingpong else module.ROUND + module.STORE * at_once
            seen = (n, m) if name == TUNED and config.transposed else (m, n)
            turns = busiest(config, *seen, sms) * (tile * 64 * -(-k // 64) / 2048 + stop)
            assert module.clocks(config, m, n, k, sms) == pytest.approx(turns + tile / 16)
        costs = {name: module.cost(config, m, n, k, sms) for name, config in module.VARIANTS.items()}
        assert costs[module.choose(m, n, k, sms)] == min(costs.values())
        chosen.add(module.choose(m, n, k, sms))
    assert chosen == set(module.VARIANTS)


# --- the transposed variant of tuned_gemm -----------------------------------------------------------------------------


def test_the_transposed_variant_alone_transposes_what_it_stores():
    module = catalog.load(TUNED)
    try:
        found = compiling.compile_recipes(TUNED, "sm_90a", "bfloat16", module.VARIANTS.values())
    except compiling.NoDisassembler as missing:
        pytest.skip(str(missing))
    for config, compiled in zip(module.VARIANTS.values(), found, strict=True):
        assert set(re.findall(r"STSM\.16\.(\w+)\.4", compiled.sass)) == {"MT88" if config.transposed else "M88"}


@pytest.mark.parametrize(
    ("what", "old", "new"),
    [
        ("stmatrix does not transpose", "transpose=config.transposed", "transpose=False"),
        ("a box lies by rows", "smem_atom(dtype, 64, True)", "smem_atom(dtype, 16)"),
        ("a box has no swizzle", "if transposed:\n        rows", "if transposed:\n        bits = 0\n        rows"),
        ("a box does not divide the tile", "epi_n=208", "epi_n=96"),
    ],
)
def test_a_fault_in_the_transposed_tile_is_caught_with_no_gpu(tmp_path, what, old, new):
    module = mutant(Mutation(TUNED, what, old, new), tmp_path)
    config = module.VARIANTS[TRANSPOSED]
    assert [f.name for f in layout_check.check_layouts(module, cutlass.BFloat16, config) if not f.ok], what


def test_the_transposed_tile_gives_the_product_of_several_ragged_tiles():
    module, rng = catalog.load(TUNED), np.random.default_rng(5)
    a, b = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((230, 72), (72, 300)))
    config = module.VARIANTS[TRANSPOSED]
    assert np.array_equal(walk(module, a, b, cutlass.BFloat16, config), a @ b)
