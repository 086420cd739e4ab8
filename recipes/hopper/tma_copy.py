# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: TMA copies in four swizzle modes
#     claim: >-
#       TMA writes a tile into shared memory in one of four swizzle modes and reads it back; the layout says which, and
#       you compute no address.
#     track: hopper
#     order: 10
#     kind: study
#     measures: copies
#     targets: [sm_90a, sm_100a, sm_120a]
#     runs_on: sm_90+
#     path: global memory -> TMA -> swizzled shared memory -> TMA -> global memory
#     instructions: [UTMALDG.2D, UTMASTG.2D, UTMACMDFLUSH, SYNCS]
#     sources:
#       - {title: "PTX ISA, cp.async.bulk.tensor", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-bulk-tensor"}
#       - {title: "PTX ISA, tensors: swizzling modes", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#tensor-swizzling-modes"}
#       - {title: "PTX ISA, mbarrier", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier"}
# ---

# %% [markdown]
# # TMA copies in four swizzle modes
#
# **Claim.** The Tensor Memory Accelerator (TMA) moves a *tile* of a matrix between global and shared memory. One thread
# asks for it by the coordinates of its corner; the unit does the addresses, the edges and the swizzle. You do not even
# name the swizzle: `make_tiled_tma_atom` reads it off the layout that the tile shall have in shared memory.

# %% [markdown] tags=["lab"]
# A *box* is what one instruction takes: here 8 rows of 128 bytes. This one sticks out of a matrix of 12 rows and 96
# columns. What lies outside is filled with zeros and takes its place in shared memory all the same, so no thread ever
# looks at a ragged edge.

# %% tags=["lab"]
from cookbook import draw

draw.tma_box()

# %% [markdown] tags=["lab"]
# The four modes of one tile: 16 *lines* of 128 bytes. A line is contiguous in the matrix, here a row. In a panel a row
# is 128 bytes of shared memory, a column one of eight 16-byte *slots*. The large number is a *chunk* of the tile, 16
# bytes, counted along its lines; the small pair is the (m, k) of its first element. A colour is a column of chunks.
#
# A row of a panel has pieces of the matrix, of 16, 32, 64 or 128 contiguous bytes: with `none` eight chunks of one
# colour, with `sw128` one of each. In every mode the chunks of one colour in eight lines, 0 to 7 or 8 to 15, take all
# eight slots. A tensor core reads these eight at once, [without a bank
# conflict](../foundations/mma_smem_atoms.ipynb).

# %% tags=["lab"]
import cutlass

import cookbook
from cookbook.layouts import evaluate

packaged = cookbook.load("hopper/tma_copy")


def in_each_mode(dtype, major):
    """A tile of 16 lines of 128 bytes, as TMA leaves it in shared memory."""
    configs = [packaged.replace(packaged.LOOK, mode=mode, major=major) for mode in packaged.MODES]
    return {
        f"{c.mode}, {major}-major": packaged.cute.slice_(packaged.smem_layout(dtype, c), (None, None, 0))
        for c in configs
    }


layouts = {major: evaluate(in_each_mode, cutlass.BFloat16, major) for major in packaged.MAJORS}
draw.atom_orders(layouts["k"], title="16 lines of 128 bytes, K-major, bfloat16")

# %% [markdown]
# *One warp* per CTA can copy a whole matrix, ragged edges and all, and never sees an element. That is the kernel of
# this page. Two smaller kernels look inside: `dump` shows what TMA left in shared memory, byte by byte, and `restore`
# has TMA read bytes that threads have put there.
#
# There is no tensor core here yet. The loads, stages and barriers are those that [the GEMMs of this
# track](first_gemm.ipynb) build on. A *stage* is room for one tile in shared memory. There are several, so that tiles
# can be in flight while others are used, and each has a *barrier* that says when its tile has come. Which layout a tile
# wants, and why, is in [the atoms](../foundations/mma_smem_atoms.ipynb).

# %%
from dataclasses import dataclass, replace

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import torch
from cutlass import Int32, Int64, Uint32
from cutlass.cute.nvgpu import cpasync

from cookbook.recipe.entry import COMPILING, check_apart, check_gpu, check_tensor, once, require
from cookbook.recipe.moved import SmemAllocator

# %% [markdown]
# ## A tensor map
#
# What TMA knows of a matrix stands in 128 bytes, the *tensor map*. The host makes it before the launch; the kernel gets
# it as a parameter. It says
#
# | field | here | its rules |
# |---|---|---|
# | address | of element (0, 0) | a multiple of 16 bytes |
# | element type | its size, for a copy | 1, 2, 4 or 8 bytes; 4- and 6-bit types on Blackwell |
# | extents | of each dimension, the contiguous one first | up to 5 dimensions, 2^32 elements each |
# | strides | of all but the contiguous one, which has none: its elements are adjacent | multiples of 16 bytes |
# | box | how many elements of each dimension one instruction moves | 1 to 256 each, a multiple of 16 bytes inside |
# | swizzle | none, 32, 64 or 128 bytes | **the box's inner extent is at most that many bytes** |
# | L2 promotion | how much L2 fetches when a box asks for less: 0, 64, 128 or 256 bytes | affects speed alone |
# | out-of-bounds fill | what a load puts outside the matrix: zeros, or a special NaN | a store writes nothing there |
# | interleave | for channels of convolutions; none here | not the [atom](../foundations/mma_smem_atoms.ipynb) INTER |
#
# A kernel passes the tensor map, a coordinate and an address in shared memory. It computes no global address, so it
# needs no pointer arithmetic, no 64-bit products and no comparison with the matrix's extents.
#
# ## The sizes
#
# A matrix is (M, K), and stored along K ("K-major": rows of adjacent elements) or along M ("MN-major", as a transposed
# view is). TMA only knows the contiguous dimension and the other. So do the sizes here: a tile is `lines` lines, each
# `line_bytes` contiguous bytes, whatever the dtype and the major.


# %%
MODES = {"none": 0, "sw32": 1, "sw64": 2, "sw128": 3}  # bits that the swizzle moves; a line of a box: 16 << bits bytes
MAJORS = ("k", "mn")


@dataclass(frozen=True)
class Config:
    """Sizes of a tile and how many of them are on the way."""

    mode: str = "sw128"  # one of MODES
    major: str = "k"  # one of MAJORS: the mode of the matrix whose elements are adjacent
    lines: int = 64  # of a tile: rows if K-major, columns if MN-major; eights, and 256 at most: a box has them all
    line_bytes: int = 256  # of a line, contiguous in global memory; one box or several side by side
    stages: int = 4  # tiles of shared memory
    ctas_per_sm: int = 3  # as many as fit

    @property
    def threads(self) -> int:
        return 32  # one warp issues all copies

    @property
    def box_bytes(self) -> int:
        """Bytes of a line of a box: all that one instruction can take under the mode."""
        return 16 << MODES[self.mode]

    @property
    def tile_bytes(self) -> int:
        return self.lines * self.line_bytes

    @property
    def smem_bytes(self) -> int:
        return self.stages * (self.tile_bytes + 8)  # the tiles, and a barrier for each

    def tile(self, bits: int) -> tuple[int, int]:
        """(M, K) of a tile in elements of `bits` bits."""
        along = self.line_bytes * 8 // bits
        return (self.lines, along) if self.major == "k" else (along, self.lines)


CONFIG = Config()
LOOK = Config(lines=16, line_bytes=128, stages=1)  # the tile that `dump` and `restore` take: 16 lines of memory

# %% [markdown]
# ## The layout is the mode
#
# A mode keeps 16, 32, 64 or 128 bytes of a line together in shared memory; eight such lines make the *atom*. In CuTe
# that is a swizzle of *bytes*, `make_swizzle(B, 4, 3)` with B = 0, 1, 2, 3, over a layout of *elements*. Tiled to the
# size of the tile, it is all that `make_tiled_tma_atom` needs: it finds the box and the mode in it.
#
# **Mind the order of the atoms.** One box is one atom wide and packs its lines one below the other. So the atoms of a
# tile stand one after the other *across* the lines first, then along them: `order=(0, 1)` for a K-major tile,
# `(1, 0)` for an MN-major one. In the other order each atom would take an instruction of its own.


# %%
def smem_atom(dtype, config: Config) -> cute.ComposedLayout:
    """Eight lines that lie together, (8, w) or (w, 8): S<B,4,3> over bytes, o 0 o, a layout over elements."""
    width = config.box_bytes * 8 // dtype.width
    shape, stride = ((8, width), (width, 1)) if config.major == "k" else ((width, 8), (1, width))
    return cute.make_composed_layout(
        cute.make_swizzle(MODES[config.mode], 4, 3), 0, cute.make_layout(shape, stride=stride)
    )


def smem_layout(dtype, config: Config = CONFIG) -> cute.ComposedLayout:
    """(M, K, STAGE): atoms across the lines, then along them, then over the stages."""
    order = (0, 1, 2) if config.major == "k" else (1, 0, 2)
    return cute.tile_to_shape(smem_atom(dtype, config), (*config.tile(dtype.width), config.stages), order=order)


@cute.jit
def matrix(pointer: cute.Pointer, mk: cute.Coord, apart: Int64, major: cutlass.Constexpr):
    """(M, K) in global memory, `apart` elements from line to line, a multiple of 16 bytes."""
    apart = cute.assume(apart, divby=128 // pointer.dtype.width)
    strides = (apart, 1) if cutlass.const_expr(major == "k") else (1, apart)
    return cute.make_tensor(pointer, cute.make_layout(mk, stride=strides))


@cute.jit
def boxes_of(tma: cute.CopyAtom, tiles: cute.Tensor, smem: cute.Tensor):
    """Return what `cute.copy` takes, of shared memory (BOXES, STAGE) and of the matrix (BOXES, ...).

    tiles: (M, K, ...) as TMA coordinates; smem: (M, K, STAGE).
    """
    alone = cute.make_layout(1)  # no multicast: a cluster of one
    return cpasync.tma_partition(tma, 0, alone, cute.group_modes(smem, 0, 2), cute.group_modes(tiles, 0, 2))


# %% [markdown] tags=["lab"]
# MN-major: the lines run along M, and memory is the same. TMA never transposes a tile. It knows a contiguous dimension
# and another one, whatever you call them. Whether a reader can read the tile that way is [another
# question](../foundations/mma_smem_atoms.ipynb).

# %% tags=["lab"]
draw.atom_orders(layouts["mn"], title="16 lines of 128 bytes, MN-major, bfloat16")

# %% [markdown]
# `tma_partition` cuts a tile into boxes. Its result is a coordinate, not an address: `(TMA, box)` for one tile, where
# the first mode is what one instruction takes. `cute.copy` goes through the second and issues an instruction for each.
#
# **Why a line of 256 bytes takes two boxes.** Under SW128 a box holds 128 bytes of a line at most. The swizzle XORs the
# number of the 128-byte line into the three bits that choose one of *its* eight chunks, and has no bit for a second
# half. So 128 bf16 along a line are two boxes of 64, one after the other in shared memory; along K or along M makes no
# difference.
#
# (One instruction could do it. Describe the matrix in *three* dimensions, 64 elements x lines x K / 64, and a box of 64
# x lines x 2 holds both halves. But it moves as many bytes, and where K is no multiple of 64 the third dimension has no
# right extent.)
#
# What CuTe makes of a tile of 64 lines of 256 bytes, asked on the host: elements of a box, and boxes.


# %%
@cute.jit
def load_of(whole: cute.Tensor, layout: cute.ComposedLayout, tile: cutlass.Constexpr):
    """The copy from global memory to one stage of `layout`, and the matrix as TMA coordinates."""
    stage = cute.slice_(layout, (None, None, 0))
    return cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), whole, stage, tile)


@cute.jit
def store_of(whole: cute.Tensor, layout: cute.ComposedLayout, tile: cutlass.Constexpr):
    """The copy from one stage of `layout` to global memory: the same description, the other way."""
    stage = cute.slice_(layout, (None, None, 0))
    return cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), whole, stage, tile)


def ask_cute(question, *args):
    """Return what question(*args) returns inside CuTe, where layouts can be made. No kernel is built, no GPU is
    used."""
    answers = []

    @cute.jit
    def host():
        answers.append(question(*args))

    with COMPILING:
        cute.compile(host, options="--gpu-arch sm_90a")
    return answers[0]


def boxes(dtype, config: Config, layout_of=smem_layout) -> tuple[int, int]:
    """(elements of a box, boxes of a tile) that CuTe finds in a layout. For `ask_cute`."""
    layout, tile = layout_of(dtype, config), config.tile(dtype.width)
    pointers = [
        cute.make_ptr(dtype, 0, space, assumed_align=1024) for space in (cute.AddressSpace.gmem, cute.AddressSpace.smem)
    ]
    load, whole = load_of(matrix(pointers[0], (1024, 1024), Int64(1024), config.major), layout, tile)
    smem = cute.make_tensor(pointers[1], layout.outer)
    in_smem, _ = boxes_of(load, cute.local_tile(whole, tile, (0, 0)), smem)  # ((TMA, BOXES), STAGE)
    box, count = in_smem.layout.shape[0]
    return box, cute.size(count)


def pointer_to(dtype, address: int) -> cute.Pointer:
    """A typed pointer to global memory at a multiple of 16 bytes."""
    return cute.runtime.make_ptr(dtype, address, cute.AddressSpace.gmem, assumed_align=16)


{f"{major} {mode}": ask_cute(boxes, cutlass.BFloat16, Config(mode, major)) for major in MAJORS for mode in MODES}

# %% [markdown]
# ## The barrier that counts bytes
#
# A TMA load returns at once. How do you know that it has landed? It reports to an *mbarrier*, 8 bytes of shared memory
# that count two things: arrivals still missing, and bytes still missing. When both are zero the barrier's *phase* is
# complete, and it starts the next one by itself, with the same number of arrivals to come.
#
# 1. `mbarrier_init(b, 1)`: one arrival completes a phase. And a fence, so that the TMA unit sees a barrier there too.
#
# 2. `mbarrier_arrive_and_expect_tx(b, bytes)`: our one arrival, and the announced bytes are to come. The bytes are
#    those of whole boxes: what lies outside the matrix arrives as zeros, and counts.
#
# 3. The load names `b`; as its bytes land, the unit takes them off.
#
# 4. `mbarrier_wait(b, parity)`: until the phase of that parity is complete. Phases have no number, only a parity: the
#    first is 0, then 1, then 0 again. So the n-th use of a barrier waits for parity n mod 2, and a wait must never be
#    more than one phase behind.
#
# The wait also makes the bytes visible to who waited. A store has no barrier. It belongs to a *bulk group*:
# `commit_group` closes one, and `wait_group(n, read=True)` waits until all but the latest n have *read* shared memory,
# which is all one needs before that memory is used again. (Without `read` it waits until the writes are done as well.)
# Groups belong to one thread: the thread that stores is the one that commits and waits.
#
# `cutlass.pipeline` wraps all this in objects that count stages and parities for you;
# [the GEMM](tma_wgmma_gemm.ipynb) uses them. Here it is done by hand, once.
#
# **One thread.** Each of these is said once, by one thread. `elect_one` picks one of the warp, and always the same. A
# load through `cute.copy` elects by itself, once for each box, so it must *not* stand inside `elect_one`. A store
# must: the package's own text says that it elects too, but there is an `elect.sync` around loads alone in the PTX.
#
# ## The copy
#
# Each stage has a barrier. The warp first asks for all stages but one. Then, for each tile, it waits for the tile,
# stores it, and refills the stage of the tile *before*, whose store has had an iteration's time to read it. Both ends
# are TMA, so no thread touches a byte, and no code computes a swizzle.


# %%
@cute.jit
def place(number: Int32, counts: cute.Coord, major: cutlass.Constexpr):
    """(m, k) of a tile by number, along the lines first: CTAs that run together then share lines."""
    m, k = counts
    if cutlass.const_expr(major == "k"):
        return number // k, number % k
    return number % m, number // m


@cute.jit
def fetch(
    load: cute.CopyAtom,
    gX: cute.Tensor,
    sX: cute.Tensor,
    at: tuple,
    stage: Int32,
    arrived: cute.Pointer,
    config: cutlass.Constexpr,
):
    """Ask for the tile at (m, k): it comes into `stage` and reports to that stage's barrier."""
    with cute.arch.elect_one():
        cute.arch.mbarrier_arrive_and_expect_tx(arrived + stage, config.tile_bytes)
    cute.copy(load, gX[None, at[0], at[1]], sX[None, stage], tma_bar_ptr=arrived + stage)


@cute.jit
def init_barriers(arrived: cute.Pointer, count: cutlass.Constexpr):
    """Barriers that one arrival completes, seen by all threads and by TMA."""
    with cute.arch.elect_one():
        for stage in cutlass.range_constexpr(count):
            cute.arch.mbarrier_init(arrived + stage, 1)
    cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()


# %% [markdown]
# The kernel asks for all stages but one, and then goes from tile to tile: wait for its bytes, store it, ask for a later
# one.


# %%
@cute.kernel
def copy_kernel(
    load: cute.CopyAtom,
    mX: cute.Tensor,  # (M, K), as TMA coordinates
    store: cute.CopyAtom,
    mY: cute.Tensor,  # (M, K), as TMA coordinates
    dtype: cutlass.Constexpr,
    config: cutlass.Constexpr,
):
    """One warp copies every gridDim-th tile of mX to mY."""
    stages, layout, tile = config.stages, smem_layout(dtype, config), config.tile(dtype.width)
    smem = SmemAllocator()
    tiles = smem.allocate_tensor(dtype, layout.outer, 1024, swizzle=layout.inner)  # (M, K, STAGE)
    arrived = smem.allocate_array(Int64, stages)
    init_barriers(arrived, stages)

    gX, gY = cute.local_tile(mX, tile, (None, None)), cute.local_tile(mY, tile, (None, None))  # (M, K, m, k)
    counts = (cute.size(gX, mode=[2]), cute.size(gX, mode=[3]))
    tXsX, tXgX = boxes_of(load, gX, tiles)  # (BOXES, STAGE), (BOXES, m, k)
    tYsY, tYgY = boxes_of(store, gY, tiles)
    first, ctas = cute.arch.block_idx()[0], cute.arch.grid_dim()[0]
    mine = cute.ceil_div(counts[0] * counts[1] - first, ctas)  # tiles of this CTA

    for i in cutlass.range(cutlass.min(mine, stages - 1), unroll=1):
        fetch(load, tXgX, tXsX, place(first + i * ctas, counts, config.major), i, arrived, config)
    for i in cutlass.range(mine, unroll=1):
        stage, (m, k) = i % stages, place(first + i * ctas, counts, config.major)
        cute.arch.mbarrier_wait(arrived + stage, i // stages % 2)
        with cute.arch.elect_one():
            cute.copy(store, tYsY[None, stage], tYgY[None, m, k])
            cute.arch.cp_async_bulk_commit_group()
            cute.arch.cp_async_bulk_wait_group(1, read=True)  # the stage of tile i - 1 has been read
        after = i + stages - 1
        if after < mine:
            at = place(first + after * ctas, counts, config.major)
            fetch(load, tXgX, tXsX, at, after % stages, arrived, config)
    with cute.arch.elect_one():
        cute.arch.cp_async_bulk_wait_group(0, read=True)  # shared memory must outlive what reads it


# %% [markdown]
# ## To look inside
#
# `dump` loads one tile and lets the threads write out the raw memory under it: word i of shared memory is word i of the
# result. `restore` is the reverse: threads write raw words, and TMA stores the tile.
#
# **The trap: forgetting the fence.** In `restore`, threads write what TMA then reads. Those are two ways into shared
# memory, two "proxies", and a barrier of the threads orders only the first. `fence_proxy("async.shared")` stands
# between: after the writes, in *every thread that wrote*, and before the barrier after which one thread stores.
#
# Without it the store may read what was there before. Nothing reports it, and it may well be right whenever you test
# it. The other way round, from a TMA load to threads, waiting on the mbarrier is enough. And in `copy_kernel`, where
# both ends are TMA, there is nothing to fence.
#
# **The trap: alignment.** The swizzle is one of *address bits*: the 128-byte mode XORs bits 7 to 9 of the address, not
# of the offset in your tile, into bits 4 to 6. TMA accepts any multiple of 128 bytes. But only where the tile begins at
# a multiple of 1024 bytes, eight lines of 128 (of 512 for SW64, of 256 for SW32), are the two the same. `base` lets you
# see it; [the next page](tma_pitfalls.ipynb#the-tile-begins-late) shows who reads such a tile right.


# %% tags=["folded"]
@cute.jit
def memory_of(dtype: cutlass.Constexpr, config: cutlass.Constexpr, base: cutlass.Constexpr):
    """A tile `base` bytes above a multiple of 1024: as the layout has it (M, K, STAGE), as raw words; its barrier."""
    layout, smem = smem_layout(dtype, config), SmemAllocator()
    memory = smem.allocate(base + config.tile_bytes, 1024) + base
    barrier = smem.allocate_array(Int64, 1)
    raw = cute.make_tensor(cute.recast_ptr(memory, dtype=Uint32), cute.make_layout(config.tile_bytes // 4))
    return cute.make_tensor(cute.recast_ptr(memory, layout.inner, dtype), layout.outer), raw, barrier


@cute.kernel
def dump_kernel(
    load: cute.CopyAtom,
    mX: cute.Tensor,  # (M, K), as TMA coordinates
    words: cute.Tensor,  # Uint32, flat
    origin: cute.Coord,
    dtype: cutlass.Constexpr,
    config: cutlass.Constexpr,
    base: cutlass.Constexpr,
):
    """Load the tile at `origin`; write out shared memory as it is."""
    tidx, _, _ = cute.arch.thread_idx()
    tile, raw, barrier = memory_of(dtype, config, base)
    init_barriers(barrier, 1)
    gX = cute.local_tile(cute.domain_offset(origin, mX), config.tile(dtype.width), (None, None))
    tXsX, tXgX = boxes_of(load, gX, tile)
    fetch(load, tXgX, tXsX, (0, 0), 0, barrier, config)
    cute.arch.mbarrier_wait(barrier, 0)
    for i in cutlass.range(tidx, cute.size(raw), config.threads, unroll=1):
        words[i] = raw[i]


@cute.kernel
def restore_kernel(
    store: cute.CopyAtom,
    mY: cute.Tensor,  # (M, K), as TMA coordinates
    words: cute.Tensor,  # Uint32, flat
    origin: cute.Coord,
    dtype: cutlass.Constexpr,
    config: cutlass.Constexpr,
    base: cutlass.Constexpr,
):
    """Put raw words into shared memory; store the tile at `origin`."""
    tidx, _, _ = cute.arch.thread_idx()
    tile, raw, _ = memory_of(dtype, config, base)
    gY = cute.local_tile(cute.domain_offset(origin, mY), config.tile(dtype.width), (None, None))
    tYsY, tYgY = boxes_of(store, gY, tile)
    for i in cutlass.range(tidx, cute.size(raw), config.threads, unroll=1):
        raw[i] = words[i]
    cute.arch.fence_proxy("async.shared", space="cta")  # what this thread wrote, TMA shall see
    cute.arch.sync_threads()
    with cute.arch.elect_one():
        cute.copy(store, tYsY[None, 0], tYgY[None, 0, 0])
        cute.arch.cp_async_bulk_commit_group()
        cute.arch.cp_async_bulk_wait_group(0, read=True)


# %% [markdown]
# ## The launch
#
# The host makes the tensor maps, from run-time sizes and strides and from the layout. That they are made for every call
# is why nothing here depends on a shape: one compiled kernel serves all.


# %% tags=["folded"]
@cute.jit
def launch_copy(
    pX: cute.Pointer,
    pY: cute.Pointer,
    mk: tuple[Int32, Int32],
    apart: tuple[Int64, Int64],
    ctas: Int32,
    stream: cuda.CUstream,
    config: cutlass.Constexpr,
):
    """Y = X, both (M, K); `apart`: elements from line to line of X and of Y; `ctas`: how many run at once, at most."""
    dtype = pX.dtype
    layout, tile = smem_layout(dtype, config), config.tile(dtype.width)
    load, mX = load_of(matrix(pX, mk, apart[0], config.major), layout, tile)
    store, mY = store_of(matrix(pY, mk, apart[1], config.major), layout, tile)
    tiles = cute.ceil_div(mk[0], tile[0]) * cute.ceil_div(mk[1], tile[1])
    copy_kernel(load, mX, store, mY, dtype, config).launch(
        grid=(cutlass.min(tiles, ctas), 1, 1), block=(config.threads, 1, 1), stream=stream
    )


# %% [markdown]
# `dump` and `restore` are one CTA each.


# %% tags=["folded"]
@cute.jit
def launch_dump(
    pX: cute.Pointer,
    pWords: cute.Pointer,
    mk: tuple[Int32, Int32],
    apart: Int64,
    origin: tuple[Int32, Int32],
    stream: cuda.CUstream,
    config: cutlass.Constexpr,
    base: cutlass.Constexpr,
):
    """`dump_kernel` from the tile of X that begins at `origin`."""
    layout, tile = smem_layout(pX.dtype, config), config.tile(pX.dtype.width)
    whole, words = (
        matrix(pX, mk, apart, config.major),
        cute.make_tensor(pWords, cute.make_layout(config.tile_bytes // 4)),
    )
    load, mX = load_of(whole, layout, tile)
    dump_kernel(load, mX, words, origin, pX.dtype, config, base).launch(
        grid=(1, 1, 1), block=(config.threads, 1, 1), stream=stream
    )


@cute.jit
def launch_restore(
    pX: cute.Pointer,
    pWords: cute.Pointer,
    mk: tuple[Int32, Int32],
    apart: Int64,
    origin: tuple[Int32, Int32],
    stream: cuda.CUstream,
    config: cutlass.Constexpr,
    base: cutlass.Constexpr,
):
    """`restore_kernel` to the tile of X that begins at `origin`."""
    layout, tile = smem_layout(pX.dtype, config), config.tile(pX.dtype.width)
    whole, words = (
        matrix(pX, mk, apart, config.major),
        cute.make_tensor(pWords, cute.make_layout(config.tile_bytes // 4)),
    )
    store, mX = store_of(whole, layout, tile)
    restore_kernel(store, mX, words, origin, pX.dtype, config, base).launch(
        grid=(1, 1, 1), block=(config.threads, 1, 1), stream=stream
    )


# %% [markdown]
# To compile without a GPU, all of them are one host function.


# %% tags=["folded"]
@cute.jit
def launch_all(
    configs: cutlass.Constexpr,
    x: cute.Pointer,
    words: cute.Pointer,
    mk: tuple[Int32, Int32],
    apart: Int64,
    origin: tuple[Int32, Int32],
    ctas: Int32,
    stream: cuda.CUstream,
):
    """Every kernel once: what `compile_for` compiles. configs: of `copy`, and of `dump` and `restore`."""
    launch_copy(x, x, mk, (apart, apart), ctas, stream, configs[0])
    launch_dump(x, words, mk, apart, origin, stream, configs[1], 0)
    launch_restore(x, words, mk, apart, origin, stream, configs[1], 0)


# %% tags=["folded"]
def compile_for(arch: str, dtype=cutlass.Uint16, config: Config = CONFIG, options: str = ""):
    """Compile all kernels for `arch` ("sm_90a") which needs no GPU.

    config: of `copy`; the tile that `dump` and `restore` take has the same mode and major.
    """
    looked = replace(LOOK, mode=config.mode, major=config.major)
    pair, stream = (Int32(16), Int32(16)), cuda.CUstream(0)
    pointers = pointer_to(dtype, 16), pointer_to(Uint32, 16)
    dummies = (*pointers, pair, Int64(16), pair, Int32(1), stream)
    with COMPILING:
        return cute.compile(launch_all, (config, looked), *dummies, options=f"--gpu-arch {arch} {options}".strip())


KERNELS: dict = {}  # by all that they are compiled for


def compiled_copy(bits: int, config: Config, capability: tuple[int, int]):
    """`launch_copy` for the present GPU: compiled at the first call that needs it, then kept."""
    pointer, pair = pointer_to(TYPES[bits], 16), (Int32(16), Int32(16))
    dummies = pointer, pointer, pair, (Int64(16), Int64(16)), Int32(1), cuda.CUstream(0)
    return once(KERNELS, (bits, config, capability), lambda: cute.compile(launch_copy, *dummies, config))


def compiled_look(bits: int, config: Config, base: int, restores: bool, capability: tuple[int, int]):
    """`launch_dump`, or `launch_restore` if it `restores`, for the present GPU, likewise."""
    pair, stream = (Int32(16), Int32(16)), cuda.CUstream(0)
    dummies = pointer_to(TYPES[bits], 16), pointer_to(Uint32, 16), pair, Int64(16), pair, stream
    host = launch_restore if restores else launch_dump
    return once(KERNELS, (bits, config, base, host, capability), lambda: cute.compile(host, *dummies, config, base))


# %% [markdown]
# ## `copy`
#
# What a user calls. It checks all that TMA relies on before it launches anything. A copy moves bits, so only the size
# of the dtype matters.
#
# **The trap: lines that end inside 16 bytes.** TMA clips a store where the tensor ends, but it has been seen to finish
# the last 16 bytes of a line. Where those belong to something else, they are lost. So `copy` asks for lines of whole 16
# bytes, and needs them 16-byte aligned: the tensor map has no way to say anything else. (`dump` may begin anywhere
# across the lines, but only at multiples of 16 bytes along them: an H200 answers another corner with an illegal
# instruction.)

# %% tags=["folded"]
TYPES = {8: cutlass.Uint8, 16: cutlass.Uint16, 32: cutlass.Uint32}  # by bits: what TMA is told the elements are
LONGEST = 2**31 - 2**10  # elements: rounded up to whole tiles, still a 32-bit number


def config_of(mode: str, major: str, config: Config = CONFIG) -> Config:
    """`config` in this mode and major."""
    require(mode in MODES, "mode", repr(mode), f"one of {', '.join(MODES)}")
    require(major in MAJORS, "major", repr(major), f"one of {', '.join(MAJORS)}")
    config = replace(config, mode=mode, major=major)
    sizes = f"{config.lines} lines of {config.line_bytes} bytes"
    fits = config.lines in range(8, 257, 8) and config.line_bytes > 0 and config.line_bytes % config.box_bytes == 0
    require(fits, "config", sizes, f"8, 16, ..., 256 lines of a multiple of {config.box_bytes} bytes, for {mode}")
    return config


def lines_of(name: str, x: torch.Tensor, major: str) -> torch.Tensor:
    """`x` (M, K) as (lines, elements of a line), if it is a matrix that a tensor map can describe."""
    check_tensor(name, x, None)
    size = x.element_size()
    require(8 * size in TYPES, name, f"{x.dtype}, elements of {size} bytes", "elements of 1, 2 or 4 bytes", TypeError)
    require(max(x.shape) <= LONGEST, name, f"shape {tuple(x.shape)}", f"sides of at most {LONGEST}")
    lines, along = (x, "K") if major == "k" else (x.t(), "M")
    require(lines.stride(1) == 1, name, f"stride {lines.stride(1)} along {along}", f"1, for major={major!r}")
    ends = f"{lines.shape[1] * size} bytes along {along}"
    require(lines.shape[1] * size % 16 == 0, name, ends, "a multiple of 16")
    require(x.data_ptr() % 16 == 0, name, f"address {x.data_ptr():#x}", "a multiple of 16 bytes")
    apart = f"lines {lines.stride(0) * size} bytes apart"
    fits = lines.shape[0] == 1 or (lines.stride(0) >= lines.shape[1] and lines.stride(0) * size % 16 == 0)
    require(fits, name, apart, f"a multiple of 16, at least {lines.shape[1] * size}: lines that do not overlap")
    return lines


def apart_of(lines: torch.Tensor) -> int:
    """Elements from line to line. A single line has no next one: any legal distance will do."""
    return lines.stride(0) if lines.shape[0] > 1 else lines.shape[1]


def require_gpu(name: str, x: torch.Tensor) -> tuple[int, int]:
    """The compute capability of the GPU on which `x` is."""
    check_gpu(name, x, ((9, 0), ...), "TMA")
    return torch.cuda.get_device_capability(x.device)


# %% tags=["folded"]
def copy(
    x: torch.Tensor, out: torch.Tensor | None = None, mode: str = "sw128", major: str = "k", *, config: Config = CONFIG
) -> torch.Tensor:
    """`x` in memory of its own, tile by tile through shared memory, on the current stream of `x`'s device.

    x: (M, K), elements of 1, 2 or 4 bytes. K-major: stride 1 along K, rows a multiple of 16 bytes long and apart.
        MN-major: stride 1 along M, and so of its columns. Its address is a multiple of 16 bytes.
    out: of the same shape, dtype and major, no memory of x; lines any multiple of 16 bytes apart. Made if not given.
    mode: how the tiles lie in shared memory: "none", "sw32", "sw64" or "sw128". The result is the same.
    major: "k" or "mn": which mode of x has adjacent elements.
    config: other sizes; `mode` and `major` replace its own.

    Every bit comes out as it went in. Needs a GPU of compute capability 9.0 or later. There is no backward.

    Raises TypeError for a wrong type or dtype and ValueError for anything else it cannot take. Both name the
    argument, what it got and what it needs, and nothing has been launched.
    """
    config = config_of(mode, major, config)
    require(config.stages >= 2, "config", f"{config.stages} stage(s)", "2 or more: one is stored, others are loaded")
    from_lines = lines_of("x", x, major)
    if out is not None:
        to_lines = lines_of("out", out, major)
        require(out.dtype == x.dtype, "out", out.dtype, f"{x.dtype}, the dtype of x", TypeError)
        require(out.shape == x.shape, "out", f"shape {tuple(out.shape)}", f"{tuple(x.shape)}, the shape of x")
        require(out.device == x.device, "out", f"device {out.device}", f"{x.device}, where x is")
        check_apart(to_lines, x=from_lines)
    capability = require_gpu("x", x)
    if out is None:
        to_lines = torch.empty_like(from_lines, memory_format=torch.contiguous_format)
        out = to_lines if major == "k" else to_lines.t()
    with torch.cuda.device(x.device):
        bits, ctas = 8 * x.element_size(), torch.cuda.get_device_properties(x.device).multi_processor_count
        launch = compiled_copy(bits, config, capability)
        launch(
            *(pointer_to(TYPES[bits], t.data_ptr()) for t in (x, out)),
            tuple(Int32(extent) for extent in x.shape),
            (Int64(apart_of(from_lines)), Int64(apart_of(to_lines))),
            Int32(ctas * config.ctas_per_sm),
            cuda.CUstream(torch.cuda.current_stream().cuda_stream),
        )
    torch.autograd.graph.increment_version(out)  # tell autograd that it was overwritten
    return out


# %% [markdown]
# `dump` and `restore` take one tile of `LOOK`'s size, 16 lines of 128 bytes, and its memory as 16 lines of 128 bytes.


# %% tags=["folded"]
def look(x: torch.Tensor, words: torch.Tensor, origin: tuple[int, int], config: Config, base: int, restores: bool):
    """Launch `dump` or `restore`: `x` and `origin` have been looked at."""
    capability = require_gpu("out" if restores else "x", x)
    with torch.cuda.device(x.device):
        launch = compiled_look(8 * x.element_size(), config, base, restores, capability)
        launch(
            pointer_to(TYPES[8 * x.element_size()], x.data_ptr()),
            pointer_to(Uint32, words.data_ptr()),
            tuple(Int32(extent) for extent in x.shape),
            Int64(apart_of(x if config.major == "k" else x.t())),
            tuple(Int32(first) for first in origin),
            cuda.CUstream(torch.cuda.current_stream().cuda_stream),
        )


def check_corner(x: torch.Tensor, origin: tuple[int, int], base: int, major: str) -> None:
    """A corner and a place in shared memory that TMA takes."""
    along = origin[1] if major == "k" else origin[0]
    byte = along * x.element_size()
    require(byte % 16 == 0, "origin", f"{origin}, byte {byte} of a line", "a multiple of 16 bytes along the line")
    require(base % 128 == 0 and 0 <= base < 1024, "base", base, "a multiple of 128 under 1024")


# %% [markdown]
# What a user calls:


# %% tags=["folded"]
def dump(
    x: torch.Tensor, origin: tuple[int, int] = (0, 0), mode: str = "sw128", major: str = "k", base: int = 0
) -> torch.Tensor:
    """Shared memory after TMA has loaded the tile of x that begins at `origin`: (16, 128 bytes) in x's dtype.

    x, mode, major: as of `copy`. origin: (m, k), may lie outside x; what is outside comes as zeros. base: bytes from a
    multiple of 1024 to where the tile begins. Raises as `copy`.
    """
    config = config_of(mode, major, LOOK)
    lines_of("x", x, major)
    check_corner(x, origin, base, major)
    memory = torch.empty(config.tile_bytes // 128, 128 // x.element_size(), dtype=x.dtype, device=x.device)
    look(x, memory, origin, config, base, restores=False)
    return memory


def restore(
    memory: torch.Tensor,
    out: torch.Tensor,
    origin: tuple[int, int] = (0, 0),
    mode: str = "sw128",
    major: str = "k",
    base: int = 0,
) -> torch.Tensor:
    """Put `memory`, as `dump` gives it, into shared memory, and let TMA store it as the tile of `out` at `origin`.

    origin: (m, k), not negative; what leaves `out` is dropped. The rest as of `dump`. Returns out.
    """
    config = config_of(mode, major, LOOK)
    lines_of("out", out, major)
    check_corner(out, origin, base, major)
    require(min(origin) >= 0, "origin", origin, "no negative coordinate: a store begins inside the matrix or after it")
    wanted = (config.tile_bytes // 128, 128 // out.element_size())
    alike = isinstance(memory, torch.Tensor) and memory.dtype == out.dtype and memory.device == out.device
    require(alike, "memory", getattr(memory, "dtype", type(memory).__name__), f"{out.dtype} on {out.device}", TypeError)
    require(memory.shape == wanted, "memory", f"shape {tuple(memory.shape)}", f"{wanted}")
    packed = memory.is_contiguous() and memory.data_ptr() % 16 == 0
    place = f"strides {memory.stride()}, address {memory.data_ptr():#x}"
    require(packed, "memory", place, "contiguous lines of 128 bytes, 16-byte aligned")
    look(out, memory, origin, config, base, restores=True)
    torch.autograd.graph.increment_version(out)
    return out


# %% [markdown]
# ## Where a byte lies
#
# All four modes are one formula: boxes one after the other, lines inside a box, and then the swizzle of the address. No
# kernel needs it. The facts below hold CuTe's layouts against it, and [the next page](tma_pitfalls.ipynb) works with
# it.


# %%
def swizzle(address: int, bits: int) -> int:
    """The byte address after XORing the `bits` bits from bit 7 up into those from bit 4 up: S<bits,4,3>."""
    return address ^ (address >> 3 & ((1 << bits) - 1) << 4)


def offset(line: int, byte: int, mode: str, base: int = 0, lines: int = LOOK.lines) -> int:
    """Return where TMA puts a byte of a tile that begins at the address `base`: boxes, lines, then the swizzle of all
    that."""
    width = 16 << MODES[mode]
    box, inside = divmod(byte, width)
    return swizzle(base + (box * lines + line) * width + inside, MODES[mode]) - base


# %% [markdown]
# ## All of it, as facts
#
# The claims of this page as code, for `cookbook check`.


# %% tags=["folded"]
def offsets_by_cute(dtype, config: Config) -> dict[tuple[int, int], int]:
    """Return where CuTe's layout has the first byte of each 16-byte chunk, by (line, byte along it). For `ask_cute`."""
    outer, size = smem_layout(dtype, config).outer, dtype.width // 8
    places = {}
    for line in range(config.lines):
        for byte in range(0, config.line_bytes, 16):
            m, k = (line, byte // size) if config.major == "k" else (byte // size, line)
            places[line, byte] = swizzle(outer((m, k, 0)) * size, MODES[config.mode])
    return places


def misplaced(dtype, mode: str, major: str) -> bool:
    """Return whether CuTe has another box, other boxes, or other places than `offset` says."""
    config, tile = Config(mode, major), replace(LOOK, mode=mode, major=major)
    wanted = (config.lines * config.box_bytes * 8 // dtype.width, config.line_bytes // config.box_bytes)
    places = ask_cute(offsets_by_cute, dtype, tile)
    return ask_cute(boxes, dtype, config) != wanted or any(offset(*at, mode) != places[at] for at in places)


def facts() -> list[tuple[str, bool, str]]:
    """The claims: a name, whether it holds, what was found."""
    everything = [(dtype, mode, major) for dtype in TYPES.values() for mode in MODES for major in MAJORS]
    wrong = [f"{dtype.__name__} {mode} {major}" for dtype, mode, major in everything if misplaced(dtype, mode, major)]
    twice = all(swizzle(swizzle(a, bits), bits) == a for bits in MODES.values() for a in range(4096))
    on_an_sm = CONFIG.ctas_per_sm * (CONFIG.smem_bytes + 1024)
    return [
        ("layout_is_the_mode", not wrong, f"{len(everything)} layouts, boxes and places; wrong: {wrong}"),
        ("own_inverse", twice, "a store undoes a load: the swizzle twice is none"),
        ("fits", on_an_sm <= 228 * 1024, f"{CONFIG.ctas_per_sm} CTAs: {on_an_sm} bytes of an SM's {228 * 1024}"),
    ]


# %% [markdown]
# ## Exercises
#
# The last cell of this section judges both; `cookbook exercise my.py` those of a file (`cookbook copy
# hopper/tma_copy my.py`).
#
# **Finish it.** `offset` goes from a byte of the tile to its place. A debugger shows a place: which byte is it?


# %%
def byte_at(place, mode, lines):
    """Exercise 1, finish it: (line, byte) of the byte that TMA puts at `place` of a tile of `lines` lines, which begins
    at the address 0."""
    raise NotImplementedError


# %% [markdown]
# <details markdown="1"><summary>Tip 1</summary>
#
# The swizzle is its own inverse. Undo it first: the rest are boxes of `lines` lines of `16 << MODES[mode]` bytes.
#
# </details>
#
# <details markdown="1"><summary>Tip 2</summary>
#
# The number of a line counts through the boxes: `divmod` by `lines` gives the box and the line in it.
#
# </details>
#
# <details markdown="1"><summary>Solution</summary>
#
# `offset` backwards: the swizzle, the bytes of a box's line, the lines of a box.
#
# ```python
# def byte_at(place, mode, lines):
#     width = 16 << MODES[mode]
#     number, inside = divmod(swizzle(place, MODES[mode]), width)
#     box, line = divmod(number, lines)
#     return line, box * width + inside
# ```
#
# </details>
#
# **Find the bug.** Which stage and which parity does the copy wait for, tile by tile? With this answer tiles are
# stored before they have come: nothing hangs, and the values are wrong.


# %%
def waits(tiles, stages):
    """Exercise 2, find the bug: (stage, parity) to wait for, of each of `tiles` tiles."""
    found, stage, parity = [], 0, 0
    for _ in range(tiles):
        if stage == 0:
            parity ^= 1
        found.append((stage, parity))
        stage = (stage + 1) % stages
    return found


# %% [markdown]
# <details markdown="1"><summary>Tip 1</summary>
#
# The first phase of a barrier has parity 0. Which parity does the first tile wait for here?
#
# </details>
#
# <details markdown="1"><summary>Tip 2</summary>
#
# A wait for the parity of the phase *before* returns at once. Flip the parity when the loop comes back to stage 0, not
# when it begins there.
#
# </details>
#
# <details markdown="1"><summary>Solution</summary>
#
# The first round waits for phase 0 of each barrier, so the parity changes behind a round and not in front of it.
#
# ```python
# def waits(tiles, stages):
#     return [(tile % stages, tile // stages % 2) for tile in range(tiles)]
# ```
#
# </details>


# %% tags=["folded"]
EXERCISES = {
    "byte_at": lambda f: (
        (f"{mode}, {lines} lines, place {place}", f(place, mode, lines), at)
        for mode, lines in (("none", 16), ("sw32", 16), ("sw64", 16), ("sw128", 16), ("sw64", 64), ("sw128", 64))
        for at in ((line, byte) for line in range(0, lines, 3) for byte in range(0, 256, 24))
        for place in [offset(*at, mode, lines=lines)]
    ),
    "waits": lambda f: (
        (f"{tiles} tiles, {stages} stages", f(tiles, stages), [(i % stages, i // stages % 2) for i in range(tiles)])
        for tiles, stages in ((1, 4), (7, 4), (9, 4), (5, 2), (13, 3))
    ),
}

# %% tags=["lab"]
from cookbook import lab

lab.check_exercises("hopper/tma_copy")

# %% [markdown] tags=["lab"]
# ## What TMA leaves in shared memory
#
# The first picture is CuTe's answer. The model is written from the PTX manual, and loads the tile box by box into numpy
# bytes; a counting tile shows where each element went. On a machine with a GPU that has TMA, `dump` asks the hardware,
# too.

# %% tags=["lab"]
import numpy as np

from cookbook.lab import tma_copies

counting = np.arange(LOOK.lines * LOOK.line_bytes // 2, dtype=np.uint16).reshape(LOOK.lines, -1)
has_tma = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)
for major in MAJORS:
    for mode in MODES:
        by_model = tma_copies.expected(counting, replace(LOOK, mode=mode, major=major))
        places = layouts[major][f"{mode}, {major}-major"].byte_offsets()
        by_cute = by_model.view(np.uint16)[(places if major == "k" else places.T) // 2]
        said = f"{mode:6} {major:2}  CuTe's layout finds all: {(by_cute == counting).all()}"
        if has_tma:
            x = torch.from_numpy(counting.view(np.int16)).cuda()
            memory = dump(x if major == "k" else x.t(), mode=mode, major=major).view(torch.uint8)
            said += f"; this GPU's memory is the model's: {(memory.cpu().numpy().reshape(-1) == by_model).all()}"
        print(said)

# %% [markdown] tags=["lab"]
# ## Who waits for what
#
# The loop of `copy_kernel` for seven tiles, step by step. Three tiles are in flight while one is stored. The parity
# changes whenever the loop comes back to the first stage.


# %% tags=["lab"]
def spelled_out(mine, stages=CONFIG.stages):
    for i in range(min(mine, stages - 1)):
        yield f"      fetch tile {i} into stage {i}"
    for i in range(mine):
        yield f"tile {i}: wait for stage {i % stages}, parity {i // stages % 2}; store it"
        if (after := i + stages - 1) < mine:
            before = f"wait until tile {i - 1} has been read; " if i else ""
            yield f"      {before}fetch tile {after} into stage {after % stages}"
    yield "      wait until all have been read"


print("\n".join(spelled_out(7)))

# %% [markdown] tags=["lab"]
# ## The prediction
#
# A narrower mode moves the same tile in more boxes, and each box in narrower lines. Memory works in sectors of 32
# bytes: a line of 16 touches half of one, and so each sector is asked for twice.

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.lab import table

SECTOR = 32  # bytes
rows = []
for mode in MODES:
    width = replace(CONFIG, mode=mode).box_bytes
    across = CONFIG.line_bytes // width
    rows.append([mode, str(across), str(across * CONFIG.lines), f"{max(width, SECTOR) / width:.0f}"])
Markdown(table(["mode", "boxes of a tile", "lines of a tile", "sector bytes read for each byte"], rows))

# %% [markdown] tags=["lab"]
# So we predict an *order*, not times. As long as TMA works through the lines faster than memory answers, a narrower
# mode costs nothing. Sooner or later the lines are what the copy waits for. And `none`, with twice the sectors on top,
# comes last. The major changes nothing: the lines are the same lines.
#
# ## Check
#
# *Layout*: the facts above. *Compiled*: all kernels of this page, for each target. What a GPU said is recorded: *ran*
# stands for copies in every mode and major, of elements of 1, 2 and 4 bytes, ragged, with gaps between the lines. It
# stands for looks into shared memory, too, byte by byte against the model.

# %% tags=["lab"]
from cookbook import lab
from cookbook.lab import checked_table, results_table

lab.check_cells("hopper/tma_copy", targets=["sm_90a"])

# %% tags=["lab"]
Markdown(checked_table("hopper/tma_copy"))

# %% [markdown] tags=["lab"]
# ## Time
#
# `copy` with its 128-byte mode against torch's copy of the same bytes, which is what the device can do; in the other
# modes; and the same memory taken as MN-major. All of them interleaved in one run on one GPU.

# %% tags=["lab"]
Markdown(results_table("hopper/tma_copy"))

# %% [markdown] tags=["lab"]
# On an H200 the order is the predicted one: `sw64` costs nothing more than `sw128`, `sw32` more, and `none` by far the
# most. The two majors cannot be told apart. Even in the widest mode this copy stays behind the device's own.
#
# ## Conclusion
#
# A layout describes a tile in shared memory once. TMA takes its box and its mode from it, and a reader takes its
# addresses from it. Keep to what TMA can do: one of four swizzles, atoms across the lines first, a tile at a multiple
# of 1024 bytes, lines and corners of whole 16 bytes. Wait on the mbarrier for what TMA wrote, fence before what it
# reads.
#
# Next: [what goes wrong in silence](tma_pitfalls.ipynb), and then [the first GEMM](first_gemm.ipynb), which puts tensor
# cores behind such loads, with no swizzle and one stage.
#
# To use it: `cookbook copy hopper/tma_copy my_tma.py`, then `from my_tma import copy`.
