"""A warp against the 32 banks, phase by phase."""

from __future__ import annotations

from typing import Any

import numpy as np

from cookbook import banks
from cookbook.draw import svg

_BANKS = 32


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
        for turn in range(depth):
            x, y = left + bank * w, top + turn * h
            if turn >= len(words):
                if turn == 0:
                    parts.append(svg.cell(x, y, w, h, "", "empty", "soft", phase=phase, bank=bank, state="idle"))
                continue
            lanes = words[turn][1]
            many = f"{lanes[0]}+" if len(lanes) > 1 else f"{lanes[0]}"
            conflict = len(words) > 1
            fill = svg.CONFLICT if conflict else svg.GROUPS[bank // 4]
            ink = svg.ON_CONFLICT if conflict else svg.ON_COLOUR
            parts.append(
                svg.cell(
                    x,
                    y,
                    w,
                    h,
                    many,
                    fill,
                    ink,
                    10,
                    phase=phase,
                    bank=bank,
                    turn=turn,
                    lanes=" ".join(map(str, lanes)),
                    state="conflict" if conflict else "free",
                )
            )
    return parts


def _check(access: Any) -> tuple[np.ndarray, int]:
    if not (hasattr(access, "addresses") and hasattr(access, "width")):
        raise TypeError(f"access: got {type(access).__name__}, need a cookbook.access.Access")
    addresses = np.asarray(access.addresses)
    if addresses.shape != (32,):
        raise ValueError(f"access: got addresses of shape {addresses.shape}, need (32,), one a lane")
    if access.width not in (1, 2, 4, 8, 16):
        raise ValueError(f"access: got width {access.width}, need 1, 2, 4, 8 or 16 bytes")
    return addresses, access.width


def access_view(access: Any, title: str | None = None) -> svg.Picture:
    """One instruction of a warp: for each phase, which lane each of the 32 banks serves, and when.

    A bank that is asked for one word serves every lane that wants it at once ("3+" is lane 3 and others). A bank
    asked for several words is red: one row a turn. The heading gives the counts of `cookbook.banks.wavefronts`.

    Args:
        access: a `cookbook.access.Access`, 32 byte addresses and a width in bytes.
        title: a title of your own.
    """
    addresses, width = _check(access)
    counted = banks.wavefronts(addresses, width)
    left, y, parts = 86.0, 84.0, []
    parts += [svg.text(left + (b + 0.5) * 27, 64, b, 10, "soft") for b in range(_BANKS)]
    parts.append(svg.text(left - 10, 64, "bank", 10, "soft", "end"))
    for phase, asked in enumerate(lanes_by_bank(addresses, width)):
        if not asked:
            continue
        depth = max(len(words) for words in asked.values())
        parts.append(svg.text(left - 10, y + 10, f"phase {phase}", 11, "ink", "end"))
        parts += _cells(asked, phase, left, y, depth)
        y += depth * 20 + 12
    kind = getattr(access, "kind", "access")
    heading = f"wavefronts: {counted.actual}, ideal {counted.ideal}, excess {counted.excess}"
    title = title or f"{kind}, {width} bytes a lane, against the banks"
    return svg.picture(
        left + _BANKS * 27 + 16, y + 8, title, heading + ".", parts, {44: f"{heading}; cell: lane, red: conflict"}
    )
