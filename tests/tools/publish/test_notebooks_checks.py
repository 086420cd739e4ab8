"""A notebook's check cell looks at the cells above it: an edit there that breaks the kernel fails there, with a reason.

Each notebook runs in one kernel, as a reader has it: all its code as it is, then one cell edited and run again.
"""

from __future__ import annotations

import re

import pytest

from cookbook.recipe import catalog, imports
from tools.publish import notebooks

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
CHECK = "lab.check_cells("
SOUND, BROKEN = "make_swizzle(bits, 4, 3)", "make_swizzle(0, 4, 3)"
GUARD = ("if cute.elem_less(tCcC[0, m, n], limit):", "if tCcC[0, m, n][0] >= 0:")
LINE = r"line \d+ of \w+ in cell In\[\d+\]"
ANY_LINE = r"line \d+ of \w+"  # of a cell, or of what a page imports
RACE = rf"^  pipeline .*: race: CTA 0 warp \d+ in {ANY_LINE} .* need not be over before CTA 0 warp \d+ in {LINE}"
SUM = r"^  product .*: C\[\d+, \d+\]: got a sum with A\[\d+, \d+\].*; needed "
OUTSIDE = r"^  product .*: C: got a store to row \d+, column 0; needed one inside: C is \d+ x \d+"
# What a reader may break in each notebook: the sound text, the broken one, and what the check says of it.
FAULTS = {
    "ampere/ldmatrix_gemm": {
        "a dropped wait": (
            "    cute.arch.cp_async_wait_group(stages - 2)\n    cute.arch.sync_threads()",
            "    cute.arch.sync_threads()",
            RACE,
        ),
        "a wrong k index": ("x.smem[None, None, k, stage]", "x.smem[None, None, 0, stage]", SUM),
        "a dropped guard": (*GUARD, OUTSIDE),
    },
    "hopper/tma_wgmma_gemm": {
        "a dropped wait": (
            "    for _ in cutlass.range(k_tiles - 1, unroll=1):\n        pipe.consumer_wait(read)\n",
            "    for _ in cutlass.range(k_tiles - 1, unroll=1):\n",
            RACE,
        ),
        "a wrong k index": ("tCrB[None, None, k, stage]", "tCrB[None, None, 0, stage]", SUM),
        "a dropped guard": (*GUARD, OUTSIDE),
    },
    "blackwell/tma_tcgen05_gemm": {
        "a dropped wait": ("        pipe.consumer_wait(read)\n", "", RACE),
        "a wrong k index": ("tCrB[None, None, k, read.index]", "tCrB[None, None, 0, read.index]", SUM),
        "a dropped guard": (*GUARD, OUTSIDE),
    },
}
TARGETS = {"ampere/ldmatrix_gemm": "sm_80", "hopper/tma_wgmma_gemm": "sm_90a", "blackwell/tma_tcgen05_gemm": "sm_100a"}


class Session:
    """The code of a recipe's notebook, without the lab's but for the check, in a kernel of its own."""

    def __init__(self, name: str) -> None:
        notebook = notebooks.from_recipe(name)
        notebook.cells = [cell for cell in notebook.cells if cell.cell_type == "code" and self._wanted(cell)]
        self.notebook, self.name = notebook, name
        self.client = nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3")
        (self.check,) = (cell for cell in notebook.cells if CHECK in cell.source)
        call = re.sub(r", targets=.*?\]", "", self.check.source)
        self.check.source = (
            f'from cookbook import lab\n{call.rstrip()[:-1]}, targets=["{TARGETS[name]}"])'  # one is enough here
        )

    @staticmethod
    def _wanted(cell) -> bool:
        return "lab" not in cell.metadata.get("tags", []) or CHECK in cell.source

    def run(self, cell) -> str:
        """Run a cell; what it printed."""
        self.client.execute_cell(cell, self.notebook.cells.index(cell))
        return "".join(output.get("text", "") for output in cell.outputs)

    def cell_with(self, text: str):
        """The cell that holds a text. What a page imports a reader brings in: in a cell of its own, which is run."""
        found = [cell for cell in self.notebook.cells if text in cell.source]
        if not found:
            source = catalog.find(self.name).file.read_text(encoding="utf-8")
            known = [each for group in imports.groups(source) for each in group.definitions]
            (name,) = (name for each in known if text in each.text for name in each.names)
            found = [nbformat.v4.new_code_cell(imports.needed_to_change(source, name))]
            self.notebook.cells.insert(self.notebook.cells.index(self.check), found[0])
            self.run(found[0])
        (cell,) = found
        return cell

    def checked(self) -> tuple[str, str]:
        """Run the check; what it printed, and the message that it raised, if it did."""
        try:
            return self.run(self.check), ""
        except nbclient.exceptions.CellExecutionError as error:
            assert error.ename == "CheckFailed"
            return "".join(output.get("text", "") for output in self.check.outputs), error.evalue


QUICK = "hopper/tma_wgmma_gemm"


@pytest.fixture(params=[pytest.param(name, marks=() if name == QUICK else pytest.mark.slow) for name in TARGETS])
def session(request):
    """Every cell above the check has run."""
    made = Session(request.param)
    with notebooks._without_gpu(), made.client.setup_kernel(cwd=str(catalog.recipes_root().parent)):
        for cell in made.notebook.cells:
            if cell is not made.check:
                made.run(cell)
        yield made


def test_edit_of_a_cell_fails_the_check_below_it_and_says_why(session):
    printed, raised = session.checked()
    assert raised == ""
    assert f"Checked: the cells above: the code of {session.name}." in printed
    assert re.search(r"^layout .*passed", printed, re.M) and re.search(r"^compiled .*passed", printed, re.M)

    cell = session.cell_with(SOUND)
    cell.source = cell.source.replace(SOUND, BROKEN)
    session.run(cell)
    printed, raised = session.checked()
    assert f"Checked: the cells above: smem_atom differs from {session.name}." in printed
    assert re.search(r"^layout .*failed", printed, re.M)
    assert re.search(r"^  layout .*: \S+\.wavefronts: \d+ \w+ take \d+ wavefronts each \(ideal \d+\)", raised, re.M), (
        raised
    )
    assert not re.search(r"^(ran|timed|counted|sanitized) .*(passed|recorded)", printed, re.M)

    cell.source = cell.source.replace(BROKEN, SOUND)
    session.run(cell)
    assert session.checked()[1] == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_what_a_reader_may_break_is_caught_below_it(name):
    made = Session(name)
    with notebooks._without_gpu(), made.client.setup_kernel(cwd=str(catalog.recipes_root().parent)):
        for cell in made.notebook.cells:
            if cell is not made.check:
                made.run(cell)
        for fault, (sound, broken, said) in FAULTS[name].items():
            cell = made.cell_with(sound)
            as_it_was = cell.source
            cell.source = as_it_was.replace(sound, broken)
            made.run(cell)
            raised = made.checked()[1]
            assert re.search(said, raised, re.M), f"{fault}: {raised or 'nothing was raised'}"
            cell.source = as_it_was
            made.run(cell)
        assert made.checked()[1] == ""
