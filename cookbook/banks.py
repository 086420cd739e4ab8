"""Count the wavefronts of shared memory for one instruction of a warp.

Word w (4 bytes) lives in bank w mod 32, and a bank gives one word a wavefront, to every lane that asks for it. An
instruction goes in phases: all 32 lanes for up to 4 bytes a lane, half-warps for 8, lanes 8q to 8q+7 for 16 (and so one
8x8 matrix a phase for ldmatrix and stmatrix). Three things bend that rule, and all were found by counting on an H200
(`python -m tools.probes`), for NVIDIA documents the banks and not the phases:

* A *load* of 8 or 16 bytes serves two neighbouring phases in one wavefront if lanes t and t^1, or t and t^2, share
  their address throughout both, and together they ask no bank for two words. A store does not. A lane that takes no
  part counts as sharing, as was seen in all pairs but one: where that matters the model gives a range.
* *cp.async through L1* has banks at both ends. Each lane wants its turn at a place in a 128-byte line of global
  memory, where it reads, and at the banks that it writes; in a wavefront a place, and a bank, serves one lane, even
  where two want the same word. So a phase takes at least as many wavefronts as lanes meet at the busiest place or
  bank: rows of 64 bytes, 128 bytes apart in global memory, are 2-way however they are swizzled. Lanes that meet at
  either end, and those that meet these, and so on, make a chain; while it lasts each wavefront serves at least one of
  its lanes, so a phase takes at most as many wavefronts as its longest chain has lanes. Where the two agree the count
  is exact, as for any copy whose lanes meet at one end only. Between them it is up to the order in which the hardware
  serves lanes, which is not known.
* *cp.async past L1* (`.cg`) knows neither phases nor banks. A wavefront moves 32-byte sectors of one line of global
  memory into one line of shared memory, and what the sectors of a wavefront have in common is how they are moved:
  from the same half (the first 16 bytes, the second, or both), and by the same XOR of the two lowest bits of the
  16-byte chunk's number; the third bit, which 64 bytes of the line a sector goes to, is each sector's own. So 8 lanes
  that fill a line from a line under a swizzle take one wavefront, rows of 64 bytes take two for each line that they
  fill, and 32 lanes that write to 32 lines take 32 without any bank conflict. Of lanes that write the same 16 bytes
  only the first counts. Of lanes that read the same 16 bytes, and either all exchange the halves of a sector or none
  does, the last is served first, together with all others; what remains is then served likewise.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from cookbook.access import LANES, LARGEST, checked_lanes
from cookbook.arguments import boolean, checked

__all__ = ["Phase", "Wavefronts", "wavefronts"]

BANKS = 32
WORD = 4  # bytes
LINE, SECTOR, CHUNK = 128, 32, 16  # bytes
PHASES = {1: 1, 2: 1, 4: 1, 8: 2, 16: 4}  # by bytes a lane


@checked
@dataclass(frozen=True)
class Phase:
    wavefronts: int  # the most words that one bank has to give, of cp.async lanes to serve; 0 when no lane is active
    per_bank: tuple[int, ...]  # distinct words asked of each of the 32 banks
    at_most: int  # more than `wavefronts` only where the rules leave a range: some copies through L1, some loads


@checked
@dataclass(frozen=True)
class Wavefronts:
    phases: tuple[Phase, ...]

    @property
    def actual(self) -> int:
        """Wavefronts that the hardware takes; where the count is not `exact`, the least it can take."""
        return sum(phase.wavefronts for phase in self.phases)

    @property
    def at_most(self) -> int:
        return sum(phase.at_most for phase in self.phases)

    @property
    def exact(self) -> bool:
        """True if `actual` is known to be the count: always, but for some cp.async through L1 and some wide loads."""
        return self.actual == self.at_most

    @property
    def ideal(self) -> int:
        """One for each phase with an active lane: a phase never asks for more than 128 bytes."""
        return sum(phase.wavefronts > 0 for phase in self.phases)

    @property
    def excess(self) -> int:
        """Wavefronts lost to bank conflicts, the least where the count is not `exact`."""
        return self.actual - self.ideal


def wavefronts(
    addresses: np.ndarray,
    width: int,
    *,
    load: bool = False,
    sources: np.ndarray | None = None,
    past_l1: bool = False,
) -> Wavefronts:
    """Counts, for any addresses; exactly but where `Wavefronts.exact` says otherwise.

    Args:
        addresses: (32,) byte addresses by lane, -1 for an inactive lane.
        width: bytes at each address: 1, 2, 4, 8 or 16. Rows of ldmatrix and stmatrix are 16.
        load: whether it is an ld.shared; two phases whose lanes share addresses may then be one.
        sources: for cp.async: (32,) byte addresses in global memory. If left out, each phase reads whole lines.
        past_l1: whether that is a cp.async.cg, of 16 bytes. Its "phases" are the lines of shared memory it writes.

    Raises:
        ValueError: as `cookbook.access.checked_lanes`; past_l1 without sources, or of another width.

    >>> wavefronts(np.arange(32) * 128, 4).actual  # a column of 32x32 fp32
    32
    """
    lanes = checked_lanes(addresses, width)
    load, past_l1 = boolean("load", load), boolean("past_l1", past_l1)
    if past_l1 and (sources is None or width != CHUNK):
        got = f"width {width}" if sources is not None else "no sources"
        raise ValueError(f"past_l1: got {got}; needed width {CHUNK} and sources: it depends on both ends")
    read = None if sources is None else _from_first_line(checked_lanes(sources, width, "sources"))
    return _counted(_from_first_line(lanes), width, load, read, past_l1)


def _from_first_line(lanes: np.ndarray) -> tuple[int, ...]:
    """Addresses from the beginning of the first line that they are in: as far as they are counted they are the same."""
    active = lanes >= 0
    first = lanes[active].min(initial=LARGEST) // LINE * LINE
    return tuple(np.where(active, lanes - first, -1).tolist())


@lru_cache(maxsize=4096)  # the instructions of a copy take few forms
def _counted(
    addresses: tuple[int, ...], width: int, load: bool, sources: tuple[int, ...] | None, past_l1: bool
) -> Wavefronts:
    lanes = np.array(addresses)
    if sources is None:
        phases = [_phase(group, width) for group in lanes.reshape(PHASES[width], -1)]
        return Wavefronts(tuple(_merged(lanes, width, phases) if load else phases))
    read = np.array(sources)
    if past_l1:
        return _copied_past_l1(lanes, read)
    groups = zip(lanes.reshape(PHASES[width], -1), read.reshape(PHASES[width], -1), strict=True)
    return Wavefronts(tuple(_copied(to, source, width) for to, source in groups))


def _words(addresses: np.ndarray, width: int) -> np.ndarray:
    """(active lanes, words a lane): the words that active lanes ask for."""
    return addresses[addresses >= 0, None] // WORD + np.arange(max(1, width // WORD))


def _phase(addresses: np.ndarray, width: int) -> Phase:
    per_bank = np.bincount(np.unique(_words(addresses, width)) % BANKS, minlength=BANKS)
    return Phase(int(per_bank.max()), tuple(per_bank.tolist()), int(per_bank.max()))


def _copied(addresses: np.ndarray, sources: np.ndarray, width: int) -> Phase:
    """A phase of cp.async."""
    active = addresses >= 0
    # Vectors begin at multiples of their size, so two of them use the same banks or none in common.
    meets = [at[:, None] == at for at in (x[active] % (BANKS * WORD) for x in (addresses, sources))]
    chained = meets[0] | meets[1]
    for _ in range(LANES.bit_length() - 1):
        chained = chained @ chained  # over bools: whether there is a way of twice the length
    least, most = (int(np.sum(x, axis=-1).max(initial=0)) for x in (meets, chained))
    return Phase(least, _phase(addresses, width).per_bank, most)


def _copied_past_l1(addresses: np.ndarray, sources: np.ndarray) -> Wavefronts:
    """A cp.async past L1: one Phase for each line of shared memory that it writes."""
    writers: dict[int, int] = {}  # source by destination, of the first lane that writes it
    for to, source in zip(addresses.tolist(), sources.tolist(), strict=True):
        if to >= 0:
            writers.setdefault(to, source)
    by_lines: dict[tuple[int, int], list[tuple[int, int]]] = {}  # chunks (from, to) by lines (to, from)
    for to, source in writers.items():
        moved = (source % LINE // CHUNK, to % LINE // CHUNK)
        by_lines.setdefault((to // LINE, source // LINE), []).append(moved)
    phases = []
    for line in sorted({line for line, _ in by_lines}):
        count = sum(_line_to_line(moves) for (into, _), moves in by_lines.items() if into == line)
        written = np.array([to for to in writers if to // LINE == line])
        phases.append(Phase(count, _phase(written, CHUNK).per_bank, count))
    return Wavefronts(tuple(phases))


def _line_to_line(moves: list[tuple[int, int]]) -> int:
    """Wavefronts that move chunks (from, to), 0 to 7 each and in the order of their lanes, of one line to another."""
    count = 0
    while moves:
        # Of those that read one chunk, and exchange the halves of its sector or do not, the last one of all comes now.
        now = {(source, (source ^ to) & 1): (source, to) for source, to in moves}.values()
        count += _sector_wavefronts(now)
        moves = [move for move in moves if move not in now]
    return count


def _sector_wavefronts(moves: Iterable[tuple[int, int]]) -> int:
    """Wavefronts of chunks that are served together."""
    halves: dict[tuple[int, int, int], int] = {}  # which halves of a sector go, by how they go, whence and whither
    for source, to in moves:
        key = ((source ^ to) & 3, source >> 1, to >> 1)
        halves[key] = halves.get(key, 0) | 1 << (source & 1)
    together: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for (way, source, to), which in halves.items():
        together.setdefault((way, which), []).append((source, to))
    # Two sectors that come from one place, or go to one, need a wavefront each.
    return sum(max(max(map(end.count, end)) for end in zip(*pairs, strict=True)) for pairs in together.values())


def _merged(lanes: np.ndarray, width: int, phases: list[Phase]) -> list[Phase]:
    """The phases of a load, two that fit into one wavefront made one."""
    if len(phases) == 1:
        return phases
    served = []
    for i, group in enumerate(lanes.reshape(len(phases) // 2, -1)):
        both, alone = _phase(group, width), phases[2 * i : 2 * i + 2]
        if both.wavefronts != 1 or not any(_shared(group, distance) for distance in (1, 2)):
            served += alone
        elif any(_shared(group, distance, everywhere=True) for distance in (1, 2)):
            served.append(both)
        else:
            served.append(replace(both, at_most=sum(phase.at_most for phase in alone)))
    return served


def _shared(group: np.ndarray, distance: int, *, everywhere: bool = False) -> bool:
    """Return whether lanes t and t^distance have the same address throughout the group, or one of them none.

    Args:
        everywhere: a lane may have none only where its partner has none.
    """
    other = group[np.arange(len(group)) ^ distance]
    alone = (group < 0) | (other < 0)
    return bool(((group == other) | (alone & (not everywhere))).all())
