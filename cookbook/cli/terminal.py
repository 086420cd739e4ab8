"""Layouts in the terminal: grids whose cells have the colour of their banks, and the tables next to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text

from cookbook.cli.tables import Listing

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table

    from cookbook.atoms import Atom
    from cookbook.solve.design import Solution

GROUPS = (167, 173, 179, 107, 73, 75, 140, 175)  # one of the 256 terminal colours for each eighth of the banks
MAX_ROWS, MAX_COLUMNS = 16, 16


class Grid:
    """Rows of cells under numbered columns; as many columns side by side as the terminal is wide, the next below."""

    def __init__(self, title: str, heads: Sequence[str], rows: Sequence[tuple[str, Sequence[Text]]]) -> None:
        """rows: each with its label; all cells are equally wide."""
        self.title, self.heads, self.rows = title, heads, rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(self.title, style="bold", overflow="fold")
        wide = max(len(self.rows[0][1][0]), *(len(head) + 1 for head in self.heads))
        label = max(len(label) for label, _ in self.rows)
        abreast = max(1, (options.max_width - label) // wide)
        for first in range(0, len(self.heads), abreast):
            part = slice(first, first + abreast)
            yield Text(" " * label + "".join(f"{head:>{wide - 1}} " for head in self.heads[part]), style="dim")
            for name, cells in self.rows:
                padding = Text(" " * (wide - len(cells[0])))
                yield Text.assemble((f"{name:>{label}}", "dim"), *(x for cell in cells[part] for x in (padding, cell)))


def bank_grid(
    byte_addresses: np.ndarray,
    labels: np.ndarray,
    title: str,
    step: int = 1,
    banks: int = 32,
    bank_bytes: int = 4,
) -> Grid:
    """Cells that say `labels`, coloured by the eighth of the banks that their first byte lies in.

    Args:
        byte_addresses, labels: (rows, cells).
        step: what one cell counts for in the column heads.
    """
    rows, columns = min(MAX_ROWS, labels.shape[0]), min(MAX_COLUMNS, labels.shape[1])
    whole = f"{labels.shape[0]} x {labels.shape[1]}"
    shown = title if labels.shape == (rows, columns) else f"{title} (first {rows} x {columns} of {whole} cells)"
    width = max(len(str(v)) for v in labels[:rows, :columns].reshape(-1))
    cells = [
        (
            f"{row} ",
            [
                Text(f" {labels[row, c]:>{width}} ", style=_style(byte_addresses[row, c], banks, bank_bytes))
                for c in range(columns)
            ],
        )
        for row in range(rows)
    ]
    return Grid(shown, [str(column * step) for column in range(columns)], cells)


def bank_row(per_bank: Sequence[int], title: str) -> Grid:
    """Return how many words each bank has to give: one is green, none is dim, more is red."""
    styles, width = {0: "dim", 1: "green"}, max(2, *(len(str(count)) for count in per_bank))
    cells = [Text(f"{count:>{width}} ", style=styles.get(count, "bold red")) for count in per_bank]
    return Grid(title, [str(bank) for bank in range(len(per_bank))], [("", cells)])


def of_facts(rows: Sequence[tuple[str, str]]) -> Table:
    """Two columns: what, and what it is."""
    table = Listing.grid(padding=(0, 2))
    for name, value in rows:
        table.add_row(Text(name, style="dim"), Text(value))
    return table


def of_wavefronts(rows: Sequence[tuple[str, ...]], *columns: str) -> Listing:
    """Accesses with their counts; a count above the ideal, the last column, is red."""
    table = Listing(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    for name, *counts in rows:
        ideal = int(counts[-1])
        cells = [Text(c, style="green" if int(c) <= ideal else "bold red") for c in counts]
        table.add_row(Text(name), *cells)
    return table


def of_solution(found: Solution) -> list[Listing | Grid]:
    """The accesses' counts before and after, and the tile in the colours of its banks."""
    counts = zip(found.accesses, found.before, found.wavefronts, found.ideal, strict=True)
    rows = [(str(a), str(b), str(w), str(i)) for a, b, w, i in counts]
    grid = bank_grid(
        found.byte_offsets(),
        found.offsets,
        "element offsets, coloured by bank",
        banks=found.banks.count,
        bank_bytes=found.banks.bytes,
    )
    return [of_wavefronts(rows, "access", "plain", "now", "ideal"), grid]


def of_atom(atom: Atom) -> Grid:
    """The atom's 16-byte chunks: where each lies, by line and place along the contiguous mode."""
    table = atom.layout.byte_offsets()
    lines = table if atom.major == "K" else table.T
    per_chunk = 128 // atom.layout.element_bits
    starts = lines[:, ::per_chunk]
    along = "k" if atom.major == "K" else "mn"
    return bank_grid(starts, starts, f"byte address of each 16-byte chunk, by line and {along}", per_chunk)


def _style(address: int, banks: int, bank_bytes: int) -> str:
    group = int(address) // bank_bytes % banks * len(GROUPS) // banks
    return f"black on color({GROUPS[group]})"
