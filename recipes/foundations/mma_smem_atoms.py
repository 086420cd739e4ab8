# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: The shared-memory atoms of the tensor cores
#     claim: >-
#       The tensor cores know eight small layouts of shared memory, and one line of arithmetic chooses among them: the
#       widest whose row divides the tile.
#     track: foundations
#     order: 50
#     kind: study
#     path: tile -> atom -> swizzled shared memory
#     sources:
#       - title: "PTX ISA, asynchronous warpgroup level: shared-memory matrix layout"
#         url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-shared-memory-layout"
#       - title: "PTX ISA, tensors: swizzling modes"
#         url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#tensor-swizzling-modes"
#       - title: "Yifan Yang, Tensor Core MMA Swizzle Layout"
#         url: https://yang-yifan.github.io/blogs/mma_swizzle/mma_swizzle.html
#       - title: "CUTLASS issue 1364, the logic of SmemLayoutAtom"
#         url: https://github.com/NVIDIA/cutlass/issues/1364
# ---

# %% [markdown]
# # The shared-memory atoms of the tensor cores
#
# **Claim.** A tensor core that reads a tile from shared memory wants *eight rows of 16 bytes* at once, in eight
# different places of a 128-byte line. It knows four ways to arrange that, for tiles stored along K and for tiles stored
# along M or N: eight *atoms*. (Blackwell has a ninth, for [one case](#which-atom).) You never design a layout for it.
# You choose an atom, and one line of arithmetic does that.
#
# The four for tiles stored along K, bfloat16, as they lie in shared memory. A row is a 128-byte line, a cell a *chunk*
# of 16 bytes. The large number counts the chunks of the tile along its rows; the small pair is the (m, k) of a chunk's
# first element.

# %% tags=["lab"]
from cookbook import atoms, draw

FOUR = ("INTER", "SW32", "SW64", "SW128")
along_k = {name: atoms.atom(f"K_{name}", 16).layout for name in FOUR}
draw.atom_orders(along_k, title="Four atoms along K")

# %% [markdown]
# Chunks of one colour are one column of the tile, which the tensor core asks for in one go. They lie in eight different
# columns: one wavefront. Without the XOR, rows of 32, 64 and 128 bytes would take 2, 4 and 8. Next to the tile, as it
# lies in the matrix:

# %% tags=["lab"]
draw.atom_orders(along_k, columns=1, tiles=True, title="In the matrix, and in shared memory")

# %% [markdown]
# No chunk is ever taken apart: 16 bytes that are neighbours in the matrix are neighbours in shared memory. PTX calls
# that *16-byte atomicity*. It is why a swizzle never turns a tile along M into one along K.
#
# Needed before: what a bank conflict is, and how XOR removes one ([the XOR swizzle](xor_swizzle.ipynb)). Nothing here
# needs a GPU.

# %%
import cutlass
import cutlass.cute as cute
import cutlass.utils.blackwell_helpers as blackwell
import cutlass.utils.hopper_helpers as hopper
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, tcgen05, warpgroup

from cookbook.recipe.moved import LayoutEnum

# %% [markdown]
# ## Eight rows of 32 bytes, by hand
#
# A 128-byte *line* of shared memory goes once round the 32 banks. Cut it into eight *slots* of 16 bytes, four banks
# each, and cut the tile into chunks of 16 bytes, numbered along its contiguous direction first. Two chunks in two slots
# can be read in one wavefront; two chunks in the same slot of different lines take two.
#
# A tile of 8 rows of 32 bytes has 16 chunks, and a line holds 8 of them. Stored as it is, line 0 holds chunks 0 to 7
# and line 1 chunks 8 to 15. The first column of chunks is 0, 2, 4, ..., 14: slots 0, 2, 4, 6 of line 0 and again 0, 2,
# 4, 6 of line 1. Each slot holds two of them. The cure is to swap neighbours in line 1:

# %% tags=["lab"]
linear = [[2 * row + chunk for chunk in range(2)] for row in range(8)]  # in units of 16 bytes
SW32 = [[place ^ (place >> 3 & 1) for place in row] for row in linear]
FIRST = [(row, 0) for row in range(8)]
draw.before_after(
    linear,
    SW32,
    128,
    label="offset",
    mark=FIRST,
    titles=("as it is", "SW32"),
    title="8 rows of 32 bytes: the slot of each chunk",
)

# %% [markdown]
# (A number is a place in memory, in units of 16 bytes; red: two chunks in one slot.) In address bits: bit 7 is the
# line, bit 4 the lowest bit of the slot, and the cure is "XOR bit 7 into bit 4". A row of 64 bytes makes two bits of
# it, one of 128 bytes three. The same formula serves all:


# %%
def swizzle(address: int, bits: int) -> int:
    """The byte address after XORing the `bits` bits from bit 7 up into those from bit 4 up: S<bits,4,3>."""
    return address ^ (address >> 3 & ((1 << bits) - 1) << 4)


def lines(bits: int) -> list[list[int]]:
    """Return which chunk lies in each slot of each 128-byte line: 8 rows of 16 << bits bytes, swizzled."""
    slots = {swizzle(16 * chunk, bits) // 16: chunk for chunk in range(8 << bits)}
    return [[slots[8 * line + slot] for slot in range(8)] for line in range(1 << bits)]


lines(1)

# %%
lines(2)

# %%
lines(3)

# %% [markdown]
# The last one has a rule that fits in a sentence: *slot p of line r holds chunk 8r + (p XOR r).*
#
# **The trap: leave it linear.** Without the XOR a column of chunks meets its own slots again:


# %%
def wavefronts(bits: int, swizzled: bool) -> int:
    """Return how often the busiest slot is asked when 8 rows of 16 << bits bytes give one chunk each."""
    starts = [row * (16 << bits) for row in range(8)]
    slots = [(swizzle(start, bits) if swizzled else start) // 16 % 8 for start in starts]
    return max(slots.count(slot) for slot in range(8))


{
    16 << bits: (wavefronts(bits, swizzled=False), wavefronts(bits, swizzled=True)) for bits in range(4)
}  # row bytes: wavefronts

# %% [markdown]
# Rows of 32, 64 and 128 bytes cost 2, 4 and 8 wavefronts when they are linear and one when they are swizzled.
#
# The 16-byte row needs no swizzle: eight rows of 16 bytes *are* one line. CuTe calls that atom INTER, the PTX manual
# "no swizzle". **The trap in the name:** it is not the tile as it lies in a row-major matrix. Its block of 8 rows by 16
# bytes is contiguous, 128 bytes in a row, and the next 16 bytes of the same tile row start a new block.
#
# ## The same in CuTe
#
# An atom is a swizzle of *bytes* over a layout of *elements*. Two lines make each of the eight, and they are the ones
# that CuTe's own functions make:


# %%
def atom(major: str, bits: int, dtype) -> cute.ComposedLayout:
    """(M, K): eight rows of 16 << bits bytes of `dtype`, stored along K ("K") or along M or N ("MN")."""
    width = (128 << bits) // dtype.width  # elements
    shape, stride = ((8, width), (width, 1)) if major == "K" else ((width, 8), (1, width))
    return cute.make_composed_layout(cute.make_swizzle(bits, 4, 3), 0, cute.make_layout(shape, stride=stride))


def ask_cute(question, *args, arch: str = "sm_100a"):
    """Return what question(*args) returns inside CuTe, where layouts can be made. No kernel is built, no GPU is
    used."""
    answers = []

    @cute.jit
    def host():
        answers.append(question(*args))

    cute.compile(host, options=f"--gpu-arch {arch}")
    return answers[0]


NAMES = ("INTER", "SW32", "SW64", "SW128")  # by the bits of the swizzle
KINDS = {(major, bits): f"{major}_{name}" for bits, name in enumerate(NAMES) for major in ("K", "MN")}


def both_ways(dtype) -> dict[str, tuple[str, str]]:
    """Each atom as we make it and as CuTe's make_smem_layout_atom does, printed."""
    theirs = {kind: getattr(warpgroup.SmemLayoutAtomKind, kind) for kind in KINDS.values()}
    return {
        kind: (str(atom(major, bits, dtype)), str(warpgroup.make_smem_layout_atom(theirs[kind], dtype)))
        for (major, bits), kind in KINDS.items()
    }


# %%
ask_cute(both_ways, cutlass.BFloat16)

# %% [markdown]
# The four along M or N, drawn: the same patterns of chunks, and a chunk holds eight neighbours of M.

# %% tags=["lab"]
along_m = {name: atoms.atom(f"MN_{name}", 16).layout for name in FOUR}
draw.atom_orders(along_m, columns=1, tiles=True, title="Four atoms along M or N")

# %% [markdown]
# The bank model agrees: eight lanes that read the eight chunks of any column take one wavefront, in all eight atoms.

# %% tags=["lab"]
import numpy as np

from cookbook import access, banks
from cookbook.layouts import evaluate


def eight_atoms(dtype):
    return {kind: atom(major, bits, dtype) for (major, bits), kind in KINDS.items()}


for kind, layout in evaluate(eight_atoms, cutlass.BFloat16).items():
    offsets = layout.byte_offsets() if kind.startswith("K") else layout.byte_offsets().T
    columns = offsets[:, ::8].T  # of chunks
    counts = {banks.wavefronts(access.ldmatrix(column, 1).addresses, 16).actual for column in columns}
    print(f"{kind:9} {len(columns)} columns of chunks, wavefronts each: {counts}")

# %% [markdown] tags=["lab"]
# What `wgmma` asks for, on the atom of 128 bytes: a column of eight chunks, one of each row. Set B to 2, 1 and 0 for
# the narrower swizzles on the same rows; set the first column to 8, 16, ... for the other columns of chunks.
#
# <bank-view layout="K_SW128" rows="8" columns="64" bits="16" swizzle="3,4,3" access="ld128@8x8" reader="wgmma">
# `cookbook banks --tile 8x64 --bits 16 --swizzle 3,4,3 --access ld128@8x8`
# </bank-view>

# %% [markdown]
# ## Mind the units
#
# `S<3,4,3> o 0 o (8,64):(64,1)` looks like one function, and evaluated as one it is wrong. The strides count elements.
# The swizzle counts bytes: it belongs to the *pointer*, and acts when an address goes out to memory. Element (1, 0) of
# the bf16 atom:
#
# * the plain layout says element 64, which is byte 128;
# * the swizzle of *byte* 128 is byte 144, which is element 72: that is where the hardware puts it;
# * the swizzle of the *number 64* is 64: the wrong answer, and the one that calling the composed layout gives.
#
# If you want a function of elements, say the swizzle in elements: 16 bytes are 8 bf16, so `S<3,3,3>`.


# %%
def where_is_element_1_0() -> dict[str, int]:
    """Three ways to ask CuTe for the place of element (1, 0), in elements."""
    rows = cute.make_layout((8, 64), stride=(64, 1))
    return {
        "calling S<3,4,3> o layout (wrong)": cute.make_composed_layout(cute.make_swizzle(3, 4, 3), 0, rows)((1, 0)),
        "calling S<3,3,3> o layout": cute.make_composed_layout(cute.make_swizzle(3, 3, 3), 0, rows)((1, 0)),
        "bytes, then the swizzle, then elements": swizzle(rows((1, 0)) * 2, 3) // 2,
    }


ask_cute(where_is_element_1_0)

# %% [markdown]
# ## Which atom?
#
# **The widest whose row divides the tile's contiguous extent.** Why the widest? Fill one 128-byte line of shared memory
# and look at what that takes from global memory. Say the tile is 8 rows of 64 bytes, 4 chunks a row:
#
# * INTER puts a column of chunks into line 0: eight pieces of 16 bytes, from eight rows;
# * SW32 puts two columns there: four pieces of 32 bytes;
# * SW64 puts two whole rows there: two pieces of 64 bytes.
#
# Longer pieces mean fewer requests. Memory is read in *sectors* of 32 bytes, so pieces of 16 bytes also touch twice the
# sectors that they use. From 32 bytes up the sectors are the same, and only the requests get fewer. The tile has 64
# bytes a row, so SW128 is out; of the three that fit, SW64 is best.


# %%
def chunks_of_first_line(bits: int, row_bytes: int = 64) -> list[int]:
    """Return which chunks of a tile of 8 rows fill line 0, when atoms of 16 << bits bytes stand side by side in it."""
    per_row = row_bytes // 16
    held = []
    for chunk in range(8 * per_row):
        row, byte = chunk // per_row, chunk % per_row * 16
        block, inside = divmod(byte, 16 << bits)  # which atom, and where in its row
        address = block * (128 << bits) + swizzle(row * (16 << bits) + inside, bits)
        held += [chunk] if address < 128 else []
    return held


{16 << bits: chunks_of_first_line(bits) for bits in range(3)}

# %% [markdown]
# Drawn on the tile, 8 rows of 4 chunks: framed are the chunks that fill one line of shared memory.

# %% tags=["lab"]
tile_of_chunks = [[4 * row + chunk for chunk in range(4)] for row in range(8)]
panels = [
    draw.number_grid(
        tile_of_chunks,
        f"{FOUR[bits]}: {requests} requests",
        colours=[[int(chunk in chunks_of_first_line(bits)) for chunk in row] for row in tile_of_chunks],
        mark=[divmod(chunk, 4) for chunk in chunks_of_first_line(bits)],
    )
    for bits, requests in enumerate((8, 4, 2))
]
draw.beside(panels, "One line of shared memory, of a tile of 8 rows of 64 bytes", columns=3)

# %% [markdown]
# Counted: the pieces that fill this line, and the sectors that they touch.


# %%
def requests_and_sectors(bits: int) -> tuple[int, int]:
    """Contiguous pieces of global memory that fill line 0, and the 32-byte sectors in which they lie."""
    chunks = sorted(chunks_of_first_line(bits))
    width = 1 << bits  # chunks of a piece: those of one row of the atom
    return len({chunk // width for chunk in chunks}), len({chunk // 2 for chunk in chunks})


{16 << bits: requests_and_sectors(bits) for bits in range(3)}  # row bytes: (requests, sectors)

# %% [markdown]
# (row bytes: (requests, sectors)). So from 32 bytes up wider atoms save *requests*, not sectors. The rule, then, and
# what CuTe's two selectors take for the same tiles: `get_smem_layout_atom` for Hopper, `get_smem_layout_atom_ab` for
# Blackwell. In CUTLASS C++ they are `ss_smem_selector` and `sm100_smem_selector`.


# %%
def widest(extent: int, dtype) -> int:
    """The atom for a tile with `extent` contiguous elements: 3, 2, 1, 0 for rows of 128, 64, 32, 16 bytes."""
    size = extent * dtype.width // 8
    bits = next((bits for bits in (3, 2, 1, 0) if size % (16 << bits) == 0), None)
    if bits is None or size == 0:
        raise ValueError(f"extent: got {extent} elements, {size} bytes; needed a positive multiple of 16 bytes")
    return bits


def chosen_by_cute(extent: int, dtype, major: str) -> tuple[str, str]:
    """Return what Hopper's selector and Blackwell's take for the same tile."""
    order = LayoutEnum.ROW_MAJOR if major == "K" else LayoutEnum.COL_MAJOR
    mode, tile = (OperandMajorMode.K, (128, extent)) if major == "K" else (OperandMajorMode.MN, (extent, 64))
    found = (
        hopper.get_smem_layout_atom(order, dtype, extent),
        blackwell.get_smem_layout_atom_ab(mode, dtype, tile),
    )
    return tuple(kind.name for kind in found)


def selectors_agree(dtype, major: str) -> dict[int, tuple[str, str, str]]:
    """For each extent: our rule's atom, Hopper's and Blackwell's."""
    extents = [extent for extent in range(8, 257, 8) if extent * dtype.width % 128 == 0]
    return {e: (KINDS[major, widest(e, dtype)], *chosen_by_cute(e, dtype, major)) for e in extents}


{extent: found for extent, found in ask_cute(selectors_agree, cutlass.BFloat16, "K").items() if extent <= 64}

# %% [markdown]
# One exception, and it is Blackwell's. For a 32-bit type stored along M or N (tf32) `tcgen05` takes one atom alone:
# `MN_SW128_32B`, whose swizzle is `S<2,5,2>`. It moves pairs of chunks (*32-byte atomicity*), and is one of the
# variants of the 128-byte mode that TMA knows too. So the extent must be a multiple of 32 elements. Hopper has no such
# case: its `wgmma` reads operands stored along M or N in 16-bit types only.
#
# **The trap: the helpers answer all the same.** For narrower tiles both of CuTe's selectors name an atom that the MMA
# does not take. Each row: the extent, what Blackwell's selector names, and what `cookbook.atoms.select` says.

# %% tags=["lab"]
from cookbook.atoms import select


def of_tf32(extent: int) -> str:
    """The atom that tcgen05 takes for a tile with `extent` elements along M or N, or why there is none."""
    try:
        return select("MN", 32, (extent, 64), arch="sm_100a").name
    except ValueError as refusal:
        return f"refused: {refusal}"


for extent, found in ask_cute(selectors_agree, cutlass.Float32, "MN").items():
    if extent <= 64:
        print(f"{extent:3} {found[-1]:13} {of_tf32(extent)}")

# %% [markdown]
# The atom itself, as CuTe makes it:


# %%
def atom_of_32_bytes() -> str:
    """Blackwell's exception, printed."""
    return str(tcgen05.make_smem_layout_atom(tcgen05.SmemLayoutAtomKind.MN_SW128_32B, cutlass.Float32))


ask_cute(atom_of_32_bytes)

# %% [markdown]
# ## A tile of several atoms
#
# Atoms are set side by side with `tile_to_shape`, and `order` says which direction goes first. A tile of 16 rows by 64
# bytes is 2 x 4 INTER atoms, or 2 x 2 SW32 atoms. In elements of bf16, the first element of the atom at (m, k) is at
#
# | | row-major, `order=(1, 0)` | column-major, `order=(0, 1)` |
# |---|---|---|
# | INTER, atom of 8 x 8 = 64 | 64 ((m/8) 4 + k/8) | 64 ((k/8) 2 + m/8) |
# | SW32, atom of 8 x 16 = 128 | 128 ((m/8) 2 + k/16) | 128 ((k/16) 2 + m/8) |
#
# Either is right for the tensor core, which is told the two distances ([its descriptor](matrix_descriptors.ipynb) says
# how). They differ in who fills them: one TMA box is as wide as one atom and packs its rows one below the other, so a
# box writes *column-major* atoms. Row-major ones would take one box for each atom.


# %%
def tiled(bits: int, order: tuple[int, int]) -> cute.ComposedLayout:
    """(16, 32) bf16, 16 rows of 64 bytes, made of K-major atoms: order (0, 1) down the rows first, (1, 0) across."""
    return cute.tile_to_shape(atom("K", bits, cutlass.BFloat16), (16, 32), order=order)


def first_elements(bits: int, order: tuple[int, int]) -> dict[tuple[int, int], int]:
    """Return where each atom starts, in elements (atoms start where the swizzle changes nothing)."""
    layout = tiled(bits, order).outer
    return {(m, k): layout((m, k)) for m in (0, 8) for k in range(0, 32, 8 << bits)}


ask_cute(first_elements, 1, (0, 1))

# %% [markdown]
# Each cell is a chunk with its byte offset; the colours follow memory, so blue is the first atom there and orange the
# second.


# %% tags=["lab"]
def two_orders(bits):
    return {f"{NAMES[bits]}, row-major": tiled(bits, (1, 0)), f"{NAMES[bits]}, column-major": tiled(bits, (0, 1))}


draw.atom_tiling(evaluate(two_orders, 0, element_bits=16), (8, 8), title="16 x 64 bytes as 2 x 4 INTER atoms")

# %% tags=["lab"]
draw.atom_tiling(evaluate(two_orders, 1, element_bits=16), (8, 16), title="16 x 64 bytes as 2 x 2 SW32 atoms")

# %% [markdown] tags=["lab"]
# And TMA? Its model, written from the PTX manual, loads the tile in two boxes of one atom's width, 16 rows each. Every
# element is then where the *column-major* tiling says, and not where the row-major one does.

# %% tags=["lab"]
from cookbook.model import SharedMemory, tma_load

tile = np.arange(16 * 32, dtype=np.uint16).reshape(16, 32)
smem = SharedMemory(1024)
for box in range(2):
    tma_load(smem, 512 * box, tile, origin=(0, 16 * box), box=(16, 16), mode=32)
for name, layout in evaluate(two_orders, 1, element_bits=16).items():
    print(f"{name}: {(smem.view(np.uint16)[layout.byte_offsets() // 2] == tile).mean():.0%} of the elements in place")

# %% [markdown]
# ## What TMA can write
#
# TMA swizzles on its way into shared memory, and it has *modes*, not parameters: none, 32, 64 and 128 bytes. They are
# `S<0,4,3>` to `S<3,4,3>` on byte addresses. On Blackwell, variants of the 128-byte mode keep 32 or 64 bytes together.
# A swizzle that you invented, however good, has to be written by software.
#
# **The trap raises no error.** CuTe makes a TMA copy for a layout with `S<3,4,4>`, which no mode is, and raises
# nothing. The tensor map cannot say it, so what lands in shared memory is not what the layout says. (`wgmma` is
# stricter: a GEMM whose operand carries that swizzle does not compile, because no matrix descriptor can express it
# either.)


# %%
@cute.jit
def make_tma_copy(pointer: cute.Pointer, parameters: cutlass.Constexpr):
    """A TMA load of 8 x 64 bf16 into shared memory with the swizzle of these parameters: made, not run."""
    matrix = cute.make_tensor(pointer, cute.make_layout((64, 64), stride=(64, 1)))
    rows = cute.make_layout((8, 64), stride=(64, 1))
    layout = cute.make_composed_layout(cute.make_swizzle(*parameters), 0, rows)
    cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), matrix, layout, (8, 64))


def cute_objects(parameters: tuple[int, int, int]) -> bool:
    """Return whether CuTe refuses to make that copy."""
    pointer = cute.runtime.make_ptr(cutlass.BFloat16, 16, cute.AddressSpace.gmem, assumed_align=16)
    try:
        cute.compile(make_tma_copy, pointer, parameters, options="--gpu-arch sm_90a")
    except Exception:
        return True
    return False


def check_tma_swizzle(bits: int, base: int, shift: int) -> None:
    """Ask this before you give TMA a layout."""
    if (bits, base, shift) not in {(b, 4, 3) for b in range(4)}:
        raise ValueError(f"swizzle: got S<{bits},{base},{shift}>; TMA on Hopper writes S<0..3,4,3> on bytes alone")


{"S<3,4,3>": cute_objects((3, 4, 3)), "S<3,4,4>": cute_objects((3, 4, 4))}  # does CuTe object?

# %% [markdown]
# **What an invented swizzle would cost.** `S<3,4,4>` on rows of 128 bytes, written by software, is a fine bijection,
# and a poor one. It reads address bits 8 to 10, so rows 0 and 1 get the same pattern, and so do rows 2 and 3. (It
# stands in an fp8 example of NVIDIA's.) TMA has no such mode, and the model says so.

# %% tags=["lab"]
from cookbook.model.tma import swizzle_mode
from cookbook.swizzle import Swizzle

column = Swizzle(3, 4, 4)(128 * np.arange(8))
print("wavefronts of a column of chunks:", banks.wavefronts(access.ldmatrix(column, 1).addresses, 16).actual)
try:
    swizzle_mode(Swizzle(3, 4, 4))
except ValueError as error:
    print("ValueError:", error)

# %% [markdown]
# ## Check
#
# `cookbook check foundations/mma_smem_atoms` computes each claim of this page, by these lines:

# %% tags=["folded"]
LINE_1 = [9, 8, 11, 10, 13, 12, 15, 14]
ORDERS = {
    1: [[0, 1, 2, 3, 4, 5, 6, 7], LINE_1],
    2: [[0, 1, 2, 3, 4, 5, 6, 7], LINE_1, [18, 19, 16, 17, 22, 23, 20, 21], [27, 26, 25, 24, 31, 30, 29, 28]],
    3: [[8 * r + (p ^ r) for p in range(8)] for r in range(8)],
}
FIRST_LINES = {0: [0, 4, 8, 12, 16, 20, 24, 28], 1: [0, 1, 4, 5, 8, 9, 12, 13], 2: [0, 1, 2, 3, 4, 5, 6, 7]}


def formula(bits: int, order: tuple[int, int], m: int, k: int) -> int:
    """The table of "A tile of several atoms": where the atom at (m, k) starts, in elements of bf16."""
    width, across = (8, 4) if bits == 0 else (16, 2)  # elements of a row of the atom; atoms side by side
    place = m // 8 * across + k // width if order == (1, 0) else k // width * 2 + m // 8
    return 8 * width * place


def tilings_follow_the_table() -> bool:
    """Return whether CuTe's four tilings start their atoms where the table says."""
    return all(
        start == formula(bits, order, m, k)
        for bits in (0, 1)
        for order in ((1, 0), (0, 1))
        for (m, k), start in first_elements(bits, order).items()
    )


def rules_differ(dtype, major: str) -> list[int]:
    """The extents at which Blackwell's selector takes another atom than the widest."""
    return [extent for extent, (ours, _, blackwells) in selectors_agree(dtype, major).items() if ours != blackwells]


def facts() -> list[tuple[str, bool, str]]:
    """The claims: a name, whether it holds, what was found."""
    pairs = ask_cute(both_ways, cutlass.BFloat16)
    orders = {bits: lines(bits) for bits in ORDERS}
    conflicts = [(wavefronts(bits, False), wavefronts(bits, True)) for bits in range(4)]
    first = {bits: chunks_of_first_line(bits) for bits in FIRST_LINES}
    costs = [requests_and_sectors(bits) for bits in range(3)]
    narrow = [ask_cute(rules_differ, dtype, major) for dtype in (cutlass.BFloat16, cutlass.Float8E4M3FN)
              for major in ("K", "MN")]  # fmt: skip
    exception = ask_cute(rules_differ, cutlass.Float32, "MN")
    places = list(ask_cute(where_is_element_1_0).values())
    silent = [cute_objects(parameters) for parameters in ((3, 4, 3), (3, 4, 4))]
    return [
        ("eight_atoms", len(pairs) == 8 and all(a == b for a, b in pairs.values()), f"{len(pairs)} as CuTe's"),
        ("inter_is_one_line", lines(0) == [list(range(8))], f"its 8 x 16 bytes are one line: {lines(0)}"),
        ("chunk_orders", orders == ORDERS, f"{orders[1][1]} in line 1 of SW32"),
        ("conflicts_by_width", conflicts == [(1, 1), (2, 1), (4, 1), (8, 1)], f"(linear, swizzled): {conflicts}"),
        ("first_line", first == FIRST_LINES, f"{first}"),
        ("requests_and_sectors", costs == [(8, 8), (4, 4), (2, 4)], f"for 128 bytes of 64-byte rows: {costs}"),
        ("the_widest_atom", narrow == [[], [], [], []], f"extents where CuTe differs, 16- and 8-bit: {narrow}"),
        (
            "the_exception_of_cute",
            exception[0] == 32 and all(extent % 32 == 0 for extent in exception) and not
            ask_cute(rules_differ, cutlass.Float32, "K"),
            f"32-bit MN-major, Blackwell: differs at extents {exception[:3]}...",
        ),
        ("units_of_a_swizzle", places == [64, 72, 72], f"composed, in elements, by bytes: {places}"),
        ("tilings", ask_cute(tilings_follow_the_table), "16 x 64 bytes, INTER and SW32, both orders"),
        ("no_word_from_cute", silent == [False, False], f"objects to S<3,4,3>, S<3,4,4>: {silent}"),
    ]  # fmt: skip


# %% tags=["lab"]
print("what does not hold:", [name for name, holds, _ in facts() if not holds])

# %% [markdown]
# ## Exercises
#
# Change a cell, and run the last cell of this section; or `cookbook copy foundations/mma_smem_atoms my.py` and
# `cookbook exercise my.py`.
#
# **Finish it.** Find an element in a tile that TMA has written, one box for each column of atoms.


# %%
def byte_in_tile(m, k, rows, bits):
    """Exercise 1, finish it: the byte of element (m, k) of a tile of `rows` x 64 bfloat16, stored along K. Its atoms
    have rows of 16 << bits bytes and stand one below the other first, then side by side. It begins at byte 0."""
    raise NotImplementedError


# %% [markdown]
# <details markdown="1"><summary>Tip 1</summary>
#
# A row of an atom holds `8 << bits` elements. Divide k by that: which column of atoms, and which element of its row?
#
# </details>
#
# <details markdown="1"><summary>Tip 2</summary>
#
# A column of atoms is dense: `rows` rows of 16 << bits bytes, one after the other. So it is that many bytes long.
#
# </details>
#
# <details markdown="1"><summary>Tip 3</summary>
#
# Add it all up in bytes. The swizzle comes last, on the byte address.
#
# </details>
#
# <details markdown="1"><summary>Solution</summary>
#
# ```python
# def byte_in_tile(m, k, rows, bits):
#     row_bytes = 16 << bits
#     column, inside = divmod(k, 8 << bits)
#     return swizzle((column * rows + m) * row_bytes + 2 * inside, bits)
# ```
#
# </details>
#
# **Find the bug.** This function chooses the right atom for 8, 16, 32 and 64 bfloat16. For 24 it chooses one that does
# not fit.


# %%
def atom_bits(extent, dtype):
    """Exercise 2, find the bug: the bits of the atom (rows of 16 << bits bytes) for `extent` contiguous elements."""
    size = extent * dtype.width // 8
    return max(bits for bits in range(4) if 16 << bits <= size)


# %% [markdown]
# <details markdown="1"><summary>Tip 1</summary>
#
# How many bytes are 24 bfloat16? Set atoms with rows of 32 bytes side by side: what is left?
#
# </details>
#
# <details markdown="1"><summary>Tip 2</summary>
#
# The rule says more than that a row of the atom must not be longer than the tile's.
#
# </details>
#
# <details markdown="1"><summary>Solution</summary>
#
# The row of the atom must *divide* the extent. 48 bytes are three rows of 16 bytes, and no whole number of 32.
#
# ```python
# def atom_bits(extent, dtype):
#     size = extent * dtype.width // 8
#     return max(bits for bits in range(4) if size % (16 << bits) == 0)
# ```
#
# </details>


# %% tags=["folded"]
ASKED = [(m, k, rows, bits) for bits in range(4) for rows in (16, 128) for m, k in ((0, 0), (1, 0), (9, 8), (13, 62))]


def bytes_by_cute() -> list[int]:
    """The answer to each of ASKED, of the layout that CuTe makes."""
    found = []
    for m, k, rows, bits in ASKED:
        layout = cute.tile_to_shape(atom("K", bits, cutlass.BFloat16), (rows, 64), order=(0, 1))
        found.append(swizzle(2 * layout.outer((m, k)), bits))
    return found


def check_bytes(answer):
    """Elements of eight tiles, against CuTe's layouts."""
    for (m, k, rows, bits), needed in zip(ASKED, ask_cute(bytes_by_cute), strict=True):
        yield f"({m}, {k}) of {rows} x 64, atoms with rows of {16 << bits} bytes", answer(m, k, rows, bits), needed


EXERCISES = {
    "byte_in_tile": check_bytes,
    "atom_bits": lambda f: (
        (f"{extent} elements of {dtype.width} bits", f(extent, dtype), widest(extent, dtype))
        for dtype in (cutlass.BFloat16, cutlass.Float8E4M3FN, cutlass.Float32)
        for extent in range(128 // dtype.width, 257, 128 // dtype.width)
    ),
}

# %% tags=["lab"]
from cookbook import lab

lab.check_exercises("foundations/mma_smem_atoms")

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# Eight atoms, one rule: the widest row that divides the contiguous extent. The atom keeps 16 bytes together and spreads
# each column of chunks over the eight slots. TMA writes it, and the tensor core reads it. Two ways to go wrong are to
# swizzle elements where bytes are meant, and to invent a swizzle that TMA does not have.
#
# Next: [what the threads of a warp then hold](fragments_and_ldmatrix.ipynb), or
# [how the tensor core is told where the atoms are](matrix_descriptors.ipynb).
