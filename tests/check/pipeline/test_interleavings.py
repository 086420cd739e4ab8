"""The explorer of interleavings accuses no recipe, and finds every fault planted in a recipe's source."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import cutlass
import pytest
from cutlass._mlir.dialects import nvvm
from mutations import Mutation, mutant
from planted import Suite, caught, check

from cookbook.check import compiled, levels, pipeline, product
from cookbook.check.pipeline import interpreter
from cookbook.check.pipeline.__main__ import main
from cookbook.check.pipeline.reading import Module
from cookbook.publish import words
from cookbook.recipe import catalog, formats

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


def planted(recipe: str, what: str, old: str, new: str, *rules: str, variant: str = "") -> Planted:
    return Planted(Mutation(recipe, what, old, new, variant), rules)


MEET = "barrier.arrive_and_wait()"
TURN = "pipeline.NamedBarrier(barrier_id=TURN_BARRIER + group, num_threads=256).arrive_and_wait()"
HAND_OVER = "pipeline.NamedBarrier(barrier_id=TURN_BARRIER + 1 - group, num_threads=256).arrive()"
SENDER_WAITS = "cute.arch.cp_async_bulk_wait_group(config.epi_buffers - 1, read=True)"
PRODUCER = "pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.stages)"
READER = "read = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.stages)"
ARRIVED = "cute.arch.cp_async_wait_group(stages - 2)"
SENT = "cute.arch.cp_async_bulk_wait_group(0, read=True)"
RING = "write = write + 1 if write + 1 < stages"
FENCE = 'cute.arch.fence_proxy("async.shared", space="cta")'
ANSWER = "yes = cute.arch.clc_response(answers + read.index)\n        "
GIVES = "cute.arch.setmaxregister_decrease(REGISTERS[0])"
TENSOR_C = "sC = smem.allocate_tensor(dtype, layouts.c.outer, 1024, swizzle=layouts.c.inner)"
LANES = "copies.t2r_c.get_slice(tidx), copies.r2s_c"
OWN = "copies.t2r_c.get_slice(epi.thread)"

FAULTS = [
    planted(PLAIN, "a stage is read before it is full", "pipe.consumer_wait(read)", "pass", "race"),
    planted(PLAIN, "a stage is filled before it is empty", "pipe.producer_acquire(state)", "pass", "race"),
    planted(
        PLAIN,
        "the last stage is not given back",
        "warpgroup.wait_group(0)\n    pipe.consumer_release(release)",
        "warpgroup.wait_group(0)",
        "deadlock",
    ),
    planted(
        PLAIN,
        "a stage is given back while wgmma reads it",
        "warpgroup.wait_group(1)",
        "warpgroup.wait_group(2)",
        "race",
    ),
    planted(
        PLAIN,
        "sixteen bytes too many are expected",
        "tx_count=config.stage_bytes",
        "tx_count=config.stage_bytes + 16",
        "deadlock",
    ),
    planted(
        PLAIN,
        "half of the bytes are expected",
        "tx_count=config.stage_bytes",
        "tx_count=config.stage_bytes // 2",
        "bytes",
    ),
    planted(
        PLAIN,
        "one arrival too few is needed",
        "config.consumer_threads // 32),",
        "config.consumer_threads // 32 - 1),",
        "arrivals",
        "early arrival",
    ),
    planted(
        PLAIN,
        "one arrival too many is needed",
        "config.consumer_threads // 32),",
        "config.consumer_threads // 32 + 1),",
        "deadlock",
    ),
    planted(
        PLAIN,
        "the producer begins with the other phase",
        PRODUCER,
        PRODUCER.replace("Producer", "Consumer"),
        "deadlock",
    ),
    planted(
        PLAIN,
        "the consumers begin with the other phase",
        READER,
        READER.replace("Consumer", "Producer"),
        "deadlock",
    ),
    planted(
        PLAIN,
        "the producer goes round one stage too few",
        PRODUCER,
        PRODUCER.replace("stages", "stages - 1"),
        "race",
        "deadlock",
        "early wait",
    ),
    planted(
        PLAIN,
        "the consumers go round one stage too few",
        READER,
        READER.replace("stages", "stages - 1"),
        "deadlock",
        "early wait",
        "race",
    ),
    planted(PLAIN, "TMA always fills stage 0 of A", "tAsA[None, state.index]", "tAsA[None, 0]", "race"),
    planted(
        PLAIN,
        "wgmma always reads stage 1 of B",
        "tCrB[None, None, k, stage]",
        "tCrB[None, None, k, 1]",
        "race",
    ),
    planted(
        PLAIN,
        "B is not loaded",
        "cute.copy(tma_b, tBgB[None, k_tile], tBsB[None, state.index], tma_bar_ptr=barrier)",
        "pass",
        "deadlock",
    ),
    planted(PLAIN, "C is written over a stage that is still read", f"{MEET}  # both", "pass  # both", "race"),
    planted(
        PLAIN,
        "C is read before all have written it",
        f"thr.partition_D(sC))\n    {MEET}",
        "thr.partition_D(sC))",
        "race",
    ),
    planted(
        PLAIN,
        "a named barrier is for half of the threads",
        "num_threads=config.consumer_threads)",
        "num_threads=128)",
        "named barrier",
    ),
    planted(PLAIN, "wgmma takes registers without a fence", "warpgroup.fence()", "pass", "wgmma fence"),
    planted(
        PLAIN,
        "accumulators are read before wgmma ends",
        "warpgroup.wait_group(0)",
        "pass",
        "race",
        "registers",
    ),
    planted(
        MULTICAST,
        "the arrivals of the peer are not counted",
        "config.consumer_threads // 32 * sharers",
        "config.consumer_threads // 32",
        "race",
        "arrivals",
        "early arrival",
    ),
    planted(
        MULTICAST,
        "a tile goes to its own CTA alone",
        "whole_column = (1 << config.cluster_m) - 1",
        "whole_column = 1",
        "deadlock",
    ),
    planted(MULTICAST, "a CTA ends before its peer's last arrivals", "pipe.producer_tail(state)", "pass", "exit"),
    planted(PERSISTENT, "a buffer of C is not waited for", SENDER_WAITS, "pass", "race"),
    planted(
        PERSISTENT,
        "one buffer of C too few is waited for",
        SENDER_WAITS,
        SENDER_WAITS.replace(" - 1", ""),
        "race",
    ),
    planted(
        PERSISTENT,
        "only one warp knows that the buffer is free",
        f"{MEET}  # all know",
        "pass  # all know",
        "race",
    ),
    planted(
        PERSISTENT,
        "TMA sends C before all have written it",
        f"{MEET}  # all have",
        "pass  # all have",
        "race",
    ),
    planted(
        PERSISTENT,
        "no proxy fence before TMA sends C",
        'cute.arch.fence_proxy("async.shared", space="cta")',
        "pass",
        "proxy fence",
    ),
    planted(
        PERSISTENT,
        "a CTA ends while TMA reads its C",
        "cute.arch.cp_async_bulk_wait_group(0, read=True)",
        "pass",
        "exit",
    ),
    planted(
        PERSISTENT,
        "the phase is that of one stage more",
        "number // config.stages & 1",
        "number // (config.stages + 1) & 1",
        "deadlock",
        "early wait",
        "race",
    ),
    planted(
        PERSISTENT,
        "the next tile begins one k-tile index early",
        "main, iteration * k_tiles",
        "main, iteration * (k_tiles - 1)",
        "deadlock",
        "early wait",
        "race",
    ),
    planted(PINGPONG, "nobody waits for a turn", TURN, "pass", "race", "early wait"),
    planted(
        PINGPONG, "the barriers of the turns are swapped", TURN, TURN.replace("+ group", "+ 1 - group"), "deadlock"
    ),
    planted(PINGPONG, "nobody hands the turn over", HAND_OVER, "pass", "deadlock"),
    planted(
        PINGPONG,
        "the last turn is handed over to nobody",
        "if iteration + 1 < count:  # all is issued",
        "if iteration + 1 <= count:  # all is issued",
        "named barrier",
    ),
    planted(
        PINGPONG, "the turns use the barriers of the epilogues", "TURN_BARRIER = 3", "TURN_BARRIER = 1", "named barrier"
    ),
    planted(TENSOR, "sums are fetched before all are there", "acc_pipe.consumer_wait(fetch)", "pass", "race"),
    planted(TENSOR, "sums are overwritten before they are fetched", "acc_pipe.producer_acquire(fill)", "pass", "race"),
    planted(TENSOR, "sums are never said to be there", "acc_pipe.producer_commit(fill)", "pass", "deadlock"),
    planted(
        TENSOR,
        "tensor memory is given back while it is fetched",
        "cute.arch.fence_view_async_tmem_load()",
        "pass",
        "race",
        "registers",
    ),
    planted(
        TENSOR,
        "each lane gives tensor memory back",
        "with cute.arch.elect_one():\n                    acc_pipe",
        "if True:\n                    acc_pipe",
        "arrivals",
        "race",
    ),
    planted(TENSOR, "a stage is never given back", "pipe.consumer_release(read)", "pass", "deadlock"),
    planted(
        TENSOR,
        "no fence after the wait for the sums",
        'acc_pipe.consumer_wait(fetch)\n        cute.arch.inline_ptx("tcgen05.fence::after_thread_sync;")',
        "acc_pipe.consumer_wait(fetch)",
        "tensor fence",
    ),
    planted(
        TENSOR,
        "no fence before tensor memory is given back",
        'cute.arch.inline_ptx("tcgen05.fence::before_thread_sync;")',
        "pass",
        "tensor fence",
    ),
    planted(TCGEN05, "the sums are fetched before all are there", "acc_pipe.consumer_wait(", "(", "race"),
    planted(TCGEN05, "C is read before all have written it", f"{MEET}  # all of C", "pass  # all of C", "race"),
    planted(TCGEN05, "bytes of A alone are expected", "tx_count=config.stage_bytes", "tx_count=16384", "early arrival"),
    planted(TENSOR, "tensor memory is not freed", "tmem.free(address)", "pass", "tensor memory"),
    planted(
        TENSOR,
        "the epilogue goes round one accumulator stage",
        "fetch = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.acc_stages)",
        "fetch = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, 1)",
        "deadlock",
        "race",
        "early wait",
    ),
    planted(TENSOR, "nobody waits until tensor memory is allocated", "tmem.wait_for_alloc()", "pass", "race"),
    planted(
        TENSOR,
        "the epilogue begins with the other phase",
        "fetch = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer",
        "fetch = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer",
        "race",
        "deadlock",
    ),
    planted(
        TENSOR,
        "the producer goes round one stage too few",
        PRODUCER,
        PRODUCER.replace("stages", "stages - 1"),
        "race",
        "deadlock",
        "early wait",
    ),
    planted(
        TENSOR,
        "the multiplying warp goes round one stage too few",
        READER,
        READER.replace("stages", "stages - 1"),
        "race",
        "deadlock",
        "early wait",
    ),
    planted(TENSOR, "a warp asks for another's lanes", OWN, OWN.replace("thread", "thread ^ 32"), "tensor lanes"),
    planted(TCGEN05, "a warp asks for another's lanes", LANES, LANES.replace("tidx", "tidx ^ 32", 1), "tensor lanes"),
    planted(
        PINGPONG,
        "memory is touched before the kernel before has ended",
        "cute.arch.griddepcontrol_wait()",
        "pass",
        "dependent launch",
    ),
    planted(CP_ASYNC, "a tile is read one group early", ARRIVED, ARRIVED.replace("2", "1"), "race"),
    planted(CP_ASYNC, "nobody waits for a tile", ARRIVED, "pass", "race"),
    planted(
        CP_ASYNC, "each waits for its own copies alone", "cute.arch.sync_threads()  # everybody", "pass  #", "race"
    ),
    planted(CP_ASYNC, "the ring is one stage too short", RING, f"{RING} - 1", "race"),
    planted(CP_ASYNC, "all copies are waited for", ARRIVED, ARRIVED.replace("stages - 2", "0"), "slow"),
    planted(LDMATRIX, "a tile is read one group early", ARRIVED, ARRIVED.replace("2", "1"), "race"),
    planted(LDMATRIX, "C is written over a stage that is read", "cute.arch.sync_threads()  # every", "pass  #", "race"),
    planted(
        STAYS,
        "a CTA ends while zeros still come",
        "cute.arch.cp_async_wait_group(0)  #",
        "pass  #",
        "exit",
    ),
    planted(PERSISTENT, "a proxy fence of another kind", FENCE, 'cute.arch.fence_proxy("alias")', "proxy fence"),
    planted(CLC, "an answer is given back with no fence", ANSWER + FENCE, ANSWER.rstrip(), "proxy fence"),
    planted(PINGPONG, "a seventeenth named barrier", "TURN_BARRIER = 3", "TURN_BARRIER = 15", "named barrier"),
    planted(PERSISTENT, "the producer keeps its registers", GIVES, "pass", "deadlock"),
    planted(PERSISTENT, "more registers than an SM has", "REGISTERS = (24, 240)", "REGISTERS = (24, 248)", "deadlock"),
    planted(
        PERSISTENT,
        "one warp of four gives registers back",
        GIVES,
        f"if warp_idx == 4 * config.warpgroups:\n            {GIVES}",
        "setmaxnreg",
    ),
    planted(
        PERSISTENT, "an increase of what is less", "increase(REGISTERS[1])", "increase(REGISTERS[0])", "setmaxnreg"
    ),
    planted(
        PERSISTENT,
        "a tile begins where its swizzle does not",
        "sA = smem.allocate_tensor(dtype, layouts.a.outer, 1024",
        "sA = smem.allocate_tensor(dtype, layouts.a.outer, 128",
        "alignment",
    ),
    planted(
        PERSISTENT, "C's buffer has no swizzle", TENSOR_C, TENSOR_C.replace(", swizzle=layouts.c.inner", ""), "swizzle"
    ),
    planted(
        PERSISTENT,
        "TMA sends C with another swizzle than it was written with",
        "CopyBulkTensorTileS2GOp(), mC, c_stage",
        "CopyBulkTensorTileS2GOp(), mC, c_stage.outer",
        "swizzle",
    ),
    planted(
        MULTICAST,
        "a CTA outside of C loads nothing",
        "if warp_idx == config.consumer_threads // 32:",
        "if warp_idx == config.consumer_threads // 32 and tile_m * config.tile_m < mC.shape[0]:",
        "deadlock",
    ),
    planted(
        SPLIT,
        "what K lacks to whole splits is not loaded",
        "    for i in cutlass.range(part.k_tiles, unroll=1):\n        k_tile = part.first + i",
        "    for i in cutlass.range(cutlass.min(part.k_tiles, gA.shape[2] - part.first), unroll=1):\n"
        "        k_tile = part.first + i",
        "deadlock",
        variant="64x64 in 2",
    ),
    planted(PLAIN, "no wgmma overlaps with the next", "warpgroup.wait_group(1)", "warpgroup.wait_group(0)", "slow"),
    planted(
        LDMATRIX,
        "three groups a tile, and so fewer tiles in flight",
        "const_expr(k == min(1, k_blocks - 2)):\n                    cute",
        "const_expr(k != min(1, k_blocks - 2)):\n                    cute",
        "slow",
    ),
    planted(PERSISTENT, "a CTA waits until memory has C", SENT, SENT.replace("True", "False"), "slow"),
    planted(TCGEN05, "a barrier of the CTA for each pipeline", "defer_sync=True", "defer_sync=False", "slow"),
]

SUITES = [Suite(("pipeline",), [fault.mutation for fault in FAULTS])]


def faults_of(module: object, arch: str, config: object) -> list[str]:
    """What is wrong with a module's kernel."""
    found = pipeline.explored(module, arch, compiled.cutlass_dtype("bfloat16"), config)
    assert found, "a kernel with barriers has pipelines to explore"
    return [fault for one in found for fault in one.faults]


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_planted_fault_is_found(fault: Planted, tmp_path: Path) -> None:
    found, mutation = caught(fault.mutation, ("pipeline",), tmp_path), fault.mutation
    check(found, mutation.recipe, mutation.what, mutation.variant)
    assert found.by in fault.rules


def narrow(trace: Module) -> list[int]:
    """Lines that count where a matrix may have more than 2**31 elements in 32 bits: strides, and offsets cut down."""
    cut = [op.line for op in trace.find("arith.trunci") if (*op.operand_types, *op.result_types) == ("i64", "i32")]
    views = [op for op in trace.find("cute.make_view") if ", gmem" in op.result_types[0]]
    strides = {op.line: re.findall(r'"([^"]*)"', op.result_types[0])[-1].rpartition(":")[2] for op in views}
    unknown = {line: re.findall(r"\?(?:\{[^}]*\})?", text) for line, text in strides.items()}
    return cut + [line for line, each in unknown.items() if any("i64" not in stride for stride in each)]


def test_a_stride_of_32_bits_is_noticed(tmp_path: Path) -> None:
    lost = Mutation(CP_ASYNC, "a narrow stride", "cute.assume(ldc, divby=vec)", "cutlass.Int32(ldc)")
    module = mutant(lost, tmp_path)
    trace = pipeline.trace_of(module, "sm_80", compiled.cutlass_dtype("bfloat16"), module.config_for("sm_80"))
    assert narrow(trace)


def accusations(name: str, variants: slice) -> list[str]:
    """What is found in some variants of a recipe for the first of the problems; `cookbook check` takes all."""
    module, target = catalog.load(name), catalog.find(name).targets[0]
    dtype = compiled.cutlass_dtype(catalog.find(name).dtypes[0])
    faults = []
    for config in list(compiled.variants(module, target).values() or [compiled.config_for(module, target)])[variants]:
        trace = pipeline.trace_of(module, target, dtype, config)
        found = pipeline.explore(module, trace, config, pipeline.problems(config)[0])
        assert found
        faults += [fault for one in found for fault in one.faults]
        # 32 bits hold the strides of scale factors: a row of their atoms has at most 2**30 words, and the host side
        # checks matrices of float32. One line makes both views where the MMA multiplies by them, else each has its own.
        # Those of a packed weight lie with it, in the order of its tiles, which 64 bits count.
        form = formats.of_module(module)
        of_32_bits = form is not None and form.block and not form.packed
        assert len(narrow(trace)) == (0 if not of_32_bits else 1 if form.by_mma else 2)
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
    changed = Mutation(PLAIN, "a bound out of memory", "cutlass.range(k_tiles - 1,", "cutlass.range(bound(acc),")
    module = mutant(changed, tmp_path)
    module.bound = lambda acc: cutlass.Int32(acc[0])
    with pytest.raises(pipeline.CannotFollow, match=r"line \d+: scf.for: the bound of a loop depends on data"):
        faults_of(module, "sm_90a", module.CONFIG)


@pytest.mark.parametrize("level", [pipeline.explored, product.computed])
def test_an_arrival_of_cp_async_that_raises_the_pending_count_is_refused(level, monkeypatch) -> None:
    known = nvvm.cp_async_mbarrier_arrive
    monkeypatch.setattr(nvvm, "cp_async_mbarrier_arrive", lambda where, noinc, **rest: known(where, **rest))
    module = catalog.load(REPORTING)
    said = r"line \d+ of \w+: nvvm.cp.async.mbarrier.arrive: without .noinc, which raises .* first; needed .noinc"
    with pytest.raises(pipeline.CannotFollow, match=said):
        level(module, "sm_90a", compiled.cutlass_dtype("bfloat16"), module.CONFIG)


def test_an_operand_that_the_checker_does_not_know_is_named_with_its_line(monkeypatch) -> None:
    """No handler of an operation may end the check with an error of Python's."""

    def confused(f: object, op: object, args: list[object]) -> None:
        raise KeyError("n")

    monkeypatch.setitem(interpreter.TABLE, "nvvm.wgmma.wait.group.sync.aligned", confused)
    module = catalog.load(PLAIN)
    said = r"line \d+ of \w+: nvvm.wgmma.wait.group.sync.aligned, with operands that the checker does not know \('n'\)"
    with pytest.raises(pipeline.CannotFollow, match=said):
        faults_of(module, "sm_90a", module.CONFIG)


def test_a_copy_of_ones_own_can_be_explored(tmp_path: Path, monkeypatch, capsys) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(catalog.standalone_source(PLAIN).replace("pipe.consumer_wait(read)", "pass"), encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["interleavings", str(mine), "--arch", "sm_90a", "--programs"])
    assert main() == 1
    said = capsys.readouterr().out
    assert "producer, warp 8:" in said and "race: CTA 0 warp 8" in said
    monkeypatch.setattr("sys.argv", ["interleavings", PLAIN])
    assert main() == 0
    assert "9 warps, 8 mbarriers" in capsys.readouterr().out
