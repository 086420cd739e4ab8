"""Follows scale factors of blocks: tcgen05.cp to tensor memory, and the tcgen05.mma that reads them there."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from cookbook.check.pipeline.interpreter import Atom
from cookbook.check.pipeline.shapes import CannotFollow
from cookbook.check.product import multiply, tensor_cores
from cookbook.check.product.copies import COPIES
from cookbook.check.product.follower import HANDLERS, Fault, Follower, follows
from cookbook.check.product.origins import MIXED
from cookbook.check.product.places import Ptr, View, spelled
from cookbook.check.product.views import made
from cookbook.model.scale_factors import ATOM_BYTES
from cookbook.simulate.trace import Operation

COPY, SCALED = "s2t_copy", "sm100.mma_bs"
WARP_LANES, COPIED = 32, 4  # an atom goes to 32 lanes, once for each of four warps
_copy_partition = HANDLERS["cute.tiled.copy.partition_S"]


@follows("cute.tiled.copy.partition_S", "cute.tiled.copy.partition_D")
def _share(f: Follower, op: Operation, args: list[Any]) -> Any:
    """One thread copies all of it: its share begins where the view does."""
    if COPY not in op.operand_types[0]:
        return _copy_partition(f, op, args)
    layout, known = spelled(op.result_types[0])
    if not known:
        raise CannotFollow("a share of scale factors that is known only at run time")
    return made(op, args[1].pointer, layout)


@follows("cute_nvgpu.atom.get_copy_s2t_smem_desc_view")
def _descriptors(f: Follower, op: Operation, args: list[Any]) -> Any:
    layout, _ = spelled(op.result_types[0])
    return View(args[1].pointer, layout, 128, args[1].swizzle, tile=args[1])


def copy_atoms(f: Follower, atom: Any, source: View, target: View) -> None:
    """tcgen05.cp.32x128b.warpx4: byte 16 l + b of an atom to byte b of lane l, of each of the four warps."""
    if "32 DP, 128 bit, 1 cta, x4" not in atom.type:
        raise CannotFollow(f"a copy of type {atom.type[:120]}")
    if source.swizzle.bits:
        raise CannotFollow("tcgen05.cp of shared memory with a swizzle")
    chunks = source.addresses()[0].reshape(-1, COPIED * WARP_LANES)
    cells = target.addresses()[0].reshape(-1, COPIED, 16, WARP_LANES)
    if len(chunks) != len(cells) or (chunks[:, :WARP_LANES] != chunks[:, :1] + 16 * np.arange(WARP_LANES)).any():
        raise CannotFollow(f"tcgen05.cp of {source.layout} to {target.layout}")
    for first, there in zip(chunks[:, 0], cells, strict=True):
        factors = f.cta.memory.read(first + np.arange(ATOM_BYTES), 1).reshape(WARP_LANES, 16).T
        lane, column = f.cta.tensor.places(there // 4)
        f.cta.tensor.scales[lane, 4 * column + there % 4] = factors
        f.cta.tensor.cells[lane, column] = MIXED


COPIES[COPY] = copy_atoms
_unscaled = multiply.BY_ARCH[100]


def _multiply(
    f: Follower, text: str, shape: Any, target: View, operands: Any, adds: bool, atom: Atom | None = None
) -> None:
    if SCALED not in text:
        _unscaled(f, text, shape, target, operands, adds)
        return
    if "num_cta = 1," not in text or atom is None:
        raise CannotFollow(f"an MMA of type {text}")
    m, n, k = shape
    size = re.search(r"vec_size = (\d+)", text)
    if size is None:
        raise CannotFollow(f"an MMA of type {text}")
    scales = tuple(_factors(f, atom, x, rows, k // int(size[1])) for x, rows in (("sf_a", m), ("sf_b", n)))
    tensor_cores.multiply(f, text, shape, target, operands, adds, scales)  # type: ignore[arg-type]


def _factors(f: Follower, atom: Atom, name: str, rows: int, count: int) -> np.ndarray:
    """(rows, count): the factors that an instruction reads. Row r is in lane r % 32, column r / 32 from the first."""
    first = atom.values.get(name)
    if not isinstance(first, Ptr) or first.space != "tmem":
        raise CannotFollow(f"scale factors at {first}")
    word, byte = divmod(f.integer(first.address, "an address in tensor memory"), 4)
    if byte + count > 4:
        raise Fault(f"scale factors: got bytes {byte} to {byte + count - 1} of a cell; needed 0 to 3")
    row = np.arange(rows)
    lane, column = f.cta.tensor.places(word + row // WARP_LANES + (row % WARP_LANES << 16))
    at = 4 * column[:, None] + byte + np.arange(count)
    found = [f.cta.tensor.scales[lane[:, None] + WARP_LANES * warp, at] for warp in range(COPIED)]
    if any((one != found[0]).any() for one in found[1:]):
        raise Fault("scale factors: got others for one of the four warps; needed the same for all")
    return found[0]


multiply.BY_ARCH[100] = _multiply
