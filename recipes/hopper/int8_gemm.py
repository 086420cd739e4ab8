# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: INT8 operands with exact int32 sums
#     claim: >-
#       C = A B of int8, exact in int32: the 8-bit GEMM with another instruction, and twice the bytes of C to store.
#     track: hopper
#     order: 105
#     builds_on: hopper/fp8_gemm
#     targets: [sm_90a]
#     runs_on: sm_90
#     operands: int8
#     dtypes: [int32]
#     path: tma, multicast -> swizzled shared memory -> wgmma s8 -> registers -> st.global, under the next main loop
#     instructions:
#       sm_90a: [UTMALDG.2D, IGMMA, STG, USETMAXREG, SYNCS]
#     bench_shapes: [[8192, 8192, 8192], [4096, 4096, 4096], [4096, 7168, 2048]]
#     sources:
#       - {title: "PTX ISA, wgmma.mma_async", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions-wgmma-mma"}
#       - {title: "PTX ISA, shared-memory layouts of wgmma", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-shared-memory-layout"}
# ---

# %%
from dataclasses import dataclass
from typing import NamedTuple

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
import torch
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup

from cookbook.recipe.entry import Call, IntegerGemm, compile_host, require
from cookbook.recipe.moved import SmemAllocator


# %%
@dataclass(frozen=True)
class Config:
    """Sizes of the kernel, in elements or counts, and how it is scheduled."""

    tile_m: int = 128  # rows of C of a work tile
    tile_n: int = 256  # its columns
    tile_k: int = 128  # 128 bytes: one row of the SW128 atom, four wgmma steps of 32
    stages: int = 4  # pairs of A and B tiles in flight or being read
    cluster_m: int = 1
    cluster_n: int = 2  # CTAs side by side: both get each tile of A by multicast
    pingpong: bool = False  # each warpgroup has work tiles of its own; False: cooperative, both share one
    overlapped: int = 4  # parts of a tile that are stored during the next tile's main loop
    swizzle_size: int = 8  # cluster tiles down C that share tiles of B before the rasterization moves across
    registers: tuple[int, int] = (24, 240)  # of a producer's thread and of a consumer's

    @property
    def cluster(self) -> int:
        return self.cluster_m * self.cluster_n

    @property
    def threads(self) -> int:
        return 3 * 128  # two consumer warpgroups, 64 rows each, and the producer's, of which one warp works

    @property
    def warpgroups(self) -> int:
        return 1 if self.pingpong else 2  # that share a work tile

    @property
    def parts(self) -> int:
        return self.tile_n // PART

    @property
    def first_k_tiles(self) -> int:
        """K-tiles under which the work tile before is stored. TMA fills those past K with zeros."""
        return max(1, self.overlapped)

    @property
    def stage_bytes(self) -> int:
        return (self.tile_m + self.tile_n) * self.tile_k

    @property
    def smem_bytes(self) -> int:
        return 1024 + self.stages * self.stage_bytes  # the barriers, padded to the tiles' alignment


PART = 32  # columns of C that a warpgroup stores together: 128 bytes of a row
VARIANTS = {
    "128x256": Config(),
    "128x256 at once": Config(overlapped=0),
    "128x256 two": Config(overlapped=2),
    "128x192 pingpong": Config(tile_n=192, stages=5, pingpong=True, overlapped=0),
    "128x128 pingpong": Config(tile_n=128, stages=6, pingpong=True, overlapped=0),
    "128x128 pingpong m": Config(tile_n=128, stages=6, pingpong=True, overlapped=0, cluster_m=2, cluster_n=1),
}
DEFAULT = "128x256"
CONFIG = VARIANTS[DEFAULT]


def config_for(arch: str, variant: str = DEFAULT) -> Config:
    """A variant's configuration for an architecture: there is one Hopper."""
    return VARIANTS[variant]


# %% tags=["folded"]
ELEMENT = cutlass.Int8  # what the checks multiply


class SmemLayouts(NamedTuple):
    """Where each tile lies in shared memory: S<B,4,3> over bytes, o 0 o, a layout over elements."""

    a: cute.ComposedLayout  # (M, K, STAGE)
    b: cute.ComposedLayout  # (N, K, STAGE)


def smem_atom(dtype, contiguous: int) -> cute.ComposedLayout:
    """The widest atom whose row divides `contiguous` elements: SW128, SW64, SW32, or INTER (no swizzle)."""
    bits = next((bits for bits in (3, 2, 1, 0) if contiguous * dtype.width % (128 << bits) == 0), None)
    require(bits is not None, "contiguous", f"{contiguous} elements", f"a multiple of {128 // dtype.width}: 16 bytes")
    width = (128 << bits) // dtype.width
    rows = cute.make_layout((8, width), stride=(width, 1))
    return cute.make_composed_layout(cute.make_swizzle(bits, 4, 3), 0, rows)


def smem_layouts(dtype, config: Config = CONFIG) -> SmemLayouts:
    """The atoms, tiled to the size of the tiles: first down the rows, then along K, then over the stages."""
    c, atom = config, smem_atom(ELEMENT, config.tile_k)
    return SmemLayouts(
        a=cute.tile_to_shape(atom, (c.tile_m, c.tile_k, c.stages), order=(0, 1, 2)),
        b=cute.tile_to_shape(atom, (c.tile_n, c.tile_k, c.stages), order=(0, 1, 2)),
    )


def tiled_mma(dtype, config: Config = CONFIG) -> cute.TiledMma:
    """wgmma m64nNk32 of the warpgroups that share a work tile: s8 times s8, both from shared memory, added in s32."""
    smem, k_major = warpgroup.OperandSource.SMEM, OperandMajorMode.K
    op = warpgroup.MmaI8Op(ELEMENT, ELEMENT, cutlass.Int32, (64, config.tile_n, 32), smem, k_major, k_major)
    return cute.make_tiled_mma(op, (config.warpgroups, 1, 1))


class TiledCopies(NamedTuple):
    """The copies by software that touch shared memory: there are none."""


def tiled_copies(dtype, config: Config = CONFIG) -> TiledCopies:
    """No copy: TMA fills the stages, wgmma reads them, and C goes out of registers."""
    return TiledCopies()


# %% tags=["folded"]
class Schedule(NamedTuple):
    """Which work tiles a cluster computes: numbers `first`, `first + step`, ..., `count` of them."""

    first: cutlass.Int32
    step: cutlass.Int32
    count: cutlass.Int32
    down: cutlass.Int32  # cluster tiles down C
    of_group: object  # divisor: the cluster tiles of a group
    of_last: object  # divisor: the height of the last group
    rank: tuple  # (row, column) of the CTA in its cluster


@cute.jit
def tile_of(i, schedule: Schedule, config: cutlass.Constexpr):
    """This CTA's i-th work tile: (m, n)."""
    group, inside = divmod(schedule.first + i * schedule.step, schedule.of_group)
    start = group * config.swizzle_size
    n, m = inside // config.swizzle_size, inside % config.swizzle_size
    if start + config.swizzle_size > schedule.down:  # the last group is lower
        n, m = divmod(inside, schedule.of_last)
    return (start + m) * config.cluster_m + schedule.rank[0], n * config.cluster_n + schedule.rank[1]


@cute.jit
def state_at(k_tile, config: cutlass.Constexpr):
    """The consumer's pipeline state at a k-tile, counted over all work tiles of the CTA."""
    stage, phase = k_tile % config.stages, k_tile // config.stages & 1
    return pipeline.PipelineState(config.stages, k_tile, stage, phase)


# %% tags=["folded"]
class Load(NamedTuple):
    """One operand as the producer sees it."""

    tma: cute.CopyAtom
    source: cute.Tensor  # (TMA, m or n, k): global memory
    target: cute.Tensor  # (TMA, STAGE): shared memory
    multicast: dict  # what a copy to several CTAs of the cluster is told: a bit for each


@cute.jit
def load_of(tma, mX, sX, tile, part, sharers: cutlass.Constexpr):
    """The parts of all tiles of an operand that this CTA fetches; `sharers` CTAs of the cluster get each tile."""
    gX = cute.group_modes(cute.local_tile(mX, tile, (None, None)), 0, 2)  # ((rows, K), m or n, k)
    target, source = cpasync.tma_partition(tma, part, cute.make_layout(sharers), cute.group_modes(sX, 0, 2), gX)
    return Load(tma, source, target, {"mcast_mask": cutlass.Int16((1 << sharers) - 1)} if sharers > 1 else {})


@cute.jit
def produce_tile(pipe, state, i, k_tiles, a: Load, b: Load, tile):
    """Fill a stage for each k-tile of the i-th work tile; every other one from the last to the first."""
    # Where there is no such tile, load the last one: TMA is slow to find nothing.
    m, n = (cutlass.min(t, cute.size(x.source, mode=[1]) - 1) for t, x in zip(tile, (a, b), strict=True))
    tAgA, tBgB = a.source[None, m, None], b.source[None, n, None]  # (TMA, k)
    for j in cutlass.range(k_tiles, unroll=1):
        k_tile = j + (i & 1) * (k_tiles - 1 - 2 * j)
        pipe.producer_acquire(state)
        barrier = pipe.producer_get_barrier(state)
        tAsA, tBsB = a.target[None, state.index], b.target[None, state.index]
        cute.copy(a.tma, tAgA[None, k_tile], tAsA, tma_bar_ptr=barrier, **a.multicast)
        cute.copy(b.tma, tBgB[None, k_tile], tBsB, tma_bar_ptr=barrier, **b.multicast)
        state.advance()
    return state


@cute.jit
def produce(pipe, schedule: Schedule, k_tiles, a: Load, b: Load, config: cutlass.Constexpr):
    """Keep the stages full, work tile after work tile."""
    tile = tuple(cute.arch.make_warp_uniform(x) for x in tile_of(0, schedule, config))
    state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, config.stages)
    cute.arch.griddepcontrol_wait()  # the kernel before has ended: global memory may be touched
    for i in cutlass.range(schedule.count, unroll=1):
        state = produce_tile(pipe, state, i, k_tiles, a, b, tile)
        tile = tile_of(cutlass.min(i + 1, schedule.count - 1), schedule, config)
    cute.arch.griddepcontrol_launch_dependents()
    pipe.producer_tail(state)  # a CTA must not end while barriers are still to be signalled


# %%
class Consumer(NamedTuple):
    """What a consumer warpgroup works with."""

    pipe: pipeline.PipelineTmaAsync
    overwrite: cute.TiledMma  # the accumulators
    add: cute.TiledMma  # to the accumulators
    acc: cute.Tensor  # (MMA, MMA_M, MMA_N), int32
    tCrA: cute.Tensor  # (MMA, MMA_M, MMA_K, STAGE): descriptors
    tCrB: cute.Tensor  # (MMA, MMA_N, MMA_K, STAGE)
    gC: cute.Tensor  # (MMA, MMA_M, MMA_N, m, n): this thread's elements of every tile of C
    cC: cute.Tensor  # likewise: their coordinates
    limit: tuple  # (M, N)
    group: cutlass.Int32  # 0 or 1


@cute.jit
def multiply_stage(me: Consumer, stage, first: cutlass.Constexpr = False):
    """Issue one stage's wgmmas as one commit group."""
    warpgroup.fence()
    for k in cutlass.range_constexpr(cute.size(me.tCrA, mode=[2])):  # each step is 32 elements, 32 bytes, along K
        mma = me.overwrite if first and k == 0 else me.add
        cute.gemm(mma, me.acc, me.tCrA[None, None, k, stage], me.tCrB[None, None, k, stage], me.acc)
    warpgroup.commit_group()


@cute.jit
def next_stage(me: Consumer, read, release):
    """Multiply the stage at `read`, and give back the one at `release`."""
    me.pipe.consumer_wait(read)
    multiply_stage(me, read.index)
    read.advance()
    warpgroup.wait_group(1)  # the commit group before this one is done: its stage may be overwritten
    me.pipe.consumer_release(release)
    release.advance()
    return read, release


def part_of(values: cute.Tensor, i: int) -> cute.Tensor:
    """A thread's values of the `i`th part in `values`: (2, 2, PART / 8), as the MMA has them."""
    layout = cute.make_layout((2, 2, PART // 8))
    return cute.make_tensor(values.iterator + i * cute.size(layout), layout)


@cute.jit
def store_part(me: Consumer, i: cutlass.Constexpr, values, tile, config: cutlass.Constexpr, vec: cutlass.Constexpr):
    """Store part `i` of this warpgroup's share of a work tile, where it lies in C. values: (2, 2, PART / 8)."""
    across = config.parts
    for j in cutlass.range_constexpr(PART // 8):
        for row in cutlass.range_constexpr(2):
            for v in cutlass.range_constexpr(2 // vec):
                at = ((v, row, i % across * (PART // 8) + j), i // across, 0, tile[0], tile[1])
                if cute.elem_less(me.cC[at], me.limit):
                    if cutlass.const_expr(vec == 2):
                        pair = ((None, row, i % across * (PART // 8) + j), i // across, 0, tile[0], tile[1])
                        cute.autovec_copy(values[None, row, j], me.gC[pair])
                    else:
                        me.gC[at] = values[v, row, j]


@cute.jit
def multiply_and_store(me: Consumer, schedule: Schedule, k_tiles, config: cutlass.Constexpr, vec: cutlass.Constexpr):
    """A warpgroup's share of all work tiles: its half of each, or in ping-pong every second one."""
    own, step = (me.group, 2) if config.pingpong else (0, 1)
    at_once = cute.size(me.acc) * 2 // PART - config.overlapped
    rC = cute.make_rmem_tensor(config.first_k_tiles * PART // 2, cutlass.Int32)  # the parts of the tile before
    before = (cutlass.Int32(0), cutlass.Int32(0))
    for i in cutlass.range(own, schedule.count, step, unroll=1):
        read, release = state_at(i * k_tiles, config), state_at(i * k_tiles, config)
        if cutlass.const_expr(config.pingpong):  # barrier 0 is the CTA's
            if i > 0:
                pipeline.NamedBarrier(barrier_id=1 + me.group, num_threads=256).arrive_and_wait()
        me.pipe.consumer_wait(read)
        multiply_stage(me, read.index, True)
        read.advance()
        tile = tile_of(i, schedule, config)  # computed while the first commit group runs
        for j in cutlass.range_constexpr(config.overlapped):
            if i > 0:
                store_part(me, at_once + j, part_of(rC, j), before, config, vec)
            if cutlass.const_expr(j + 1 < config.overlapped):
                read, release = next_stage(me, read, release)
        for _ in cutlass.range(config.first_k_tiles, k_tiles, unroll=1):
            read, release = next_stage(me, read, release)
        if cutlass.const_expr(config.pingpong):
            if i + 1 < schedule.count:  # all is issued: the other warpgroup may begin
                pipeline.NamedBarrier(barrier_id=2 - me.group, num_threads=256).arrive()
        warpgroup.wait_group(0)
        me.pipe.consumer_release(release)
        for j in cutlass.range_constexpr(at_once):
            store_part(me, j, part_of(me.acc, j), tile, config, vec)
        for j in cutlass.range_constexpr(config.overlapped):
            part_of(rC, j).store(part_of(me.acc, at_once + j).load())
        before = tile
    for j in cutlass.range_constexpr(config.overlapped):
        store_part(me, at_once + j, part_of(rC, j), before, config, vec)


# %%
class Operands(NamedTuple):
    """What a kernel takes: A and B as TMA coordinates, with their copies, and C."""

    tma_a: cute.CopyAtom
    mA: cute.Tensor  # (M, K)
    tma_b: cute.CopyAtom
    mB: cute.Tensor  # (N, K)
    mC: cute.Tensor  # (M, N)


@cute.jit
def set_up(config: cutlass.Constexpr):
    """The pipeline of a CTA, and its shared memory: sA, sB."""
    layouts, smem = smem_layouts(ELEMENT, config), SmemAllocator()
    barriers = smem.allocate_array(cutlass.Int64, 2 * config.stages)
    # The swizzle XORs address bits 7-9 into bits 4-6: it is the layout's only from a multiple of 1024 bytes on.
    sA = smem.allocate_tensor(ELEMENT, layouts.a.outer, 1024, swizzle=layouts.a.inner)
    sB = smem.allocate_tensor(ELEMENT, layouts.b.outer, 1024, swizzle=layouts.b.inner)
    # A stage is free when every warp that reads it has said so, to all CTAs that write it: its own and its neighbours.
    arrivals = 4 * config.warpgroups * config.cluster
    pipe = pipeline.PipelineTmaAsync.create(
        barrier_storage=barriers,
        num_stages=config.stages,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, arrivals),
        tx_count=config.stage_bytes,
        cta_layout_vmnk=cute.make_layout((1, config.cluster_m, config.cluster_n, 1)),
        defer_sync=True,
    )
    cute.arch.mbarrier_init_fence()
    cute.arch.cluster_arrive_relaxed()  # no CTA signals its neighbour's barrier before that is set up
    cute.arch.cluster_wait()
    return pipe, (sA, sB)


@cute.kernel
def kernel(op: Operands, raster: tuple, config: cutlass.Constexpr, vec: cutlass.Constexpr):
    """A cluster computes the cluster tiles `first`, `first + step`, ... of C."""
    cta, _, _ = cute.arch.block_idx()
    ctas, _, _ = cute.arch.grid_dim()
    first, step = cta // config.cluster, ctas // config.cluster
    tidx, _, _ = cute.arch.thread_idx()
    warp_idx = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    group = cute.arch.make_warp_uniform(tidx // 128)  # 0 and 1 multiply, 2 loads
    if warp_idx == 8:
        for tma in (op.tma_a, op.tma_b):
            cpasync.prefetch_descriptor(tma)
    pipe, smem = set_up(config)
    rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
    rank = (rank % config.cluster_m, rank // config.cluster_m)
    tiles, down, by_step, of_group, of_last = raster
    schedule = Schedule(first, step, (tiles + step - 1 - first) // by_step, down, of_group, of_last, rank)
    k_tiles = cutlass.max(cute.ceil_div(cute.size(op.mA, mode=[1]), config.tile_k), config.first_k_tiles)
    if group == 2:
        cute.arch.setmaxregister_decrease(config.registers[0])
        if warp_idx == 8:
            tile_a, tile_b = (config.tile_m, config.tile_k), (config.tile_n, config.tile_k)
            a = load_of(op.tma_a, op.mA, smem[0], tile_a, rank[1], config.cluster_n)
            b = load_of(op.tma_b, op.mB, smem[1], tile_b, rank[0], config.cluster_m)
            produce(pipe, schedule, k_tiles, a, b, config)
    else:
        cute.arch.setmaxregister_increase(config.registers[1])
        consume((group, tidx % 128), op, pipe, smem, schedule, k_tiles, config, vec)


@cute.jit
def consume(who, op: Operands, pipe, smem, schedule: Schedule, k_tiles, config, vec):
    """A warpgroup's share of all work tiles. who: the warpgroup (0 or 1), and the thread in it."""
    (group, tidx), (sA, sB), tile = who, smem, (config.tile_m, config.tile_n)
    overwrite, add = tiled_mma(ELEMENT, config), tiled_mma(ELEMENT, config)
    overwrite.set(warpgroup.Field.ACCUMULATE, False)
    add.set(warpgroup.Field.ACCUMULATE, True)
    first = group % config.warpgroups * 128
    thr, mine = add.get_slice(first), add.get_slice(first + tidx)  # descriptors are the same for all of a warpgroup
    tCrA, tCrB = add.make_fragment_A(thr.partition_A(sA)), add.make_fragment_B(thr.partition_B(sB))
    acc = cute.make_rmem_tensor(mine.partition_shape_C(tile), cutlass.Int32)
    gC = mine.partition_C(cute.local_tile(op.mC, tile, (None, None)))
    cC = mine.partition_C(cute.local_tile(cute.make_identity_tensor(op.mC.shape), tile, (None, None)))
    me = Consumer(pipe, overwrite, add, acc, tCrA, tCrB, gC, cC, op.mC.shape, group)
    cute.arch.griddepcontrol_wait()  # what this warpgroup stores, the kernel before may still read or write
    multiply_and_store(me, schedule, k_tiles, config, vec)


class Launch(NamedTuple):
    """What a launch is told beside the addresses of its tensors."""

    mnk: tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32]
    strides: tuple[cutlass.Int64, cutlass.Int64, cutlass.Int64]  # row strides of A, B, C, in elements
    clusters: cutlass.Int32


@cute.jit
def gemm(
    pA: cute.Pointer,
    pB: cute.Pointer,
    pC: cute.Pointer,
    launch: Launch,
    stream: cuda.CUstream,
    config: cutlass.Constexpr,
    vec: cutlass.Constexpr,
):
    """C (M, N) = A (M, K) times B (N, K) transposed."""
    (m, n, k), strides, clusters = launch
    lda, ldb, ldc = (cute.assume(stride, divby=by) for stride, by in zip(strides, (16, 16, vec), strict=True))
    mA = cute.make_tensor(pA, cute.make_layout((m, k), stride=(lda, 1)))
    mB = cute.make_tensor(pB, cute.make_layout((n, k), stride=(ldb, 1)))
    mC = cute.make_tensor(pC, cute.make_layout((m, n), stride=(ldc, 1)))
    a_stage, b_stage = (cute.slice_(x, (None, None, 0)) for x in smem_layouts(ELEMENT, config))
    tma_a, mA = make_load(mA, a_stage, (config.tile_m, config.tile_k), config.cluster_n)
    tma_b, mB = make_load(mB, b_stage, (config.tile_n, config.tile_k), config.cluster_m)
    op = Operands(tma_a, mA, tma_b, mB, mC)
    launcher = kernel(op, raster_of(m, n, clusters, config), config, vec)
    grid, block, cluster = ((x, 1, 1) for x in (clusters * config.cluster, config.threads, config.cluster))
    launcher.launch(grid=grid, block=block, cluster=cluster, stream=stream, min_blocks_per_mp=1, use_pdl=True)


def clusters(config: Config, m: int, n: int, sms: int) -> int:
    """How many clusters are launched: no more than the number of waves needs."""
    tiles = -(-m // (config.tile_m * config.cluster_m)) * -(-n // (config.tile_n * config.cluster_n))
    return -(-tiles // -(-tiles // (sms // config.cluster)))


def raster_of(m, n, clusters, config: Config) -> tuple:
    """How the cluster tiles of C (m, n) are numbered: (how many, how many down C, and divisors: `clusters`, the tiles
    of a group, the height of the last group). See `tile_of`.
    """
    high, wide = config.tile_m * config.cluster_m, config.tile_n * config.cluster_n
    down, across = cute.ceil_div(m, high), cute.ceil_div(n, wide)
    numbers = (clusters, config.swizzle_size * across, cutlass.max(1, down % config.swizzle_size))
    return down * across, down, *(cute.FastDivmodDivisorV2(number) for number in numbers)


def make_load(matrix: cute.Tensor, stage: cute.ComposedLayout, tile: tuple[int, int], sharers: int):
    """The TMA load of a tile into one stage, in as many parts as CTAs share the tile."""
    load = cpasync.CopyBulkTensorTileG2SMulticastOp() if sharers > 1 else cpasync.CopyBulkTensorTileG2SOp()
    return cpasync.make_tiled_tma_atom(load, matrix, stage, tile, num_multicast=sharers)


def compile_for(arch: str, dtype, config: Config | None = None, vec: int = 2, options: str = ""):
    """Compile for `arch` ("sm_90a"), which needs no GPU; "": for the GPU that is here. vec: elements of C per store."""
    pointers = (ELEMENT, 16), (ELEMENT, 16), (dtype, 4 * vec)
    return compile_host(gemm, arch, pointers, (config or config_for(arch), vec), options=options)


# %%
def prepare(call: Call) -> tuple[tuple, tuple]:
    """What is compiled for such a call, and what the kernel takes between the addresses and the stream."""
    config, (m, n, _) = VARIANTS[call.variant], call.mnk
    # A pair of int32 is 8 bytes: `call.vec` of 4 says that 4 divides N and the row stride, and 8 bytes the address.
    vec = 2 if call.vec >= 4 else 1
    return (config, vec), (Launch(call.mnk, call.strides, clusters(config, m, n, call.sms)),)


GEMM = IntegerGemm(compile_for, prepare, ((9, 0),), "wgmma", VARIANTS, takes={torch.int8: torch.int32})


def matmul(
    a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None, variant: str = DEFAULT
) -> torch.Tensor:
    """`a @ b` of int8 on the tensor cores, exact in int32, on the current stream of `a`'s device.

    a: (M, K), int8, K-major (stride 1 along K).
    b: (K, N), int8, K-major too: usually `weight.T` of a contiguous (N, K) weight.
    out: (M, N), int32, stride 1 along N, any row stride >= N, no memory of a or b. Made if not given.
    variant: one of VARIANTS.
    """
    return GEMM.matmul((a, b), out, variant)
