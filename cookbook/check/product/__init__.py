"""Find what a kernel computes: follow its own trace to C, with where each element came from, and no values.

`compute` follows every warp of every CTA of a launch of a small problem, as CuTe traced it: each element in shared
memory, tensor memory and registers carries which element of which operand it is. What must hold of C in the end:

* each C[m, n] is stored once, and nothing outside of C; of a grouped GEMM no row that is of no group;
* of groups along K, the k of its group and no others, and no element outside of it meets even a zero;
* it is the sum of the products A[m, k] B[n, k], each k < K once and nothing else, rounded once, to C's type;
* nothing outside of A and B is read but what TMA fills with zeros;
* of a kernel that takes `amax`, the largest |C[m, n]|: each C[m, n] takes part in it, as stored, and nothing else.

* `origins`: what an element is; `memory`: what holds elements; `sums`: accumulators, and what C needs
* `follower`: one warp; `access`, `copies`, `multiply`, `tensor_cores`, `barriers`: what it does
* `algebra`: arithmetic on elements; `bits`, `words`: on words, bit by bit
* `maxima`: the largest |C[m, n]|
* `launch`: all warps of a launch; `problems`: which problems
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cookbook.check.findings import Finding
from cookbook.check.pipeline.programs import Problem
from cookbook.check.pipeline.run import Run
from cookbook.check.product.launch import Launch, launch
from cookbook.check.product.problems import Case, Corner, cases, given
from cookbook.check.product.sums import Sums, verify
from cookbook.simulate.values import CannotFollow, Fault

__all__ = ["CannotFollow", "Case", "Computed", "Corner", "Problem", "cases", "compute", "computed", "findings"]


@dataclass(frozen=True)
class Computed:
    """The result of a launch."""

    problem: Problem
    stores: int  # elements of C that were stored
    tiles: int  # MMAs, of a warp or of a CTA
    faults: tuple[str, ...]  # in words
    touched: Mapping[str, int] = field(default_factory=dict)  # bytes of memory that CTAs share, up to the last touched

    @property
    def ok(self) -> bool:
        return not self.faults


def compute(run: Run, case: Case) -> Computed:
    """Return what a kernel computes of a problem.

    Args:
        run: the kernel.
        case: a problem, and what is unusual of its operands.

    Raises:
        CannotFollow: the kernel does something that the checker does not know; the message names it and its line.
    """
    trace = run.traced(case.config, case.options)
    known = given(run, trace, case)
    going = Launch(known.operands, Sums(known.k, known.block, known.middle), case.problem.sms)
    going.scratch, going.words = known.scratch, known.words
    try:
        launch(trace, known.arguments, going)
        faults = verify(going.sums, going.stored, known.further, known.owners, known.parts)
        faults += [said for one in going.scratch for said in one.faults(going.stored)]
    except Fault as fault:
        faults = [str(fault)]
    touched = {one.name: 4 * len(one.words) for one in going.scratch}
    return Computed(case.problem, going.stored.count, len(going.sums.tiles), tuple(faults), touched)


def computed(run: Run, every: bool = True) -> list[Computed]:
    """Return what a kernel computes of each of `cases`, up to the first with a fault.

    Args:
        run: the kernel.
        every: all problems; else the smallest alone.

    Raises:
        CannotFollow: as `compute`.
    """
    found: list[Computed] = []
    chosen = cases(run.module, run.config, run.product)
    for case in chosen if every else chosen[1:2]:
        found.append(compute(run, case))
        if not found[-1].ok:
            break
    return found


def findings(found: list[Computed]) -> list[Finding]:
    """Return what was computed, as lines of a level."""
    return [
        Finding(str(one.problem), one.ok, "\n".join(one.faults) or f"{one.stores} stores, {one.tiles} MMAs")
        for one in found
    ]
