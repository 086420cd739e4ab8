"""Moves the origins of elements: what copies, loads and stores leave where."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import numpy as np

from cookbook.check.product import origins
from cookbook.check.product.access import aligned, loaded, memory_of, operand_of, read, smem_addresses, write
from cookbook.check.product.algebra import Data, refused
from cookbook.check.product.barriers import barrier_at
from cookbook.check.product.bits import Bits, Held, keep, kept
from cookbook.check.product.maxima import FloatBits
from cookbook.model import tma
from cookbook.simulate.copies import box_addresses
from cookbook.simulate.judge import Judge
from cookbook.simulate.trace import Operation
from cookbook.simulate.types import element_bits, is_float
from cookbook.simulate.values import LANES, Box, Boxes, CannotFollow, Fault, Pointer, View, leaves
from cookbook.simulate.warp import Barrier
from cookbook.swizzle import Swizzle


class Copies(Judge):
    """A warp that loads, stores and copies."""

    cta: Any
    launch: Any

    # --- registers, loads and stores -----------------------------------------------------------------------------

    def registers(self, count: int, kind: str) -> Any:
        array = np.full((LANES, count), origins.UNWRITTEN if is_float(kind) else 0, np.int64)
        if self.launch.words is None:
            return array
        held = array.view(Held)
        held.bits, held.width = {}, element_bits(kind)
        return held

    def predicates(self, view: View) -> Any:
        return view.pointer.array[:, view.pointer.address + view.offsets()].astype(bool)

    def load(self, op: Operation, view: View) -> Any:
        whole = kept(view) if view.pointer.space == "rmem" else None
        return loaded(view, read(self, view)) if whole is None else whole

    def store(self, op: Operation, view: View, value: Any) -> None:
        if isinstance(value, Bits):
            keep(view, value)
            return
        if isinstance(value, FloatBits) and not op.name.endswith("_vec"):  # other warps report to the word too
            raise Fault("amax: got a store; needed an atomic maximum")
        ids = value.ids if isinstance(value, Data) else np.asarray(value, np.int64)
        write(self, view, ids if ids.ndim == 2 else np.broadcast_to(ids, (LANES,))[:, None])

    def copy(self, op: Operation, source: View, target: View, bits: int, mask: Any, later: bool) -> None:
        for view in (source, target):
            aligned(self, view, bits, mask)
        ids = read(self, source, mask)
        if mask is not None and later:  # cp.async is told to read 0 bytes, and fills with zeros
            ids, mask = np.where(mask, ids, origins.FILL), None
        if len(target.offsets()) != ids.shape[1]:
            raise CannotFollow(f"a copy of {ids.shape[1]} elements to {len(target.offsets())}")
        write(self, target, ids, mask)
        words = self.launch.words
        loads = (source.pointer.space, target.pointer.space) == ("smem", "rmem")
        if words is not None and loads and re.fullmatch(r"[su]?i(8|32)", source.kind):  # of words, or of zero points
            keep(target, words.of(ids, source.bits))

    # --- TMA, and what else goes far -----------------------------------------------------------------------------

    def tma_load(
        self,
        op: Operation,
        box: Box,
        boxes: Boxes,
        target: View,
        ranks: list[int],
        barriers: list[Barrier],
        rests: bool,
    ) -> None:
        if max(ranks, default=0) >= len(self.cta.cluster.ctas):
            raise Fault(f"a multicast to CTA {max(ranks)} of a cluster of {len(self.cta.cluster.ctas)}")
        operand = operand_of(self, box.tensor)
        size = operand.bits // 8
        for origin, base in boxes:
            _checked_box(self, box, origin, base, store=False)
            key = (operand.name, box.tensor.bits, box.modes, box.part, origin)
            ids = self.launch.known(key, lambda o=origin: _loaded(box, operand, o))
            addresses = box_addresses(base, len(ids), size, box.swizzle)
            for rank, barrier in zip(ranks, barriers, strict=True):
                self.cta.cluster.ctas[rank].memory.write(addresses, ids, size)
                barrier_at(self, barrier).arrive(0, -len(ids) * size)

    def tma_store(self, op: Operation, box: Box, boxes: Boxes, source: View) -> None:
        if "reduce" in op.operand_types[0]:
            raise CannotFollow("a store by TMA that adds")
        if (operand := operand_of(self, box.tensor)).name != "C":
            raise Fault(f"got a store to {operand.name}; needed C alone")
        size = max(box.tensor.bits // 8, 1)
        for _ in range(self.lanes):  # each thread that gets here stores
            for origin, base in boxes:
                _checked_box(self, box, origin, base, store=True)
                there = _elements(box, origin, size)
                found = self.cta.memory.read(box_addresses(base, len(there), size, box.swizzle), size)
                inside = there >= 0
                if inside.any():
                    self.launch.stored.store(there[inside], found[inside], self.line)

    def tensor_map(self, op: Operation, what: str, pointer: Pointer, number: int) -> None:
        raise CannotFollow("a tensor map that a kernel makes")

    def store_to_cluster(self, op: Operation, source: View, target: View, cta: int, barrier: Barrier) -> None:
        """st.async: each lane's registers go to a CTA of the cluster, and its bytes are told to a barrier there."""
        write(self, target, read(self, source))
        if barrier[0] != cta:
            raise Fault(f"st.async to CTA {cta} that reports to a barrier of CTA {barrier[0]}")
        amount = target.layout.size * target.bits // 8 * self.lanes
        barrier_at(self, barrier).arrive(0, -amount)

    # --- matrices ------------------------------------------------------------------------------------------------

    def matrices(
        self, op: Operation, source: View, target: View, stores: bool, matrices: int, transposed: bool
    ) -> None:
        if stores:
            _stmatrix(self, source, target, matrices, transposed)
        else:
            _ldmatrix(self, source, target, matrices, transposed)

    def tensor_copy(self, op: Operation, source: View, target: View, found: re.Match[str]) -> None:
        """tcgen05.ld 32x32b: lane l of warp w has the columns of lane 32 (w mod 4) + l of tensor memory."""
        if found[1] != "load" or (found[2], found[3]) != ("32", "32"):
            raise CannotFollow(f"a copy of tensor memory: {found[0]}")
        if not self.active.all():
            raise CannotFollow("tcgen05.ld by some lanes of a warp")
        words = self.integer(source.pointer.address, "an address in tensor memory") // 4 + source.offsets()
        lane, column = self.cta.tensor.places(words)
        first = 32 * (self.place.warp % 4)
        if (lane < first).any() or (lane >= first + 32).any():
            raise Fault(
                f"warp {self.place.warp} reads lane {int(lane.min())} of tensor memory; needed {first} to {first + 31}"
            )
        cells = self.cta.tensor.cells[lane, column].reshape(-1, LANES, int(found[4]))
        write(self, target, cells.transpose(1, 0, 2).reshape(LANES, -1))


# --- TMA ---------------------------------------------------------------------------------------------------------


def _elements(box: Box, origin: tuple[int, ...], unit: int) -> np.ndarray:
    """(units,), dimension 0 fastest: byte addresses in global memory of what a box holds; -1 outside of the tensor.

    Args:
        box: what is copied.
        origin: its first element, by dimension.
        unit: bytes that are told apart: those of an element of the operand.
    """
    bits = box.tensor.bits
    total, inside = np.zeros(1, np.int64), np.ones(1, bool)
    shape, stride = list(leaves(box.tensor.layout.shape)), list(leaves(box.tensor.layout.stride))
    for d, mode in enumerate(box.modes):
        if d == 0:
            at = origin[0] * bits // 8 + np.arange(0, box.part[0] * bits // 8, unit, dtype=np.int64)
            fits, by = (at >= 0) & (at < shape[mode] * bits // 8), at
        else:
            at = origin[d] + np.arange(box.part[d], dtype=np.int64)
            fits, by = (at >= 0) & (at < shape[mode]), at * stride[mode] * bits // 8
        total = (by[:, None] + total[None, :]).ravel()
        inside = (fits[:, None] & inside[None, :]).ravel()
    return np.where(inside, box.tensor.pointer.address + total, -1)


def _checked_box(f: Any, box: Box, origin: tuple[int, ...], base: int, store: bool) -> None:
    """The rules of `cookbook.model.tma`."""
    size = max(box.tensor.bits // 8, 1)
    key = ("box", box.part, box.swizzle, base % 1024, origin[0] * size % 16, min(origin) < 0, store)

    def look() -> bool:
        try:
            (width, height, *_), (column, row, *_) = (*box.part, 1), (*origin, 0)
            tma.check_box(base, (height, width), _mode(box.swizzle), size)
            tma.check_origin((row, column), size, store=store)
        except ValueError as error:
            raise refused("TMA", error) from None
        return True

    f.memo(key, look)


def _mode(swizzle: Swizzle) -> int:
    try:
        return tma.swizzle_mode(swizzle)
    except ValueError as error:
        raise refused("TMA", error) from None


def _loaded(box: Box, operand: Any, origin: tuple[int, ...]) -> np.ndarray:
    if (early := operand.base - int(np.min(box.tensor.pointer.address))) > 0:
        # A kernel that did so failed on an H100 with illegal accesses, though no coordinate meant what lies there.
        raise Fault(f"{operand.name}: got a TMA load of a tensor that begins {early} bytes before it; needed none")
    addresses = _elements(box, origin, operand.bits // 8)
    ids = operand.ids(addresses)
    filled = addresses < 0
    if (ids[~filled] == origins.OUTSIDE).any():
        at = addresses[~filled][ids[~filled] == origins.OUTSIDE][:1]
        row, column, _ = operand.places(at)
        shape = f"{operand.name} is {operand.shape[0]} x {operand.shape[1]}"
        raise Fault(f"{operand.name}: got a TMA read of row {row[0]}, column {column[0]}; needed one inside: {shape}")
    return np.where(filled, origins.FILL, ids)


# --- matrices ----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def held(transposed: bool, bits: int = 16) -> tuple[np.ndarray, np.ndarray]:
    """(32, 2) rows and columns of an 8 x 8 matrix: which two elements a lane holds, PTX ISA "ldmatrix".

    Of elements of 8 bits a row has 16, and a lane holds four: the same 32 bits.
    """
    each = 32 // bits
    lane, which = np.arange(LANES)[:, None], np.arange(each)[None, :]
    along, across = np.broadcast_arrays(lane // 4, each * (lane % 4) + which)
    return (across, along) if transposed else (along, across)


def _row_addresses(f: Any, view: View, matrices: int) -> np.ndarray:
    """(instructions, matrices, 8): where the rows of the matrices begin."""
    if not f.active.all():
        raise CannotFollow("ldmatrix or stmatrix by some lanes of a warp")
    if view.bits not in (8, 16):
        raise CannotFollow(f"ldmatrix or stmatrix of elements of {view.bits} bits")
    row = 128 // view.bits  # elements of a matrix's row
    offsets = view.offsets().reshape(-1, row)
    if (offsets != offsets[:, :1] + np.arange(row)).any():
        raise Fault(f"ldmatrix or stmatrix of rows whose elements are not adjacent: {view.layout}")
    rows = smem_addresses(view)[:, ::row]  # (32, instructions)
    if (rows % 16).any():
        raise Fault(f"ldmatrix or stmatrix of a row at byte {int(rows[rows % 16 != 0][0])}; needed a multiple of 16")
    return rows.T[:, : 8 * matrices].reshape(-1, matrices, 8)


def _ldmatrix(f: Any, source: View, target: View, matrices: int, transposed: bool) -> None:
    if transposed and source.bits != 16:
        raise CannotFollow(f"ldmatrix.trans of elements of {source.bits} bits")
    rows, size = _row_addresses(f, source, matrices), source.bits // 8
    columns = np.arange(0, 16, size)  # of a matrix, in bytes
    found = memory_of(f, source).read(rows[..., None] + columns, size)  # (instructions, matrices, row, column)
    row, column = held(transposed, source.bits)
    registers = found[:, :, row, column]  # (instructions, matrices, 32, elements of a register)
    write(f, target, registers.transpose(2, 0, 1, 3).reshape(LANES, -1))


def _stmatrix(f: Any, source: View, target: View, matrices: int, transposed: bool) -> None:
    if target.bits != 16:
        raise CannotFollow(f"stmatrix of elements of {target.bits} bits")
    rows = _row_addresses(f, target, matrices)
    registers = read(f, source).reshape(LANES, -1, matrices, 2).transpose(1, 2, 0, 3)
    found = np.empty((*rows.shape, 8), np.int64)
    row, column = held(transposed)
    found[:, :, row, column] = registers
    memory_of(f, target).write(rows[..., None] + 2 * np.arange(8), found, 2)
