"""Clusters that take over the work of others while they run: clusterlaunchcontrol, PTX ISA of that name.

Which cluster is cancelled for which is a matter of time, so one outcome is followed: the cluster at hand is given every
one that comes after it in the grid, then is told no. What it waits for and signals is the same whichever it is given.
How often it goes round is not: the first cluster of a grid does so for all of the work, the last once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cookbook.check.pipeline.interpreter import handles
from cookbook.check.pipeline.programs import Recorder
from cookbook.check.pipeline.shapes import CannotFollow, Lay, Pointer, View, region
from cookbook.simulate.trace import Operation
from cookbook.swizzle import Swizzle

__all__ = ["ANSWER_BYTES"]

ANSWER_BYTES = 16
ANSWER = "answer"


@handles("nvvm.clusterlaunchcontrol.try.cancel")
def _ask(f: Recorder, op: Operation, args: list[Any]) -> None:
    """The answer comes as a copy by TMA does: later, by the async proxy, counted in bytes by a barrier of each CTA."""
    if not isinstance(args[0], Pointer):
        raise CannotFollow("an answer that is written to a place that is not known")
    cta, address = f.barrier(args[1])
    covers = region(View(args[0], Lay(1, 0), 8 * ANSWER_BYTES, Swizzle(0, 4, 3)))
    ranks = range(int(np.prod(f.place.cluster))) if op.get("multicast") else (cta,)
    barriers = tuple((rank, address) for rank in ranks)
    f.add(
        "load",
        op,
        targets=tuple((rank, covers) for rank in ranks),
        barriers=barriers,
        bytes=ANSWER_BYTES,
        flag=True,
        name=ANSWER,
    )


@handles("nvvm.clusterlaunchcontrol.query.cancel")
def _answer(f: Recorder, op: Operation, args: list[Any]) -> Any:
    """What the warp's n-th answer says; it is asked first whether that is a yes, then for the number."""
    asked = op.attributes["query_type"]
    if asked == "is_canceled":
        f.answers += 1
    (x, *_), (mine, *_), (wide, *_) = f.place.grid, f.place.cta, f.place.cluster
    first = (mine // wide + f.answers) * wide
    if asked == "is_canceled":
        return int(first < x)
    return first if asked.endswith("_x") else 0
