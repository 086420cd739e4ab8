"""Scale factors of blocks: tcgen05.cp to tensor memory, and the tcgen05.mma that reads them there."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from cookbook.check.product.origins import MIXED
from cookbook.model.scale_factors import ATOM_BYTES
from cookbook.simulate.values import Atom, CannotFollow, Fault, Pointer, View

SCALED = "sm100.mma_bs"
WARP_LANES, COPIED = 32, 4  # an atom goes to 32 lanes, once for each of four warps


def copy_atoms(f: Any, text: str, source: View, target: View) -> None:
    """tcgen05.cp.32x128b.warpx4: byte 16 l + b of an atom to byte b of lane l, of each of the four warps."""
    if "32 DP, 128 bit, 1 cta, x4" not in text:
        raise CannotFollow(f"a copy of type {text[:120]}")
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


def factors_of(f: Any, text: str, shape: Any, atom: Atom | None) -> tuple[np.ndarray, np.ndarray]:
    """The factors of A and of B that a tcgen05.mma reads."""
    m, n, k = shape
    size = re.search(r"vec_size = (\d+)", text)
    if "num_cta = 1," not in text or atom is None or size is None:
        raise CannotFollow(f"an MMA of type {text}")
    of_a, of_b = (_factors(f, atom, x, rows, k // int(size[1])) for x, rows in (("sf_a", m), ("sf_b", n)))
    return of_a, of_b


def _factors(f: Any, atom: Atom, name: str, rows: int, count: int) -> np.ndarray:
    """(rows, count): the factors that an instruction reads. Row r is in lane r % 32, column r / 32 from the first."""
    first = atom.values.get(name)
    if not isinstance(first, Pointer) or first.space != "tmem":
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
