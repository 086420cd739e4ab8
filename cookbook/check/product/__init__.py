"""What does a kernel compute? Its own trace followed to C, with where each element came from, and no values.

`faults` follows every warp of every CTA of a launch of a small problem, as CuTe traced it: each element in shared
memory, tensor memory and registers carries which element of which operand it is. What must hold of C in the end:

* each C[m, n] is stored once, and nothing outside of C;
* it is the sum of the products A[m, k] B[n, k], each k < K once and nothing else, rounded once, to C's type;
* nothing outside of A and B is read but what TMA fills with zeros.

* `origins`: what an element is; `memory`: what holds elements; `sums`: accumulators, and what C needs
* `places`, `views`, `partitions`: addresses of views
* `follower`: one warp; `access`, `copies`, `multiply`, `barriers`: what its operations do
* `launch`: all warps of a launch; `problems`: which problems
"""

from __future__ import annotations

from typing import Any

from cookbook.check.pipeline.programs import Problem
from cookbook.check.pipeline.reading import Module
from cookbook.check.pipeline.shapes import CannotFollow
from cookbook.check.product import problems, scaling, takeover  # noqa: F401, their operations become known
from cookbook.check.product.follower import Fault
from cookbook.check.product.launch import Launch, launch
from cookbook.check.product.sums import Sums, verify

__all__ = ["CannotFollow", "Problem", "faults"]


def faults(module: Any, trace: Module, config: Any, problem: Problem) -> list[str]:
    """What is wrong with C after a launch, in words; nothing if it is A times B.

    Args:
        module: the recipe's.
        trace: what CuTe traced of it.
        config: the recipe's `Config`, the same.
        problem: the sizes.

    Raises:
        CannotFollow: the kernel does something that the checker does not know; the message names it and its line.
    """
    given = problems.given(module, trace, config, problem)
    going = Launch(given.operands, Sums(given.k, given.block), problem.sms, given.tables)
    try:
        launch(trace, given.arguments, going)
    except Fault as fault:
        return [str(fault)]
    return verify(going.sums, going.stored, given.factors)
