"""Follows clusters that take over the work of others while they run: clusterlaunchcontrol, PTX ISA of that name.

Whoever asks is given the next cluster of the grid that has not begun; when none is left, it is told no. Clusters run
side by side here, so each takes some.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cookbook.check.product.barriers import barrier_at
from cookbook.check.product.follower import Follower, follows
from cookbook.simulate.trace import Operation

ANSWER_BYTES = 16
ANSWER = np.int64(100) << 56  # no origin of an element
GRANTED = np.int64(1) << 48


@follows("nvvm.clusterlaunchcontrol.try.cancel")
def _ask(f: Follower, op: Operation, args: list[Any]) -> None:
    """The answer: a cluster's number times 16, and whether there is one."""
    answer = ANSWER
    if f.launch.waiting:
        answer = ANSWER | GRANTED | np.int64(f.launch.waiting.pop(0) << 4)
    address = f.integer(args[0].address, "where an answer is written to")
    ranks = range(len(f.cta.cluster.ctas)) if op.get("multicast") else (f.place.rank,)
    for rank in ranks:
        f.cta.cluster.ctas[rank].memory.write(np.array([address]), np.array([answer]), ANSWER_BYTES)
        barrier_at(f, args[1], rank).arrive(0, -ANSWER_BYTES)


@follows("nvvm.clusterlaunchcontrol.query.cancel")
def _answer(f: Follower, op: Operation, args: list[Any]) -> Any:
    answer = np.int64(f.integer(args[0], "an answer to clusterlaunchcontrol"))
    granted = bool(answer & GRANTED) and answer >> 56 == 100
    asked = op.attributes["query_type"]
    if asked == "is_canceled":
        return int(granted)
    first = f.launch.shape.place(int(answer & (GRANTED - 1)) >> 4, 0)
    return next((first[axis] for axis, letter in enumerate("xyz") if asked.endswith(f"_{letter}")), 0)
