"""Count a cluster's work from its trace: bytes by way, multiply-adds, instructions by kind.

A page predicts a time from two numbers: operations over rate, bytes over bandwidth. Here both are the kernel's own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from cookbook.check.pipeline.recorder import Names, Recorder
from cookbook.simulate.judge import Ranks
from cookbook.simulate.trace import Operation
from cookbook.simulate.values import UNKNOWN, Box, Boxes, View
from cookbook.simulate.warp import Barrier, Place

__all__ = ["Cost", "Tally", "total"]

NAMES = {"gmem": "global", "smem": "shared", "rmem": "registers", "tmem": "tensor memory"}
Way = tuple[str, str]  # from, to


@dataclass
class Cost:
    """The work of all warps of a cluster."""

    ctas: int
    bytes: Counter[Way] = field(default_factory=Counter)
    delivered: int = 0  # bytes that TMA writes to shared memory: a multicast's once for each CTA
    multiply_adds: int = 0
    instructions: Counter[str] = field(default_factory=Counter)  # of a warp; of a warpgroup or CTA where they are such

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            max(self.ctas, other.ctas),
            self.bytes + other.bytes,
            self.delivered + other.delivered,
            self.multiply_adds + other.multiply_adds,
            self.instructions + other.instructions,
        )


class Tally(Recorder):
    """Records, besides events, what they cost."""

    def __init__(self, place: Place, shared: Names | None = None) -> None:
        super().__init__(place, shared)
        self.cost = Cost(prod(place.cluster))

    def _moved(self, what: str, source: str, target: str, amount: int, times: int = 1) -> None:
        self.cost.bytes[NAMES.get(source, source), NAMES.get(target, target)] += amount
        self.cost.instructions[what] += times

    def copy(self, op: Operation, source: View, target: View, bits: int, mask: Any, later: bool) -> None:
        count = source.layout.size * self.lanes if mask is None or mask is UNKNOWN else int(mask[self.active].sum())
        what = "cp.async" if later else "ld/st"
        times = -(-source.layout.size * source.bits // bits)
        self._moved(what, source.pointer.space, target.pointer.space, count * source.bits // 8, times)
        super().copy(op, source, target, bits, mask, later)

    def load(self, op: Operation, view: View) -> Any:
        if view.pointer.space in ("gmem", "smem"):
            self._moved("ld/st", view.pointer.space, "rmem", view.layout.size * view.bits // 8 * self.lanes)
        return super().load(op, view)

    def store(self, op: Operation, view: View, value: Any) -> None:
        if view.pointer.space in ("gmem", "smem"):
            self._moved("ld/st", "rmem", view.pointer.space, view.layout.size * view.bits // 8 * self.lanes)
        super().store(op, view, value)

    def matrices(
        self, op: Operation, source: View, target: View, stores: bool, matrices: int, transposed: bool
    ) -> None:
        rows = (target if stores else source).layout.size // (128 // source.bits)
        ways = ("rmem", "smem") if stores else ("smem", "rmem")
        self._moved("stmatrix" if stores else "ldmatrix", *ways, rows * matrices * 128, rows)
        super().matrices(op, source, target, stores, matrices, transposed)

    def tma_load(
        self, op: Operation, box: Box, boxes: Boxes, target: View, ranks: Ranks, barriers: list[Barrier], rests: bool
    ) -> None:
        amount = len(boxes) * prod(box.part) * box.tensor.bits // 8
        self._moved("TMA load", "gmem", "smem", amount, len(boxes))
        self.cost.delivered += amount * len(ranks)
        super().tma_load(op, box, boxes, target, ranks, barriers, rests)

    def tma_store(self, op: Operation, box: Box, boxes: Boxes, source: View) -> None:
        self._moved("TMA store", "smem", "gmem", len(boxes) * prod(box.part) * box.tensor.bits // 8, len(boxes))
        super().tma_store(op, box, boxes, source)

    # --- MMAs ----------------------------------------------------------------------------------------------------

    def _multiplied(self, what: str, shape: Any, a: View, accumulators: int, of_each: int) -> None:
        """Accumulators that an operation adds to, and of one instruction."""
        blocks = prod(mode.size for mode in a.layout.modes[2:])  # along K
        self.cost.multiply_adds += accumulators * shape[2] * blocks
        self.cost.instructions[what] += accumulators // of_each * blocks

    def mma_sync(self, op: Operation, text: str, shape: Any, target: View, operands: tuple[View, View]) -> None:
        self._multiplied("mma.sync", shape, operands[0], target.layout.size * self.lanes, shape[0] * shape[1])
        super().mma_sync(op, text, shape, target, operands)

    def wgmma(
        self, op: Operation, text: str, shape: Any, target: View, operands: tuple[View, View], adds: bool
    ) -> None:
        """Each of a warpgroup's four warps has a quarter; the first stands for the instruction."""
        before = self.cost.instructions["wgmma"]
        self._multiplied("wgmma", shape, operands[0], target.layout.size * self.lanes, shape[0] * shape[1] // 4)
        if self.place.warp % 4:
            self.cost.instructions["wgmma"] = before
        super().wgmma(op, text, shape, target, operands, adds)

    def tcgen05_mma(
        self, op: Operation, text: str, shape: Any, target: View, operands: tuple[View, View], adds: bool, atom: Any
    ) -> None:
        pair = 2 if "num_cta = 2" in text else 1  # the accumulators of one CTA are in `target`
        self._multiplied("tcgen05.mma", shape, operands[0], pair * target.layout.size, int(np.prod(shape[:2])))
        super().tcgen05_mma(op, text, shape, target, operands, adds, atom)


def total(warps: Iterable[Tally]) -> Cost:
    """The cost of warps that were followed."""
    first, *others = (one.cost for one in warps)
    return sum(others, first)
