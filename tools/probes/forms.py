"""cp.async past L1 issued in several ways, to find out when the profiler counts what it writes to shared memory.

Behind a predicate ncu often says 0 wavefronts for LDGSTS.BYPASS; in a GEMM it says 4, of the same SASS mnemonic. What
else differs there: the bytes to read are an operand and no predicate guards it; the wait comes much later, with other
instructions between; several warps and many CTAs run. Here one changes at a time, on the same few pairs. Each copy is
made twice, so that its data comes from memory first and from L2 after. The tables use the form with no guard at all,
which is counted every time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from cookbook.check.counted import Line
from tools.probes.instructions import BY_NAME, Instruction
from tools.probes.pairs import Pair, pairs_of

__all__ = ["FORMS", "Form", "figures", "table"]

SHOWN = (  # of `pairs.pairs_of`: (layout, access)
    ("adjacent vectors", "in order from adjacent global memory"),
    ("adjacent vectors", "in order from rows of 4 lanes in global memory"),
    ("128-byte rows, S<3,4,3>", "rows from adjacent global memory"),
    ("128-byte rows, S<0,4,3>", "a column from adjacent global memory"),
)


@dataclass(frozen=True)
class Form:
    """One kernel: how the instruction is issued, and by how many."""

    name: str
    instruction: Instruction
    ctas: int = 1
    warps: int = 1

    @property
    def held(self) -> bool:
        """True if it must be counted, and as predicted: one warp, issued as in the tables or through L1."""
        as_in_tables = self.instruction == BY_NAME[self.instruction.name]
        return self.executions == 1 and (as_in_tables or not self.instruction.past_l1)

    @property
    def executions(self) -> int:
        return self.ctas * self.warps


def table(form: Form) -> list[Pair]:
    """The pairs that a form issues: those of SHOWN, each as a first copy and again."""
    found = {(pair.layout, pair.access): pair for pair in pairs_of(BY_NAME[form.instruction.name])}
    shown = [(layout, f"{name}{again}") for layout, name in SHOWN for again in ("", ", read before")]
    return [replace(found[key], instruction=form.instruction) for key in shown]


def _forms() -> tuple[Form, ...]:
    bare, through = BY_NAME["LDGSTS.E.BYPASS.LTC128B.128"], BY_NAME["LDGSTS.E.128"]
    sized, later = {"guard": "size"}, {"waits": False}
    past = replace(bare, guard="predicate")
    as_gemm = replace(past, **sized, **later)
    return (
        Form("behind a predicate", past),
        Form("no guard, as in the tables", bare),
        Form("size as operand", replace(past, **sized)),
        Form("one wait at the end", replace(past, **later)),
        Form("size as operand, one wait", as_gemm),
        Form("8 warps", past, 1, 8),
        Form("132 CTAs", past, 132, 1),
        Form("132 CTAs of 8 warps", past, 132, 8),
        Form("size as operand, one wait, 8 warps", as_gemm, 1, 8),
        Form("size as operand, one wait, 132 CTAs of 8 warps", as_gemm, 132, 8),
        Form("through L1", through),
        Form("through L1, size as operand, one wait", replace(through, **sized, **later)),
    )


FORMS = _forms()


def figures(counted: Sequence[Sequence[Line]]) -> dict[str, Any]:
    """Return what a record keeps: of every form the wavefronts of one execution, pair by pair, against the predicted
    ones.

    `probes` and `mismatches` are of the forms that must be as predicted; the others are there to be looked at.
    """
    rows, mismatches, probes = [], 0, 0
    for form, lines in zip(FORMS, counted, strict=True):
        predicted = [pair.predicted for pair in table(form)]
        each = [line.wavefronts / line.executed for line in lines]
        rows.append(
            {
                "form": form.name,
                "instruction": form.instruction.name,
                "ctas": form.ctas,
                "warps": form.warps,
                "wavefronts": each,
                "ideal": [line.ideal / line.executed for line in lines],
                "predicted": predicted,
            }
        )
        if form.held:
            probes += len(each)
            mismatches += sum(w != p for w, p in zip(each, predicted, strict=True))
    return {
        "counter": "by SASS line",
        "unit": "copies, in the forms that must be as predicted",
        "probes": probes,
        "mismatches": mismatches,
        "pairs": [f"{layout}: {name}" for layout, name in SHOWN],
        "forms": rows,
    }
