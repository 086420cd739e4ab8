"""How many wavefronts shared memory takes for one instruction of a warp.

Word w (4 bytes) lives in bank w mod 32, and a bank gives one word a wavefront, to every lane that asks
for it. An instruction goes in phases that are not merged: all 32 lanes for up to 4 bytes a lane, half-
warps for 8, lanes 8q to 8q+7 for 16 (and so one 8x8 matrix a phase for ldmatrix and stmatrix). These are
the rules that measurements with a profiler agree with; NVIDIA documents the banks, not the phases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cookbook.gf2 import rank_of_ints

__all__ = ["Phase", "Wavefronts", "linear_wavefronts", "wavefronts"]

BANKS = 32
LANES = 32
WORD = 4  # bytes
PHASES = {1: 1, 2: 1, 4: 1, 8: 2, 16: 4}  # by bytes a lane


@dataclass(frozen=True)
class Phase:
    wavefronts: int  # the most words that one bank has to give; 0 when no lane is active
    per_bank: tuple[int, ...]  # distinct words asked of each of the 32 banks


@dataclass(frozen=True)
class Wavefronts:
    phases: tuple[Phase, ...]

    @property
    def actual(self) -> int:
        return sum(phase.wavefronts for phase in self.phases)

    @property
    def ideal(self) -> int:
        """One for each phase with an active lane: a phase never asks for more than 128 bytes."""
        return sum(phase.wavefronts > 0 for phase in self.phases)

    @property
    def excess(self) -> int:
        """Wavefronts lost to bank conflicts."""
        return self.actual - self.ideal


def wavefronts(addresses: np.ndarray, width: int) -> Wavefronts:
    """Counts exactly, for any addresses.

    Args:
        addresses: (32,) byte addresses by lane, -1 for an inactive lane.
        width: bytes at each address: 1, 2, 4, 8 or 16. Rows of ldmatrix and stmatrix are 16.

    Raises:
        ValueError: another width, not 32 addresses, or an address that is no multiple of `width`.

    >>> wavefronts(np.arange(32) * 128, 4).actual  # a column of 32x32 fp32
    32
    """
    lanes = _checked(addresses, width)
    phases = []
    for group in lanes.reshape(PHASES[width], -1):
        words = group[group >= 0, None] // WORD + np.arange(max(1, width // WORD))
        per_bank = np.bincount(np.unique(words) % BANKS, minlength=BANKS)
        phases.append(Phase(int(per_bank.max()), tuple(per_bank.tolist())))
    return Wavefronts(tuple(phases))


def linear_wavefronts(lane_images: Sequence[int], width: int) -> int:
    """The count by linear algebra, for addresses that are an XOR of `lane_images` over the set bits of the lane.

    Lane l asks for the XOR of lane_images[i] over the bits i of l: any power-of-two strides under any
    swizzle. Within a phase the words form a subspace on which each bank in use gets 2**(rank of the word
    bits - rank of the bank bits) of them, and every phase is a coset of the same one.

    Args:
        lane_images: five byte addresses >= 0, multiples of `width`.

    >>> linear_wavefronts([128, 256, 512, 1024, 2048], 4)
    32
    """
    if len(lane_images) != 5:
        raise ValueError(f"lane_images: got {len(lane_images)}; needed 5, one for each bit of the lane")
    _checked(np.resize(np.asarray(lane_images), LANES), width)
    phases = PHASES[width]
    in_phase = lane_images[: 5 - (phases.bit_length() - 1)]
    inside = [WORD << i for i in range(max(1, width // WORD).bit_length() - 1)]
    words = [int(image) // WORD for image in (*in_phase, *inside)]
    return phases << (rank_of_ints(words) - rank_of_ints(word % BANKS for word in words))


def _checked(addresses: np.ndarray, width: int) -> np.ndarray:
    if width not in PHASES:
        raise ValueError(f"width: got {width}; needed 1, 2, 4, 8 or 16 bytes")
    lanes = np.asarray(addresses)
    if lanes.shape != (LANES,) or not np.issubdtype(lanes.dtype, np.integer):
        raise ValueError(f"addresses: got {lanes.dtype} of shape {lanes.shape}; needed 32 integers")
    lanes = lanes.astype(np.int64)
    if (lanes < -1).any():
        raise ValueError(f"addresses: got {lanes.min()}; needed byte addresses >= 0, or -1 for no access")
    if ((lanes >= 0) & (lanes % width != 0)).any():
        raise ValueError(f"addresses: got {lanes.tolist()}; needed multiples of width = {width} bytes")
    return lanes
