"""Follows one warp of a kernel with its data: each element says where it came from (`origins`), and moves at once."""

from __future__ import annotations

from typing import Any

import numpy as np

from cookbook.check.product import maxima, words  # noqa: F401, their arithmetic becomes known
from cookbook.check.product.algebra import Data, computed
from cookbook.check.product.barriers import Waiting
from cookbook.check.product.copies import Copies
from cookbook.check.product.multiply import Mmas
from cookbook.check.product.takeover import Takeover
from cookbook.check.product.tensor_cores import TensorCores
from cookbook.simulate.trace import Operation
from cookbook.simulate.values import UNKNOWN, CannotFollow, Fault
from cookbook.simulate.warp import Place

__all__ = ["Fault", "Follower"]


class Follower(Waiting, Copies, Mmas, TensorCores, Takeover):
    """One warp. `cta` and `launch` hold what it shares with others."""

    def __init__(self, place: Place, cta: Any = None, launch: Any = None) -> None:
        super().__init__(place, launch)
        self.cta = cta
        self.launch = launch
        self.generation = 0  # of the cluster's barrier, at the last arrival

    def data(self, op: Operation, args: list[Any]) -> Any:
        return computed(self, op, args)

    def broken_promise(self, number: int, by: int) -> None:
        raise Fault(f"cute.assume: got {number}; needed a multiple of {by}, as the kernel promises")

    def undecided(self, op: Operation) -> None:
        raise CannotFollow("a branch that depends on data")

    def merged(self, takes: np.ndarray, a: Any, b: Any) -> Any:
        if merge := getattr(a, "merge", None) or getattr(b, "merge", None):
            return merge(takes, a, b)
        if isinstance(a, Data) and isinstance(b, Data):
            return Data(np.where(takes[:, None], a.full, b.full))
        found = super().merged(takes, a, b)
        if found is UNKNOWN:
            raise CannotFollow(f"a branch whose results differ from lane to lane: {type(a).__name__}")
        return found
