"""Clusters that take over the work of others while they run: clusterlaunchcontrol, PTX ISA of that name.

Whoever asks is given the next cluster of the grid that has not begun; when none is left, it is told no. Clusters run
side by side here, so each takes some.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cookbook.check.product.barriers import barrier_at
from cookbook.simulate.judge import Judge
from cookbook.simulate.trace import Operation
from cookbook.simulate.values import View
from cookbook.simulate.warp import Barrier

ANSWER = np.int64(100) << 56  # no origin of an element
GRANTED = np.int64(1) << 48


class Takeover(Judge):
    """A warp that asks for the work of another cluster."""

    cta: Any
    launch: Any

    def ask(self, op: Operation, place: View, barriers: list[Barrier]) -> None:
        """The answer: a cluster's number times 16, and whether there is one."""
        answer = ANSWER
        if self.launch.waiting:
            answer = ANSWER | GRANTED | np.int64(self.launch.waiting.pop(0) << 4)
        address, size = self.integer(place.pointer.address, "where an answer is written to"), place.bits // 8
        for barrier in barriers:
            self.cta.cluster.ctas[barrier[0]].memory.write(np.array([address]), np.array([answer]), size)
            barrier_at(self, barrier).arrive(0, -size)

    def granted(self, answer: Any) -> bool:
        number = np.int64(self.integer(answer, "an answer to clusterlaunchcontrol"))
        return bool(number & GRANTED) and number >> 56 == 100

    def taken_over(self, answer: Any) -> tuple[int, int, int]:
        number = np.int64(self.integer(answer, "an answer to clusterlaunchcontrol"))
        return self.launch.shape.place(int(number & (GRANTED - 1)) >> 4, 0)
