"""The way of the operands and of C through each architecture, from memory to the tensor core and back."""

from __future__ import annotations

from cookbook.arguments import checked, choice
from cookbook.draw import svg
from cookbook.draw.flow import Stop, flow

__all__ = ["data_path"]

_G, _S, _R, _T, _C = "global memory", "shared memory", "registers", "tensor memory", "tensor core"

# Each stop with what leads to the next one: (name, what it is, where, what moves it on).
PATHS: dict[str, tuple[tuple[str, str, str, str], ...]] = {
    "ampere": (
        ("A, B", "the matrices", _G, "cp.async: each thread copies 16 bytes, swizzled by its address"),
        ("sA, sB", "stages of k-tiles", _S, "ldmatrix: a warp loads 8 x 8 matrices"),
        ("tCrA, tCrB", "fragments of a k-block", _R, "mma.sync: one warp, 16 x 8 x 16"),
        ("tensor core", "reads registers", _C, "the same instruction"),
        ("tCrC", "accumulators", _R, "stores by each thread"),
        ("sC", "the tile of C, over A and B", _S, "16 bytes a thread, whole rows"),
        ("C", "the matrix", _G, ""),
    ),
    "hopper": (
        ("A, B", "the matrices", _G, "TMA: one thread asks for a box, the unit swizzles"),
        ("sA, sB", "stages of k-tiles; an mbarrier counts the bytes", _S, "wgmma: a warpgroup, 64 x 256 x 16"),
        ("tensor core", "reads shared memory by descriptors (A: or registers)", _C, "the same instruction"),
        ("tCrC", "accumulators", _R, "stmatrix: 8 x 8 matrices"),
        ("sC", "epilogue subtiles", _S, "TMA store, or 16 bytes a thread"),
        ("C", "the matrix", _G, ""),
    ),
    "blackwell": (
        ("A, B", "the matrices", _G, "TMA: one thread asks for a box, the unit swizzles"),
        ("sA, sB", "stages of k-tiles; an mbarrier counts the bytes", _S, "tcgen05.mma: one thread, 128 x 256 x 16"),
        ("tensor core", "reads shared memory by descriptors (A: or tensor memory)", _C, "the same instruction"),
        ("tCtC", "accumulators, 128 lanes x 512 columns", _T, "tcgen05.ld: four warps, 32 lanes each"),
        ("tCrC", "a part of one row for each thread", _R, "16-byte stores"),
        ("sC", "epilogue subtiles", _S, "TMA store, or 16 bytes a thread"),
        ("C", "the matrix", _G, ""),
    ),
}


@checked
def data_path(architecture: str, title: str | None = None) -> svg.Picture:
    """The stops of a GEMM's data, a colour for each kind of memory, and the instruction between two of them.

    Args:
        architecture: "ampere" (also Ada and GeForce Blackwell), "hopper" or "blackwell" (data center).
        title: a title of your own.
    """
    stops = PATHS[choice("architecture", architecture, PATHS)]
    arrows = [moves for *_, moves in stops[:-1]]
    made = [Stop(name, text, where) for name, text, where, _ in stops]
    return flow(made, arrows, title or f"The way of the data: {architecture.capitalize()}")
