"""Other ways in which shared memory might serve a warp, to tell from a measurement which one it follows.

Each rule says which lanes are served together; a group then takes as many wavefronts as the bank with the most
distinct words. `cookbook.banks` is the rule "phases", with exceptions for wide loads and for cp.async.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from cookbook.banks import BANKS, WORD
from tools.probes.pairs import Pair

__all__ = ["RULES", "agreements", "predictions", "wavefronts_of_groups"]

LANE = np.arange(32)
LINE = 128  # bytes of a cache line
SECTOR = 32  # bytes that global memory delivers at once


def wavefronts_of_groups(addresses: np.ndarray, width: int, labels: np.ndarray) -> int:
    """Wavefronts when the lanes of each label are served together, one label after the other.

    Args:
        addresses: (32,) byte addresses, -1 for a lane that takes no part.
        width: bytes at each address.
        labels: (32,) integers.
    """
    total = 0
    for label in np.unique(labels[addresses >= 0]):
        group = addresses[(labels == label) & (addresses >= 0)]
        words = group[:, None] // WORD + np.arange(max(1, width // WORD))
        total += int(np.bincount(np.unique(words) % BANKS).max())
    return total


def phases(pair: Pair) -> np.ndarray:
    """32 lanes together up to 4 bytes a lane, 16 for 8, 8 for 16."""
    return LANE // (32 // max(1, pair.instruction.width // WORD))


def half_warps(pair: Pair) -> np.ndarray:
    """At most 16 lanes at a time, however wide."""
    return LANE // 16


def whole_warp(pair: Pair) -> np.ndarray:
    """All lanes at once, however wide: as few wavefronts as there can be."""
    return LANE * 0


def sharing_pairs(pair: Pair) -> np.ndarray:
    """Two neighbouring phases become one where all of their lanes t, t^1 (or all t, t^2) share an address."""
    labels = phases(pair)
    for first in range(0, int(labels.max()), 2):
        lanes = (labels == first) | (labels == first + 1)
        if any(_share(pair.lanes, lanes, distance) for distance in (1, 2)):
            labels = np.where(lanes, first, labels)
    return labels


def _share(addresses: np.ndarray, lanes: np.ndarray, distance: int) -> bool:
    other = addresses[LANE ^ distance]
    return bool(((addresses == other) | (addresses < 0) | (other < 0))[lanes].all())


def lines(pair: Pair) -> np.ndarray:
    """cp.async: the lanes that read one line of global memory together."""
    return np.array(pair.sources) // LINE if pair.sources else phases(pair)


def lines_in_phases(pair: Pair) -> np.ndarray:
    """cp.async: as `lines`, and phases are not merged."""
    return lines(pair) * 4 + phases(pair) if pair.sources else phases(pair)


def sectors(pair: Pair) -> np.ndarray:
    """cp.async: the lanes that read one sector of global memory together."""
    return np.array(pair.sources) // SECTOR if pair.sources else phases(pair)


RULES: dict[str, Callable[[Pair], np.ndarray]] = {
    "phases": phases,
    "sharing pairs": sharing_pairs,
    "half-warps": half_warps,
    "whole warp": whole_warp,
    "lines": lines,
    "lines in phases": lines_in_phases,
    "sectors": sectors,
}


@cache
def predictions(pair: Pair) -> dict[str, int]:
    """Wavefronts of a pair by rule. It is kept: do not change it."""
    return {name: wavefronts_of_groups(pair.lanes, pair.instruction.width, rule(pair)) for name, rule in RULES.items()}


def agreements(pairs: Sequence[Pair], measured: Sequence[float]) -> dict[str, int]:
    """By rule, on how many of the pairs it gives what was measured."""
    found = dict.fromkeys(RULES, 0)
    for pair, wavefronts in zip(pairs, measured, strict=True):
        for name, value in predictions(pair).items():
            found[name] += value == wavefronts
    return found
