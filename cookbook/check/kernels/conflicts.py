"""A bank conflict in words: the lanes that meet in a bank, and a layout in which all accesses to these bytes are free.

The layout is what `cookbook.solve` finds for the addresses that were seen: a swizzle of byte addresses. It is told only
where nothing but the kernel's own loads and stores touches these bytes, for TMA and the tensor core have layouts of
their own, and only where each access is a sum (XOR) of offsets, as most are.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from cookbook import gf2
from cookbook.banks import wavefronts
from cookbook.check.banks import Counter
from cookbook.draw.accesses import lanes_by_bank
from cookbook.solve.design import solve
from cookbook.solve.patterns import Span

__all__ = ["instead", "meeting"]

LINE, LARGEST, SHOWN = 128, 65536, 8  # bytes of all banks; of a tile that is solved for; lanes that are named
MOST = 64  # accesses that are solved for
OWN = ("ld", "st")  # accesses whose layout the kernel chooses
Lanes = tuple[int, ...]  # a byte address for each lane, -1 where it takes no part


def meeting(lanes: Lanes, width: int) -> str:
    """`lanes 0, 8, 16, 24 ask bank 0 for 4 words`: the bank that is asked for most, by one instruction."""
    phases = lanes_by_bank(np.array(lanes), width)
    bank, words = max(((b, w) for phase in phases for b, w in phase.items()), key=lambda each: len(each[1]))
    asking = sorted({lane for each in words.values() for lane in each})
    named = ", ".join(map(str, asking[:SHOWN])) + (", ..." if len(asking) > SHOWN else "")
    return f"lanes {named} ask bank {bank} for {len(words)} words"


def instead(lanes: Lanes, width: int, warps: Iterable[Counter]) -> str:
    """A swizzle with which no access to the bytes of this one has a conflict; "" if none is found."""
    seen: dict[tuple[str, int, Lanes], None] = {}
    for warp in warps:
        for (_, what, each), asked in warp.asked.items():
            seen.update(dict.fromkeys((what, each, one) for one in asked))
    first, last = _bytes(lanes, width)
    while True:  # the bytes that accesses to these bytes touch, and so on
        near = [(what, each, one) for what, each, one in seen if _overlap(_bytes(one, each), (first, last))]
        spans = [_bytes(one, each) for _, each, one in near]
        wider = min(low for low, _ in spans), max(high for _, high in spans)
        if wider == (first, last):
            break
        first, last = wider
    begins = first // LINE * LINE
    rows = 1 << int(np.ceil(np.log2(max(1, -(-(last - begins) // LINE)))))
    bases = {_basis(one, each, begins) for _, each, one in near}
    foreign = any(what not in OWN for what, *_ in near) or _others(warps, first, last)
    if foreign or None in bases or rows * LINE > LARGEST:
        return ""
    try:
        found = solve((rows, LINE), 8, [Span(basis) for basis in bases if basis][:MOST])
    except ValueError:  # no map does it, or the search is too long
        return ""
    swizzle = found.swizzle
    if found.kind != "plain" or swizzle is None or not swizzle.bits:
        return ""
    for what, each, one in near:
        moved = np.array([address if address < 0 else int(swizzle(address - begins)) for address in one])
        torn = (moved[moved >= 0] % each).any()  # a vector's bytes would not stay together
        if torn or wavefronts(moved, each, load=what == "ld").excess:
            return ""
    words = f"Swizzle<{swizzle.bits},{swizzle.base},{swizzle.shift}> of byte addresses"
    return f"{words}, from byte {begins} of shared memory on: no access to these bytes has a conflict then"


def _bytes(lanes: Lanes, width: int) -> tuple[int, int]:
    active = [address for address in lanes if address >= 0]
    return min(active), max(active) + width


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def _basis(lanes: Lanes, width: int, begins: int) -> tuple[int, ...] | None:
    """Offsets whose sums (XOR) an access touches, bytes of a vector first; None if it is no such set."""
    active = [address - begins for address in lanes if address >= 0]
    relative = [address ^ active[0] for address in active]
    steps = [1 << bit for bit in range(width.bit_length() - 1)]
    for lane in range(len(active).bit_length() - 1):
        if relative[1 << lane]:
            steps.append(relative[1 << lane])
    spanned = {0}
    for step in steps:
        spanned |= {each ^ step for each in spanned}
    touched = {each ^ byte for each in relative for byte in range(width)}
    independent = gf2.rank_of_ints(steps) == len(steps)
    return tuple(steps) if independent and spanned == touched else None


def _others(warps: Iterable[Counter], first: int, last: int) -> bool:
    """Return whether TMA or the tensor core touches bytes."""
    mask = (1 << -(-last // 4)) - (1 << first // 4)
    kinds = ("load", "store", "mma", "tensor mma", "async copy")
    return any(
        bits & mask for warp in warps for event in warp.events if event.what in kinds for _, bits in event.targets
    )
