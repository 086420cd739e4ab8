"""PTX that a kernel brings itself: numbers, copies, matrices, MMAs, barriers; any other text is not followed.

A text is a list of statements. Registers of its own hold what is moved to them or computed; those that are declared
outside of braces are there in later texts, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from cookbook.simulate import described, flags, raw
from cookbook.simulate.judge import Judge
from cookbook.simulate.trace import Operation
from cookbook.simulate.values import (
    COMPUTED,
    LANES,
    PLAIN,
    UNKNOWN,
    Box,
    CannotFollow,
    Lay,
    Pointer,
    UnknownCode,
    View,
    is_number,
)
from cookbook.simulate.views import in_tensor_memory
from cookbook.simulate.warp import Waits, handles

WORD = (1 << 32) - 1
LOGIC = "lop3.b32 $0, $1, $2, $3, "  # a logical operation of three words

NUMBERS: dict[str, Callable[..., Any]] = {
    "mul.hi.u32 $0, $1, $2;": lambda a, b: (a & WORD) * (b & WORD) >> 32,
    "shr.u32 $0, $1, $2;": lambda a, b: (a & WORD) >> b,
}
COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}


@handles("llvm.inline_asm", "nvvm.inline_ptx", "nvvm.griddepcontrol", waits=True)
def _assembly(f: Judge, op: Operation, args: list[Any]) -> Waits:
    text = op.get("asm_string") or op.get("ptxCode") or op.get("kind", "")
    if what := flags.said(op):
        address, value = args
        place = View(address if isinstance(address, Pointer) else Pointer("gmem", address), Lay(1, 0), 32)
        yield from f.flag(op, what, place, value)
    elif text.startswith(LOGIC):
        return f.data(op, args)
    elif compute := NUMBERS.get(text):
        known = all(map(is_number, args))
        return compute(*args) if known else f.data(op, args)
    elif "tcgen05.fence::" in text:
        f.order(op, "tensor fence", flag="after_thread_sync" in text)
    elif text == "wait" or "griddepcontrol.wait" in text:
        f.order(op, "grid wait")
    elif "launch_dependents" not in text:
        return (yield from _statements(f, op, text, args))
    return UNKNOWN


def _statements(f: Judge, op: Operation, text: str, args: list[Any]) -> Waits:
    """One after the other, each by the lanes whose predicate holds; the result, if there is one that is known."""
    outputs = op.get("constraints", "").count("=")  # of `llvm.inline_asm`, whose operands are numbered behind them
    declared, outside = _declared(text), not text.lstrip().startswith("{") or text.lstrip().startswith("{$r")
    kept = f.kept.keys() | declared if outside else f.kept.keys() - declared
    known: dict[str, Any] = {name: value for name, value in f.kept.items() if name in kept}
    known |= {f"${number + outputs}": value for number, value in enumerate(args)}
    known |= {f"{{$r{number}}}": value for number, value in enumerate(args)}
    waiting = POLLS.sub(r"mbarrier.passed \g<at>, \g<parity>;", text)
    for statement in filter(None, (part.strip() for part in _lines(waiting))):
        guard = re.match(r"@(!?)(\w+)\s+", statement)
        name, _, rest = statement[guard.end() if guard else 0 :].partition(" ")
        operands = [part.strip() for part in OPERANDS.findall(rest)]
        compute = next((entry[1] for entry in VALUES if re.fullmatch(entry[0], name)), None)
        found = next((entry[1] for entry in STATEMENTS if re.fullmatch(entry[0], name)), None)
        if found is None and compute is None and name != "mbarrier.passed":
            raise UnknownCode(f"inline assembly: {text[:200]}")
        takes = _takes(known.get(guard[2]), bool(guard[1])) if guard else None
        with lanes(f, takes):
            if not f.active.any():
                continue
            if compute is not None:
                value = compute(f, name, [_value(part, known) for part in operands[1:]])
                _put(f, known, operands[0], UNKNOWN if guard and takes is None else value)
            elif found is not None:
                if found not in (_multiplied, _gathered):  # which read their addresses themselves
                    operands = [known.get(part.strip("[]"), part) for part in operands]
                found(f, op, name, operands, known)
            else:
                address, parity = (_value(part, known) for part in operands)
                parity = f.integer(parity, "the parity waited for") & 1
                yield from f.wait(op, f.barrier(at("smem", address, 1, 64).pointer), parity)
    f.kept |= {name: known[name] for name in kept if name in known}
    return known["$0"] if outputs == 1 and not isinstance(known.get("$0", ""), str) else UNKNOWN


OPERANDS = re.compile(r"\[[^]]*\]|\{(?!\$r)[^}]*\}|(?:\{\$r|[^,\[\s{])[^,\[]*")  # addresses, several registers, one
POLLS = re.compile(  # a loop that looks at a barrier until its phase is over
    r"(?P<again>\w+):\s*mbarrier\.try_wait\.parity\.shared::cta\.b64\s+(?P<p>\w+),\s*(?P<at>\[[^]]*\]),\s*"
    r"(?P<parity>[^,;]+)(,[^;]+)?;\s*@(?P=p)\s+bra\s+(?P<out>\w+);\s*bra\s+(?P=again);\s*(?P=out):"
)


def _declared(text: str) -> set[str]:
    """The registers that a text declares."""
    names = (name.strip() for part in re.findall(r"\.reg\s+\.\w+\s+([^;]*);", text) for name in part.split(","))
    found: set[str] = set()
    for name in names:
        several = re.fullmatch(r"(\w+)<(\d+)>", name)
        found |= {f"{several[1]}{number}" for number in range(int(several[2]))} if several else {name}
    return found


def _value(part: str, known: dict[str, Any]) -> Any:
    """A source operand: a register, two in braces, a number, an address with a number added."""
    if part.startswith("{") and part not in known:
        return tuple(_value(each.strip(), known) for each in part.strip("{}").split(","))
    place, _, by = (each.strip() for each in part.strip("[]").partition("+"))
    if by:
        found = _value(place, known)
        return found.moved(int(by, 0)) if isinstance(found, Pointer) else _with(lambda a: a + int(by, 0), found)
    return int(part, 0) if re.fullmatch(r"-?(0x[\da-fA-F]+|\d+)", place) else known.get(place, place)


def _put(f: Judge, known: dict[str, Any], target: str, value: Any) -> None:
    """A register gets a value, of the active lanes; two in braces the halves of one."""
    if target.startswith("{"):
        halves = [_with(lambda x, at=at: x >> at & WORD, value) for at in (0, 32)]
        for name, half in zip(target.strip("{}").split(","), halves, strict=True):
            _put(f, known, name.strip(), half)
        return
    target = target.removeprefix("_|")
    known[target] = value if f.active.all() or target not in known else f.merged(f.active, value, known[target])


def _with(function: Callable[..., Any], *values: Any) -> Any:
    """A function of numbers; UNKNOWN of such.

    Raises:
        UnknownCode: of anything else.
    """
    if all(map(is_number, values)):
        return function(*values)
    if all(value is UNKNOWN or is_number(value) for value in values):
        return UNKNOWN
    raise UnknownCode("inline assembly: arithmetic of what is no number")


def _lines(text: str) -> list[str]:
    """Statements, without the braces around all of them and the declarations of registers."""
    inside = text.strip()
    if inside.startswith("{") and not inside.startswith("{$r"):
        inside = inside[1:].rpartition("}")[0]
    return [part for part in inside.replace("\n", " ").replace("\t", " ").split(";") if ".reg " not in part]


def _takes(predicate: Any, negated: bool) -> Any:
    """(32,) lanes; None, all of them, if data decide."""
    if not isinstance(predicate, (bool, int, np.bool_, np.integer, np.ndarray)):
        return None
    return np.broadcast_to(np.asarray(predicate, bool), (LANES,)) != negated


@contextmanager
def lanes(f: Judge, takes: Any) -> Iterator[None]:
    """Meanwhile only these lanes are active."""
    before = f.active
    f.active = before if takes is None else before & takes
    try:
        yield
    finally:
        f.active = before


def at(space: str, address: Any, count: int, bits: int) -> View:
    """Elements one after the other from an address on, which was computed."""
    if isinstance(address, Pointer):
        return View(address, Lay(count, 1), bits)
    return View(Pointer(space, address, name=COMPUTED), Lay(count, 1), bits)


# --- statements --------------------------------------------------------------------------------------------------

Statement = Callable[[Judge, Operation, str, list[Any], dict[str, Any]], None]


def _multiplied(f: Judge, op: Operation, name: str, operands: list[Any], known: dict[str, Any]) -> None:
    """D, A, B, the instruction descriptor, and whether D is added to."""
    shape = re.fullmatch(r"tcgen05\.mma\.cta_group::([12])\.kind::(\w+)", name)
    if shape is None or len(operands) != 5:
        raise UnknownCode(f"inline assembly: {name} of {len(operands)} operands")
    d, a, b, idesc, _ = (_value(one, known) for one in operands)
    if operands[1].startswith("["):
        a = in_tensor_memory(a)
    described.multiply(f, op, shape[2], int(shape[1]), in_tensor_memory(d), a, b, idesc)


def _async_copy(f: Judge, op: Operation, name: str, operands: list[Any], known: dict[str, Any]) -> None:
    size = int(operands[2])
    source, target = at("gmem", operands[1], size, 8), at("smem", operands[0], size, 8)
    f.copy(op, source, target, 8 * size, None, True)


def _matrices(f: Judge, op: Operation, name: str, operands: list[Any], known: dict[str, Any]) -> None:
    stores, count = name.startswith("stmatrix"), int(re.findall(r"\.x(\d)", name)[0])
    row = at("smem", operands[0 if stores else 1], 8, 16)
    registers = View(Pointer("rmem", 0), Lay(2 * count, 1), 16)
    views = (registers, row) if stores else (row, registers)
    with lanes(f, np.arange(LANES) < 8 * count):
        f.matrices(op, *views, stores, count, ".trans" in name)


def _store_to_cluster(f: Judge, op: Operation, name: str, operands: list[Any], known: dict[str, Any]) -> None:
    """st.async: each lane to the CTA that its address names."""
    place, what, barrier = operands
    count = re.search(r"\.v(\d)", name)
    values = [known[f"{what}.{part}"] for part in "xyzw"[: int(count[1])]] if count else [what]
    bits = int(re.findall(r"\.[bsuf](\d+)", name)[0])
    numbers = [x if is_number(x) else None for x in values]
    array = (
        None
        if any(x is None for x in numbers)
        else np.stack([np.broadcast_to(np.asarray(x, np.int64), (LANES,)) for x in numbers], axis=1)
    )
    before = dict(f.by_lane(f.place.rank if place.cta is None else place.cta))
    for cta in sorted(set(before.values())):
        with lanes(f, np.array([before.get(lane) == cta for lane in range(LANES)])):
            target = View(
                Pointer("smem", place.address, base=place.base), Lay(len(values), 1), bits, PLAIN, None, "i32"
            )
            source = View(Pointer("rmem", 0, array=array), Lay(len(values), 1), bits)
            f.store_to_cluster(op, source, target, cta, f.barrier(barrier))


def _bulk_reduce(f: Judge, op: Operation, name: str, operands: list[Any], known: dict[str, Any]) -> None:
    """Follow a copy engine that adds to global memory: it reads shared memory as a store by TMA does."""
    differs = any(isinstance(one, np.ndarray) for one in operands)
    for lane in np.flatnonzero(f.active) if differs else [slice(None)]:  # each lane has a copy of its own
        takes = np.zeros(LANES, bool)
        takes[lane] = True
        with lanes(f, takes):
            size = f.integer(operands[2], "the bytes of a copy")
            source = at("smem", f.integer(operands[1], "the address of a copy"), size, 8)
            box = Box(at("gmem", f.same(operands[0]), size, 8), (0,), (size,), PLAIN, 1)
            f.tma_store(op, box, [((0,), source.pointer.address)], source)


def _tensor_map(f: Judge, op: Operation, name: str, operands: list[Any], known: dict[str, Any]) -> None:
    """PTX ISA, "fence.proxy" and "tensormap.cp_fenceproxy"."""
    places = [one if isinstance(one, Pointer) else Pointer("gmem", one) for one in operands[:1]]
    if name.startswith("tensormap"):
        source = operands[1] if isinstance(operands[1], Pointer) else Pointer("smem", operands[1], name=COMPUTED)
        raw.copy_map(f, op, places[0], source)
    elif "acquire" in name:
        raw.acquire_map(f, op, places[0])
    else:
        f.tensor_map(op, "release", Pointer("gmem", 0), 0)


GATHERED = 4  # rows that one instruction copies


def _gathered(f: Judge, op: Operation, name: str, operands: list[Any], known: dict[str, Any]) -> None:
    """TMA copies rows of any places to one after the other: PTX ISA, "Tiled mode", `.tile::gather4`."""
    target, source, barrier = operands
    pointer, _, rows = source.strip("[]").partition(",")
    box, (column, *_) = getattr(known.get(pointer), "array", None), _value(rows.strip(), known)
    if not isinstance(box, Box) or len(box.extents) != 2:
        raise CannotFollow(f"rows that TMA gathers by {known.get(pointer)}")
    box = replace(box, extents=(box.extents[0], GATHERED))
    address, told = _value(target, known), at("smem", _value(barrier, known), 1, 64).pointer
    for _ in f.alike(address):  # each lane has a copy of its own
        begin = f.integer(address, "the address of a copy")
        lines = Lay(box.extents, (1, box.extents[0]))
        place = View(Pointer("smem", begin, name=COMPUTED), lines, box.tensor.bits, box.swizzle)
        where = f.barrier(told)
        origin: Any = column, UNKNOWN  # data say which rows
        f.tma_load(op, box, [(origin, begin)], place, [f.place.rank], [where], False)


def _from_global(f: Judge, op: Operation, name: str, operands: list[Any], known: dict[str, Any]) -> None:
    """What it reads is data."""
    f.load(op, at("gmem", operands[1], int(name.partition(".v")[2][:1] or 1), 32))


def _to_global(f: Judge, op: Operation, name: str, operands: list[Any], known: dict[str, Any]) -> None:
    f.store(op, at("gmem", operands[0], 1, 32), UNKNOWN)


def _arrival(f: Judge, op: Operation, name: str, operands: list[Any], known: dict[str, Any]) -> None:
    """At a barrier of any CTA of the cluster."""
    what, lanes_at, count, _ = f.arrivals(op, operands[1:])
    for barrier, each in lanes_at:
        f.arrive(op, what, barrier, count * each, 0, ".cta." in name and barrier[0] != f.place.rank)


def _tensor_wait(f: Judge, op: Operation, name: str, operands: list[Any], known: dict[str, Any]) -> None:
    f.order(op, "tensor wait", flag="::ld" in name)


def _nothing(f: Judge, op: Operation, name: str, operands: list[Any], known: dict[str, Any]) -> None:
    """Registers alone."""


STATEMENTS: list[tuple[str, Statement]] = [
    (r"tcgen05\.mma\.\S+", _multiplied),
    (r"tcgen05\.wait::(ld|st)\.sync\.aligned", _tensor_wait),
    (r"cp\.async\.c[ag]\.shared\.global\S*", _async_copy),
    (r"(ld|st)matrix\.sync\.aligned\.\S+", _matrices),
    (r"st\.async\.\S*shared::cluster\.mbarrier::complete_tx::bytes\.\S+", _store_to_cluster),
    (r"cp\.reduce\.async\.bulk\.global\.shared::cta\.bulk_group\.\S+", _bulk_reduce),
    (r"mbarrier\.arrive\.release\.(cta|cluster)\.shared::cluster\.b64", _arrival),
    (r"cp\.async\.bulk\.tensor\.2d\.shared::cta\.global\.tile::gather4\.mbarrier::complete_tx::bytes", _gathered),
    (r"ld\.global(\.v[24])?\.[bu]32", _from_global),
    (r"red\.(relaxed\.\w+\.)?global\.\S+", _to_global),
    (r"fence\.proxy\.tensormap::generic\.(release|acquire)\.\S+", _tensor_map),
    (r"tensormap\.cp_fenceproxy\.global\.shared::cta\.tensormap::generic\.release\.\S+", _tensor_map),
    (r"mma\.sync\.\S+|cvt\.\S+", _nothing),
]


# --- statements that leave a value in a register -----------------------------------------------------------------

Value = Callable[[Judge, str, list[Any]], Any]
ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "shl": lambda a, b: a << b,
}


def _moved(f: Judge, name: str, sources: list[Any]) -> Any:
    (value,) = sources
    return _with(lambda low, high: low & WORD | (high & WORD) << 32, *value) if isinstance(value, tuple) else value


def _compared(f: Judge, name: str, sources: list[Any]) -> Any:
    a, b = sources
    both = is_number(a) and is_number(b)
    return COMPARED[name.split(".")[1]](a, b) if both else UNKNOWN


def _computed(f: Judge, name: str, sources: list[Any]) -> Any:
    """Integers of 32 bits, signed or not."""
    what, kind = name.split(".")
    found = _with(ARITHMETIC[what], *sources)
    below = 1 << 31 if kind == "s32" else 0
    return _with(lambda x: (x + below & WORD) - below, found)


def _elected(f: Judge, name: str, sources: list[Any]) -> Any:
    return np.arange(LANES) == np.flatnonzero(f.active)[0]


VALUES: list[tuple[str, Value]] = [
    (r"cvt\.u32\.u64|cvta\.\S+|mov\.\S+", _moved),
    (r"setp\.(eq|ne|lt|le|gt|ge)\.[sub]\d+", _compared),
    (r"(add|sub)\.[su]32|(and|or|xor|shl)\.b32", _computed),
    (r"elect\.sync", _elected),
]
