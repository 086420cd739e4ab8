"""A warp against the 32 banks, phase by phase."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cookbook import banks
from cookbook.access import Access, checked_lanes
from cookbook.arguments import checked, integer, integers, renamed, wrong_type
from cookbook.draw import svg
from cookbook.solve.design import phases_in
from cookbook.solve.instructions import Instruction, Pattern
from cookbook.solve.irregular import worst
from cookbook.solve.patterns import MAX_VECTOR, Banks, Block, Span, contiguous

__all__ = ["access_view", "worst_place"]

_BANKS, _MAX_INSTRUCTIONS = 32, 64


def lanes_by_bank(addresses: np.ndarray, width: int) -> list[dict[int, dict[int, list[int]]]]:
    """For each phase: bank -> word address -> the lanes that ask for that word.

    Args:
        addresses: (32,) byte addresses, -1 for an inactive lane.
        width: bytes a lane moves: 4, 8 or 16. 8 bytes go in 2 phases of 16 lanes, 16 bytes in 4 of 8.
    """
    addresses = np.asarray(addresses)
    lanes = _BANKS // max(1, width // 4)
    phases = []
    for first in range(0, len(addresses), lanes):
        asked: dict[int, dict[int, list[int]]] = {}
        for lane in range(first, min(first + lanes, len(addresses))):
            if addresses[lane] < 0:
                continue
            start = int(addresses[lane])
            for word in range(start // 4, (start + width - 1) // 4 + 1):
                asked.setdefault(word % _BANKS, {}).setdefault(word, []).append(lane)
        phases.append(asked)
    return phases


def _cells(asked: dict[int, dict[int, list[int]]], phase: int, left: float, top: float, depth: int) -> list[str]:
    """One phase: a column per bank, one cell per distinct word. The first word is served; the others wait."""
    w, h = 27.0, 20.0
    parts = []
    for bank in range(_BANKS):
        words = sorted(asked.get(bank, {}).items(), key=lambda item: item[1][0])
        for wavefront in range(depth):
            x, y = left + bank * w, top + wavefront * h
            if wavefront >= len(words):
                if wavefront == 0:
                    parts.append(svg.cell(x, y, w, h, "", "empty", "soft", phase=phase, bank=bank, state="idle"))
                continue
            lanes = words[wavefront][1]
            many = f"{lanes[0]}+" if len(lanes) > 1 else f"{lanes[0]}"
            drawn, state = (svg.GROUPS[bank // 4], svg.ON_COLOUR, 10), "free"
            if len(words) > 1:
                drawn, state = (svg.CONFLICT, svg.ON_CONFLICT, 10), "conflict"
            of = {"phase": phase, "bank": bank, "wavefront": wavefront, "lanes": " ".join(map(str, lanes))}
            parts.append(svg.cell(x, y, w, h, many, *drawn, **of, state=state))
    return parts


@checked
def worst_place(offsets: np.ndarray, element_bits: int, access: Pattern) -> list[Access]:
    """Return what a warp asks for at the place of a tile where an access takes the most wavefronts, the first such
    place.

    Where an access takes several instructions, there are as many. Their wavefronts are those of
    `cookbook.solve.design.wavefronts_of`.

    Args:
        offsets: (rows, columns) element offsets of a layout.
        access: see `cookbook.solve.instructions`.

    Raises:
        ValueError: the access does not fit in the tile, or the layout splits what one lane moves.
    """
    integer("element_bits", element_bits, one_of=(8, 16, 32, 64, 128))
    table = integers("offsets", offsets, ndim=2, at_least=0, at_most=1 << 40)
    if not 1 <= table.size <= 1 << 20:
        raise ValueError(f"offsets: got {table.size} elements; needed 1 to {1 << 20}")
    with renamed(accesses="access", tile="offsets"):
        phases, count = phases_in(table.shape, element_bits, access, Banks())
    flat, low, high = table.reshape(-1), 0, len(phases) // count
    most = worst(flat, phases, element_bits, Banks(), count)
    while high - low > 1:  # the first half that has a worst place, halved again
        middle = (low + high) // 2
        found = worst(flat, phases[low * count : middle * count], element_bits, Banks(), count) == most
        low, high = (low, middle) if found else (middle, high)
    addresses = flat[phases[low * count : (low + 1) * count]] * (element_bits // 8)
    rows, columns = table.shape
    return _instructions(addresses, element_bits // 8, access, (rows, columns))


def _instructions(phases: np.ndarray, size: int, access: Pattern, tile: tuple[int, int]) -> list[Access]:
    """The phases of one place, as byte addresses of elements in the order of the lanes, as instructions.

    Args:
        phases: (phases, elements).
        size: bytes of an element.
    """
    fixed = isinstance(access, Instruction)
    vector = access.vector(size * 8) if fixed else _vector(access, tile, size * 8)
    kept = [list(dict.fromkeys(phase)) for phase in phases.tolist()]  # a short phase repeats its last element
    while any(_split(phase, vector, size) for phase in kept):
        if fixed or vector * size <= 4:
            needed = f"a layout that keeps the {vector * size} bytes of a lane together"
            raise ValueError(f"access: got {access}, whose vectors the layout splits; needed {needed}")
        vector //= 2
    width = vector * size
    together = max(1, width // 4)  # phases of one instruction
    made = []
    for first in range(0, len(kept), together):
        lanes = np.full((together, _BANKS // together), -1, np.int64)
        for row, phase in zip(lanes, kept[first : first + together], strict=False):
            row[: len(phase) // vector] = phase[::vector]
        made.append(Access(lanes.reshape(-1), width, _kind(access)))
    return made


def _kind(access: Pattern) -> str:
    name = access.name if isinstance(access, Instruction) else ""
    return {"ldm": "ldmatrix", "stm": "stmatrix", "cp.": "cp_async"}.get(name[:3], "ldst")


def _vector(access: Block | Span, tile: tuple[int, int], element_bits: int) -> int:
    """Elements that a lane of a block or span moves at once."""
    most = max(1, MAX_VECTOR * 8 // element_bits)
    if isinstance(access, Span):
        return min(most, 1 << contiguous(access.basis(tile)))
    return access.vector(tile, element_bits)


def _split(phase: list[int], vector: int, size: int) -> bool:
    """Return whether a vector of a lane lies in several pieces, or not at a multiple of its size."""
    lanes = np.array(phase).reshape(-1, vector)
    steps = np.arange(vector) * size
    return bool((lanes != lanes[:, :1] + steps).any() or (lanes[:, 0] % (vector * size)).any() or len(lanes) > _BANKS)


def _check(access: Any) -> tuple[np.ndarray, int]:
    if not (hasattr(access, "addresses") and hasattr(access, "width")):
        wrong_type("access", access, "a cookbook.access.Access, or several")
    try:
        return checked_lanes(access.addresses, access.width), int(access.width)
    except (TypeError, ValueError) as error:
        raise type(error)(f"access.{error}") from None


@checked
def access_view(access: Access | Sequence[Access], title: str | None = None) -> svg.Picture:
    """Instructions of a warp: for each phase, which lane each of the 32 banks serves, and when.

    A bank that is asked for one word serves every lane that wants it at once ("3+" is lane 3 and others). A bank
    asked for several words is red: one row a wavefront. The heading gives the counts of `cookbook.banks.wavefronts`.

    Args:
        access: a `cookbook.access.Access`, 32 byte addresses and a width in bytes; or several, 64 at most, which are
            drawn one below the other, their wavefronts added up.
        title: a title of your own.
    """
    given = [access] if isinstance(access, Access) or not isinstance(access, (list, tuple)) else list(access)
    if not 1 <= len(given) <= _MAX_INSTRUCTIONS:
        raise ValueError(f"access: got {len(given)} instructions; needed 1 to {_MAX_INSTRUCTIONS} to draw them")
    checked = [_check(one) for one in given]
    counted = [banks.wavefronts(*one) for one in checked]
    left, y, parts = 86.0, 84.0, []
    parts += [svg.text(left + (b + 0.5) * 27, 64, b, 10, "soft") for b in range(_BANKS)]
    parts.append(svg.text(left - 10, 64, "bank", 10, "soft", "end"))
    for number, one in enumerate(checked):
        phases = lanes_by_bank(*one)
        for phase, asked in enumerate(phases):
            if not asked:
                continue
            depth = max(len(words) for words in asked.values())
            named = (str(number) if len(given) > 1 else "", f"phase {phase}" if len(phases) > 1 else "")
            name = ", ".join(filter(None, named))
            parts.append(svg.text(left - 10, y + 10, name, 11, "ink", "end"))
            parts += _cells(asked, phase, left, y, depth)
            y += depth * 20 + 12
    actual, ideal = (sum(getattr(one, name) for one in counted) for name in ("actual", "ideal"))
    kind = getattr(given[0], "kind", "access")
    heading = f"wavefronts: {actual}, ideal {ideal}, excess {actual - ideal}"
    many = f"{len(given)} x " if len(given) > 1 else ""
    title = title or f"{many}{kind}, {checked[0][1]} bytes a lane, against the banks"
    return svg.picture(
        left + _BANKS * 27 + 16, y + 8, title, heading + ".", parts, {44: f"{heading}; cell: lane, red: conflict"}
    )
