"""The small steps after the first GEMMs: what the one change of each does, and the faults that must be found in it."""

from __future__ import annotations

import ast
import itertools
from dataclasses import replace
from pathlib import Path

import executed
import numpy as np
import pytest
from edits import DEFINITIONS, In
from mutations import Mutation
from planted import Suite, check_caught

from cookbook.check import compiled, levels
from cookbook.check.evaluated import evaluated
from cookbook.check.layout import predicted_wavefronts
from cookbook.check.model.wgmma import boxes_of
from cookbook.measure import records
from cookbook.publish import gains
from cookbook.recipe import catalog, imports
from tools.publish import benchmarks, ladders, story

cutlass = pytest.importorskip("cutlass")

WIDE, AMPERE = "ampere/wide_tile_gemm", "ampere/swizzled_gemm"
GROUPS, EPILOGUE = "ampere/multistage_gemm", "ampere/staged_epilogue_gemm"
HOPPER, STAGES = "hopper/swizzled_gemm", "hopper/multistage_gemm"
SHARED, PRODUCER = "hopper/wide_tile_gemm", "hopper/producer_warp_gemm"
STEPS = {  # with a dtype and a target to check each
    WIDE: ("float16", "sm_80"),
    AMPERE: ("float16", "sm_80"),
    HOPPER: ("bfloat16", "sm_90a"),
    STAGES: ("bfloat16", "sm_90a"),
    GROUPS: ("float16", "sm_80"),
    EPILOGUE: ("float16", "sm_80"),
    SHARED: ("bfloat16", "sm_90a"),
    PRODUCER: ("bfloat16", "sm_90a"),
}
CHAINS = {
    "ampere": [
        *("first_gemm", "wide_tile_gemm", "swizzled_gemm", "multistage_gemm", "staged_epilogue_gemm", "smem_gemm"),
        "ldmatrix_gemm",
    ],
    "hopper": [
        *("first_gemm", "swizzled_gemm", "multistage_gemm", "wide_tile_gemm", "producer_warp_gemm", "tma_wgmma_gemm"),
        "warp_specialized_gemm",
    ],
}

SUITES = [
    Suite(
        ("layout", "model"),
        [
            Mutation(
                AMPERE,
                "two bits are swizzled, not three",
                In("swizzled_rows").replace("cute.make_swizzle(3, 4, 3)", "cute.make_swizzle(2, 4, 3)"),
            ),
            Mutation(
                AMPERE,
                "the swizzle counts elements",
                In("swizzled_rows").replace("cute.make_swizzle(3, 4, 3)", "cute.make_swizzle(3, 3, 3)"),
            ),
            Mutation(
                AMPERE,
                "the swizzle's source is one bit high",
                In("swizzled_rows").replace("cute.make_swizzle(3, 4, 3)", "cute.make_swizzle(3, 4, 4)"),
            ),
            Mutation(
                HOPPER,
                "a swizzle of 64 bytes over lines of 128",
                In("smem_atom").replace("cute.make_swizzle(3, 4, 3)", "cute.make_swizzle(2, 4, 3)"),
            ),
            Mutation(
                HOPPER,
                "lines of 128 bytes without a swizzle",
                In("smem_atom").replace("cute.make_swizzle(3, 4, 3)", "cute.make_swizzle(0, 4, 3)"),
            ),
            Mutation(
                EPILOGUE,
                "the tile of C has no swizzle",
                In("smem_layouts").replace("cute.make_swizzle(3, 4, 3)", "cute.make_swizzle(0, 4, 3)"),
            ),
        ],
    ),
    Suite(
        ("product",),
        [
            Mutation(
                AMPERE,
                "the edge of C is not guarded",
                In("store").replace("cute.elem_less(_tCcC[_i], _mC.shape)", "True"),
            ),
            Mutation(
                AMPERE,
                "the columns of B are those of the tile's row",
                In("kernel")
                .where("make_load(_copies.g2s_a, _, _, _, _tile_m, _)")
                .replace(
                    "make_load(_copies.g2s_b, _mB, _sB, _tile, _tile_n, _tidx)",
                    "make_load(_copies.g2s_b, _mB, _sB, _tile, _tile_m, _tidx)",
                ),
            ),
            Mutation(
                AMPERE,
                "the accumulators are not cleared",
                In("kernel").drop("_acc.fill(0.0)"),
            ),
            Mutation(
                HOPPER,
                "the tiles are where the first GEMM's are: no multiple of 1024",
                In("set_up").replace(
                    "_smem.allocate_tensor(_dtype, _layouts.a.outer, 1024, swizzle=_layouts.a.inner)",
                    "_smem.allocate_tensor(_dtype, _layouts.a.outer, 128, swizzle=_layouts.a.inner)",
                ),
            ),
            Mutation(
                HOPPER,
                "the edge of C is not guarded",
                In("store").replace("cute.elem_less(_tCcC[_i], _mC.shape)", "True"),
            ),
            Mutation(HOPPER, "the accumulators are not cleared", In("accumulators").drop("_acc.fill(0.0)")),
            Mutation(
                STAGES,
                "every k-tile is read from stage 0",
                In("mainloop").replace(
                    "cute.gemm(..., _tCrA[None, None, _k, _stage], _tCrB[None, None, _k, _stage], ...)",
                    "cute.gemm(..., _tCrA[None, None, _k, 0], _tCrB[None, None, _k, 0], ...)",
                ),
            ),
            Mutation(
                STAGES,
                "the loads ahead are those of k-tile 0",
                In("load_k_tile").replace("_load.gX[None, _k_tile]", "_load.gX[None, 0]"),
            ),
            Mutation(
                GROUPS,
                "the loads ahead are those of k-tile 0",
                In("load_tile").replace("_load.src[None, None, None, _k_tile]", "_load.src[None, None, None, 0]"),
            ),
            Mutation(
                GROUPS,
                "what lies outside of the matrix is loaded",
                In("load_tile").replace("cute.elem_less(_coords[_i], _load.shape)", "True"),
            ),
            Mutation(
                EPILOGUE,
                "the edge of C is not guarded",
                In("store").replace("cute.elem_less(_tCcC[0, _m, _n], _limit)", "True"),
            ),
            Mutation(
                PRODUCER,
                "every k-tile is read from stage 0",
                In("consume").replace(
                    "cute.gemm(..., _tCrA[None, None, _k, _stage], _tCrB[None, None, _k, _stage], ...)",
                    "cute.gemm(..., _tCrA[None, None, _k, 0], _tCrB[None, None, _k, 0], ...)",
                ),
            ),
        ],
    ),
    Suite(
        ("pipeline",),
        [
            Mutation(
                STAGES,
                "a k-tile is read before it has come",
                In("mainloop").drop("cute.arch.mbarrier_wait(_, _)"),
            ),
            Mutation(
                STAGES,
                "the phase is that of one stage",
                In("mainloop").replace("_k_tile // _config.stages % 2", "_k_tile % 2"),
            ),
            Mutation(
                STAGES,
                "a stage is filled while its wgmmas run",
                In("mainloop").replace("warpgroup.wait_group(1)", "warpgroup.wait_group(2)"),
            ),
            Mutation(
                STAGES,
                "a stage is filled before the other warps have read it",
                In("mainloop").drop("cute.arch.sync_threads()"),
            ),
            Mutation(
                STAGES,
                "loads run as many k-tiles ahead as there are stages",
                In("mainloop").replace("_config.stages - 1", "_config.stages"),
            ),
            Mutation(
                STAGES,
                "k-tiles that there are not are asked for",
                In("load_k_tile").replace("_warp_idx == 0 and _k_tile < cute.size(_, mode=[1])", "_warp_idx == 0"),
            ),
            Mutation(
                STAGES,
                "fewer bytes are announced than come",
                In("load_k_tile").replace("_config.stage_bytes", "_config.stage_bytes - 16"),
            ),
            Mutation(
                STAGES,
                "the last wgmmas are not waited for",
                In("mainloop").drop("warpgroup.wait_group(0)"),
            ),
            Mutation(
                GROUPS,
                "a k-tile is read before it has come",
                In("mainloop").drop("cute.arch.cp_async_wait_group(_)"),
            ),
            Mutation(
                GROUPS,
                "one group more may be on its way",
                In("mainloop").replace(
                    "cute.arch.cp_async_wait_group(_ahead - 1)", "cute.arch.cp_async_wait_group(_ahead)"
                ),
            ),
            Mutation(
                GROUPS,
                "a stage is filled before the other warps have read it",
                In("mainloop").drop("cute.arch.sync_threads()"),
            ),
            Mutation(
                GROUPS,
                "loads run as many k-tiles ahead as there are stages",
                In("mainloop").replace("_config.stages - 1", "_config.stages"),
            ),
            Mutation(
                EPILOGUE,
                "C is written where other warps still read",
                In("store").drop(
                    "cute.arch.sync_threads()",
                    before="cute.copy(_copies.r2s_c, _thr.retile(_values), _thr.partition_D(_sC))",
                ),
            ),
            Mutation(
                PRODUCER,
                "a stage is filled before it has been read",
                In("produce").drop("cute.arch.mbarrier_wait(_, _)"),
            ),
            Mutation(
                PRODUCER,
                "the producer waits for the other parity",
                In("produce").replace("(_k_tile // _config.stages + 1) % 2", "_k_tile // _config.stages % 2"),
            ),
            Mutation(
                PRODUCER,
                "fewer bytes are announced than come",
                In("produce").replace("_config.stage_bytes", "_config.stage_bytes - 16"),
            ),
            Mutation(
                PRODUCER,
                "an empty barrier does not wait for one of the warps",
                In("set_up").replace(
                    "cute.arch.mbarrier_init(_empty + _stage, _config.consumer_warps)",
                    "cute.arch.mbarrier_init(_empty + _stage, _config.consumer_warps - 1)",
                ),
            ),
            Mutation(
                PRODUCER,
                "the stage that is given back is the one that is read",
                In("consume").replace("(_k_tile - 1) % _config.stages", "_k_tile % _config.stages"),
            ),
            Mutation(
                PRODUCER,
                "a stage is given back while its wgmmas run",
                In("consume").replace("warpgroup.wait_group(1)", "warpgroup.wait_group(2)"),
            ),
        ],
    ),
]
PLANTED = [(suite, fault) for suite in SUITES for fault in suite.faults]


@pytest.mark.parametrize(("suite", "fault"), PLANTED, ids=[str(fault) for _, fault in PLANTED])
def test_a_planted_fault_is_caught(suite, fault, tmp_path: Path):
    check_caught(fault, suite, tmp_path)


@pytest.mark.parametrize("name", STEPS)
def test_every_level_that_needs_no_gpu_holds(name):
    dtype, target = STEPS[name]
    report = levels.check(name, shapes=[(200, 136, 72)], dtypes=[dtype], targets=[target])
    assert report.failed == ()
    passed = {level.level for level in report.levels if level.status == levels.PASSED}
    assert {"layout", "model", "product", "pipeline"} <= passed


@pytest.mark.parametrize("track", CHAINS)
def test_the_main_line_climbs_through_the_small_steps(track):
    """Each builds on the one before it, and is held against it."""
    line = [f"{track}/{name}" for name in CHAINS[track]]
    steps = benchmarks.main_line(track)
    assert [r.name for r in steps][: len(line)] == line
    for before, after in itertools.pairwise(line):
        assert benchmarks.before(catalog.find(after), steps) == catalog.find(before)


@pytest.mark.parametrize("name", STEPS)
def test_a_small_step_is_timed_next_to_the_step_before_it(name):
    recipe = catalog.find(name)
    assert recipe.compared_with == recipe.pays["over"] == recipe.builds_on
    assert tuple(recipe.pays["at"]) in recipe.bench_shapes


def own_lines(name: str) -> int:
    """Lines of code of a page's own definitions, docstrings left out."""
    count = 0
    for each in imports.definitions(catalog.find(name).file.read_text(encoding="utf-8")):
        docstring = ast.get_docstring(each.node, clean=False) if isinstance(each.node, DEFINITIONS) else None
        count += len(ast.unparse(each.node).splitlines()) - len((docstring or "").splitlines())
    return count


def test_a_small_step_defines_little_itself():
    lines = {name: own_lines(name) for name in STEPS}
    assert lines.pop(EPILOGUE) < 170, "it has the definitions of the epilogue that all later pages import"
    assert max(lines.values()) < 90 and lines[WIDE] < 15 and lines[SHARED] < 20


def test_wide_tile_is_the_first_gemm_with_one_number_changed():
    first, wide = (catalog.load(name) for name in ("ampere/first_gemm", WIDE))
    assert wide.kernel is first.kernel and wide.smem_layouts is first.smem_layouts
    different = {key for key, value in vars(first.CONFIG).items() if getattr(wide.CONFIG, key) != value}
    assert different == {"tile_n"}


def test_a_wide_tile_reads_a_third_fewer_fragments():
    """As its claim says: rows of A and B that a warp reads, over the products that they give."""

    def rows_for_a_product(config) -> float:
        m, n = config.tile_m // config.warps_m, config.tile_n // config.warps_n
        return (m + n) / (m * n)

    first, wide = (rows_for_a_product(catalog.load(name).CONFIG) for name in ("ampere/first_gemm", WIDE))
    assert wide == pytest.approx(first * 2 / 3)


def test_the_swizzle_takes_an_eighth_and_moves_no_row():
    before, after = (catalog.load(name) for name in (WIDE, AMPERE))
    found = [predicted_wavefronts(module, cutlass.Float16, module.CONFIG) for module in (before, after)]
    assert found == [{"g2s": 4, "s2r": 32}, {"g2s": 4, "s2r": 4}]
    at = [evaluated(module, cutlass.Float16, module.CONFIG).smem["a"].byte_offsets() for module in (before, after)]
    assert np.array_equal(at[0] // 128, at[1] // 128) and not np.array_equal(at[0], at[1])


def test_tma_writes_a_swizzled_tile_in_an_eighth_of_the_lines():
    def lines(name: str) -> int:
        module = catalog.load(name)
        boxes = boxes_of(evaluated(module, cutlass.BFloat16, module.CONFIG).smem["a"])
        return len(boxes.origins) * boxes.shape[0]

    assert lines("hopper/first_gemm") == 8 * lines(HOPPER) == 8 * 128


def test_stages_are_all_that_the_multistage_kernel_changes():
    one, many = (catalog.load(name).CONFIG for name in (HOPPER, STAGES))
    different = {key for key, value in vars(one).items() if getattr(many, key) != value}
    assert different == {"stages"} and many.stages == 3


def test_groups_and_three_stages_are_all_that_changes():
    one, many = (catalog.load(name).CONFIG for name in (AMPERE, GROUPS))
    different = {key for key, value in vars(one).items() if getattr(many, key) != value}
    assert different == {"stages"} and many.stages == 3


@pytest.mark.parametrize("name", [GROUPS, EPILOGUE])
@pytest.mark.parametrize("arch", ["sm_86", "sm_89", "sm_120a"])
def test_a_gpu_with_less_shared_memory_gets_a_tile_that_fits(name, arch):
    made = compiled.compile_recipe(name, arch, "float16")
    assert made.smem_bytes <= made.smem_limit


def test_hoppers_wide_tile_loads_a_quarter_fewer_bytes():
    before, here = (catalog.load(name) for name in (STAGES, SHARED))
    assert before.kernel is here.kernel and before.tiled_mma is here.tiled_mma

    def bytes_for_a_product(config) -> float:
        return config.stage_bytes / (config.tile_m * config.tile_n)

    assert bytes_for_a_product(here.CONFIG) == pytest.approx(0.75 * bytes_for_a_product(before.CONFIG))


@pytest.mark.slow
def test_the_gain_of_hoppers_wide_tile_is_that_of_its_bytes():
    """Both kernels wait for L2 by the count, whatever the rate: the quotient is that of the bytes."""
    executed.notebook(SHARED)
    assert ladders.predicted_gains()[SHARED] == pytest.approx(4 / 3, abs=0.005)


@pytest.mark.slow
def test_an_epilogue_in_shared_memory_pays_where_k_is_short():
    """Counted: a warp that stores single elements touches eight lines, and one that stores 16 bytes a thread four."""
    executed.notebook(EPILOGUE)
    gained = [story.read(EPILOGUE, shape, "gain, predicted") for shape in ("8192 x 8192 x 512", "8192 x 8192 x 8192")]
    assert gained[0] > 1.25 and 1.0 < gained[1] < 1.05


def test_the_producer_warp_is_no_part_of_the_mma():
    before, here = catalog.load(SHARED), catalog.load(PRODUCER)
    assert here.CONFIG.threads == before.CONFIG.threads + 32 == 32 * here.CONFIG.consumer_warps + 32
    sizes = [evaluated(module, cutlass.BFloat16, module.CONFIG).mma.threads for module in (before, here)]
    assert sizes == [256, 256]


def of_an_h100(name: str, dtype: str = "bfloat16") -> dict[int, dict]:
    """The timed records of a step on an H100, by the side of the cube."""
    found = records.of_one_gpu(name, "timed", dtype, device="NVIDIA H100 80GB HBM3")
    return {r["shape"][0]: r for r in found if catalog.find(name).pays["over"] in r["peers"]}


def clocks_of_a_k_tile(name: str, record: dict) -> tuple[float, float]:
    """Of the step before, and of this: as measured in one run."""
    before = catalog.find(name).pays["over"]
    of_both = (before, record["peers"][before]["median_ms"]), (name, record["figures"]["median_ms"])
    one, other = (gains.k_tile_clocks(each, record, ms) for each, ms in of_both)
    assert one and other
    return one, other


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_stages_gain_at_4096_and_lose_at_8192(dtype):
    """As the claim says, of an H100; where it gains, it is between the two counts."""
    executed.notebook(STAGES)
    gained = {side: r["peers"][HOPPER]["ratio"] for side, r in of_an_h100(STAGES, dtype).items()}
    assert "faster at 4096³ and slower at 8192³" in " ".join(catalog.find(STAGES).claim.split())
    predicted = story.read(STAGES, "4096 x 4096 x 4096 & bfloat16", f"gain over `{HOPPER}`, predicted")
    assert 1.0 < gained[4096] < predicted and gained[8192] < 1.0


def test_three_stages_leave_room_for_two_ctas_two_for_three():
    def ctas(config, made) -> int:
        registers = -(-made.registers // 8) * 8 * config.threads
        return min(65536 // registers, made.smem_limit // (config.smem_bytes + 1024))

    made = {name: compiled.compile_recipe(name, "sm_90a", "bfloat16") for name in (HOPPER, STAGES)}
    one, many = catalog.load(HOPPER), catalog.load(STAGES)
    assert ctas(one.CONFIG, made[HOPPER]) == 3 and ctas(many.CONFIG, made[STAGES]) == 2
    assert ctas(replace(many.CONFIG, stages=2), made[STAGES]) == 3


def test_both_kernels_load_from_l2_at_near_its_rate():
    """L2's rate is an H200's."""
    (ceiling,) = records.of_one_gpu("foundations/memory_ceiling", records.CEILING)
    rate = max(size["gbps"] for size in ceiling["figures"]["read"].values())
    for side, record in of_an_h100(STAGES).items():
        read = (side // 128) ** 2 * 2 * 128 * side * 2e-6  # GB, times 1000
        for ms in (record["peers"][HOPPER]["median_ms"], record["figures"]["median_ms"]):
            assert 0.75 < read / ms / rate < 0.9, (side, ms)


def test_two_ctas_hide_less_and_one_ctas_warps_more():
    """As the page on the wide tile says of why it gains more."""
    counted = 6400, 11168
    for record in of_an_h100(WIDE).values():
        first, wide = clocks_of_a_k_tile(WIDE, record)
        assert first > counted[0] and wide < counted[1]


def test_hoppers_swizzle_steps_exceed_their_counts_alike():
    for record in of_an_h100(HOPPER).values():
        first, here = (
            found / counted for found, counted in zip(clocks_of_a_k_tile(HOPPER, record), (2048, 608), strict=True)
        )
        assert min(first, here) > 1.3 and abs(first / here - 1) < 0.1
