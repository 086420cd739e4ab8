# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: Memory bandwidth ceilings
#     claim: >-
#       Kernels that only read, write or copy measure the bandwidth of a GPU's memories, and the bytes in flight that it
#       needs.
#     kind: study
#     measures: ceiling
#     track: foundations
#     order: 110
#     aside: What a GPU can do
#     targets: [sm_80, sm_90a]
#     runs_on: sm_80+
#     path: global -> registers -> global, global -> shared -> global by TMA, shared -> registers
#     instructions:
#       all: [LDG.E.128, STG.E.128, LDS, LDS.64, LDS.128]
#       sm_90a: [UBLKCP.S.G, UBLKCP.G.S]
#     sources:
#       - title: "PTX ISA, cp.async.bulk.tensor"
#         url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-bulk-tensor"
#       - title: "CUDA C++ Best Practices Guide, bandwidth"
#         url: "https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/index.html#bandwidth"
# ---

# %% [markdown]
# # Memory bandwidth ceilings
#
# **Claim.** Kernels that *only read, only write, or only copy* say what a GPU's memories give at most, and how many
# bytes must be on their way for that. A transpose can do no better than a copy of the same bytes; a matrix product with
# few rows no better than one reading of its weights.
#
# Measured, by the size of the buffer. Up to what L2 holds the rates are L2's; beyond they are DRAM's:

# %% tags=["lab"]
from cookbook import draw
from cookbook.lab import records


def by_size(record):
    """GB/s over MiB of a record's kernels that stream."""
    return {
        name: [draw.Point(int(s.split()[0]), at["gbps"], at["gbps_min"], at["gbps_max"]) for s, at in found.items()]
        for name, found in record["figures"].items()
        if name in ("read", "write", "copy by TMA")
    }


known = records.of_one_gpu("foundations/memory_ceiling", "ceiling")
draw.line_chart(by_size(known[0]), "GB/s", known[0]["device"], "MiB") if known else "not measured"

# %% [markdown]
# There are three memories to ask: DRAM, the L2 cache that stands before it, and the shared memory of each SM. The
# [roofline](#a-roofline-of-this-gpu) near the end says what these figures mean for a GEMM.

# %%
import statistics
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.nvgpu import cpasync

from cookbook.recipe.moved import SmemAllocator

KIB, MIB = 1024, 1024**2

# %% [markdown]
# ## How many bytes must be on their way
#
# A load takes its time, whether one is on its way or a thousand. What a memory of rate *r* and latency *t* has on its
# way at any moment is *r t* bytes (Little's law). If the threads ask for less than that at once, the memory waits for
# them. With a latency of 700 ns, say:


# %%
def bytes_on_their_way(gb_per_s: float, latency_ns: float) -> float:
    """Little's law: GB/s times ns is bytes."""
    return gb_per_s * latency_ns


{
    f"{rate} GB/s": f"{bytes_on_their_way(rate, 700) / 132 / KIB:.0f} KiB in each of 132 SMs"
    for rate in (1500, 3000, 4800)
}

# %% [markdown]
# That is more than it looks: 16 bytes for each of the 2048 threads that an SM can hold are 32 KiB. Hence the two habits
# of every streaming kernel: loads of 16 bytes, the widest there is, and several of them issued before the first is
# used.
#
# ## Streaming
#
# The buffer is cut into chunks, one for a CTA at a time. In a chunk a thread has `unroll` vectors of 16 bytes,
# neighbours in a warp side by side, so that a warp's load is 512 bytes in a row. Few CTAs stay for the whole launch and
# go from chunk to chunk: what counts is what each SM has on its way, `ctas * threads * unroll * 16` bytes.
#
# A small buffer is gone over several times, and **the trap** is what answers the second time. Loads go through the SM's
# own L1 by default, and each CTA returns to the same chunks. Spread over all SMs, a buffer of many MiB fits into their
# L1s, up to 256 KiB each (NVIDIA H100 white paper).
#
# Read that way on an H200, they came several times as fast as TMA, which passes L1 by, copied them: L1 had answered,
# not L2. So these loads ask for `ld.global.cg`, which passes L1 by too (SASS: `.STRONG.GPU`).


# %%
@dataclass(frozen=True)
class Stream:
    """A kernel that goes once, or several times, over global memory."""

    what: str = "read"  # or "write", "copy"
    threads: int = 512
    unroll: int = 4  # 16-byte vectors a thread asks for before it uses one
    ctas: int = 4  # on each SM

    @property
    def chunk_bytes(self) -> int:
        return 16 * self.threads * self.unroll

    @property
    def in_flight(self) -> int:
        """Bytes that the threads of an SM ask for at once."""
        return self.ctas * self.chunk_bytes

    @property
    def smem_bytes(self) -> int:
        return 0


def vector_of(chunk: int, step: int, thread: int, config: Stream) -> int:
    """Return which 16-byte vector of the buffer a thread touches: the kernel's layout in plain integers."""
    return (chunk * config.unroll + step) * config.threads + thread


@cute.jit
def vectors(pointer: cute.Pointer, chunks: cutlass.Int32, config: cutlass.Constexpr) -> cute.Tensor:
    """A buffer as (WORD, THREAD, STEP, CHUNK) of Uint32."""
    words = 4 * config.threads * config.unroll
    shape = (4, config.threads, config.unroll, chunks)
    chunk = cute.assume(cutlass.Int64(words), divby=words)  # 64 bits: a buffer may be larger than 4 GiB
    return cute.make_tensor(pointer, cute.make_layout(shape, stride=(1, 4, 4 * config.threads, chunk)))


@cute.kernel
def stream_kernel(
    mX: cute.Tensor,  # (WORD, THREAD, STEP, CHUNK)
    mY: cute.Tensor,  # likewise; the same as mX unless this is a copy
    mSums: cute.Tensor,  # (CTA, THREAD) Uint32
    turns: cutlass.Int32,
    value: cutlass.Uint32,
    config: cutlass.Constexpr,
):
    """`turns` times: add up all words of X, or write `value` into all of X, or copy X to Y."""
    tidx, _, _ = cute.arch.thread_idx()
    cta, _, _ = cute.arch.block_idx()
    ctas, _, _ = cute.arch.grid_dim()
    words = cute.make_rmem_tensor((4, config.unroll), cutlass.Uint32)
    words.fill(value)
    past_l1 = cute.nvgpu.LoadCacheMode.GLOBAL
    load = cute.make_copy_atom(cute.nvgpu.CopyG2ROp(), cutlass.Uint32, num_bits_per_copy=128, load_cache_mode=past_l1)
    total = cutlass.Uint32(0)
    for _ in cutlass.range(turns, unroll=1):
        for chunk in cutlass.range(cta, cute.size(mX, mode=[3]), ctas, unroll=1):
            if cutlass.const_expr(config.what != "write"):
                for step in cutlass.range_constexpr(config.unroll):
                    cute.copy(load, mX[None, tidx, step, chunk], words[None, step])
            if cutlass.const_expr(config.what == "read"):
                total += words.load().reduce(cute.ReductionOp.ADD, cutlass.Uint32(0), 0)
            else:
                for step in cutlass.range_constexpr(config.unroll):
                    cute.autovec_copy(words[None, step], mY[None, tidx, step, chunk])
    if cutlass.const_expr(config.what == "read"):
        mSums[cta, tidx] = total  # so that no load may be left out


class Sizes(NamedTuple):
    """The numbers of a launch."""

    chunks: cutlass.Int32  # of a buffer
    ctas: cutlass.Int32
    turns: cutlass.Int32  # how often the CTAs go over all chunks
    value: cutlass.Uint32  # what "write" writes


@cute.jit
def stream(
    pX: cute.Pointer,
    pY: cute.Pointer,
    pSums: cute.Pointer,
    sizes: Sizes,
    cuda_stream: cuda.CUstream,
    config: cutlass.Constexpr,
):
    """One launch of `ctas` CTAs over `chunks` chunks."""
    chunks, ctas, turns, value = sizes
    mX, mY = vectors(pX, chunks, config), vectors(pY, chunks, config)
    mSums = cute.make_tensor(pSums, cute.make_layout((ctas, config.threads), stride=(config.threads, 1)))
    kernel = bulk_kernel if cutlass.const_expr(isinstance(config, Bulk)) else stream_kernel
    kernel(mX, mY, mSums, turns, value, config).launch(
        grid=(ctas, 1, 1), block=(config.threads, 1, 1), stream=cuda_stream
    )


# %% [markdown]
# ## Streaming by TMA
#
# On Hopper one thread can do the same without touching a byte: `cp.async.bulk` fetches a chunk into shared memory and
# reports to a barrier; another one writes it out. What is on its way is what the stages hold. A stage may be filled
# again only when the store from it has read all of it. The thread asks for that two steps later, so that it need not
# wait.


# %%
@dataclass(frozen=True)
class Bulk:
    """A kernel that copies global memory by cp.async.bulk, through shared memory."""

    what: str = "copy"
    stages: int = 6
    chunk_bytes: int = 16 * KIB
    ctas: int = 2  # on each SM
    threads: int = 32
    unroll: int = 32  # as `vectors` counts: 32 threads x 32 vectors are a chunk

    @property
    def in_flight(self) -> int:
        """Bytes that the stages of an SM hold."""
        return self.ctas * self.stages * self.chunk_bytes

    @property
    def smem_bytes(self) -> int:
        return 128 + self.stages * self.chunk_bytes  # the barriers, padded


@cute.jit
def fetch(
    mX: cute.Tensor,
    sX: cute.Tensor,
    barriers: cute.Pointer,
    chunk: cutlass.Int32,
    stage: cutlass.Int32,
    config: cutlass.Constexpr,
):
    """Ask for a chunk: its bytes are announced to the stage's barrier, and then counted by it as they land."""
    atom = cute.make_copy_atom(cpasync.CopyBulkG2SOp(), cutlass.Uint32, num_bits_per_copy=8 * config.chunk_bytes)
    cute.arch.mbarrier_arrive_and_expect_tx(barriers + stage, config.chunk_bytes)
    gX = cute.group_modes(mX[None, None, None, chunk], 0, 3)
    cute.copy(atom, gX, sX[None, stage], mbar_ptr=barriers + stage)


@cute.kernel
def bulk_kernel(
    mX: cute.Tensor,  # (WORD, THREAD, STEP, CHUNK)
    mY: cute.Tensor,  # likewise
    mSums: cute.Tensor,  # not used
    turns: cutlass.Int32,
    value: cutlass.Uint32,
    config: cutlass.Constexpr,
):
    """Copy X to Y, `turns` times; all by one thread of each CTA."""
    tidx, _, _ = cute.arch.thread_idx()
    cta, _, _ = cute.arch.block_idx()
    ctas, _, _ = cute.arch.grid_dim()
    smem = SmemAllocator()
    barriers = smem.allocate_array(cutlass.Int64, config.stages)
    layout = cute.make_layout((config.chunk_bytes // 4, config.stages))
    sX = smem.allocate_tensor(cutlass.Uint32, layout, 128)  # (WORD, STAGE)
    chunks = cute.size(mX, mode=[3])
    mine = (chunks - cta + ctas - 1) // ctas  # chunks of this CTA in one iteration: cta, cta + ctas, ...
    count = mine * turns
    if tidx == 0:
        for i in cutlass.range_constexpr(config.stages):
            cute.arch.mbarrier_init(barriers + i, 1)
        cute.arch.mbarrier_init_fence()
        store = cute.make_copy_atom(cpasync.CopyBulkS2GOp(), cutlass.Uint32, num_bits_per_copy=8 * config.chunk_bytes)
        for i in cutlass.range(cutlass.min(count, config.stages - 2), unroll=1):
            fetch(mX, sX, barriers, cta + i % mine * ctas, i, config)
        for i in cutlass.range(count, unroll=1):
            ahead = i + config.stages - 2  # goes into the stage that was stored two steps ago
            if ahead < count:
                cute.arch.cp_async_bulk_wait_group(1, read=True)
                fetch(mX, sX, barriers, cta + ahead % mine * ctas, ahead % config.stages, config)
            stage = i % config.stages
            cute.arch.mbarrier_wait(barriers + stage, i // config.stages % 2)
            gY = cute.group_modes(mY[None, None, None, cta + i % mine * ctas], 0, 3)
            cute.copy(store, sX[None, stage], gY)
            cute.arch.cp_async_bulk_commit_group()
        cute.arch.cp_async_bulk_wait_group(0)


# %% [markdown]
# ## Shared memory
#
# An SM's shared memory answers with 128 bytes a clock: 32 banks of a word, see [bank conflicts](bank_conflicts.ipynb).
# The kernel does nothing but load. Lanes are `stride` bytes apart: side by side they cost the ideal; 16-byte loads at
# twice that distance leave half of the banks idle.


# %%
@dataclass(frozen=True)
class Shared:
    """A kernel that loads from shared memory, one CTA on each SM."""

    width: int = 16  # bytes of a lane's load: 4, 8 or 16
    stride: int = 16  # bytes from lane to lane
    threads: int = 1024

    unroll = 8  # loads of a thread in one iteration of the loop
    smem_bytes = 32 * KIB

    @property
    def turn_bytes(self) -> int:
        """The loads of a CTA's threads in one iteration."""
        return self.threads * self.width * self.unroll


def wavefronts(config: Shared) -> int:
    """Wavefronts of shared memory for one load of a warp: in each group of lanes that it serves together (32 of 4
    bytes, 16 of 8, 8 of 16), as many as the busiest bank has different words to give."""
    together, total = 128 // config.width, 0
    for first in range(0, 32, together):
        wanted = [set() for _ in range(32)]
        for lane in range(first, first + together):
            for byte in range(lane * config.stride, lane * config.stride + config.width, 4):
                wanted[byte // 4 % 32].add(byte // 4)
        total += max(len(words) for words in wanted)
    return total


def bytes_per_clock(config: Shared) -> float:
    """Return what a warp's load brings, over the wavefronts that it takes."""
    return 32 * config.width / wavefronts(config)


{
    f"{c.width} bytes, {c.stride} apart": bytes_per_clock(c)
    for c in (Shared(4, 4), Shared(), Shared(16, 32), Shared(16, 64))
}

# %% [markdown]
# The banks of a warp's 16-byte loads, side by side and at twice that distance:

# %% tags=["lab"]
from cookbook import access, banks


def loads_of(config: Shared) -> access.Access:
    return access.ldst([lane * config.stride for lane in range(32)], config.width)


draw.access_view(loads_of(Shared()), title="16-byte loads, 16 bytes apart")

# %% tags=["lab"]
draw.access_view(loads_of(Shared(16, 32)), title="16-byte loads, 32 bytes apart: half of the banks idle")


# %%
@cute.jit
def load_words(address: cutlass.Int32, offset: cutlass.Constexpr, width: cutlass.Constexpr):
    """A load that is neither merged with another nor left out; the sum of its words."""
    count = width // 4
    names = ", ".join(f"{{$w{i}}}" for i in range(count))
    form = f"v{count}.b32 {{{names}}}" if cutlass.const_expr(count > 1) else f"b32 {names}"
    got = cute.arch.inline_ptx(
        f"ld.volatile.shared.{form}, [{{$r0}} + {offset}];",
        write_only_types=[cutlass.Uint32] * count,
        read_only_args=[address],
    )
    if cutlass.const_expr(count == 1):
        return got
    total = got[0]
    for i in cutlass.range_constexpr(1, count):
        total = total + got[i]
    return total


@cute.kernel
def shared_kernel(
    mSums: cute.Tensor,  # (CTA, THREAD) Uint32
    mClocks: cute.Tensor,  # (CTA) Int64: what the loop took
    repeats: cutlass.Int32,
    config: cutlass.Constexpr,
):
    """Every thread: `repeats` times `unroll` loads from numbered words."""
    tidx, _, _ = cute.arch.thread_idx()
    cta, _, _ = cute.arch.block_idx()
    words = cute.make_layout(config.smem_bytes // 4)
    sX = SmemAllocator().allocate_tensor(cutlass.Uint32, words, 128)
    for i in cutlass.range(tidx, config.smem_bytes // 4, config.threads, unroll=1):
        sX[i] = cutlass.Uint32(i)
    address = sX.iterator.toint() + tidx % 32 * config.stride
    total = cutlass.Uint32(0)
    cute.arch.sync_threads()
    start = cute.arch.clock64()
    for _ in cutlass.range(repeats, unroll=1):
        for step in cutlass.range_constexpr(config.unroll):
            total += load_words(address, step * config.smem_bytes // config.unroll, config.width)
    cute.arch.sync_threads()
    if tidx == 0:
        mClocks[cta] = cute.arch.clock64() - start
    mSums[cta, tidx] = total


@cute.jit
def shared(
    pSums: cute.Pointer,
    pClocks: cute.Pointer,
    repeats: cutlass.Int32,
    ctas: cutlass.Int32,
    cuda_stream: cuda.CUstream,
    config: cutlass.Constexpr,
):
    """One launch, a CTA for each SM."""
    mSums = cute.make_tensor(pSums, cute.make_layout((ctas, config.threads), stride=(config.threads, 1)))
    mClocks = cute.make_tensor(pClocks, cute.make_layout(ctas))
    shared_kernel(mSums, mClocks, repeats, config).launch(
        grid=(ctas, 1, 1), block=(config.threads, 1, 1), stream=cuda_stream
    )


# %% [markdown]
# ## What is measured
#
# Buffers from a size that L2 holds to one that it cannot; a kernel goes over a small one several times in a launch. How
# the rate of reading grows with what is on its way; and the loads from shared memory.

# %%
SIZES_MIB = (8, 16, 32, 64, 128, 256, 512, 1024, 4096)
STREAMS = {"read": Stream(), "write": Stream("write"), "copy": Stream("copy"), "copy by TMA": Bulk()}
IN_FLIGHT = {
    f"{Stream('read', threads, unroll, 1).in_flight // KIB} KiB an SM: {threads} threads, {unroll} loads each": Stream(
        "read", threads, unroll, 1
    )
    for threads, unroll in (
        (128, 1),
        (256, 1),
        (256, 2),
        (512, 2),
        (1024, 1),
        (1024, 2),
        (512, 4),
        (1024, 4),
        (1024, 8),
    )
}
IN_FLIGHT_MIB = 1024  # of the buffer that these read
LOADS = {
    f"{c.width} bytes a lane, {c.stride} apart": c
    for c in (Shared(4, 4), Shared(8, 8), Shared(), Shared(16, 32), Shared(16, 64), Shared(16, 128))
}


def runs_on(config: Stream | Bulk | Shared, arch: str) -> bool:
    """Return whether an architecture ("sm_90a", "sm_90") has the instructions: bulk copies came with Hopper."""
    return not isinstance(config, Bulk) or int(arch.removeprefix("sm_").rstrip("af")) >= 90


# %% [markdown]
# The wavefronts, by the package's model and as counted above:

# %% tags=["lab"]
for name, config in LOADS.items():
    one = loads_of(config)
    counted = banks.wavefronts(one.addresses, one.width)
    print(f"{name}: {counted.actual} wavefronts, ideal {counted.ideal}; counted above: {wavefronts(config)}")

# %% [markdown]
# ## Compiling


# %%
def typed(kind, address: int):
    """A 128-byte aligned pointer into global memory."""
    return cute.runtime.make_ptr(kind, address, cute.AddressSpace.gmem, assumed_align=128)


def stream_arguments(addresses, chunks: int, ctas: int, turns: int, value: int, cuda_stream: int) -> tuple:
    """Plain addresses (X, Y, sums) and integers as the typed values that `stream` takes."""
    sizes = Sizes(cutlass.Int32(chunks), cutlass.Int32(ctas), cutlass.Int32(turns), cutlass.Uint32(value))
    return (*(typed(cutlass.Uint32, each) for each in addresses), sizes, cuda.CUstream(cuda_stream))


def shared_arguments(addresses, repeats: int, ctas: int, cuda_stream: int) -> tuple:
    """Plain addresses (sums, clocks) and integers as the typed values that `shared` takes."""
    pointers = (typed(kind, each) for kind, each in zip((cutlass.Uint32, cutlass.Int64), addresses, strict=True))
    return (*pointers, cutlass.Int32(repeats), cutlass.Int32(ctas), cuda.CUstream(cuda_stream))


def compile_one(config: Stream | Bulk | Shared, arch: str = "", options: str = ""):
    """Compile one kernel for `arch` ("sm_90a") with dummy pointers: no GPU is needed. "": the GPU that is here."""
    if isinstance(config, Shared):
        function, dummy = shared, shared_arguments((128, 128), 1, 1, 0)
    else:
        function, dummy = stream, stream_arguments((128, 128, 128), 1, 1, 1, 0, 0)
    target = f"--gpu-arch {arch} " if arch else ""
    return cute.compile(function, *dummy, config, options=(target + options).strip() or None)


@cute.jit
def launch_each(
    three: tuple,
    two: tuple,
    number: cutlass.Int32,
    value: cutlass.Uint32,
    cuda_stream: cuda.CUstream,
    configs: cutlass.Constexpr,
):
    """Every kernel once: what `compile_for` compiles."""
    for i in cutlass.range_constexpr(len(configs)):
        if cutlass.const_expr(isinstance(configs[i], Shared)):
            shared(*two, number, number, cuda_stream, configs[i])
        else:
            stream(*three, Sizes(number, number, number, value), cuda_stream, configs[i])


def compile_for(arch: str, options: str = ""):
    """Compile the kernels of `STREAMS` and `LOADS` that `arch` has, all in one; no GPU is needed."""
    configs = [config for config in (*STREAMS.values(), *LOADS.values()) if runs_on(config, arch)]
    dummy = stream_arguments((128, 128, 128), 1, 1, 1, 0, 0)
    three, two = dummy[:3], shared_arguments((128, 128), 1, 1, 0)[:2]
    number, value, cuda_stream = dummy[3].chunks, dummy[3].value, dummy[4]
    target = f"--gpu-arch {arch} {options}".strip()
    return cute.compile(launch_each, three, two, number, value, cuda_stream, configs, options=target)


@dataclass(frozen=True)
class Largest:
    """The largest launch of these kernels."""

    threads: int = max(config.threads for config in (*STREAMS.values(), *LOADS.values()))
    smem_bytes: int = max(config.smem_bytes for config in (*STREAMS.values(), *LOADS.values()))


CONFIG = Largest()


@cache
def compiled(config: Stream | Bulk | Shared, capability: tuple[int, int]):
    """The kernel for the present GPU: compiled at the first call that needs it, then kept."""
    return compile_one(config)


def multiprocessors() -> int:
    """SMs of the current GPU."""
    return torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count


# %% [markdown]
# ## Running
#
# The measurements call these functions on torch tensors.


# %% tags=["folded"]
def check_buffer(name: str, x: torch.Tensor, config: Stream | Bulk) -> None:
    """A contiguous buffer on a GPU, of whole chunks."""
    if not (isinstance(x, torch.Tensor) and x.is_cuda and x.is_contiguous() and x.data_ptr() % 128 == 0):
        raise ValueError(
            f"{name}: got {type(x).__name__}; needed a contiguous, 128-byte aligned tensor on a CUDA device"
        )
    if x.nbytes == 0 or x.nbytes % config.chunk_bytes:
        raise ValueError(f"{name}: got {x.nbytes} bytes; needed a multiple of {config.chunk_bytes}")


def stream_over(x: torch.Tensor, y: torch.Tensor, config: Stream | Bulk, turns: int = 1, value: int = 0):
    """Launch a kernel over `x` (and to `y`, if it is a copy; else x itself) on the current stream.

    Returns the (CTA, THREAD) int32 sums of what was read, modulo 2**32; "read" alone fills them.

    Raises:
        ValueError: names the argument, what it got and what it needs.
    """
    for name, each in (("x", x), ("y", y)):
        check_buffer(name, each, config)
    if x.nbytes != y.nbytes or turns < 1:
        raise ValueError(
            f"y, turns: got {y.nbytes} bytes, {turns}; needed {x.nbytes} bytes, as many as x, and 1 or more"
        )
    capability = torch.cuda.get_device_capability()
    if not runs_on(config, "sm_{}{}".format(*capability)):
        raise ValueError(f"config: got {config}; needed a kernel that compute capability {capability} has")
    chunks = x.nbytes // config.chunk_bytes
    ctas = min(chunks, config.ctas * multiprocessors())
    sums = torch.empty((ctas, config.threads), dtype=torch.int32, device=x.device)
    addresses, here = (x.data_ptr(), y.data_ptr(), sums.data_ptr()), torch.cuda.current_stream().cuda_stream
    compiled(config, capability)(*stream_arguments(addresses, chunks, ctas, turns, value, here))
    if config.what != "read":
        torch.autograd.graph.increment_version(y)  # tell autograd that it was overwritten
    return sums


def read(x: torch.Tensor) -> int:
    """Read `x`, a contiguous tensor, once; returns the bytes that were read: all but what fills no whole chunk."""
    config = STREAMS["read"]
    whole = x.nbytes // config.chunk_bytes * config.chunk_bytes
    part = x.view(-1)[: whole // x.element_size()]
    stream_over(part, part, config)
    return whole


def load_shared(config: Shared, repeats: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`repeats` iterations of loads by every thread of every SM: (CTA, THREAD) sums, and (CTA) clocks of the loop."""
    ctas = multiprocessors()
    sums = torch.empty((ctas, config.threads), dtype=torch.int32, device="cuda")
    clocks = torch.empty(ctas, dtype=torch.int64, device="cuda")
    here = torch.cuda.current_stream().cuda_stream
    arguments = shared_arguments((sums.data_ptr(), clocks.data_ptr()), repeats, ctas, here)
    compiled(config, torch.cuda.get_device_capability())(*arguments)
    return sums, clocks


# %% [markdown]
# ## Measuring
#
# The kernels alternate, for seven rounds. A launch moves some GiB whatever the buffer's size, so that what it costs to
# start one does not count. A copy moves every byte twice, once in and once out, and both are counted.


# %%
def elapsed_ms(call) -> float:
    """GPU time of a call between two CUDA events."""
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    call()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop)


def rates(calls: dict, work: dict[str, float], rounds: int) -> dict[str, dict[str, float]]:
    """GB/s of each call, median, min and max over the rounds; `work` is in bytes."""
    taken = {name: [] for name in calls}
    for number in range(rounds + 1):  # the first one warms up
        for name in list(calls)[:: 1 if number % 2 else -1]:
            calls[name]()  # keeps the GPU busy while the timed call is on its way to it
            taken[name].append(elapsed_ms(calls[name]))
    found = {}
    for name, (_, *ms) in taken.items():
        each = {"gbps": statistics.median(ms), "gbps_min": max(ms), "gbps_max": min(ms)}
        found[name] = {key: round(work[name] / value / 1e6, 1) for key, value in each.items()}
    return found


def measure_streams(rounds: int, arch: str, launch_bytes: int) -> dict[str, dict[str, dict[str, float]]]:
    """{"read": {"8 MiB": rates, ...}, "write", "copy", "copy by TMA", "copy by torch"}."""
    largest = max(SIZES_MIB) * MIB
    x = torch.empty(largest // 4, dtype=torch.float32, device="cuda").normal_()
    y = torch.empty_like(x)
    found: dict[str, dict[str, dict[str, float]]] = {}
    for size in SIZES_MIB:
        a, b, turns = x[: size * MIB // 4], y[: size * MIB // 4], max(1, launch_bytes // (size * MIB))
        calls, work = {}, {}
        for name, config in STREAMS.items():
            if runs_on(config, arch):
                target = b if config.what == "copy" else a
                calls[name] = lambda a=a, to=target, config=config, turns=turns: stream_over(a, to, config, turns)
                work[name] = turns * size * MIB * (2 if config.what == "copy" else 1)
        calls["copy by torch"] = lambda a=a, b=b, turns=turns: [b.copy_(a) for _ in range(turns)]
        work["copy by torch"] = 2 * turns * size * MIB
        if size < 256:  # dozens of launches would be timed, not one
            del calls["copy by torch"]
        for name, figures in rates(calls, work, rounds).items():
            found.setdefault(name, {})[f"{size} MiB"] = figures
    return found


def measure(rounds: int = 7, launch_bytes: int = 4 * 1024 * MIB) -> dict[str, dict[str, dict[str, float]]]:
    """Every measurement, on the current GPU; needs 8 GiB of its memory. {section: {name: rates}}.

    Raises:
        ValueError: too few rounds for a median with a spread.
        RuntimeError: no CUDA device.
    """
    if rounds < 3:
        raise ValueError(f"rounds: got {rounds}; needed at least 3")
    if not torch.cuda.is_available():
        raise RuntimeError("no CUDA device: nothing can be measured here")
    found = measure_streams(rounds, "sm_{}{}".format(*torch.cuda.get_device_capability()), launch_bytes)
    x = torch.empty(IN_FLIGHT_MIB * MIB // 4, dtype=torch.float32, device="cuda").normal_()
    calls = {name: lambda config=config: stream_over(x, x, config, 2) for name, config in IN_FLIGHT.items()}
    found["in flight"] = rates(calls, dict.fromkeys(calls, 2.0 * x.nbytes), rounds)
    found["shared memory"] = {name: shared_rate(config) for name, config in LOADS.items()}
    return found


def shared_rate(config: Shared, repeats: int = 20_000) -> dict[str, float]:
    """Bytes a clock of an SM, measured and by counting banks."""
    load_shared(config, repeats)
    clocks = load_shared(config, repeats)[1].double().median().item()
    measured = config.turn_bytes * repeats / clocks
    return {"bytes_per_clock": round(measured, 2), "predicted": bytes_per_clock(config)}


# %% [markdown]
# ## The loops
#
# What an iteration of each loop holds, in the machine code:

# %% tags=["lab"]
from cookbook.lab import ceilings
from cookbook.lab import compiled as compiling

try:
    sass = compiling.compile_recipe("foundations/memory_ceiling", "sm_90a").sass
    for loop in ceilings.loops(sass):
        if any(opcode.startswith(("LDG.E.128", "STG.E.128", "LDS")) for opcode in loop):
            print(", ".join(f"{count} {opcode}" for opcode, count in loop.most_common()))
except compiling.NoDisassembler as missing:
    print(missing)

# %% [markdown] tags=["lab"]
# ## Measured
#
# Read the columns of a size from left to right, and then down: where the buffer no longer fits into L2 the rate of
# reading and copying falls to that of DRAM. (A copy needs room for two buffers, so it falls at half the size. Do not
# expect the same step of writes: see whether the size matters to them at all. And of the copies the fastest counts: at
# the sizes where torch's own was timed that is torch's, by a few percent.)
#
# In the table of what is on its way the rate first grows with the bytes, and then hardly any more. And shared memory
# gives 128 bytes a clock, or that divided by the conflicts, which could be counted beforehand.

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.lab import ceiling_table

Markdown(ceiling_table("foundations/memory_ceiling"))

# %% [markdown]
# ## A roofline of this GPU
#
# A kernel that does F operations for each byte of memory traffic can do no more than F times the bandwidth, nor more
# than the tensor cores' ceiling. The line is made of two measurements: the fastest read of a buffer that L2 cannot
# hold, and [the tensor cores' best loop](tensor_core_ceiling.ipynb). The points are recorded times of [the tuned
# GEMM](../hopper/tuned_gemm.ipynb), with A, B and C moved once.


# %% tags=["lab"]
def work_of(record):
    """(operations for each byte of A, B and C moved once, TFLOP/s) of a timed GEMM of 16-bit operands."""
    m, n, k = record["shape"]
    return 2 * m * n * k / (2 * (m * k + n * k + m * n)), record["figures"]["tflops"]


def of_this_gpu(wanted=((64, 8192, 8192), (1024, 1024, 1024), (4096, 4096, 4096), (8192, 8192, 8192))):
    """The roofline of the GPU that was measured, or what is missing for it."""
    device = known[0]["device"] if known else None
    peak = records.of_one_gpu("foundations/tensor_core_ceiling", "ceiling", device=device)
    timed = records.of_one_gpu("hopper/tuned_gemm", "timed", "bfloat16", device=device)
    timed = [r for r in timed if r.get("majors", "tn") == "tn"]
    if not (known and peak and timed):
        return "not measured"
    points = {" x ".join(map(str, r["shape"])): work_of(r) for r in timed if tuple(r["shape"]) in wanted}
    read = max(at["gbps"] for size, at in known[0]["figures"]["read"].items() if int(size.split()[0]) >= 256)
    best = peak[0]["figures"]["instructions"]["wgmma m64n256k16, bf16"]["tflops"]
    return draw.roofline(best, read, points, device, "measured: both bounds, and the points")


of_this_gpu()

# %% [markdown]
# ## Check
#
# `cookbook check foundations/memory_ceiling` computes each claim of this page, by these lines:


# %% tags=["folded"]
def touched(config: Stream, chunks: int, ctas: int) -> list[int]:
    """The vectors that all threads of a launch touch in one iteration, as the kernel's loops go."""
    return [
        vector_of(chunk, step, thread, config)
        for cta in range(ctas)
        for chunk in range(cta, chunks, ctas)
        for step in range(config.unroll)
        for thread in range(config.threads)
    ]


def facts() -> list[tuple[str, bool, str]]:
    """The claims: a name, whether it holds, what was found."""
    small = Stream("read", 64, 2, 1)
    once = sorted(touched(small, 7, 3)) == list(range(7 * small.chunk_bytes // 16))
    whole = [(size, config) for size in SIZES_MIB for config in STREAMS.values() if size * MIB % config.chunk_bytes]
    law = round(bytes_on_their_way(4800, 700) / 132 / KIB)
    held = {name: config.in_flight // KIB for name, config in STREAMS.items()}
    turns = {(c.width, c.stride): wavefronts(c) for c in LOADS.values()}
    wanted = {(4, 4): 1, (8, 8): 2, (16, 16): 4, (16, 32): 8, (16, 64): 16, (16, 128): 32}
    rate = [bytes_per_clock(c) for c in LOADS.values()]
    bulk = Bulk().chunk_bytes == 16 * Bulk().threads * Bulk().unroll
    return [
        ("every_vector_once", once, "7 chunks by 3 CTAs: each 16-byte vector touched once"),
        ("whole_chunks", not whole and bulk, f"sizes that a kernel does not divide: {whole}"),
        (
            "on_their_way",
            law == 25 and min(held.values()) > law,
            f"needed {law} KiB an SM at 4800 GB/s; kernels: {held}",
        ),
        ("wavefronts", turns == wanted, f"of a warp's load by (width, stride): {turns}"),
        ("bytes_a_clock", rate == [128, 128, 128, 64, 32, 16], f"by counting banks: {rate}"),
    ]


# %% tags=["lab"]
print("what does not hold:", [name for name, holds, _ in facts() if not holds])

# %% [markdown]
# The last cell checks the cells above: edit one, run it, and check again.

# %% tags=["lab"]
from cookbook import lab

lab.check_cells("foundations/memory_ceiling")

# %% [markdown]
# ## Exercises
#
# The last cell of this section judges both; `cookbook exercise my.py` those of a file (`cookbook copy
# foundations/memory_ceiling my.py`).
#
# **Finish it.** How many CTAs must each SM hold, so that enough bytes are on their way?


# %%
def ctas_needed(gb_per_s, latency_ns, sms, threads, unroll):
    """Exercise 1, finish it: the fewest CTAs on each of `sms` SMs that keep a memory of this rate and latency busy.
    Each of a CTA's threads asks for `unroll` vectors of 16 bytes before it uses one."""
    raise NotImplementedError


# %% [markdown]
# <details markdown="1"><summary>Tip 1</summary>
#
# `bytes_on_their_way` is of the whole GPU. Which part of it must one SM ask for?
#
# </details>
#
# <details markdown="1"><summary>Tip 2</summary>
#
# One CTA has `threads * unroll * 16` bytes on their way. A part of a CTA cannot be launched.
#
# </details>
#
# <details markdown="1"><summary>Solution</summary>
#
# The bytes of an SM over those of a CTA, rounded up.
#
# ```python
# def ctas_needed(gb_per_s, latency_ns, sms, threads, unroll):
#     in_flight = bytes_on_their_way(gb_per_s, latency_ns) / sms
#     return int(-(-in_flight // (threads * unroll * 16)))
# ```
#
# </details>
#
# **Find the bug.** "A thread reads its own `unroll` vectors, one after the other in memory, so it goes over its part in
# order." Every vector is touched once, and the kernel is slow.


# %%
def vector_in_order(chunk, step, thread, config):
    """Exercise 2, find the bug: which 16-byte vector of the buffer a thread touches, as `vector_of`."""
    return (chunk * config.threads + thread) * config.unroll + step


# %% [markdown]
# <details markdown="1"><summary>Tip 1</summary>
#
# What does one thread touch in its first load, and what its neighbour?
#
# </details>
#
# <details markdown="1"><summary>Tip 2</summary>
#
# A warp's load is one instruction: 32 threads, one `step`. Its vectors have to be neighbours.
#
# </details>
#
# <details markdown="1"><summary>Solution</summary>
#
# In one step the lanes of a warp were `unroll` vectors apart. So the step has to count whole rows of `threads` vectors,
# and the thread the places in a row.
#
# ```python
# def vector_in_order(chunk, step, thread, config):
#     return (chunk * config.unroll + step) * config.threads + thread
# ```
#
# </details>


# %% tags=["folded"]
EXERCISES = {
    "ctas_needed": lambda f: (
        (f"{rate} GB/s, {latency} ns, {sms} SMs, {threads} threads, {unroll} vectors each", f(*asked), needed)
        for *asked, needed in (
            (4800, 700, 132, 512, 4, 1),
            (4800, 700, 132, 512, 1, 4),
            (4800, 700, 132, 256, 1, 7),
            (3000, 700, 132, 256, 4, 1),
            (2000, 500, 108, 128, 2, 3),
            (4096, 1000, 125, 128, 2, 8),
        )
        for rate, latency, sms, threads, unroll in [asked]
    ),
    "vector_in_order": lambda f: (
        (
            f"{config.threads} threads, {config.unroll} vectors each: chunk {chunk}, step {step}, warp 1",
            [f(chunk, step, 32 + lane, config) for lane in range(32)],
            [vector_of(chunk, step, 32 + lane, config) for lane in range(32)],
        )
        for config in (Stream("read", 64, 2, 1), Stream("read", 128, 4, 1))
        for chunk in range(3)
        for step in range(config.unroll)
    ),
}

# %% tags=["lab"]
from cookbook import lab

lab.check_exercises("foundations/memory_ceiling")

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# A kernel that moves bytes is measured against these: DRAM's rate, which no kernel passes; and enough bytes on their
# way, without which it does not come near. `cookbook bench foundations/memory_ceiling` measures them on your GPU.
#
# Next: the kernels. Their tracks begin with [the first GEMM](../ampere/first_gemm.ipynb), for Ampere and all after it,
# and with [tiles by TMA](../hopper/tma_copy.ipynb), for Hopper. A kernel that lives on memory's rate alone is [the
# transpose](matrix_transpose.ipynb).
