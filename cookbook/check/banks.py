"""Wavefronts by line of Python, of a traced kernel.

Every shared-memory access that the kernel's own instructions make is counted, lane by lane, as it was traced.
The level *layout* counts the copies that a recipe names. Here the kernel says what it does: each load, store, ldmatrix,
stmatrix and cp.async of a warp, with the addresses of its lanes, goes through `cookbook.banks`. What TMA and the tensor
core read by themselves has no lanes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from cookbook.access import WIDTHS
from cookbook.banks import LINE, wavefronts
from cookbook.check.pipeline.recorder import Names, Recorder
from cookbook.simulate.lines import Line
from cookbook.simulate.trace import Operation
from cookbook.simulate.values import LANES, UNKNOWN, View
from cookbook.simulate.warp import Place

SHOWN = 64  # kinds of instructions of a line whose lanes are kept

__all__ = ["Count", "Counter", "counted"]


@dataclass(frozen=True)
class Count:
    """Wavefronts of one kind's instructions in one line, of all warps of a cluster."""

    line: Line
    what: str  # ld, st, ldmatrix, stmatrix, cp.async
    width: int  # bytes a lane
    instructions: int
    wavefronts: int
    at_most: int  # more where the rules of `cookbook.banks` leave a range
    ideal: int
    worst: int  # wavefronts above the ideal, of one instruction
    avoidable: int  # those that another layout of shared memory would not take
    lanes: tuple[int, ...] = ()  # the byte address of each lane of the worst one, -1 where it takes no part

    def __str__(self) -> str:
        most = f" to {self.at_most}" if self.at_most > self.wavefronts else ""
        each = f"{self.instructions} x {self.what} of {self.width} bytes"
        return f"{each} take {self.wavefronts}{most} wavefronts, at best {self.ideal}"


class Taken(NamedTuple):
    """By one instruction of a warp."""

    wavefronts: int
    at_most: int
    ideal: int
    lines: int  # of global memory that a cp.async reads past L1: no layout does with fewer wavefronts


class Counter(Recorder):
    """Records, besides events, the lanes' addresses of each instruction on shared memory."""

    def __init__(self, place: Place, shared: Names | None = None) -> None:
        super().__init__(place, shared)
        self.found: dict[tuple[Line, str, int], list[Taken]] = defaultdict(list)
        self.asked: dict[tuple[Line, str, int], dict[tuple[int, ...], int]] = defaultdict(dict)  # lanes, and the excess

    def copy(self, op: Operation, source: View, target: View, bits: int, mask: Any, later: bool) -> None:
        width = max(bits // 8, 1)
        if later:
            if source.pointer.address is not UNKNOWN:  # else it is not known which sectors L1 is asked for
                source_at = _vectors(source, bits) if source.pointer.space == "gmem" else None
                self._count(op, "cp.async", width, _vectors(target, bits), source_at)
        else:
            for what, view in (("ld", source), ("st", target)):
                if view.pointer.space == "smem" and not _may_merge(view, bits):
                    self._count(op, what, width, self._masked(view, bits, mask))
        super().copy(op, source, target, bits, mask, later)

    def matrices(
        self, op: Operation, source: View, target: View, stores: bool, matrices: int, transposed: bool
    ) -> None:
        rows = _vectors(target if stores else source, 128)  # of 16 bytes; lanes beyond the matrices give no address
        rows = np.where(np.arange(LANES)[:, None] < 8 * matrices, rows, -1)
        self._count(op, "stmatrix" if stores else "ldmatrix", 16, rows)
        super().matrices(op, source, target, stores, matrices, transposed)

    def load(self, op: Operation, view: View) -> Any:
        self._alone(op, "ld", view)
        return super().load(op, view)

    def store(self, op: Operation, view: View, value: Any) -> None:
        self._alone(op, "st", view)
        super().store(op, view, value)

    def _alone(self, op: Operation, what: str, view: View) -> None:
        """An element of each lane. A vector the compiler divides as it likes, which no trace says."""
        if view.pointer.space == "smem" and view.layout.size == 1:
            self._count(op, what, max(view.bits // 8, 1), _vectors(view, view.bits))

    def _masked(self, view: View, bits: int, mask: Any) -> np.ndarray:
        places = _vectors(view, bits)
        if mask is None or mask is UNKNOWN:
            return places
        return np.where(mask[:, :: max(bits // view.bits, 1)], places, -1)

    def _count(self, op: Operation, what: str, width: int, places: np.ndarray, sources: Any = None) -> None:
        places = np.where(self.active[:, None], places, -1)
        past_l1 = sources is not None and width == 16 and "cache = global" in op.operand_types[0]
        for number in range(places.shape[1] if width in WIDTHS else 0):
            lanes = places[:, number]
            if (lanes < 0).all():
                continue
            read = None if sources is None else np.where(lanes < 0, -1, sources[:, number])
            one = wavefronts(lanes, width, load=what == "ld", sources=read, past_l1=past_l1)
            lines = len(np.unique(read[read >= 0] // LINE)) if past_l1 and read is not None else 0
            self.found[op.line, what, width].append(Taken(one.actual, one.at_most, one.ideal, lines))
            if len(asked := self.asked[op.line, what, width]) < SHOWN:
                asked[tuple(lanes.tolist())] = one.excess


def _may_merge(view: View, bits: int) -> bool:
    """Return whether two instructions of a copy touch neighbours, so that the compiler may make one of them."""
    places = _vectors(view, bits)[:, :2]
    width = max(bits // 8, 1)
    return width < max(WIDTHS) and places.shape[1] > 1 and bool((places[:, 1] - places[:, 0] == width).all())


def _vectors(view: View, bits: int) -> np.ndarray:
    """(32, instructions): where each lane's vectors of `bits` begin."""
    places = view.addresses()[:, :: max(bits // view.bits, 1)]
    places = view.swizzle(places) if view.pointer.space == "smem" else places
    return np.broadcast_to(places, (LANES, places.shape[1]))


def counted(warps: Iterable[Counter]) -> list[Count]:
    """The instructions of warps that were followed, by line and kind."""
    found: dict[tuple[Line, str, int], list[Taken]] = defaultdict(list)
    worst: dict[tuple[Line, str, int], tuple[int, tuple[int, ...]]] = {}
    for recorder in warps:
        for key, each in recorder.found.items():
            found[key] += each
        for key, asked in recorder.asked.items():
            most = max(asked, key=asked.__getitem__)
            worst[key] = max(worst.get(key, (-1, ())), (asked[most], most), key=lambda pair: pair[0])
    return [
        _of(*key, each, worst.get(key, (0, ()))[1]) for key, each in sorted(found.items(), key=lambda pair: pair[0][:2])
    ]


def _of(line: Line, what: str, width: int, each: list[Taken], lanes: tuple[int, ...]) -> Count:
    taken, at_most, ideal, _ = map(sum, zip(*each, strict=True))
    worst = max(one.wavefronts - one.ideal for one in each)
    avoidable = max(one.wavefronts - max(one.ideal, one.lines) for one in each)
    return Count(line, what, width, len(each), taken, at_most, ideal, worst, avoidable, lanes)
