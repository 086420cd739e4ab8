"""The commands about layouts: swizzle explain, design and solve; atom; banks; draw.

Each answers in words and colours, or with --json. A request that no layout serves is answered with the proof
and exit status 1; a wrong argument is exit status 2.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cookbook.cli.console import say, show, show_json
from cookbook.cli.usage import Json, OneLine, of_library, whole

if TYPE_CHECKING:
    import numpy as np

    from cookbook.solve.design import Solution
    from cookbook.solve.instructions import Pattern
    from cookbook.swizzle import Swizzle

swizzle_app = typer.Typer(
    name="swizzle",
    cls=OneLine,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Explain, design and solve for swizzles.",
)

Bits = Annotated[
    int, typer.Option("--bits", parser=whole, metavar="N", help="Bits of an element: 8, 16, 32, 64 or 128.")
]
BankCount = Annotated[int, typer.Option("--banks", parser=whole, metavar="N", help="How many banks; a toy GPU has 8.")]
Tile = Annotated[str, typer.Option("--tile", metavar="RxC", help="Rows x columns of a row-major tile, in elements.")]
Accesses = Annotated[
    list[str],
    typer.Option(
        "--access",
        metavar="[NAME@]RxC[/RSxCS]",
        help="What one instruction of a warp asks for. As an instruction: NAME@RxC, such as ldmatrix.x4@16x16, "
        "ld128@32x8, st64@8x8/down; names: ld8 to ld128, st8 to st128, cp.async4, cp.async8, cp.async16, ldmatrix.x1, "
        ".x2, .x4, stmatrix alike, ldmatrix.m16n16.x2.trans.b8; /RSxCS: steps in rows and vectors; /down: lanes run "
        "down the rows. As elements: "
        "RxC[/RSxCS], along the rows in vectors of up to 16 bytes (so no ldmatrix, which takes 8 rows at a time). As a "
        "basis of element offsets: 1,33,66. Repeatable.",
    ),
]
Swizzled = Annotated[
    str | None, typer.Option("--swizzle", metavar="B,M,S", help="A swizzle of byte addresses, such as 3,4,3.")
]
Unit = Annotated[str, typer.Option("--unit", metavar="UNIT", help="What the given swizzle counts: bytes or elements.")]


OPTIONS = {  # that give the parameters of the library
    "element_bits": "--bits",
    "tile": "--tile",
    "shape": "--tile",
    "offsets": "--tile",
    "accesses": "--access",
    "access": "--access",
    "banks": "--banks",
    "count": "--banks",
    "vector_elements": "--vector",
    "row_elements": "--row",
    "major": "--major",
    "arch": "--arch",
    "path": "--output",
    "bits": "B",
    "base": "M",
    "shift": "S",
    "bits, base, shift": "B, M, S",
    "bits, base": "B, M",
}
OF_SWIZZLE = OPTIONS | dict.fromkeys(("bits", "base", "shift", "bits, base, shift", "bits, base"), "--swizzle")
MOST_CELLS = 4096  # of a table of `swizzle explain`
MOST_ELEMENTS = 1 << 16  # of a tile
MOST_PITCH = 1 << 24  # elements: far beyond shared memory, and no address overflows


def attach(app: typer.Typer) -> None:
    """Put these commands on the `cookbook` command."""
    app.add_typer(swizzle_app)
    app.command(epilog="Example: cookbook atom --major K --bits 16 --tile 128x64")(atom)
    app.command(epilog="Example: cookbook banks --tile 128x64 --bits 16 --access ldmatrix.x4@16x16 --swizzle 3,4,3")(
        banks
    )
    app.command(epilog="Example: cookbook draw layout --tile 8x32 --bits 32 --swizzle 3,4,3 --access 8x4 -o x.svg")(
        draw
    )


# --- swizzle ----------------------------------------------------------------------------------------------------


@swizzle_app.command(
    epilog="Example: cookbook swizzle explain 3 4 3 --bits 16",
    context_settings={"ignore_unknown_options": True},  # a negative S is no option
)
def explain(
    numbers: Annotated[
        list[str],
        typer.Argument(
            metavar="B M S",
            help="Of Swizzle<B,M,S>, with spaces or commas between: how many bits are XORed, the lowest that changes "
            "(2^M stay together), and how far above the bits lie that are XORed in.",
        ),
    ],
    bits: Annotated[
        int, typer.Option("--bits", parser=whole, metavar="N", help="Bits of an element, a power of two: 4, 8, 16, ...")
    ] = 16,
    unit: Unit = "bytes",
    as_json: Json = False,
) -> None:
    """Say what Swizzle<B,M,S> does, in bytes and in elements, and draw both."""
    with of_library(OPTIONS):
        in_bytes, in_elements, why_not = _both(_parsed(",".join(numbers), "B, M, S"), bits, unit)
    if as_json:
        show_json(_explained_json(in_bytes, in_elements, why_not, bits))
        return
    from cookbook.cli import terminal

    show(terminal.of_facts(_explained(in_bytes, in_elements, why_not, bits)))
    tables = [(in_bytes, 1.0, f"{in_bytes!r} on byte addresses")]
    if in_elements is not None:
        tables.append((in_elements, bits / 8, f"{in_elements!r} on offsets of {bits}-bit elements"))
    for swizzle, size, title in tables:
        show("")
        if _cells_of(swizzle) > MOST_CELLS:
            show(f"{title}: a table of {_cells_of(swizzle)} cells is not drawn, for more than {MOST_CELLS}")
        else:
            show(terminal.bank_grid(*_table(swizzle, size, title)))


@swizzle_app.command(epilog="Example: cookbook swizzle design --row 64 --bits 16 --vector 8")
def design(
    row: Annotated[int, typer.Option("--row", parser=whole, metavar="N", help="Elements of a row, a power of two.")],
    bits: Bits = 16,
    vector: Annotated[
        int, typer.Option("--vector", parser=whole, metavar="N", help="Elements that one lane moves: 16 bytes at most.")
    ] = 1,
    as_json: Json = False,
) -> None:
    """The swizzle that frees the row store and the column read of a row-major tile, and its CuTe code."""
    from cookbook.solve import design as designer

    with of_library(OPTIONS):
        found = designer.column_swizzle(row, bits, vector)
        counts = designer.column_counts(found, row, bits, vector)
    in_bytes = found.in_bytes(bits)
    code, more = designer.column_code(found, row, bits), _solve_command(row, bits, vector)
    if as_json:
        said = {name: {"plain": before, "now": now, "ideal": ideal} for name, (before, now, ideal) in counts.items()}
        numbers = {"in_elements": _numbers(found), "in_bytes": _numbers(in_bytes)}
        show_json(numbers | {"wavefronts": said, "cute_code": code, "other_accesses": more})
        return
    from cookbook.cli import terminal

    show(terminal.of_facts([("swizzle", in_bytes.both(bits)), ("TMA", _tma(in_bytes))]))
    rows_shown = [(name, *map(str, counted)) for name, counted in counts.items()]
    show(terminal.of_wavefronts(rows_shown, "32 lanes", "plain", "now", "ideal"))
    show(_code(code))
    show(f"For other accesses: {more}")


def _solve_command(row: int, bits: int, vector: int) -> str:
    """The command that asks for the same as `design`, to which accesses can be added."""
    if 32 * row > MOST_ELEMENTS:
        return f"cookbook swizzle solve, of tiles of up to {MOST_ELEMENTS} elements"
    along = min(row, 32 * vector)
    store, load = f"st{vector * bits}@{32 * vector // along}x{along}", f"ld{vector * bits}@32x{vector}"
    tile = f"{max(32, 32 * vector // along)}x{row}"
    return f"cookbook swizzle solve --tile {tile} --bits {bits} --access {store} --access {load} --access ..."


@swizzle_app.command(
    epilog="Example: cookbook swizzle solve --tile 128x64 --bits 16 --access ldmatrix.x4@16x16 --access cp.async16@4x64"
)
def solve(
    tile: Tile,
    accesses: Accesses,
    bits: Bits = 32,
    vector: Annotated[
        int | None,
        typer.Option(
            "--vector", parser=whole, metavar="N", help="Elements that must stay together, if more than accesses share."
        ),
    ] = None,
    bank_count: BankCount = 32,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Whether to check a proof that none exists.")
    ] = True,
    as_json: Json = False,
) -> None:
    """Find the address map that serves all accesses without a conflict, or prove that there is none."""
    from cookbook.solve import design as designer

    with of_library(OPTIONS):
        shape, wanted = _pair(tile, "--tile"), [_access(text) for text in accesses]
        try:
            found = designer.solve(shape, bits, wanted, vector_elements=vector, banks=bank_count)
        except designer.Unsolvable as error:
            _show_unsolvable(error, as_json, check)
            raise typer.Exit(1) from None
    if as_json:
        show_json(_solution_json(found))
        return
    from cookbook.cli import terminal

    show(f"{found}")
    for part in terminal.of_solution(found):
        show(part)
    for note in _notes(wanted, bits, bank_count):
        show(note)
    show("")
    code = found.cute_code()
    if found.smem_layout is not None and bits in designer.DTYPES:
        code = designer.kernel_code(found.smem_layout)
    show(_code(code))


def _notes(accesses: list[Pattern], bits: int, bank_count: int) -> list[str]:
    """Note that blocks which may be meant as an ldmatrix are counted as something else."""
    from cookbook.solve.patterns import Block

    found = []
    for access in accesses:
        if bank_count != 32 or not isinstance(access, Block) or (access.row_step, access.column_step) != (1, 1):
            continue
        chunks, rest = divmod(access.columns * bits, 128)
        num = access.rows // 8 * chunks
        if not rest and not access.rows % 8 and num in (1, 2, 4):
            found.append(f"{access} is taken along its rows; an ldmatrix of it is ldmatrix.x{num}@{access}")
    return found


# --- atom, banks, draw ------------------------------------------------------------------------------------------


def atom(
    major: Annotated[str, typer.Option("--major", metavar="MAJOR", help="K or MN: which mode is contiguous.")],
    tile: Annotated[str, typer.Option("--tile", metavar="MNxK", help="The tile, in elements.")],
    bits: Annotated[int, typer.Option("--bits", parser=whole, metavar="N", help="Bits of an element: 4 to 32.")] = 16,
    arch: Annotated[
        str,
        typer.Option(
            "--arch",
            metavar="ARCH",
            help="sm_80, sm_86, sm_89, sm_120 (ldmatrix), sm_90 (wgmma), or sm_100, sm_103, sm_110 (tcgen05).",
        ),
    ] = "sm_100",
    as_json: Json = False,
) -> None:
    """The shared-memory atom of an MMA operand, why, what reads it, and the CuTe code of the tile's layout."""
    from cookbook import atoms, descriptors

    with of_library(OPTIONS):
        shape = _pair(tile, "--tile")
        chosen = atoms.select(major, bits, shape, arch)
        reader = atoms.reader(arch, major, bits)
        laid_out = (shape[0], shape[1] // 2) if bits == 4 else shape  # two elements in a byte
        layout, code = atoms.tile(chosen, laid_out), atoms.cute_code(chosen, laid_out)
        fields, word = [], None
        if "ldmatrix" not in reader:
            # A descriptor is of one instruction, whose N is 256 at most and M 64 (wgmma) or 128.
            rows = min(shape[0], 64 if reader == "wgmma" else 128)
            descriptor = atoms.descriptor(layout, major, arch, rows=rows)
            fields, word = descriptors.field_table(descriptor), descriptor.encode()
    if as_json:
        said = {"name": chosen.name, "reason": chosen.reason, "swizzle": _numbers(chosen.layout.swizzle)}
        outer = {"shape": chosen.layout.outer.shape, "stride": chosen.layout.outer.stride}
        outer["element_bits"] = chosen.layout.element_bits
        shown = [dict(zip(("field", "bits", "value", "encoded"), row, strict=True)) for row in fields]
        said |= {"read_by": reader, "atom": outer, "descriptor": shown, "cute_code": code}
        show_json(said | {"descriptor_bits": None if word is None else hex(word)})
        return
    from cookbook.cli import terminal

    units = "swizzle in bytes, strides in " + ("bytes" if bits == 4 else "elements")
    layout_text = f"{chosen.layout.swizzle!r} o 0 o {chosen.layout.outer!r}: {units}"
    facts = [("atom", chosen.name), ("layout", layout_text), ("swizzle", chosen.layout.swizzle.both(bits))]
    facts += [("read by", reader), ("why", chosen.reason)]
    show(terminal.of_facts(facts))
    show("")
    show(terminal.of_atom(chosen))
    if word is not None:
        show(f"\ndescriptor of the tile's first operand: {word:#018x}")
        show(terminal.of_facts([(name, f"{value:<20} bits {where}: {code}") for name, where, value, code in fields]))
    show("")
    show(_code(code))


def banks(
    tile: Tile,
    accesses: Accesses,
    bits: Bits = 32,
    swizzle: Swizzled = None,
    unit: Unit = "bytes",
    pitch: Annotated[
        int | None, typer.Option("--pitch", parser=whole, metavar="N", help="Elements from row to row, for padding.")
    ] = None,
    bank_count: BankCount = 32,
    as_json: Json = False,
) -> None:
    """Count the wavefronts of accesses to a tile, where they take the most, and show which banks they ask."""
    import numpy as np

    from cookbook.solve.design import Banks, phases_in, wavefronts_of

    with of_library(OF_SWIZZLE):
        shape, memory = _pair(tile, "--tile"), Banks(bank_count)
        in_bytes = _swizzle(swizzle, bits, unit)
        offsets = _offsets(shape, bits, in_bytes, pitch)
        rows = []
        for text in accesses:
            access = _access(text)
            if memory == Banks():
                _at_worst(offsets, bits, access)  # refuses what no instruction does
            phases, ideal = phases_in(shape, bits, access, memory)
            words = np.unique(
                offsets.reshape(-1)[phases[0], None] * (bits // 8) // memory.bytes + _words_of(bits, memory)
            )
            per_bank = np.bincount(words % memory.count, minlength=memory.count).tolist()
            rows.append((str(access), wavefronts_of(offsets, bits, access, memory), ideal, per_bank))
    if as_json:
        keys = ("access", "wavefronts", "ideal", "words_by_bank_in_the_first_phase")
        under = {} if in_bytes is None else _numbers_of_both(in_bytes, bits)
        show_json([dict(zip(keys, row, strict=True)) | under for row in rows])
        return
    from cookbook.cli import terminal

    if in_bytes is not None:
        show(in_bytes.both(bits))
    counts = [(name, str(actual), str(ideal)) for name, actual, ideal, _ in rows]
    show(terminal.of_wavefronts(counts, "access", "wavefronts", "ideal"))
    for name, _, _, per_bank in rows:
        show(terminal.bank_row(per_bank, f"{name}: words that each bank gives in its first phase"))
    addresses = offsets * (bits // 8)
    show("")
    show(terminal.bank_grid(addresses, addresses // 4 % bank_count, "bank of each element", 1, bank_count))


def _words_of(bits: int, memory: Any) -> Any:
    """0, 1, ...: the words of an element, after its first."""
    import numpy as np

    return np.arange(max(1, bits // 8 // memory.bytes))


def _at_worst(offsets: np.ndarray, bits: int, access: Pattern) -> list[Any]:
    """The instructions of an access at the place where it takes the most wavefronts."""
    from cookbook.draw.accesses import worst_place

    return worst_place(offsets, bits, access)


def draw(
    what: Annotated[str, typer.Argument(metavar="WHAT", help="layout, lines, masks, matrix, access, atoms or xor.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE.svg", help="Where to write it.")],
    tile: Annotated[str, typer.Option("--tile", metavar="RxC", help="Rows x columns, in elements.")] = "8x32",
    bits: Bits = 32,
    swizzle: Swizzled = None,
    unit: Unit = "bytes",
    access: Annotated[
        str | None,
        typer.Option(
            "--access", metavar="[NAME@]RxC[/RSxCS]", help="An access to draw or mark, said as `cookbook banks` has it."
        ),
    ] = None,
    bank_count: BankCount = 32,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that exists.")] = False,
) -> None:
    """Draw a layout as SVG: its banks before and after, its lines, masks or matrix, an access, the atoms, XOR."""
    from cookbook.arguments import choice, shown

    with of_library(OF_SWIZZLE | {"smem_layout": "--tile, --swizzle", "layout": "--tile", "rows": "--tile"}):
        choice("WHAT", what, [*ON_ANY_BANKS, *PICTURES])
        if os.path.exists(output) and not force:
            raise ValueError(
                f"--output: got {shown(str(output))}, which exists; needed a new file, or --force to write over it"
            )
        shape = _pair(tile, "--tile")
        _offsets(shape, bits, None)  # one rule of what a tile is, whatever is drawn
        asked = _access(access) if access is not None else None
        given = _swizzle(swizzle, bits, unit, may_split=what == "masks")
        if what in ON_ANY_BANKS:
            picture = ON_ANY_BANKS[what](shape, bits, given, asked, bank_count)
        elif bank_count != 32:
            raise ValueError(f"--banks: got {bank_count}; needed 32 for {what}, or one of {', '.join(ON_ANY_BANKS)}")
        else:
            picture = PICTURES[what](shape, bits, given, asked)
        try:
            written = picture.save(output)
        except OSError as error:
            why = error.strerror or type(error).__name__
            raise ValueError(f"--output: got {shown(str(output))}; needed a file that can be written ({why})") from None
    show(f"wrote {written}{'' if given is None else f': {given.both(bits)}'}")


def _draw_layout(shape: tuple[int, int], bits: int, swizzle: Swizzle | None, access: Pattern | None, banks: int) -> Any:
    from cookbook import draw as pictures

    before, after = _offsets(shape, bits, None), _offsets(shape, bits, swizzle)
    mark, title = _first_phase(shape, bits, access, banks) if access else ((), None)
    if swizzle is None:
        return pictures.layout_grid(before, bits, banks, mark=mark, title=title)
    return pictures.before_after(
        before, after, bits, banks, mark=mark, titles=("plain", swizzle.both(bits)), title=title
    )


def _draw_lines(shape: tuple[int, int], bits: int, swizzle: Swizzle | None, access: Pattern | None) -> Any:
    from cookbook import draw as pictures

    return pictures.swizzle_view(_smem(shape, bits, swizzle))


def _draw_masks(shape: tuple[int, int], bits: int, swizzle: Swizzle | None, access: Pattern | None) -> Any:
    from cookbook import draw as pictures

    return pictures.swizzle_bits(_given(swizzle, "masks"))


def _draw_xor(shape: tuple[int, int], bits: int, swizzle: Swizzle | None, access: Pattern | None) -> Any:
    from cookbook import draw as pictures

    column = pictures.xor_column(0, shape[0])
    return pictures.beside([pictures.truth_tables(("xor",), "XOR of two bits"), column], "XOR")


def _draw_matrix(shape: tuple[int, int], bits: int, swizzle: Swizzle | None, access: Pattern | None, banks: int) -> Any:
    from cookbook import draw as pictures
    from cookbook.solve.instructions import phase_of
    from cookbook.solve.patterns import Banks, is_power_of_two, log2

    if not all(map(is_power_of_two, shape)):
        raise ValueError(f"--tile: got {shape[0]}x{shape[1]}; needed powers of two, for its offsets to be linear")
    n, columns = log2(shape[0] * shape[1]), log2(shape[1])
    names = [f"c{i}" for i in range(columns)] + [f"r{i}" for i in range(n - columns)]
    memory = Banks(banks)
    first, last = max(0, 2 - log2(bits // 8)), max(0, 2 + log2(memory.count) - log2(bits // 8))
    marked = {i: f"bank {i - first}" for i in range(first, min(n, last))}
    basis = phase_of(access, shape, bits, memory)[0] if access else []
    asked = [v.bit_length() - 1 for v in basis if is_power_of_two(v)]
    return pictures.gf2_matrix(_given(swizzle, "matrix").in_elements(bits).matrix(n), marked, names, asked)


def _draw_access(shape: tuple[int, int], bits: int, swizzle: Swizzle | None, access: Pattern | None) -> Any:
    from cookbook import draw as pictures

    if access is None:
        raise ValueError("--access: got none; needed what a warp asks for, such as 32x1 or ldmatrix.x4@16x16")
    instructions = _at_worst(_offsets(shape, bits, swizzle), bits, access)
    each = f"{instructions[0].width} bytes a lane"
    many = f"{len(instructions)} instructions, " if len(instructions) > 1 else ""
    over = swizzle.both(bits) if swizzle else "plain"
    title = f"{access} of {shape[0]} x {shape[1]} elements of {bits} bits, {over}: {many}{each}"
    return pictures.access_view(instructions, title)


def _draw_atoms(shape: tuple[int, int], bits: int, swizzle: Swizzle | None, access: Pattern | None) -> Any:
    from cookbook import atoms
    from cookbook import draw as pictures

    return pictures.atom_orders({name: atoms.atom(name, bits).layout for name in atoms.ATOMS if name[:2] == "K_"})


PICTURES: dict[str, Callable[..., Any]] = {
    "lines": _draw_lines,
    "masks": _draw_masks,
    "access": _draw_access,
    "atoms": _draw_atoms,
    "xor": _draw_xor,
}
ON_ANY_BANKS: dict[str, Callable[..., Any]] = {"layout": _draw_layout, "matrix": _draw_matrix}  # of toy GPUs too


# --- shared -----------------------------------------------------------------------------------------------------


def _pair(text: str, option: str) -> tuple[int, int]:
    """`"8x24"` -> (8, 24)."""
    parts = text.lower().split("x")
    if len(parts) > 2 and all(part.isdigit() for part in parts):
        *leading, last = map(int, parts)
        raise ValueError(
            f"{option}: got {text!r}; needed two integers: flatten the leading modes, {math.prod(leading)}x{last}, the "
            "contiguous one last"
        )
    try:
        first, second = (int(part) for part in parts)
    except ValueError:
        raise ValueError(f"{option}: got {text!r}; needed two integers, such as 8x32") from None
    return first, second


def _access(text: str) -> Pattern:
    """`"4x2"`, `"4x2/2x1"` (steps), `"1,33,66"` (a basis of offsets) or `"ldmatrix.x4@16x16"` (an instruction)."""
    from cookbook.solve.instructions import parse

    return parse(text, "--access")


def _swizzle(text: str | None, bits: int, unit: str, may_split: bool = False) -> Swizzle | None:
    """The swizzle of byte addresses that --swizzle and --unit say.

    Args:
        may_split: whether it may move bytes inside an element.
    """
    from cookbook.arguments import choice
    from cookbook.swizzle import element_width

    choice("--unit", unit, ("bytes", "elements"), "bytes or elements")
    if text is None:
        return None
    given, size = _parsed(text, "--swizzle"), element_width(bits, name="--bits")
    if unit == "elements":
        return given.in_bytes(size)
    least = (size // 8).bit_length() - 1
    if given.bits and given.base < least and not may_split:
        raise ValueError(
            f"--swizzle: got {given.both(bits)}; needed M of {least} at least, "
            f"or --unit elements, where it is {given.in_bytes(bits)!r} over bytes"
        )
    return given


def _parsed(text: str, name: str) -> Swizzle:
    from cookbook.arguments import shown
    from cookbook.swizzle import Swizzle

    parts = text.split(",")
    if len(parts) != 3 or not all(re.fullmatch(r"\s*[+-]?[0-9]{1,9}\s*", part) for part in parts):
        raise ValueError(f"{name}: got {shown(text)}; needed B,M,S: three integers such as 3,4,3")
    return Swizzle(*map(int, parts))


def _given(swizzle: Swizzle | None, what: str) -> Swizzle:
    if swizzle is None:
        raise ValueError(f"--swizzle: got none; needed B,M,S to draw its {what}")
    return swizzle


def _offsets(shape: tuple[int, int], bits: int, swizzle: Swizzle | None, pitch: int | None = None) -> np.ndarray:
    """(rows, columns) element offsets of a row-major tile under a swizzle of byte addresses."""
    import numpy as np

    from cookbook.arguments import integer
    from cookbook.swizzle import element_width

    element_width(bits, name="--bits")
    if min(shape) < 1 or shape[0] * shape[1] > MOST_ELEMENTS:
        raise ValueError(f"--tile: got {shape[0]}x{shape[1]}; needed 1 to {MOST_ELEMENTS} elements")
    if pitch is not None:
        needed = f"{shape[1]} at least, the columns of the tile, and {MOST_PITCH} at most"
        integer("--pitch", pitch, at_least=shape[1], at_most=MOST_PITCH, needed=needed)
    offsets = np.arange(shape[0])[:, None] * (pitch or shape[1]) + np.arange(shape[1])
    return offsets if swizzle is None else swizzle.in_elements(bits)(offsets)


def _smem(shape: tuple[int, int], bits: int, swizzle: Swizzle | None) -> Any:
    from cookbook.layouts import Layout, SmemLayout
    from cookbook.swizzle import Swizzle

    return SmemLayout(Layout(shape, (shape[1], 1)), swizzle or Swizzle(0, 4, 3), bits)


def _first_phase(
    shape: tuple[int, int], bits: int, access: Pattern, banks: int
) -> tuple[list[tuple[int, int]], str | None]:
    """The (row, column) that an access asks for in its first phase at the tile's corner; a title if there are more."""
    from cookbook.solve.design import Banks, phases_in

    phases, count = phases_in(shape, bits, access, Banks(banks))
    cells = [divmod(offset, shape[1]) for offset in dict.fromkeys(phases[0].tolist())]
    return cells, f"the first of {count} phases of {access} is marked" if count > 1 else None


def _both(given: Swizzle, bits: int, unit: str) -> tuple[Swizzle, Swizzle | None, str]:
    """(on bytes, on elements or None, why none)."""
    from cookbook.arguments import choice
    from cookbook.swizzle import Swizzle

    choice("--unit", unit, ("bytes", "elements"), "bytes or elements")
    if unit == "elements":
        return given.in_bytes(bits), given, ""
    Swizzle(0, 0, 0).in_bytes(bits)  # an element width that is none is an error, not an answer
    try:
        return given, given.in_elements(bits), ""
    except ValueError as error:
        return given, None, str(error)


def _explained(in_bytes: Swizzle, in_elements: Swizzle | None, why_not: str, bits: int) -> list[tuple[str, str]]:
    low, high = in_bytes.zzz.bit_length() - in_bytes.bits, in_bytes.yyy.bit_length() - in_bytes.bits
    does = (
        f"bits {low}-{low + in_bytes.bits - 1} of the byte address ^= bits {high}-{high + in_bytes.bits - 1}"
        if in_bytes.bits
        else "nothing: the identity"
    )
    moves = [
        ("keeps together", f"{1 << min(low, high)} bytes"),
        ("repeats after", f"{in_bytes.period} bytes, which the base must be a multiple of"),
    ]
    identity = [("alignment", "none needed: it moves nothing")]
    return [
        ("on bytes", f"{in_bytes!r}"),
        ("does", does),
        *(moves if in_bytes.bits else identity),
        (f"on {bits}-bit elements", repr(in_elements) if in_elements is not None else f"none: {why_not}"),
        ("TMA", _tma(in_bytes)),
    ]


def _explained_json(in_bytes: Swizzle, in_elements: Swizzle | None, why_not: str, bits: int) -> dict[str, Any]:
    """The tables are None where they have more than `MOST_CELLS` cells, and of what there is not."""
    bytes_, elements = (
        None if s is None or _cells_of(s) > MOST_CELLS else _table(s, size, "")[1].tolist()
        for s, size in ((in_bytes, 1), (in_elements, bits / 8))
    )
    return {
        "in_bytes": _numbers(in_bytes),
        "in_elements": _numbers(in_elements),
        "why_not_in_elements": why_not or None,
        "element_bits": bits,
        "yyy": in_bytes.yyy,
        "zzz": in_bytes.zzz,
        "period_bytes": in_bytes.period,
        "alignment_bytes": in_bytes.period if in_bytes.bits else 1,
        "tma": _tma(in_bytes),
        "byte_addresses": bytes_,
        "element_offsets": elements,
    }


def _cells_of(swizzle: Swizzle) -> int:
    """The cells of a swizzle's table, one for each piece that stays together."""
    return max(1, swizzle.period >> swizzle.base)


def _table(swizzle: Swizzle, unit_bytes: float, title: str) -> tuple[Any, Any, str, int]:
    """(byte addresses, offsets, title, step): a cell for each piece that stays together, 2**bits rows of them."""
    import numpy as np

    step = 1 << swizzle.base
    moved = swizzle(np.arange(0, max(swizzle.period, step), step).reshape(1 << swizzle.bits, -1))
    return (moved * unit_bytes).astype(np.int64), moved, title, step


def _tma(in_bytes: Swizzle) -> str:
    from cookbook import atoms

    try:
        return f"writes it in mode {atoms.tma_mode(in_bytes)}"
    except ValueError:
        return "has no such mode: software must store the tile"


def _numbers(swizzle: Swizzle | None) -> list[int] | None:
    return None if swizzle is None else [swizzle.bits, swizzle.base, swizzle.shift]


def _numbers_of_both(in_bytes: Swizzle, bits: int) -> dict[str, list[int] | None]:
    return {"swizzle_in_bytes": _numbers(in_bytes), "swizzle_in_elements": _numbers(in_bytes.in_elements(bits))}


def _solution_json(found: Solution) -> dict[str, Any]:
    accesses = [
        {"access": str(a), "plain": b, "now": w, "ideal": i}
        for a, b, w, i in zip(found.accesses, found.before, found.wavefronts, found.ideal, strict=True)
    ]
    return {
        "solvable": True,
        "kind": found.kind,
        "swizzle_in_bytes": None if found.smem_layout is None else _numbers(found.smem_layout.swizzle),
        "swizzle_in_elements": _numbers(found.swizzle),
        "layout": {"shape": found.layout.shape, "stride": found.layout.stride},
        "xors": [{"mask": mask, "shift": shift} for mask, shift in found.terms],
        "accesses": accesses,
        "matrix": None if found.matrix is None else found.matrix.tolist(),
        "cute_code": found.cute_code(),
    }


def _show_unsolvable(error: Any, as_json: bool, check: bool) -> None:
    checked = error.proof.check(_progress("checking the proof")) if check else None
    if as_json:
        said = {"proof": str(error.proof), "conflicting": list(error.proof.conflicting), "checked": checked}
        show_json({"solvable": False, **said, "advice": error.advice or None})
        return
    show(str(error))
    verdict = {True: "proof checked: it holds", False: "proof checked: it does NOT hold", None: "proof not checked"}
    show(verdict[checked])


def _progress(what: str) -> Callable[[int, int], None]:
    """Says on stderr, every two seconds, how far something has come."""
    import time

    said = [time.monotonic()]

    def tell(done: int, total: int) -> None:
        if time.monotonic() - said[0] > 2:
            said[0] = time.monotonic()
            say(f"{what}: {done} of {total} steps")

    return tell


def _code(source: str) -> Any:
    from rich.syntax import Syntax

    highlighted = Syntax("", "python", theme="ansi_dark", background_color="default").highlight(source)
    highlighted.rstrip()
    return highlighted
