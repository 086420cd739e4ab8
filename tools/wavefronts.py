"""`python -m tools.wavefronts [NAME ...]`: wavefronts of traced kernels next to those that Nsight Compute counted.

`cookbook.check.banks` counts from the trace, with no GPU: each access of shared memory that a warp makes, lane by lane.
The records of level *counted* hold what ncu counted on a GPU for a whole launch of the same kernel. Both must be equal.

ncu counts by SASS opcode. A vector load of the trace may become several instructions, which take as many wavefronts
together. Zero-filled `cp.async` past the end of K, which a trace knows to move nothing, are taken off. Those past L1
that ncu did not count at all ("not_counted" in a record) are added.
Not compared: a kind of which the trace cannot count each instruction, as `cp.async` from an address that is not known,
and grouped GEMMs, whose groups were others. A load of the same addresses again the compiler may leave out: such a kind
is the same within these.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from cookbook.check import banks, compiled, pipeline
from cookbook.measure import records
from cookbook.recipe import catalog, grouped
from cookbook.recipe.majors import DEFAULT, configured
from cookbook.simulate.lines import Line
from cookbook.simulate.trace import Operation
from cookbook.simulate.values import UNKNOWN, CannotFollow, View

KINDS = {"LDGSTS": "cp.async", "LDSM": "ldmatrix", "STSM": "stmatrix", "STS": "st", "LDS": "ld"}
SMS = 132  # of the GPUs that counted: as many CTAs as a persistent kernel has


@dataclass(frozen=True)
class Row:
    """The wavefronts of one kind of instruction in one launch."""

    recipe: str
    variant: str
    device: str
    what: str
    predicted: int
    counted: int
    spared: int = 0  # loads that the compiler need not repeat

    @property
    def same(self) -> bool:
        return self.predicted - self.spared <= self.counted <= self.predicted


def rows_of(name: str, record: dict[str, Any], whole: bool = True) -> Iterator[Row]:
    """The kinds of instructions of each variant in a record.

    Args:
        whole: follow every cluster; else the first one, times their number, which must do the same work.

    Raises:
        CannotFollow: the kernel does something that is not followed.
    """
    module = catalog.load(name)
    nested = all(isinstance(value, dict) for value in record["config"].values())
    for variant in record["config"] if nested else [""]:
        base = module.VARIANTS[variant] if variant else compiled.config_for(module, record["target"])
        config = configured(base, record.get("majors") or DEFAULT)
        found, spared = traced(module, config, record["target"], record["dtype"], tuple(record["shape"]), whole)
        predicted: Counter[str] = Counter()
        for one in found:
            predicted[one.what] += one.wavefronts
        measured = _counted(record["figures"], variant)
        for what in sorted(predicted):
            again = spared if what == "ld" else 0
            yield Row(name, variant, record["device"], what, predicted[what], measured[what], again)


class Whole(banks.Counter):
    """Says besides which kinds it could not count whole, and which loads need not be executed."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.left_out: set[str] = set()  # kinds of which some instruction could not be counted
        self.spared = 0  # wavefronts of loads of the same addresses again, which the compiler need not repeat
        self.loaded: set[tuple[Line, bytes]] = set()

    def copy(self, op: Operation, source: View, target: View, bits: int, mask: Any, later: bool) -> None:
        if later and source.pointer.address is UNKNOWN:
            self.left_out.add("cp.async")
        super().copy(op, source, target, bits, mask, later)

    def load(self, op: Operation, view: View) -> Any:
        value = super().load(op, view)
        if view.pointer.space == "smem" and view.layout.size == 1:
            asked = op.line, np.where(self.active[:, None], view.addresses(), -1).tobytes()
            if asked in self.loaded:
                self.spared += self.found[op.line, "ld", max(view.bits // 8, 1)][-1].wavefronts
            self.loaded.add(asked)
        return value


@cache
def traced(
    module: Any, config: Any, target: str, dtype: str, shape: tuple[int, int, int], whole: bool = True
) -> tuple[tuple[banks.Count, ...], int]:
    """Return what a whole launch takes by line and kind, from the trace, and the loads that may be spared.

    Raises:
        CannotFollow: the kernel does something that is not followed.
    """
    run, problem = pipeline.Run(module, target, compiled.cutlass_dtype(dtype), config), pipeline.Problem(*shape, SMS)
    made = run.launched(problem)
    clusters = int(np.prod(made.grid)) // made.ctas
    numbers = range(clusters if whole else 1)
    found: list[banks.Count] = []
    left_out: set[str] = set()
    spared = 0
    for number in numbers:
        warps = run.warps(problem, number, Whole)
        found += banks.counted(warps)
        left_out = left_out.union(*(warp.left_out for warp in warps))
        spared += sum(warp.spared for warp in warps)
    times = 1 if whole else clusters
    return tuple(one for one in found * times if one.what not in left_out), spared * times


def _counted(figures: dict[str, Any], variant: str) -> Counter[str]:
    found: Counter[str] = Counter()
    apart: Counter[str] = Counter()
    for name, each in figures.items():
        kind = KINDS.get(name.removeprefix(variant).split(".")[0].strip())
        if kind and name.startswith(variant):
            found[kind] += each["wavefronts"]
            apart[kind] += each.get("of_zero_filled", 0)
            found[kind] += (each["predicted_each"] or 0) * each.get("not_counted", 0)
    return found - apart


def compared() -> list[str]:
    """The recipes whose kernels were counted, and of which a trace counts the same work."""
    gemms = (recipe.name for recipe in catalog.recipes() if recipe.product.is_gemm)
    counted_ones = (name for name in gemms if any(r["status"] == "passed" for r in records.select(name, "counted")))
    return [name for name in counted_ones if not grouped.takes_groups(catalog.load(name))]


def main() -> int:
    """Print a line for each kind of instruction; 1 if two numbers differ, 2 if a kernel was not followed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="recipes; all that have a record of level counted if left out")
    asked = parser.parse_args()
    names = asked.names or compared()
    status = 0
    found: list[Row] = []
    for name in names:
        for record in records.select(name, "counted"):
            if record["status"] != "passed":
                continue
            try:
                for row in rows_of(name, record):
                    found.append(row)
                    print("same  " if row.same else "DIFFER", *vars(row).values(), sep="  ", flush=True)
            except CannotFollow as error:
                status = 2
                print(f"not followed: {name}: {error}", flush=True)
    equal = sum(row.same for row in found)
    kernels = {(row.recipe, row.variant) for row in found}
    print(f"{equal} of {len(found)} counts of {len(kernels)} kernels are the same")
    return status or int(equal < len(found))


if __name__ == "__main__":
    sys.exit(main())
