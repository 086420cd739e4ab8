"""Faults planted in a recipe, each of which some test must catch: edits of its syntax tree, as `edits` describes.

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

from edits import In

from cookbook.check import ran
from cookbook.recipe import catalog, imports


class Mutation(NamedTuple):
    """A fault of a recipe, in words and as an edit."""

    recipe: str
    what: str
    edit: In
    variant: str = ""  # the one of VARIANTS, or the operands' majors, in which it is looked for; "": as the recipe is

    def __str__(self) -> str:
        return ", ".join(filter(None, (self.recipe, self.variant))) + f": {self.what}"


HOPPER, AMPERE, BLACKWELL = "hopper/tma_wgmma_gemm", "ampere/ldmatrix_gemm", "blackwell/tma_tcgen05_gemm"
MAJORS = "blackwell/majors_gemm"
TILES = "(_config.tile_m, _config.tile_k, _config.stages), order=(0, 1, 2)"


def swizzle(which: str) -> In:
    """Another swizzle of the atom: "(bits, base, shift)"."""
    return In("smem_atom").replace("cute.make_swizzle(_bits, 4, 3)", f"cute.make_swizzle{which}")


# Caught without a GPU, by the layout level or the model level.
LAYOUT_MUTATIONS = [
    *(
        Mutation(recipe, what, swizzle(which))
        for recipe in (AMPERE, HOPPER, BLACKWELL)
        for what, which in (
            ("the swizzle is dropped", "(0, 4, 3)"),
            ("the byte swizzle is given in elements", "(_bits, 3, 3)"),
            ("the swizzle's source is one bit high", "(_bits, 4, 4)"),
        )
    ),
    Mutation(
        BLACKWELL,
        "half of the sums' columns are allocated",
        In("Config.tmem_columns").replace("self.tile_n", "self.tile_n // 2"),
    ),
    Mutation(BLACKWELL, "a 64-byte swizzle over lines of 128", swizzle("(2, 4, 3)")),
    Mutation(
        BLACKWELL,
        "A is taken for M-major",
        In("tcgen05_mma").replace(
            "tcgen05.MmaF16BF16Op(..., _a_major, _b_major)", "tcgen05.MmaF16BF16Op(..., OperandMajorMode.MN, _b_major)"
        ),
    ),
]

# The layouts are right and the kernel does not keep to them: caught in what the compiler wrote.
COMPILED_MUTATIONS = [
    Mutation(
        MAJORS,
        "LBO and SBO of A change places",
        In("multiply")
        .where("accumulator_stages(..., _config)")
        .replace(
            "_.partition_A(_sA)",
            "_.partition_A(cute.make_tensor(_sA.iterator, cute.tile_to_shape("
            f"mirrored_atom(_sA.element_type, _config.tile_m), {TILES}).outer))",
        ),
        "nt",
    ),
    *(
        Mutation(
            recipe,
            "an f16 MMA on bf16 operands",
            In(where).replace(f"{of}.MmaF16BF16Op(_dtype, ...)", f"{of}.MmaF16BF16Op(cutlass.Float16, ...)"),
        )
        for recipe, where, of in (
            (AMPERE, "tiled_mma", "warp"),
            (HOPPER, "wgmma", "warpgroup"),
            (BLACKWELL, "tcgen05_mma", "tcgen05"),
        )
    ),
    Mutation(
        BLACKWELL,
        "tcgen05.mma reads A in the mode of the 64-byte swizzle",
        In("multiply")
        .where("pipeline.make_pipeline_state(_, _config.stages)")
        .replace(
            "_.partition_A(_sA)",
            "_.partition_A(cute.make_tensor("
            "cute.recast_ptr(_sA.iterator, cute.make_swizzle(2, 4, 3), _sA.element_type), "
            f"cute.tile_to_shape(smem_atom(_sA.element_type, _config.tile_k // 2), {TILES}).outer))",
        ),
    ),
]

# Caught on a GPU: the kernel compiles, or does not, and computes something else.
KERNEL_MUTATIONS = [
    Mutation(
        HOPPER,
        "TMA writes without the swizzle that wgmma reads with",
        In("make_load").replace(
            "cute.select(_x, mode=[0, 1])",
            "cute.make_composed_layout(cute.make_swizzle(0, 4, 3), 0, cute.select(_x.outer, mode=[0, 1]))",
        ),
    ),
    Mutation(
        HOPPER,
        "a stage is read before it has arrived",
        In("consume").drop("_pipe.consumer_wait(_read)", times=2),
    ),
    Mutation(
        HOPPER,
        "the epilogue does not wait for stmatrix",
        In("store").drop("_barrier.arrive_and_wait()", before="_ = _copies.s2g_c.get_slice(...)"),
    ),
    Mutation(HOPPER, "the byte swizzle is given in elements", swizzle("(_bits, 3, 3)")),
    Mutation(
        AMPERE,
        "a stage is not waited for",
        In("mainloop").drop("cute.arch.cp_async_wait_group(_)\ncute.arch.sync_threads()", after="_ = _ if _ else _"),
    ),
    Mutation(AMPERE, "what lies before K is not zeroed", In("load_first_tile").drop("_dst[None, None, _k].fill(0)")),
    Mutation(
        AMPERE,
        "ldmatrix reads without the swizzle that cp.async wrote with",
        In("make_operand").replace(
            "_.partition_S(_sX)",
            "_.partition_S(cute.make_tensor("
            "cute.recast_ptr(_sX.iterator, cute.make_swizzle(0, 4, 3), _sX.element_type), _sX.layout))",
        ),
    ),
    Mutation(
        AMPERE,
        "the edge of the output is not guarded",
        In("store").replace("cute.elem_less(_tCcC[0, _m, _n], _limit)", "True"),
    ),
]


def mutant(mutation: Mutation, root: Path) -> ModuleType:
    """The recipe's module with the fault in it, loaded from a copy under `root`."""
    written = imports.written_in(catalog.find(mutation.recipe).file.read_text(encoding="utf-8"))
    source = mutation.edit.of(written)
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
