"""Clusters that take over the work of others while they run: clusterlaunchcontrol, PTX ISA of that name."""

from __future__ import annotations

from typing import Any

import numpy as np

from cookbook.simulate.judge import Judge
from cookbook.simulate.trace import Operation
from cookbook.simulate.values import CannotFollow, Lay, Pointer, View
from cookbook.simulate.warp import handles

ANSWER_BYTES = 16


@handles("nvvm.clusterlaunchcontrol.try.cancel")
def _ask(f: Judge, op: Operation, args: list[Any]) -> None:
    """The answer comes as a copy by TMA does: later, by the async proxy, counted in bytes by a barrier of each CTA."""
    if not isinstance(args[0], Pointer):
        raise CannotFollow("an answer that is written to a place that is not known")
    cta, address = f.barrier(args[1])
    ranks = range(int(np.prod(f.place.cluster))) if op.get("multicast") else (cta,)
    f.ask(op, View(args[0], Lay(1, 0), 8 * ANSWER_BYTES), [(rank, address) for rank in ranks])


@handles("nvvm.clusterlaunchcontrol.query.cancel")
def _answer(f: Judge, op: Operation, args: list[Any]) -> Any:
    """Return whether a request was granted; or one index of the first CTA of the cluster that is taken over."""
    asked = op.attributes["query_type"]
    return int(f.granted(args[0])) if asked == "is_canceled" else f.taken_over(args[0])["xyz".index(asked[-1])]
