"""What hopper/pingpong_gemm and hopper/majors_gemm say of themselves, where no GPU is needed to see it."""

from __future__ import annotations

import random
import re

import pytest

cutlass = pytest.importorskip("cutlass")
pytest.importorskip("torch")

from cookbook.harness import catalog, compiling, majors  # noqa: E402
from cookbook.layouts import evaluate  # noqa: E402

PINGPONG, MAJORS = "hopper/pingpong_gemm", "hopper/majors_gemm"


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
@pytest.mark.parametrize("tile", [(128, 192), (128, 256), (64, 96), (192, 32)])
def test_layouts_of_any_major_are_those_of_cutes_helpers(which, tile):
    """Atoms of 128, 64 and 32 bytes, where the tile's extent asks for them."""
    import dataclasses

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


def test_the_chosen_variant_leaves_the_busiest_cta_least_to_multiply():
    """Against dealing the tiles out one by one."""
    module, draw = catalog.load(MAJORS), random.Random(5)

    def busiest(config, m, n, sms):
        rows, columns = -(-m // (config.tile_m * config.cluster_m)), -(-n // (config.tile_n * config.cluster_n))
        hands = [0] * (sms // config.cluster)
        for number in range(rows * columns):
            hands[number % len(hands)] += config.tile_m * config.tile_n
        return max(hands)

    chosen = set()
    for _ in range(200):
        m, n, sms = draw.randint(1, 20000), draw.randint(1, 20000), draw.choice([114, 132])
        variant = module.fewest_clocks(m, n, sms)
        least = min(busiest(config, m, n, sms) for config in module.VARIANTS.values())
        assert busiest(module.VARIANTS[variant], m, n, sms) == least, (m, n, sms)
        chosen.add(variant)
    assert chosen == set(module.VARIANTS)
