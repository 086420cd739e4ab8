"""The explorer of interleavings accuses no recipe, and finds every fault planted in a recipe's source."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import cutlass
import pytest
from cutlass._mlir.dialects import nvvm
from edits import In
from mutations import Mutation, mutant
from planted import Suite, caught, check

from cookbook.check import compiled, levels, pipeline, product
from cookbook.check.pipeline.__main__ import main
from cookbook.publish import words
from cookbook.recipe import catalog, formats
from cookbook.simulate import warp
from cookbook.simulate.trace import Trace

UNSTAGED = "hopper/first_gemm"
PLAIN, MULTICAST = "hopper/tma_wgmma_gemm", "hopper/multicast_gemm"
PERSISTENT, PINGPONG = "hopper/persistent_gemm", "hopper/pingpong_gemm"
CP_ASYNC, LDMATRIX, STAYS = "ampere/smem_gemm", "ampere/ldmatrix_gemm", "ampere/persistent_gemm"
SPLIT, CLC = "hopper/split_k_gemm", "blackwell/persistent_clc_gemm"
REPORTING = "hopper/fp8_blockwise_gemm"  # its cp.async tell a barrier that they are there
TCGEN05, TENSOR = "blackwell/tma_tcgen05_gemm", "blackwell/pipelined_gemm"
PIPELINED = [recipe.name for recipe in catalog.recipes() if pipeline.is_pipelined(recipe)]


class Planted(NamedTuple):
    """A fault in a recipe's source, and the rules of which one must be found broken."""

    mutation: Mutation
    rules: tuple[str, ...]

    def __str__(self) -> str:
        return str(self.mutation)


def planted(recipe: str, what: str, edit: In, *rules: str, variant: str = "") -> Planted:
    return Planted(Mutation(recipe, what, edit, variant), rules)


FAULTS = [
    planted(
        PLAIN, "a stage is read before it is full", In("consume").drop("_pipe.consumer_wait(_read)", times=2), "race"
    ),
    planted(
        PLAIN, "a stage is filled before it is empty", In("produce").drop("_pipe.producer_acquire(_state)"), "race"
    ),
    planted(
        PLAIN,
        "the last stage is not given back",
        In("consume").drop("_pipe.consumer_release(_release)", after="warpgroup.wait_group(0)"),
        "deadlock",
    ),
    planted(
        PLAIN,
        "a stage is given back while wgmma reads it",
        In("consume").replace("warpgroup.wait_group(1)", "warpgroup.wait_group(2)"),
        "race",
    ),
    planted(
        PLAIN,
        "sixteen bytes too many are expected",
        In("set_up").replace("_config.stage_bytes", "_config.stage_bytes + 16"),
        "deadlock",
    ),
    planted(
        PLAIN,
        "half of the bytes are expected",
        In("set_up").replace("_config.stage_bytes", "_config.stage_bytes // 2"),
        "bytes",
    ),
    planted(
        PLAIN,
        "one arrival too few is needed",
        In("set_up").replace(
            "pipeline.CooperativeGroup(..., _config.consumer_threads // 32)",
            "pipeline.CooperativeGroup(..., _config.consumer_threads // 32 - 1)",
        ),
        "arrivals",
        "early arrival",
    ),
    planted(
        PLAIN,
        "one arrival too many is needed",
        In("set_up").replace(
            "pipeline.CooperativeGroup(..., _config.consumer_threads // 32)",
            "pipeline.CooperativeGroup(..., _config.consumer_threads // 32 + 1)",
        ),
        "deadlock",
    ),
    planted(
        PLAIN,
        "the producer begins with the other phase",
        In("produce").replace("pipeline.PipelineUserType.Producer", "pipeline.PipelineUserType.Consumer"),
        "deadlock",
    ),
    planted(
        PLAIN,
        "the consumers begin with the other phase",
        In("consume").replace(
            "_read = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, _)\n_ = _",
            "_read = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, _)\n_ = _",
        ),
        "deadlock",
    ),
    planted(
        PLAIN,
        "the producer goes round one stage too few",
        In("produce").replace(
            "pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, _config.stages)",
            "pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, _config.stages - 1)",
        ),
        "race",
        "deadlock",
        "early wait",
    ),
    planted(
        PLAIN,
        "the consumers go round one stage too few",
        In("consume").replace(
            "_read = pipeline.make_pipeline_state(_, _pipe.num_stages)\n_ = _",
            "_read = pipeline.make_pipeline_state(_, _pipe.num_stages - 1)\n_ = _",
        ),
        "deadlock",
        "early wait",
        "race",
    ),
    planted(
        PLAIN,
        "TMA always fills stage 0 of A",
        In("produce")
        .where("for _load in _loads: cute.copy(...)")
        .replace(
            "_load.sX[None, _state.index]",
            "_load.sX[None, 0 if cutlass.const_expr(_load is _loads[0]) else _state.index]",
        ),
        "race",
    ),
    planted(
        PLAIN,
        "wgmma always reads stage 1 of B",
        In("issue_wgmmas").replace(
            "cute.gemm(_, _, _, _tCrB[None, None, _k, _stage], _)", "cute.gemm(_, _, _, _tCrB[None, None, _k, 1], _)"
        ),
        "race",
    ),
    planted(
        PLAIN,
        "B is not loaded",
        In("produce").replace("for _load in _loads: cute.copy(...)", "for _load in _loads[:1]: cute.copy(...)"),
        "deadlock",
    ),
    planted(
        PLAIN,
        "C is written over a stage that is still read",
        In("store").drop("_barrier.arrive_and_wait()", before="cute.copy(...)"),
        "race",
    ),
    planted(
        PLAIN,
        "C is read before all have written it",
        In("store").drop("_barrier.arrive_and_wait()", before="_ = _copies.s2g_c.get_slice(...)"),
        "race",
    ),
    planted(
        PLAIN,
        "a named barrier is for half of the threads",
        In("store").replace(
            "pipeline.NamedBarrier(..., num_threads=_config.consumer_threads)",
            "pipeline.NamedBarrier(..., num_threads=128)",
        ),
        "named barrier",
    ),
    planted(
        PLAIN, "wgmma takes registers without a fence", In("issue_wgmmas").drop("warpgroup.fence()"), "wgmma fence"
    ),
    planted(
        PLAIN,
        "accumulators are read before wgmma ends",
        In("consume").drop("warpgroup.wait_group(0)"),
        "race",
        "registers",
    ),
    planted(
        MULTICAST,
        "the arrivals of the peer are not counted",
        In("make_pipeline").replace("_config.consumer_threads // 32 * _sharers", "_config.consumer_threads // 32"),
        "race",
        "arrivals",
        "early arrival",
    ),
    planted(
        MULTICAST,
        "a tile goes to its own CTA alone",
        In("multicast_masks").replace("(1 << _config.cluster_m) - 1", "1"),
        "deadlock",
    ),
    planted(
        MULTICAST,
        "a CTA ends before its peer's last arrivals",
        In("produce").drop("_pipe.producer_tail(_state)"),
        "exit",
    ),
    planted(
        PERSISTENT,
        "a buffer of C is not waited for",
        In("store").drop("cute.arch.cp_async_bulk_wait_group(_config.epi_stages - 1, read=True)"),
        "race",
    ),
    planted(
        PERSISTENT,
        "one buffer of C too few is waited for",
        In("store").replace("_config.epi_stages - 1", "_config.epi_stages"),
        "race",
    ),
    planted(
        PERSISTENT,
        "only one warp knows that the buffer is free",
        In("store").drop("_barrier.arrive_and_wait()", before="_ = cute.make_rmem_tensor(...)"),
        "race",
    ),
    planted(
        PERSISTENT,
        "TMA sends C before all have written it",
        In("store").drop("_barrier.arrive_and_wait()", before="if _: ..."),
        "race",
    ),
    planted(
        PERSISTENT,
        "no proxy fence before TMA sends C",
        In("store").drop("cute.arch.fence_proxy('async.shared', space='cta')"),
        "proxy fence",
    ),
    planted(
        PERSISTENT,
        "a CTA ends while TMA reads its C",
        In("consume").drop("cute.arch.cp_async_bulk_wait_group(0, read=True)"),
        "exit",
    ),
    planted(
        PERSISTENT,
        "the phase is that of one stage more",
        In("state_at").replace("_k_index // _config.stages", "_k_index // (_config.stages + 1)"),
        "deadlock",
        "early wait",
        "race",
    ),
    planted(
        PERSISTENT,
        "the next tile begins one k-tile index early",
        In("consume").replace(
            "multiply_tile(_main, _iteration * _k_tiles, _config)",
            "multiply_tile(_main, _iteration * (_k_tiles - 1), _config)",
        ),
        "deadlock",
        "early wait",
        "race",
    ),
    planted(
        PINGPONG,
        "nobody waits for a turn",
        In("multiply_tile").drop(
            "pipeline.NamedBarrier(barrier_id=ORDER_BARRIER + _group, num_threads=256).arrive_and_wait()"
        ),
        "race",
        "early wait",
    ),
    planted(
        PINGPONG,
        "the barriers of the turns are swapped",
        In("multiply_tile").replace(
            "pipeline.NamedBarrier(..., barrier_id=ORDER_BARRIER + _group)",
            "pipeline.NamedBarrier(..., barrier_id=ORDER_BARRIER + 1 - _group)",
        ),
        "deadlock",
    ),
    planted(
        PINGPONG,
        "nobody hands the turn over",
        In("multiply_tile").drop(
            "pipeline.NamedBarrier(barrier_id=ORDER_BARRIER + 1 - _group, num_threads=256).arrive()"
        ),
        "deadlock",
    ),
    planted(
        PINGPONG,
        "the last turn is handed over to nobody",
        In("multiply_tile").replace("_iteration + 1 < _count", "_iteration + 1 <= _count"),
        "named barrier",
    ),
    planted(
        PINGPONG,
        "the turns use the barriers of the epilogues",
        In().replace("ORDER_BARRIER = 3", "ORDER_BARRIER = 1"),
        "named barrier",
    ),
    planted(
        TENSOR,
        "sums are fetched before all are there",
        In("store_tile").drop("_acc_pipe.consumer_wait(_fetch)"),
        "race",
    ),
    planted(
        TENSOR,
        "sums are overwritten before they are fetched",
        In("multiply_tile").drop("_acc_pipe.producer_acquire(_fill)"),
        "race",
    ),
    planted(
        TENSOR,
        "sums are never said to be there",
        In("multiply_tile").drop("_acc_pipe.producer_commit(_fill)"),
        "deadlock",
    ),
    planted(
        TENSOR,
        "tensor memory is given back while it is fetched",
        In("store_tile").drop("cute.arch.fence_view_async_tmem_load()"),
        "race",
        "registers",
    ),
    planted(
        TENSOR,
        "each lane gives tensor memory back",
        In("store_tile").replace("with cute.arch.elect_one(): ...", "if True: ..."),
        "arrivals",
        "race",
    ),
    planted(TENSOR, "a stage is never given back", In("consume").drop("_pipe.consumer_release(_read)"), "deadlock"),
    planted(
        TENSOR,
        "no fence after the wait for the sums",
        In("store_tile").drop("cute.arch.inline_ptx('tcgen05.fence::after_thread_sync;')"),
        "tensor fence",
    ),
    planted(
        TENSOR,
        "no fence before tensor memory is given back",
        In("store_tile").drop("cute.arch.inline_ptx('tcgen05.fence::before_thread_sync;')"),
        "tensor fence",
    ),
    planted(
        TCGEN05,
        "the sums are fetched before all are there",
        In("stage_c").replace(
            "_acc_pipe.consumer_wait(pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, 1))",
            "pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, 1)",
        ),
        "race",
    ),
    planted(TCGEN05, "C is read before all have written it", In("kernel").drop("_barrier.arrive_and_wait()"), "race"),
    planted(
        TCGEN05, "bytes of A alone are expected", In("set_up").replace("_config.stage_bytes", "16384"), "early arrival"
    ),
    planted(TENSOR, "tensor memory is not freed", In("end_epilogue").drop("_tmem.free(_address)"), "tensor memory"),
    planted(
        TENSOR,
        "the epilogue goes round one accumulator stage",
        In("store").replace("_config.acc_stages", "1"),
        "deadlock",
        "race",
        "early wait",
    ),
    planted(
        TENSOR,
        "nobody waits until tensor memory is allocated",
        In("accumulator_stages").drop("_tmem.wait_for_alloc()"),
        "race",
    ),
    planted(
        TENSOR,
        "the epilogue begins with the other phase",
        In("store").replace("pipeline.PipelineUserType.Consumer", "pipeline.PipelineUserType.Producer"),
        "race",
        "deadlock",
    ),
    planted(
        TENSOR,
        "the producer goes round one stage too few",
        In("produce").replace("_config.stages", "_config.stages - 1"),
        "race",
        "deadlock",
        "early wait",
    ),
    planted(
        TENSOR,
        "the multiplying warp goes round one stage too few",
        In("multiply_tiles").replace("_config.stages", "_config.stages - 1"),
        "race",
        "deadlock",
        "early wait",
    ),
    planted(
        TENSOR,
        "a warp asks for another's lanes",
        In("store_tile").replace("_epi.thread", "_epi.thread ^ 32"),
        "tensor lanes",
    ),
    planted(
        TCGEN05,
        "a warp asks for another's lanes",
        In("stage_c").replace("_copies.t2r_c.get_slice(_tidx)", "_copies.t2r_c.get_slice(_tidx ^ 32)"),
        "tensor lanes",
    ),
    planted(
        PINGPONG,
        "memory is touched before the kernel before has ended",
        In("kernel").drop("cute.arch.griddepcontrol_wait()"),
        "dependent launch",
    ),
    planted(CP_ASYNC, "a tile is read one group early", In("mainloop").replace("_stages - 2", "_stages - 1"), "race"),
    planted(
        CP_ASYNC, "nobody waits for a tile", In("mainloop").drop("cute.arch.cp_async_wait_group(_stages - 2)"), "race"
    ),
    planted(CP_ASYNC, "each waits for its own copies alone", In("mainloop").drop("cute.arch.sync_threads()"), "race"),
    planted(
        CP_ASYNC,
        "the ring is one stage too short",
        In("mainloop").replace(
            "_ = _\n_write = _write + 1 if _write + 1 < _stages else _",
            "_ = _\n_write = _write + 1 if _write + 1 < _stages - 1 else _",
        ),
        "race",
    ),
    planted(CP_ASYNC, "all copies are waited for", In("mainloop").replace("_stages - 2", "0"), "slow"),
    planted(
        LDMATRIX,
        "a tile is read one group early",
        In("mainloop").replace(
            "cute.arch.cp_async_wait_group(_stages - 2)", "cute.arch.cp_async_wait_group(_stages - 1)", times=2
        ),
        "race",
    ),
    planted(
        LDMATRIX,
        "C is written over a stage that is read",
        In("store").drop("cute.arch.sync_threads()", before="cute.copy(...)"),
        "race",
    ),
    planted(
        STAYS,
        "a CTA ends while zeros still come",
        In("kernel").drop("cute.arch.cp_async_wait_group(0)"),
        "exit",
    ),
    planted(
        PERSISTENT,
        "a proxy fence of another kind",
        In("store").replace("cute.arch.fence_proxy('async.shared', space='cta')", "cute.arch.fence_proxy('alias')"),
        "proxy fence",
    ),
    planted(
        CLC,
        "an answer is given back with no fence",
        In("next_block").drop("cute.arch.fence_proxy('async.shared', space='cta')"),
        "proxy fence",
    ),
    planted(
        PINGPONG,
        "a seventeenth named barrier",
        In().replace("ORDER_BARRIER = 3", "ORDER_BARRIER = 15"),
        "named barrier",
    ),
    planted(
        PERSISTENT,
        "the producer keeps its registers",
        In("kernel").drop("cute.arch.setmaxregister_decrease(REGISTERS[0])"),
        "deadlock",
    ),
    planted(PERSISTENT, "more registers than an SM has", In().replace("(24, 240)", "(24, 248)"), "deadlock"),
    planted(
        PERSISTENT,
        "one warp of four gives registers back",
        In("kernel")
        .where("_warp >= _producer")
        .replace(
            "cute.arch.setmaxregister_decrease(REGISTERS[0])",
            "if _warp == _producer:\n    cute.arch.setmaxregister_decrease(REGISTERS[0])",
        ),
        "setmaxnreg",
    ),
    planted(
        PERSISTENT, "an increase of what is less", In("kernel").replace("REGISTERS[1]", "REGISTERS[0]"), "setmaxnreg"
    ),
    planted(
        PERSISTENT,
        "a tile begins where its swizzle does not",
        In("allocate_tiles").replace("_.allocate_tensor(..., 1024, ...)", "_.allocate_tensor(..., 128, ...)"),
        "alignment",
    ),
    planted(
        PERSISTENT,
        "C's buffer has no swizzle",
        In("allocate").replace(
            "allocate_tiles(_smem, _layouts, ...)",
            "allocate_tiles(_smem, _layouts._replace(c=cute.make_composed_layout("
            "cute.make_swizzle(0, 4, 3), 0, _layouts.c.outer)), ...)",
        ),
        "swizzle",
    ),
    planted(
        PERSISTENT,
        "TMA sends C with another swizzle than it was written with",
        In("tma_tensors").replace(
            "cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), _, _c_stage, _)",
            "cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), _, _c_stage.outer, _)",
        ),
        "swizzle",
    ),
    planted(
        MULTICAST,
        "a CTA outside of C loads nothing",
        In("kernel")
        .where("_tile = tile_of_cta(_mC.shape, ...)")
        .replace(
            "_warp == _config.consumer_threads // 32",
            "_warp == _config.consumer_threads // 32 and _tile[0] * _config.tile_m < _mC.shape[0]",
        ),
        "deadlock",
    ),
    planted(
        SPLIT,
        "what K lacks to whole splits is not loaded",
        In("produce")
        .where("for _load in _loads: cute.copy(...)")
        .replace("_part.k_tiles", "cutlass.min(_part.k_tiles, cute.size(_loads[0].gX, mode=[1]) - _part.first)"),
        "deadlock",
        variant="64x64 in 2",
    ),
    planted(
        PLAIN,
        "no wgmma overlaps with the next",
        In("consume").replace("warpgroup.wait_group(1)", "warpgroup.wait_group(0)"),
        "slow",
    ),
    planted(
        LDMATRIX,
        "three groups a tile, and so fewer tiles in flight",
        In("mainloop").replace(
            "cutlass.const_expr(_k == min(1, _k_blocks - 2))", "cutlass.const_expr(_k != min(1, _k_blocks - 2))"
        ),
        "slow",
    ),
    planted(
        PERSISTENT,
        "a CTA waits until memory has C",
        In("consume").replace(
            "cute.arch.cp_async_bulk_wait_group(0, read=True)", "cute.arch.cp_async_bulk_wait_group(0, read=False)"
        ),
        "slow",
    ),
    planted(
        TCGEN05,
        "a barrier of the CTA for each pipeline",
        In("set_up").replace(
            "pipeline.PipelineTmaUmma.create(..., defer_sync=True)",
            "pipeline.PipelineTmaUmma.create(..., defer_sync=False)",
        ),
        "slow",
    ),
    planted(
        UNSTAGED,
        "the parity that is waited for counts k-tiles from the last",
        In("mainloop")
        .where("for _k_tile in cutlass.range(_count, unroll=1): ...")
        .replace(
            "cute.arch.mbarrier_wait(_arrived, _k_tile % 2)",
            "cute.arch.mbarrier_wait(_arrived, (_count - 1 - _k_tile) % 2)",
        ),
        "race",
    ),
]

SUITES = [Suite(("pipeline",), [fault.mutation for fault in FAULTS])]


def faults_of(module: object, arch: str, config: object) -> list[str]:
    """What is wrong with a module's kernel."""
    found = pipeline.explored(pipeline.Run(module, arch, compiled.cutlass_dtype("bfloat16"), config))
    assert found, "a kernel with barriers has pipelines to explore"
    return [fault for one in found for fault in one.faults]


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_planted_fault_is_found(fault: Planted, tmp_path: Path) -> None:
    found, mutation = caught(fault.mutation, ("pipeline",), tmp_path), fault.mutation
    check(found, mutation.recipe, mutation.what, mutation.variant)
    assert found.by in fault.rules


def narrow(trace: Trace) -> list[int]:
    """Lines that count where a matrix may have more than 2**31 elements in 32 bits: strides, and offsets cut down."""
    cut = [op.line for op in trace.find("arith.trunci") if (*op.operand_types, *op.result_types) == ("i64", "i32")]
    views = [op for op in trace.find("cute.make_view") if ", gmem" in op.result_types[0]]
    strides = {op.line: re.findall(r'"([^"]*)"', op.result_types[0])[-1].rpartition(":")[2] for op in views}
    unknown = {line: re.findall(r"\?(?:\{[^}]*\})?", text) for line, text in strides.items()}
    return cut + [line for line, each in unknown.items() if any("i64" not in stride for stride in each)]


def test_a_stride_of_32_bits_is_noticed(tmp_path: Path) -> None:
    lost = Mutation(
        CP_ASYNC,
        "a narrow stride",
        In("matrices").replace("row_major(_, _, _, _ldc, _vec)", "row_major(_, _, _, cutlass.Int32(_ldc), _vec)", 3, 2),
    )
    module = mutant(lost, tmp_path)
    run = pipeline.Run(module, "sm_80", compiled.cutlass_dtype("bfloat16"), module.config_for("sm_80"))
    assert narrow(run.trace)


def accusations(name: str, variants: slice) -> list[str]:
    """What is found in some variants of a recipe for the first of the problems; `cookbook check` takes all."""
    module, target = catalog.load(name), catalog.find(name).targets[0]
    dtype = compiled.cutlass_dtype(catalog.find(name).dtypes[0])
    faults = []
    for config in list(compiled.variants(module, target).values() or [compiled.config_for(module, target)])[variants]:
        run = pipeline.Run(module, target, dtype, config)
        found = pipeline.explore(run, run.problems[0])
        assert found
        faults += [fault for one in found for fault in one.faults]
        # 32 bits hold the strides of scale factors: a row of their atoms has at most 2**30 words, and the host side
        # checks matrices of float32. One line makes both views where the MMA multiplies by them, else each has its own.
        # Those of a packed weight lie with it, in the order of its tiles, which 64 bits count.
        form = formats.of_module(module)
        of_32_bits = form is not None and form.block and not form.packed
        assert len(narrow(run.trace)) == (0 if not of_32_bits else 1 if form.by_mma else 2)
    return faults


@pytest.mark.parametrize("name", PIPELINED)
def test_recipe_is_not_accused(name: str) -> None:
    assert accusations(name, slice(1)) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", PIPELINED)
def test_no_other_variant_is_accused(name: str) -> None:
    assert accusations(name, slice(1, None)) == []


def test_check_says_what_was_explored() -> None:
    recipe = catalog.find(PLAIN)
    (step,) = (step for step in levels.plan(recipe, *levels.chosen(recipe, [], [], [])) if step.level == "pipeline")
    (level,) = levels.run_step(step)
    assert (level.status, level.dtype) == ("passed", recipe.dtypes[0])
    assert level.figures["problems"] == 4 and level.figures["warps"] == 9 and level.figures["barriers"] == 8
    assert words.describe(level) == f"4 problems, 9 warps, 8 mbarriers: {level.figures['steps']} steps, in any order"


def test_a_kernel_without_mbarriers_has_such_a_level_too() -> None:
    recipe = catalog.find(CP_ASYNC)
    (step,) = (step for step in levels.plan(recipe, *levels.chosen(recipe, [], [], [])) if step.level == "pipeline")
    level = next(iter(levels.run_step(step)))
    assert (level.status, level.figures["warps"], level.figures["barriers"]) == ("passed", 8, 0)
    assert "8 warps, barriers of the CTA" in words.describe(level)


def test_a_fault_is_told_with_an_order_of_steps(tmp_path: Path) -> None:
    module = mutant(FAULTS[0].mutation, tmp_path)
    told = faults_of(module, "sm_90a", module.CONFIG)[0].splitlines()
    assert told[0].startswith("race: CTA 0 warp 8 in line ")  # the producer's copy need not be over
    assert any("warp  0 (consumer)" in line and "issues wgmmas that read" in line for line in told[1:])
    assert told[-1].startswith("  and not yet: CTA 0 warp  8 (producer)") and "asks TMA to fill 16384 bytes" in told[-1]


def test_problems_are_whole_numbers_of_nothing() -> None:
    """Of tiles, clusters, k-tiles, splits: a CTA of the last cluster lies outside of C, a split gets fewer k-tiles."""
    wide, split = catalog.load(MULTICAST).VARIANTS["2x2"], catalog.load(SPLIT).VARIANTS["64x64 in 4"]
    chosen = pipeline.problems(wide)
    assert any(0 < p.m % (wide.tile_m * wide.cluster_m) < wide.tile_m for p in chosen)
    assert any(p.n % (wide.tile_n * wide.cluster_n) for p in chosen) and any(p.k % wide.tile_k for p in chosen)
    k_tiles = [-(-p.k // split.tile_k) for p in pipeline.problems(split)]
    assert any(n % split.split_k for n in k_tiles) and min(k_tiles) < split.split_k


def test_what_is_not_followed_is_named(tmp_path: Path) -> None:
    """A loop whose bound is data: the checker says so, and does not guess."""
    changed = Mutation(
        PLAIN,
        "a bound out of memory",
        In("consume")
        .where("_acc.fill(0.0)")
        .replace("cutlass.range(_k_tiles - 1, ...)", "cutlass.range(bound(_acc), ...)"),
    )
    module = mutant(changed, tmp_path)
    module.bound = lambda acc: cutlass.Int32(acc[0])
    with pytest.raises(pipeline.CannotFollow, match=r"line \d+: scf.for: the bound of a loop depends on data"):
        faults_of(module, "sm_90a", module.CONFIG)


@pytest.mark.parametrize(
    "level",
    [pipeline.explored, product.computed],
    ids=["explored", "computed"],
)
def test_an_arrival_of_cp_async_may_not_raise_the_pending_count(level, monkeypatch) -> None:
    known = nvvm.cp_async_mbarrier_arrive
    monkeypatch.setattr(nvvm, "cp_async_mbarrier_arrive", lambda where, noinc, **rest: known(where, **rest))
    module = catalog.load(REPORTING)
    said = r"line \d+ of \w+: nvvm.cp.async.mbarrier.arrive: without .noinc, which raises .* first; needed .noinc"
    with pytest.raises(pipeline.CannotFollow, match=said):
        dtype, kind = compiled.cutlass_dtype("bfloat16"), catalog.find(REPORTING).product
        level(pipeline.Run(module, "sm_90a", dtype, module.CONFIG, kind))


def test_an_unknown_operand_is_named_with_its_line(monkeypatch) -> None:
    """No handler of an operation may end the check with an error of Python's."""

    def confused(f: object, op: object, args: list[object]) -> None:
        raise KeyError("n")

    monkeypatch.setitem(warp.TABLE, "nvvm.wgmma.wait.group.sync.aligned", warp.Entry(confused, waits=False))
    module = catalog.load(PLAIN)
    said = r"line \d+ of \w+: nvvm.wgmma.wait.group.sync.aligned, with operands that the checker does not know \('n'\)"
    with pytest.raises(pipeline.CannotFollow, match=said):
        faults_of(module, "sm_90a", module.CONFIG)


def test_a_copy_of_ones_own_can_be_explored(tmp_path: Path, monkeypatch, capsys) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(
        In("consume").drop("_pipe.consumer_wait(_read)", times=2).of(catalog.standalone_source(PLAIN)),
        encoding="utf-8",
    )
    monkeypatch.setattr("sys.argv", ["interleavings", str(mine), "--arch", "sm_90a", "--programs"])
    assert main() == 1
    said = capsys.readouterr().out
    assert "producer, warp 8:" in said and "race: CTA 0 warp 8" in said
    monkeypatch.setattr("sys.argv", ["interleavings", PLAIN])
    assert main() == 0
    assert "9 warps, 8 mbarriers" in capsys.readouterr().out
