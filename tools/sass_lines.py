"""`python -m tools.sass_lines FOLDER`: wavefronts by line of Python, those of a trace next to those that ncu counted.

Where a Hopper GPU and ncu are, `--collect NAME ...` writes ncu's source page of a launch of each recipe into the
folder: the wavefronts of every SASS instruction. Then, on any machine, each kernel is compiled with
`--generate-line-info`, which leaves its machine code as it is and says the line of Python of every instruction. The
wavefronts of a line must be those that `cookbook.check.banks` counts in the trace. `--json` keeps them, for a test.

Where `cp.async` fills with zeros past the end of K, ncu counts copies that the trace knows to move nothing. They are
told by their number: such a line takes at least the wavefronts of the trace.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from cookbook.access import LANES
from cookbook.check import compiled, counted
from cookbook.check.banks import Count
from cookbook.check.counted import COUNTED_SHAPE
from cookbook.recipe import catalog
from cookbook.simulate.lines import Line
from tools.wavefronts import KINDS, traced

DTYPE, TARGET = "bfloat16", "sm_90a"
AT_ONCE = 8  # processes that share the GPU: most of their time is imports and compiling
KEPT = Path(__file__).parent.parent / "tests" / "wavefronts.json"
_FROM = re.compile(r'\s*//## File "(?P<file>[^"]+)", line (?P<line>\d+)')
_OPCODE = re.compile(r"\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)")
_PADDING = ("BRA", "NOP")  # what follows a kernel's last instruction

Key = tuple[Line, str]  # a line and a kind of instruction, of KINDS


@dataclass(frozen=True)
class Row:
    """The wavefronts of the instructions of one kind in one line, in one launch."""

    recipe: str
    variant: str
    function: str
    source: str
    what: str
    traced: int
    counted: int
    filling: int = 0  # cp.async that fill with zeros, which the trace leaves out

    @property
    def same(self) -> bool:
        return 0 <= self.counted - self.traced <= LANES * self.filling


def collect(folder: Path, names: list[str]) -> None:
    """Write ncu's page of a launch of each recipe, every variant one after the other."""

    def one(name: str) -> None:
        command = counted.launcher(name, DTYPE, [COUNTED_SHAPE], "tn")
        page = counted.profile(command, ["--section", "SourceCounters"], "source")
        _page(folder, name).write_text(needed(page))
        print(f"{name}: {len(counted.parse_kernels(page))} kernels", flush=True)

    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(one, names))


def needed(page: str) -> str:
    """A page with the columns that are read of it."""
    found, at = io.StringIO(), list[int]()
    write = csv.writer(found, lineterminator="\n")
    for row in csv.reader(io.StringIO(page)):
        at = [row.index(column) for column in counted.COLUMNS] if set(counted.COLUMNS) <= set(row) else at
        if at and len(row) > max(at):
            write.writerow([row[place] for place in at])
    return found.getvalue()


def _page(folder: Path, name: str) -> Path:
    return folder / f"{name.replace('/', '__')}.csv"


def rows_of(name: str, page: str, whole: bool = True) -> Iterator[Row]:
    """Compare each line of a recipe's variants on ncu's page with the trace.

    Args:
        whole: follow every cluster; else the first one, times their number, which must do the same work.

    Raises:
        ValueError: the page is of other machine code.
    """
    module, recipe = catalog.load(name), catalog.find(name)
    configs = recipe.product.variants(module, TARGET, DTYPE, "tn")
    for (variant, config), kernel in zip(configs.items(), counted.parse_kernels(page), strict=True):
        measured, executed = Counter[Key](), Counter[Key]()
        for line, kind, there in by_line(kernel, lines_of(module, config), f"{name} {variant}"):
            measured[line, kind] += there.wavefronts
            executed[line, kind] += there.executed
        followed, _ = traced(module, config, TARGET, DTYPE, COUNTED_SHAPE, whole)
        yield from _compared(name, variant, followed, measured, executed)


def by_line(
    kernel: list[counted.Line], listed: list[tuple[str, Line]], name: str
) -> Iterator[tuple[Line, str, counted.Line]]:
    """The line of Python and the kind of each instruction on ncu's page that may touch shared memory.

    Raises:
        ValueError: the page is of other machine code.
    """
    for there, here in zip_longest(kernel, listed):
        opcode = there.opcode if there else ""
        if here is None or (opcode != here[0] and (opcode or not here[0].startswith(_PADDING))):
            raise ValueError(f"page of {name}: got {opcode or 'its end'}; needed {here and here[0]}")
        if there and (kind := KINDS.get(opcode.split(".")[0])):
            yield here[1], kind, there


def _compared(
    name: str, variant: str, followed: Iterable[Count], measured: Counter[Key], executed: Counter[Key]
) -> Iterator[Row]:
    predicted, instructions = Counter[Key](), Counter[Key]()
    for one in followed:
        predicted[one.line, one.what] += one.wavefronts
        instructions[one.line, one.what] += one.instructions
    known = {what for _, what in predicted}
    for key in sorted(predicted.keys() | {key for key in measured if measured[key] and key[1] in known}):
        line, what = key
        filling = max(executed[key] - instructions[key], 0) if what == "cp.async" else 0
        yield Row(name, variant, line.function, line.source, what, predicted[key], measured[key], filling)


def lines_of(module: Any, config: Any) -> list[tuple[str, Line]]:
    """The opcode of each instruction of a kernel, and the line of Python that it is of."""
    with tempfile.TemporaryDirectory() as folder:
        options = f"--keep-cubin --dump-dir {folder} --generate-line-info"
        module.compile_for(TARGET, compiled.cutlass_dtype(DTYPE), config, options=options)
        (cubin,) = Path(folder).glob("*.cubin")
        return instructions(compiled.disassemble(cubin, "--print-line-info"))


def instructions(text: str) -> list[tuple[str, Line]]:
    """The opcode of each instruction of a listing with lines, and its line of Python."""
    found, line = [], Line()
    for each in text.splitlines():
        if at := _FROM.match(each):
            line = Line(int(at["line"]), at["file"])
        elif opcode := _OPCODE.match(each):
            found.append((opcode[1], line))
    return found


def main() -> int:
    """Print a line for each; 1 if two numbers differ."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="ncu's pages")
    parser.add_argument("names", nargs="*", help="recipes; all of the folder if left out")
    parser.add_argument("--collect", action="store_true", help="write the pages, on a GPU")
    parser.add_argument("--json", action="store_true", help=f"keep what was found in tests/{KEPT.name}")
    asked = parser.parse_args()
    if asked.collect:
        collect(asked.folder, asked.names)
        return 0
    names = asked.names or [file.stem.replace("__", "/") for file in sorted(asked.folder.glob("*.csv"))]
    rows = [row for name in names for row in rows_of(name, _page(asked.folder, name).read_text())]
    for row in rows:
        print("same  " if row.same else "DIFFER", *vars(row).values(), sep="  ")
    kernels = {(row.recipe, row.variant) for row in rows}
    equal = sum(row.same for row in rows)
    print(f"{equal} of {len(rows)} counts of {len(kernels)} kernels, line by line, are the same")
    if asked.json:
        KEPT.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return int(equal < len(rows))


if __name__ == "__main__":
    sys.exit(main())
