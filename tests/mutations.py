"""Faults planted in the text of a recipe, each of which some test must catch.

`python tests/mutations.py NUMBER` runs KERNEL_MUTATIONS[NUMBER] on the GPU, in a process of its own because a faulty
kernel may write where it should not, and prints whether and how it was caught.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from cookbook.check import ran
from cookbook.recipe import catalog, imports


class Mutation(NamedTuple):
    """Replace `old` by `new`, everywhere it stands, in the recipe's source."""

    recipe: str
    what: str
    old: str
    new: str
    variant: str = ""  # the one of VARIANTS, or the operands' majors, in which it is looked for; "": as the recipe is

    def __str__(self) -> str:
        return ", ".join(filter(None, (self.recipe, self.variant))) + f": {self.what}"


HOPPER, AMPERE, BLACKWELL = "hopper/tma_wgmma_gemm", "ampere/ldmatrix_gemm", "blackwell/tma_tcgen05_gemm"
MAJORS = "blackwell/majors_gemm"
PLAIN_STAGE = "cute.make_composed_layout(cute.make_swizzle(0, 4, 3), 0, cute.select(x.outer, mode=[0, 1]))"

# Caught without a GPU, by the layout level or the model level.
LAYOUT_MUTATIONS = [
    Mutation(AMPERE, "the swizzle is dropped", "cute.make_swizzle(bits, 4, 3)", "cute.make_swizzle(0, 4, 3)"),
    Mutation(AMPERE, "the byte swizzle is given in elements", "make_swizzle(bits, 4, 3)", "make_swizzle(bits, 3, 3)"),
    Mutation(AMPERE, "the swizzle's source is one bit high", "make_swizzle(bits, 4, 3)", "make_swizzle(bits, 4, 4)"),
    Mutation(HOPPER, "the swizzle is dropped", "cute.make_swizzle(bits, 4, 3)", "cute.make_swizzle(0, 4, 3)"),
    Mutation(HOPPER, "the byte swizzle is given in elements", "make_swizzle(bits, 4, 3)", "make_swizzle(bits, 3, 3)"),
    Mutation(HOPPER, "the swizzle's source is one bit high", "make_swizzle(bits, 4, 3)", "make_swizzle(bits, 4, 4)"),
    Mutation(BLACKWELL, "the swizzle is dropped", "cute.make_swizzle(bits, 4, 3)", "cute.make_swizzle(0, 4, 3)"),
    Mutation(
        BLACKWELL, "the byte swizzle is given in elements", "make_swizzle(bits, 4, 3)", "make_swizzle(bits, 3, 3)"
    ),
    Mutation(BLACKWELL, "the swizzle's source is one bit high", "make_swizzle(bits, 4, 3)", "make_swizzle(bits, 4, 4)"),
    Mutation(
        BLACKWELL, "half of the sums' columns are allocated", "return self.tile_n  #", "return self.tile_n // 2  #"
    ),
    Mutation(BLACKWELL, "a 64-byte swizzle over lines of 128", "make_swizzle(bits, 4, 3)", "make_swizzle(2, 4, 3)"),
    Mutation(BLACKWELL, "A is taken for M-major", "smem, k_major, k_major)", "smem, OperandMajorMode.MN, k_major)"),
]

READ_A = "mma.make_fragment_A(thr.partition_A(sA))"
TILED = "cute.tile_to_shape(smem_atom({}), (config.tile_m, config.tile_k, config.stages), order=(0, 1, 2)).outer"
BLOCKS_DOWN = f"cute.make_tensor(sA.iterator, {TILED.format('sA.element_type, config.tile_m, 0')})"
NARROW = "cute.recast_ptr(sA.iterator, cute.make_swizzle(2, 4, 3), dtype)"
OTHER_MODE = f"cute.make_tensor({NARROW}, {TILED.format('dtype, config.tile_k // 2')})"

# The layouts are right and the kernel does not keep to them: caught in what the compiler wrote.
COMPILED_MUTATIONS = [
    Mutation(MAJORS, "LBO and SBO of A change places", READ_A, READ_A.replace("sA", BLOCKS_DOWN), "nt"),
    Mutation(AMPERE, "an f16 MMA on bf16 operands", "MmaF16BF16Op(dtype", "MmaF16BF16Op(cutlass.Float16"),
    Mutation(HOPPER, "an f16 MMA on bf16 operands", "MmaF16BF16Op(dtype", "MmaF16BF16Op(cutlass.Float16"),
    Mutation(BLACKWELL, "an f16 MMA on bf16 operands", "MmaF16BF16Op(dtype", "MmaF16BF16Op(cutlass.Float16"),
    Mutation(
        BLACKWELL, "tcgen05.mma reads A in the mode of the 64-byte swizzle", READ_A, READ_A.replace("sA", OTHER_MODE)
    ),
]

# Caught on a GPU: the kernel compiles, or does not, and computes something else.
KERNEL_MUTATIONS = [
    Mutation(
        HOPPER, "TMA writes without the swizzle that wgmma reads with", "cute.slice_(x, (None, None, 0))", PLAIN_STAGE
    ),
    Mutation(HOPPER, "a stage is read before it has arrived", "pipe.consumer_wait(read)", "pass"),
    Mutation(
        HOPPER,
        "the epilogue does not wait for stmatrix",
        "thr.partition_D(sC))\n    barrier.arrive_and_wait()",
        "thr.partition_D(sC))",
    ),
    Mutation(HOPPER, "the byte swizzle is given in elements", "make_swizzle(bits, 4, 3)", "make_swizzle(bits, 3, 3)"),
    Mutation(
        AMPERE,
        "a stage is not waited for",
        "cute.arch.cp_async_wait_group(stages - 2)\n                    cute.arch.sync_threads()",
        "pass",
    ),
    Mutation(AMPERE, "what lies before K is not zeroed", "dst[None, None, k].fill(0)", "pass"),
    Mutation(
        AMPERE,
        "ldmatrix reads without the swizzle that cp.async wrote with",
        "thr.partition_S(sX)",
        "thr.partition_S(plain(sX))",
    ),
    Mutation(AMPERE, "the edge of the output is not guarded", "cute.elem_less(tCcC[0, m, n], limit)", "True"),
]

_PLAIN = """
def plain(x):
    return cute.make_tensor(cute.recast_ptr(x.iterator, cute.make_swizzle(0, 4, 3), x.element_type), x.layout)


"""


def mutant(mutation: Mutation, root: Path) -> ModuleType:
    """The recipe's module with the fault in it, loaded from a copy under `root`."""
    source = imports.written_in(catalog.find(mutation.recipe).file.read_text(encoding="utf-8"))
    assert mutation.old in source, f"the recipe no longer holds {mutation.old!r}: fix the mutation"
    source = source.replace(mutation.old, mutation.new)
    if "plain(" in mutation.new:
        source = source.replace("\nclass SmemLayouts", _PLAIN + "class SmemLayouts")
    source = re.sub(
        r"^#     compared_with: .*$", "#", source, flags=re.MULTILINE
    )  # another recipe, which is not under `root`
    file = root / f"{mutation.recipe}.py"
    file.parent.mkdir(parents=True)
    file.write_text(source, encoding="utf-8")
    return catalog.load(mutation.recipe, root)


def caught_on_gpu(mutation: Mutation) -> str:
    """How the checks of level "ran" catch the fault; empty if they do not."""
    shapes = ((512, 512, 4096), (200, 333, 200), (1000, 1024, 8))
    with tempfile.TemporaryDirectory() as root:
        module = mutant(mutation, Path(root))
        try:
            cases = [case for _ in range(3) for case in ran.run_checks(module.matmul, shapes, ["bfloat16"])]
        except Exception as error:  # it did not compile, or the GPU stopped it
            return f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
    return next((f"{case.shape}: {case.problem}" for case in cases if not case.ok), "")


if __name__ == "__main__":
    how = caught_on_gpu(KERNEL_MUTATIONS[int(sys.argv[1])])
    print(f"caught: {how}" if how else "missed")
