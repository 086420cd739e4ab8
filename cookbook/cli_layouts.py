"""The commands about layouts: swizzle explain, design and solve; atom; banks; draw.

Each answers in words and colours, or with --json. A request that no layout serves is answered with the proof
and exit status 1; a wrong argument is exit status 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cookbook.console import say, show, show_json

if TYPE_CHECKING:
    import numpy as np

    from cookbook.design import Solution
    from cookbook.instructions import Pattern
    from cookbook.swizzle import Swizzle

swizzle_app = typer.Typer(
    name="swizzle", no_args_is_help=True, rich_markup_mode=None, help="Explain, design and solve for swizzles."
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on stdout.")]
Bits = Annotated[int, typer.Option("--bits", help="Bits of an element: 8, 16, 32, 64 or 128.")]
Tile = Annotated[str, typer.Option("--tile", metavar="RxC", help="Rows x columns of a row-major tile, in elements.")]
Accesses = Annotated[
    list[str],
    typer.Option(
        "--access",
        metavar="[NAME@]RxC[/RSxCS]",
        help="What one instruction of a warp asks for. As an instruction: NAME@RxC, such as ldmatrix.x4@16x16, "
        "ld128@32x8, st64@8x8/down; names: ld8 to ld128, st8 to st128, cp.async4, cp.async8, cp.async16, ldmatrix.x1, "
        ".x2, .x4 and stmatrix alike; /RSxCS: steps in rows and vectors; /down: lanes run down the rows. As elements: "
        "RxC[/RSxCS], along the rows in vectors of up to 16 bytes (so no ldmatrix, which takes 8 rows at a time). As a "
        "basis of element offsets: 1,33,66. Repeatable.",
    ),
]
Swizzled = Annotated[
    str | None, typer.Option("--swizzle", metavar="B,M,S", help="A swizzle of element offsets, such as 5,0,5.")
]


def attach(app: typer.Typer) -> None:
    """Put these commands on the `cookbook` command."""
    app.add_typer(swizzle_app)
    app.command(epilog="Example: cookbook atom --major K --bits 16 --tile 128x64")(atom)
    app.command(epilog="Example: cookbook banks --tile 32x32 --bits 32 --access 32x1 --swizzle 5,0,5")(banks)
    app.command(epilog="Example: cookbook draw layout --tile 8x32 --bits 32 --swizzle 3,2,3 --access 8x4 -o x.svg")(
        draw
    )


# --- swizzle ----------------------------------------------------------------------------------------------------


@swizzle_app.command(
    epilog="Example: cookbook swizzle explain 3 4 3 --bits 16",
    context_settings={"ignore_unknown_options": True},  # a negative S is no option
)
def explain(
    b: Annotated[int, typer.Argument(metavar="B", help="How many bits are XORed.")],
    m: Annotated[int, typer.Argument(metavar="M", help="The lowest bit that changes: 2^M stay together.")],
    s: Annotated[int, typer.Argument(metavar="S", help="How far above the bits lie that are XORed in.")],
    bits: Bits = 16,
    unit: Annotated[str, typer.Option(help="What the given swizzle counts: bytes or elements.")] = "bytes",
    as_json: Json = False,
) -> None:
    """Say what Swizzle<B,M,S> does, in bytes and in elements, and draw both."""
    with _wrong_command_line():
        in_bytes, in_elements, why_not = _both(b, m, s, bits, unit)
    if as_json:
        show_json(_explained_json(in_bytes, in_elements, why_not, bits))
        return
    from cookbook import terminal

    show(terminal.of_facts(_explained(in_bytes, in_elements, why_not, bits)))
    show("")
    show(terminal.bank_grid(*_table(in_bytes, 1, f"{in_bytes!r} on byte addresses")))
    if in_elements is not None:
        show("")
        title = f"{in_elements!r} on offsets of {bits}-bit elements"
        show(terminal.bank_grid(*_table(in_elements, bits // 8, title)))


@swizzle_app.command(epilog="Example: cookbook swizzle design --row 64 --bits 16 --vector 8")
def design(
    row: Annotated[int, typer.Option("--row", help="Elements of a row, a power of two.")],
    bits: Bits = 16,
    vector: Annotated[int, typer.Option("--vector", help="Elements that one lane moves: 16 bytes at most.")] = 1,
    as_json: Json = False,
) -> None:
    """The swizzle that frees the row store and the column read of a row-major tile."""
    from cookbook import design as designer

    with _wrong_command_line():
        found = designer.column_swizzle(row, bits, vector)
        counts = designer.column_counts(found, row, bits, vector)
    in_bytes, code = found.in_bytes(bits), designer.column_code(found, row, bits)
    rows = -(-32 * vector // row)
    request = f"--tile {max(32, rows)}x{row} --bits {bits} --access {rows}x{row // max(1, row // (32 * vector))}"
    more = f"cookbook swizzle solve {request} --access 32x{vector}"
    if as_json:
        said = {name: {"plain": before, "now": now, "ideal": ideal} for name, (before, now, ideal) in counts.items()}
        numbers = {"in_elements": _numbers(found), "in_bytes": _numbers(in_bytes)}
        show_json(numbers | {"wavefronts": said, "cute_code": code, "other_accesses": more})
        return
    from cookbook import terminal

    show(terminal.of_facts([("in elements", repr(found)), ("in bytes", repr(in_bytes)), ("TMA", _tma(in_bytes))]))
    rows_shown = [(name, *map(str, counted)) for name, counted in counts.items()]
    show(terminal.of_wavefronts(rows_shown, "32 lanes", "plain", "now", "ideal"))
    show(_code(code))
    show(f"Other accesses: {more} --access ..., and instructions such as ldmatrix.x4@16x16.")


@swizzle_app.command(epilog="Example: cookbook swizzle solve --tile 8x8 --bits 32 --access 1x8 --access 8x1")
def solve(
    tile: Tile,
    accesses: Accesses,
    bits: Bits = 32,
    vector: Annotated[
        int | None, typer.Option("--vector", help="Elements that must stay together, if more than accesses share.")
    ] = None,
    bank_count: Annotated[int, typer.Option("--banks", help="How many banks; a toy GPU has 8.")] = 32,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Whether to check a proof that none exists.")
    ] = True,
    as_json: Json = False,
) -> None:
    """Find the address map that serves all accesses without a conflict, or prove that there is none."""
    from cookbook.design import Unsolvable
    from cookbook.design import solve as solver

    with _wrong_command_line():
        shape, wanted = _pair(tile, "--tile"), [_access(text) for text in accesses]
        try:
            found = solver(shape, bits, wanted, vector_elements=vector, banks=bank_count)
        except Unsolvable as error:
            _show_unsolvable(error, as_json, check)
            raise typer.Exit(1) from None
    if as_json:
        show_json(_solution_json(found))
        return
    from cookbook import terminal

    show(f"{found}")
    for part in terminal.of_solution(found):
        show(part)
    show("")
    show(_code(found.cute_code()))


# --- atom, banks, draw ------------------------------------------------------------------------------------------


def atom(
    major: Annotated[str, typer.Option("--major", help="K or MN: which mode is contiguous.")],
    tile: Annotated[str, typer.Option("--tile", metavar="MNxK", help="The tile, in elements.")],
    bits: Bits = 16,
    arch: Annotated[str, typer.Option("--arch", help="sm_90 (wgmma), or sm_100, sm_103, sm_110 (tcgen05).")] = "sm_100",
    as_json: Json = False,
) -> None:
    """The shared-memory atom for an MMA operand, why, and its matrix descriptor."""
    from cookbook import atoms, descriptors

    with _wrong_command_line():
        shape = _pair(tile, "--tile")
        chosen = atoms.select(major, bits, shape, arch)
        layout = atoms.tile(chosen, shape)
        # A descriptor is of one instruction, whose N is 256 at most and M 64 (wgmma) or 128.
        descriptor = atoms.descriptor(layout, major, arch, rows=min(shape[0], 64 if "90" in arch else 128))
    fields = descriptors.field_table(descriptor)
    if as_json:
        said = {"name": chosen.name, "reason": chosen.reason, "swizzle": _numbers(chosen.layout.swizzle)}
        outer = {"shape": chosen.layout.outer.shape, "stride": chosen.layout.outer.stride}
        shown = [dict(zip(("field", "bits", "value", "encoded"), row, strict=True)) for row in fields]
        show_json(said | {"atom": outer, "descriptor": shown, "descriptor_bits": hex(descriptor.encode())})
        return
    from cookbook import terminal

    layout_text = f"{chosen.layout.swizzle!r} o 0 o {chosen.layout.outer!r}: swizzle in bytes, strides in elements"
    show(terminal.of_facts([("atom", chosen.name), ("layout", layout_text), ("why", chosen.reason)]))
    show("")
    show(terminal.of_atom(chosen))
    show(f"\ndescriptor of the tile's first operand: {descriptor.encode():#018x}")
    show(terminal.of_facts([(name, f"{value:<20} bits {where}: {code}") for name, where, value, code in fields]))


def banks(
    tile: Tile,
    accesses: Accesses,
    bits: Bits = 32,
    swizzle: Swizzled = None,
    pitch: Annotated[int | None, typer.Option("--pitch", help="Elements from row to row, for padding.")] = None,
    bank_count: Annotated[int, typer.Option("--banks", help="How many banks; a toy GPU has 8.")] = 32,
    as_json: Json = False,
) -> None:
    """Count the wavefronts of accesses to a tile, and show which banks they ask."""
    import numpy as np

    from cookbook.design import Banks, phases_in, wavefronts_of

    with _wrong_command_line():
        shape, memory = _pair(tile, "--tile"), Banks(bank_count)
        offsets = _offsets(shape, _swizzle(swizzle), pitch)
        rows = []
        for text in accesses:
            access = _access(text)
            phases, ideal = phases_in(shape, bits, access, memory)
            words = np.unique(offsets.reshape(-1)[phases[0]] * (bits // 8) // memory.bytes)
            per_bank = np.bincount(words % memory.count, minlength=memory.count).tolist()
            rows.append((str(access), wavefronts_of(offsets, bits, access, memory), ideal, per_bank))
    if as_json:
        keys = ("access", "wavefronts", "ideal", "words_by_bank_in_the_first_phase")
        show_json([dict(zip(keys, row, strict=True)) for row in rows])
        return
    from cookbook import terminal

    counts = [(name, str(actual), str(ideal)) for name, actual, ideal, _ in rows]
    show(terminal.of_wavefronts(counts, "access", "wavefronts", "ideal"))
    for name, _, _, per_bank in rows:
        show(terminal.bank_row(per_bank, f"{name}: words that each bank gives in its first phase"))
    addresses = offsets * (bits // 8)
    show("")
    show(terminal.bank_grid(addresses, addresses // 4 % bank_count, "bank of each element", 1, bank_count))


def draw(
    what: Annotated[str, typer.Argument(metavar="WHAT", help="layout, lines, masks, matrix, access or atoms.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE.svg", help="Where to write it.")],
    tile: Annotated[str, typer.Option("--tile", metavar="RxC", help="Rows x columns, in elements.")] = "8x32",
    bits: Bits = 32,
    swizzle: Swizzled = None,
    access: Annotated[str | None, typer.Option("--access", metavar="RxC", help="An access to mark.")] = None,
) -> None:
    """Draw a layout as SVG: its banks before and after, its lines, its masks, its matrix, an access, the atoms."""
    with _wrong_command_line():
        if what not in PICTURES:
            raise ValueError(f"WHAT: got {what!r}; needed one of {', '.join(PICTURES)}")
        picture = PICTURES[what](_pair(tile, "--tile"), bits, _swizzle(swizzle), access and _access(access))
        try:
            written = picture.save(output)
        except OSError as error:
            raise ValueError(f"--output: got {output}; needed a file that can be written ({error})") from None
    show(f"wrote {written}")


def _draw_layout(shape: tuple[int, int], bits: int, swizzle: Swizzle | None, access: Pattern | None) -> Any:
    from cookbook import draw as pictures

    before, after = _offsets(shape, None), _offsets(shape, swizzle)
    mark = _cells(shape, access) if access else ()
    if swizzle is None:
        return pictures.layout_grid(before, bits, mark=mark)
    return pictures.before_after(before, after, bits, mark=mark, titles=("plain", repr(swizzle)))


def _draw_lines(shape: tuple[int, int], bits: int, swizzle: Swizzle | None, access: Pattern | None) -> Any:
    from cookbook import draw as pictures

    return pictures.swizzle_view(_smem(shape, bits, swizzle))


def _draw_masks(shape: tuple[int, int], bits: int, swizzle: Swizzle | None, access: Pattern | None) -> Any:
    from cookbook import draw as pictures

    return pictures.swizzle_bits(_given(swizzle, "masks"))


def _draw_matrix(shape: tuple[int, int], bits: int, swizzle: Swizzle | None, access: Pattern | None) -> Any:
    from cookbook import draw as pictures
    from cookbook.patterns import is_power_of_two, log2

    if not all(map(is_power_of_two, shape)):
        raise ValueError(f"--tile: got {shape[0]}x{shape[1]}; needed powers of two, for its offsets to be linear")
    n, columns = log2(shape[0] * shape[1]), log2(shape[1])
    names = [f"c{i}" for i in range(columns)] + [f"r{i}" for i in range(n - columns)]
    first, last = max(0, 2 - log2(bits // 8)), max(0, 7 - log2(bits // 8))
    marked = {i: f"bank {i - first}" for i in range(first, min(n, last))}
    asked = [v.bit_length() - 1 for v in access.basis(shape) if is_power_of_two(v)] if access else []
    return pictures.gf2_matrix(_given(swizzle, "matrix").matrix(n), marked, names, asked)


def _draw_access(shape: tuple[int, int], bits: int, swizzle: Swizzle | None, access: Pattern | None) -> Any:
    import numpy as np

    from cookbook import access as accesses
    from cookbook import draw as pictures

    if access is None:
        raise ValueError("--access: got none; needed the block that one warp asks for, such as 32x1")
    cells = _cells(shape, access)
    per_lane = max(1, len(cells) // 32)
    first = _smem(shape, bits, swizzle).byte_offsets()[tuple(np.array(cells[::per_lane]).T)]
    addresses = np.full(32, -1, np.int64)
    addresses[: len(first)] = first[:32]
    return pictures.access_view(accesses.ldst(addresses, per_lane * bits // 8))


def _draw_atoms(shape: tuple[int, int], bits: int, swizzle: Swizzle | None, access: Pattern | None) -> Any:
    from cookbook import atoms
    from cookbook import draw as pictures

    return pictures.atom_orders({name: atoms.atom(name, bits).layout for name in atoms.ATOMS if name[:2] == "K_"})


PICTURES: dict[str, Callable[..., Any]] = {
    "layout": _draw_layout,
    "lines": _draw_lines,
    "masks": _draw_masks,
    "matrix": _draw_matrix,
    "access": _draw_access,
    "atoms": _draw_atoms,
}


# --- shared -----------------------------------------------------------------------------------------------------


@contextmanager
def _wrong_command_line() -> Iterator[None]:
    """What the library refuses is a wrong command line: its message, and exit status 2."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise typer.BadParameter(str(error)) from None


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
    from cookbook.instructions import parse

    return parse(text, "--access")


def _swizzle(text: str | None) -> Swizzle | None:
    from cookbook.swizzle import Swizzle

    if text is None:
        return None
    try:
        b, m, s = (int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"--swizzle: got {text!r}; needed B,M,S: three integers such as 3,4,3") from None
    return Swizzle(b, m, s)


def _given(swizzle: Swizzle | None, what: str) -> Swizzle:
    if swizzle is None:
        raise ValueError(f"--swizzle: got none; needed B,M,S to draw its {what}")
    return swizzle


def _offsets(shape: tuple[int, int], swizzle: Swizzle | None, pitch: int | None = None) -> np.ndarray:
    """(rows, columns) element offsets of a row-major tile."""
    import numpy as np

    if min(shape) < 1 or shape[0] * shape[1] > 1 << 16:
        raise ValueError(f"--tile: got {shape[0]}x{shape[1]}; needed 1 to 65536 elements")
    if pitch is not None and pitch < shape[1]:
        raise ValueError(f"--pitch: got {pitch}; needed {shape[1]} at least, the columns of the tile")
    offsets = np.arange(shape[0])[:, None] * (pitch or shape[1]) + np.arange(shape[1])
    return offsets if swizzle is None else swizzle(offsets)


def _smem(shape: tuple[int, int], bits: int, swizzle: Swizzle | None) -> Any:
    from cookbook.layouts import Layout, SmemLayout
    from cookbook.swizzle import Swizzle

    in_bytes = Swizzle(0, 4, 3) if swizzle is None else swizzle.in_bytes(bits)
    return SmemLayout(Layout(shape, (shape[1], 1)), in_bytes, bits)


def _cells(shape: tuple[int, int], access: Pattern) -> list[tuple[int, int]]:
    """The (row, column) of an access at the tile's corner, in lane order."""
    from cookbook import gf2
    from cookbook.patterns import Block

    if not isinstance(access, Block):
        return [divmod(offset, shape[1]) for offset in gf2.span(access.basis(shape)).tolist()]
    access.check(shape)
    rows = range(0, access.rows * access.row_step, access.row_step)
    columns = range(0, access.columns * access.column_step, access.column_step)
    return [(r, c) for r in rows for c in columns]


def _both(b: int, m: int, s: int, bits: int, unit: str) -> tuple[Swizzle, Swizzle | None, str]:
    """(on bytes, on elements or None, why none)."""
    from cookbook.swizzle import Swizzle

    if unit not in ("bytes", "elements"):
        raise ValueError(f"--unit: got {unit!r}; needed bytes or elements")
    given = Swizzle(b, m, s)
    if unit == "elements":
        return given.in_bytes(bits), given, ""
    given.in_bytes(bits)  # an element width that is none is an error, not an answer
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
    return [
        ("on bytes", f"{in_bytes!r}"),
        ("does", does),
        ("keeps together", f"{1 << min(low, high) if in_bytes.bits else in_bytes.period} bytes"),
        ("repeats after", f"{in_bytes.period} bytes, which the base must be a multiple of"),
        (f"on {bits}-bit elements", repr(in_elements) if in_elements is not None else f"none: {why_not}"),
        ("TMA", _tma(in_bytes)),
    ]


def _explained_json(in_bytes: Swizzle, in_elements: Swizzle | None, why_not: str, bits: int) -> dict[str, Any]:
    elements = None if in_elements is None else _table(in_elements, bits // 8, "")[1].tolist()
    return {
        "in_bytes": _numbers(in_bytes),
        "in_elements": _numbers(in_elements),
        "why_not_in_elements": why_not or None,
        "element_bits": bits,
        "yyy": in_bytes.yyy,
        "zzz": in_bytes.zzz,
        "period_bytes": in_bytes.period,
        "tma": _tma(in_bytes),
        "byte_addresses": _table(in_bytes, 1, "")[1].tolist(),
        "element_offsets": elements,
    }


def _table(swizzle: Swizzle, unit_bytes: int, title: str) -> tuple[Any, Any, str, int]:
    """(byte addresses, offsets, title, step): a cell for each piece that stays together, 2**bits rows of them."""
    import numpy as np

    step = 1 << swizzle.base
    moved = swizzle(np.arange(0, max(swizzle.period, step), step).reshape(1 << swizzle.bits, -1))
    return moved * unit_bytes, moved, title, step


def _tma(in_bytes: Swizzle) -> str:
    from cookbook import atoms

    try:
        return f"writes it in mode {atoms.tma_mode(in_bytes)}"
    except ValueError:
        return "has no such mode: software must store the tile"


def _numbers(swizzle: Swizzle | None) -> list[int] | None:
    return None if swizzle is None else [swizzle.bits, swizzle.base, swizzle.shift]


def _solution_json(found: Solution) -> dict[str, Any]:
    accesses = [
        {"access": str(a), "plain": b, "now": w, "ideal": i}
        for a, b, w, i in zip(found.accesses, found.before, found.wavefronts, found.ideal, strict=True)
    ]
    return {
        "solvable": True,
        "kind": found.kind,
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
        show_json(
            {
                "solvable": False,
                "proof": str(error.proof),
                "conflicting": list(error.proof.conflicting),
                "checked": checked,
            }
        )
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

    return Syntax(source, "python", theme="ansi_dark", background_color="default")
