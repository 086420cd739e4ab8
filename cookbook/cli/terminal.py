"""Layouts in the terminal: grids whose cells have the colour of their banks, and the tables next to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from cookbook.atoms import Atom
    from cookbook.solve.design import Solution

GROUPS = (167, 173, 179, 107, 73, 75, 140, 175)  # one of the 256 terminal colours for each eighth of the banks
MAX_ROWS, MAX_COLUMNS = 16, 16


def bank_grid(
    byte_addresses: np.ndarray,
    labels: np.ndarray,
    title: str,
    step: int = 1,
    banks: int = 32,
    bank_bytes: int = 4,
) -> Table:
    """Cells that say `labels`, coloured by the eighth of the banks that their first byte lies in.

    Args:
        byte_addresses, labels: (rows, cells).
        step: what one cell counts for in the column heads.
    """
    rows, columns = min(MAX_ROWS, labels.shape[0]), min(MAX_COLUMNS, labels.shape[1])
    whole = f"{labels.shape[0]} x {labels.shape[1]}"
    shown = title if labels.shape == (rows, columns) else f"{title} (first {rows} x {columns} of {whole} cells)"
    table = Table(box=None, title=shown, title_justify="left", title_style="bold", pad_edge=False, padding=0)
    table.add_column("", justify="right", style="dim")
    width = max(len(str(v)) for v in labels[:rows, :columns].reshape(-1))
    for column in range(columns):
        table.add_column(str(column * step), justify="right", header_style="dim", min_width=width + 2)
    for row in range(rows):
        cells = [
            Text(f" {labels[row, c]:>{width}} ", style=_style(byte_addresses[row, c], banks, bank_bytes))
            for c in range(columns)
        ]
        table.add_row(f"{row} ", *cells)
    return table


def bank_row(per_bank: Sequence[int], title: str) -> Table:
    """How many words each bank has to give: one is green, none is dim, more is red."""
    table = Table(box=None, title=title, title_justify="left", title_style="bold", pad_edge=False, padding=0)
    for bank in range(len(per_bank)):
        table.add_column(str(bank), justify="right", header_style="dim", min_width=3)
    styles = {0: "dim", 1: "green"}
    table.add_row(*(Text(f"{count:>2} ", style=styles.get(count, "bold red")) for count in per_bank))
    return table


def of_facts(rows: Sequence[tuple[str, str]]) -> Table:
    """Two columns: what, and what it is."""
    table = Table.grid(padding=(0, 2))
    for name, value in rows:
        table.add_row(Text(name, style="dim"), Text(value))
    return table


def of_wavefronts(rows: Sequence[tuple[str, ...]], *columns: str) -> Table:
    """Accesses with their counts; a count above the ideal, the last column, is red."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    for name, *counts in rows:
        ideal = int(counts[-1])
        cells = [Text(c, style="green" if int(c) <= ideal else "bold red") for c in counts]
        table.add_row(name, *cells)
    return table


def of_solution(found: Solution) -> list[Table]:
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


def of_atom(atom: Atom) -> Table:
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
