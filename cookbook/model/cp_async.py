"""cp.async: non-bulk copies from global to shared memory."""

from __future__ import annotations

import numpy as np

from cookbook.arguments import Integers, broadcast, checked, renamed, wrong_type
from cookbook.model.smem import SharedMemory

__all__ = ["cp_async"]


@checked
def cp_async(
    smem: SharedMemory,
    dst: Integers,
    memory: np.ndarray,
    src: Integers,
    *,
    src_size: Integers | int | None = None,
    predicate: np.ndarray | bool = True,
) -> None:
    """cp.async.cg.shared.global with cp-size 16 (PTX ISA, "Data Movement and Conversion Instructions: cp.async").

    Args:
        dst: byte addresses in shared memory, any shape, multiples of 16.
        memory: global memory: a C-contiguous array of any dtype, whose first byte is at a multiple of 16.
        src: byte offsets into `memory`, as `dst`, multiples of 16.
        src_size: bytes read at each place, 0 to 16; the rest of the 16 becomes zero. All 16 if left out.
        predicate: where false the thread issues nothing, and shared memory keeps what it had.

    Raises:
        ValueError: a misaligned address, a byte outside either memory, or a src_size outside 0 to 16.
    """
    if np.asarray(predicate).dtype != bool:
        wrong_type("predicate", predicate, "True or False, or an array of them")
    given = {"dst": dst, "src": src, "src_size": 16 if src_size is None else src_size, "predicate": predicate}
    dst, src, size, active = broadcast(**given)
    dst, src, size = dst[active], src[active], size[active]
    if size.size and (size.min() < 0 or size.max() > 16):
        raise ValueError(f"src_size: got {size.min()} to {size.max()}; needed 0 to 16 bytes")
    if (src % 16).any():
        raise ValueError(f"src: got {src[src % 16 != 0][0]}; needed multiples of 16 bytes")
    if not memory.flags.c_contiguous:
        raise ValueError("memory: got an array with gaps; needed a C-contiguous one")
    data = memory.reshape(-1).view(np.uint8)
    if size.size and ((src < 0) | (src + size > data.size))[size > 0].any():
        raise ValueError(f"src: got {src.min()} to {src.max()}; needed bytes inside the {data.size} of memory")
    lane = np.arange(16)
    inside = lane < size[:, None]
    places = np.where(inside, src[:, None] + lane, 0)
    with renamed(addresses="dst"):
        smem.write(dst, np.where(inside, data[places], 0).astype(np.uint8))
