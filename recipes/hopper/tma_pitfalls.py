# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: "What goes wrong in silence: four mistakes around a TMA copy"
#     claim: >-
#       Four mistakes around a TMA copy raise no error; each shows on the host, before a kernel is compiled.
#     track: hopper
#     order: 12
#     kind: study
#     path: layout -> where each byte lies, and how many boxes CuTe finds
#     builds_on: hopper/tma_copy
#     sources:
#       - {title: "PTX ISA, tensors: swizzling modes", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#tensor-swizzling-modes"}
#       - {title: "PTX ISA, wgmma: matrix descriptor format", url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-shared-memory-layout-matrix-descriptor"}
# ---

# %% [markdown]
# # What goes wrong in silence: four mistakes around a TMA copy
#
# **Claim.** A tile that begins 128 bytes late, a reader with another mode than the writer's, a layout that no large box
# fits, a swizzle that TMA does not have: neither the hardware nor CuTe reports any of them. Each shows on the host,
# before a kernel is compiled.
#
# The first of them, on the left: a tile that begins 128 bytes after a multiple of 1024; on the right, as it should be.
# Rows are lines of the tile, columns its 16-byte chunks. A cell says in which slot of its line the chunk lies, and has
# the colour of that slot's banks.

# %% tags=["lab"]
import numpy as np

import cookbook
from cookbook import draw

packaged = cookbook.load("hopper/tma_pitfalls")
late, right = (np.array([packaged.slots("sw128", base, line) for line in range(8)]) for base in (128, 0))
draw.before_after(late, right, 128, label="offset", titles=("at 1024 n + 128", "at 1024 n"), title="One line late")

# %% [markdown]
# The formula of the places (`offset`), the layouts and the boxes that CuTe finds in them (`boxes`) are those of
# [the page before](tma_copy.ipynb), and so are its two tiles: `LOOK`, 16 lines of 128 bytes, and `CONFIG`, 64 lines of
# 256. A *box* is what one TMA instruction moves. Nothing here needs a GPU; where there is one with TMA, `dump` of that
# page shows the same bytes.

# %%
import cutlass
import cutlass.cute as cute

from cookbook.recipes.hopper.tma_copy import (
    CONFIG,
    LOOK,
    MODES,
    Config,
    ask_cute,
    boxes,
    offset,
    smem_atom,
    smem_layout,
)

# %% [markdown]
# ## The tile begins late
#
# The swizzle is one of address bits. So a tile that begins elsewhere has its chunks in another order, unless it begins
# at a multiple of the pattern's size. Below, on the left, lines 0 to 3 of a tile at address 0; on the right those of
# one at address 128: the same lines, each in the order that belongs to the next one.


# %%
def slots(mode: str, base: int, line: int) -> list[int]:
    """In which 16-byte slot of its line each of the 8 chunks of a 128-byte line lies (mode sw128)."""
    return [offset(line, 16 * chunk, mode, base) // 16 % 8 for chunk in range(8)]


[(slots("sw128", 0, line), slots("sw128", 128, line)) for line in range(4)]

# %% [markdown]
# Who reads such a tile right? A CuTe tensor whose pointer carries the swizzle does: that is the same function of the
# same address. The tensor cores do not, unless they are told: a [matrix
# descriptor](../foundations/matrix_descriptors.ipynb) says where a tile lies, and its field *base offset* where the
# pattern begins. (The recipes keep their tiles aligned, and it is 0.) Nor does an index that you compute yourself.
#
# So begin every tile at a multiple of the pattern's size. That is the first base behind 0 from which every chunk lies
# as far as it does from 0:


# %%
def harmless_base(mode: str) -> int:
    """The first base but 0 from which every chunk of a tile lies as far as from 0."""
    chunks = [(line, byte) for line in range(LOOK.lines) for byte in range(0, LOOK.line_bytes, 16)]
    bases = range(128, 4096, 128)
    return next(base for base in bases if all(offset(*at, mode, base) == offset(*at, mode) for at in chunks))


{mode: harmless_base(mode) for mode in MODES}

# %% [markdown]
# ## Writer and reader mean different modes
#
# The share of 16-byte chunks of a tile that a reader finds where it looks, by the mode that wrote and the mode that
# reads. Two modes differ in the width of a box as well as in the XOR, so little is found. But some chunks are always
# right, the first among them: a test that looks at one element learns nothing.


# %%
def found(written: str, read: str) -> float:
    """The share of chunks of a `LOOK` tile that both modes put in the same place."""
    chunks = [(line, byte) for line in range(LOOK.lines) for byte in range(0, LOOK.line_bytes, 16)]
    return sum(offset(*chunk, written) == offset(*chunk, read) for chunk in chunks) / len(chunks)


{written: {read: f"{found(written, read):.0%}" for read in MODES} for written in MODES}

# %% [markdown]
# ## The layout is legal, and no large box fits it
#
# Here CuTe's help works against you: it looks for the largest box that the layout allows, and says nothing when that is
# a small one. Below, the boxes of a tile of 64 lines of 256 bytes: as it should be; with the atoms along the lines
# first; and in lines of 256 bytes under the 128-byte swizzle, as if the tile were just a row-major array. The last
# takes an instruction for every half of every line.


# %%
def along_first(dtype, config: Config) -> cute.ComposedLayout:
    """The atoms in the other order."""
    order = (1, 0, 2) if config.major == "k" else (0, 1, 2)
    return cute.tile_to_shape(smem_atom(dtype, config), (*config.tile(dtype.width), config.stages), order=order)


def whole_lines(dtype, config: Config) -> cute.ComposedLayout:
    """Lines one after the other, under the swizzle of the mode."""
    m, k = config.tile(dtype.width)
    strides = (k, 1) if config.major == "k" else (1, m)
    rows = cute.make_layout((m, k, config.stages), stride=(*strides, m * k))
    return cute.make_composed_layout(cute.make_swizzle(MODES[config.mode], 4, 3), 0, rows)


{
    layout_of.__name__: ask_cute(boxes, cutlass.BFloat16, CONFIG, layout_of)[1]
    for layout_of in (smem_layout, along_first, whole_lines)
}

# %% [markdown]
# ## The swizzle is none that TMA has
#
# `make_swizzle(3, 4, 4)` makes a layout too, and CuTe a TMA copy for it. The tensor map cannot say that swizzle, so
# what lands is not what the layout says. This one is shown elsewhere: [the
# atoms](../foundations/mma_smem_atoms.ipynb#what-tma-can-write) make such a copy on the host, and have the line that
# refuses it.
#
# ## The first three, as facts
#
# What this page computes, for `cookbook check`.


# %% tags=["folded"]
def facts() -> list[tuple[str, bool, str]]:
    """The claims: a name, whether it holds, what was found."""
    layouts = (smem_layout, along_first, whole_lines)
    counts = [ask_cute(boxes, cutlass.BFloat16, CONFIG, layout_of)[1] for layout_of in layouts]
    bases = {mode: harmless_base(mode) for mode in MODES}
    late = all(slots("sw128", 128, line) == [chunk ^ (line + 1) % 8 for chunk in range(8)] for line in range(16))
    shares = [found(a, b) for a in MODES for b in MODES if a != b]
    return [
        ("alignment", bases == {"none": 128, "sw32": 256, "sw64": 512, "sw128": 1024}, f"harmless bases: {bases}"),
        ("late_by_one_line", late, "128 bytes late: every line in the order of the next"),
        ("another_mode", max(shares) < 1 and min(shares) > 0, f"chunks found: {min(shares):.0%} to {max(shares):.0%}"),
        ("boxes_of_clumsy_layouts", counts == [2, 16, 128], f"as it should be, and two others: {counts}"),
    ]


# %% [markdown] tags=["lab"]
# ## Check
#
# The late tile by the model of TMA. It is written from the PTX manual, and loads a counting tile box by box into numpy
# bytes:

# %% tags=["lab"]
from cookbook.lab import tma_copies


def slots_by_model(base):
    chunks = np.arange(8 * 64, dtype=np.uint16).reshape(8, 64)
    memory = tma_copies.expected(chunks, Config(lines=8, line_bytes=128, stages=1), base=base).view(np.uint16)
    return np.argsort(memory[::8]).reshape(8, 8) % 8  # of each chunk, counted along the lines


{f"base {base}": (slots_by_model(base) == slots).all() for base, slots in ((128, late), (0, right))}

# %% [markdown] tags=["lab"]
# And the facts above:

# %% tags=["lab"]
from cookbook import lab

lab.check_cells("hopper/tma_pitfalls")

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# Ask before you launch: is the tile at a multiple of 1024 bytes, do both sides name one mode, does a tile take as many
# boxes as it must, is the swizzle one of TMA's four? Two more mistakes are silent and need a kernel to show: a
# [fence that is left out](tma_copy.ipynb#to-look-inside), and [lines that end inside 16
# bytes](tma_copy.ipynb#copy).
#
# Next: [the first GEMM](first_gemm.ipynb) puts tensor cores behind such loads, with no swizzle and one stage.
