"""PTX that a kernel brings itself: numbers, copies, matrices, stores to a cluster; any other text is not followed.

A text is a list of statements. Registers of its own stand for operands that are moved or converted to them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from cookbook.simulate import flags, raw
from cookbook.simulate.judge import Judge
from cookbook.simulate.trace import Operation
from cookbook.simulate.values import COMPUTED, LANES, PLAIN, UNKNOWN, Box, Lay, Pointer, UnknownCode, View
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
        known = all(isinstance(value, (int, np.integer, np.ndarray)) for value in args)
        return compute(*args) if known else f.data(op, args)
    elif "tcgen05.fence::" in text:
        f.order(op, "tensor fence", flag="after_thread_sync" in text)
    elif re.search(r"griddepcontrol\.wait|\bwait\b", text):
        f.order(op, "grid wait")
    elif "launch_dependents" not in text:
        return _statements(f, op, text, args)
    return UNKNOWN


def _statements(f: Judge, op: Operation, text: str, args: list[Any]) -> Any:
    """One after the other, each by the lanes whose predicate holds; the result, if there is one that is known."""
    outputs = op.get("constraints", "").count("=")  # of `llvm.inline_asm`, whose operands are numbered behind them
    known: dict[str, Any] = {f"${number + outputs}": value for number, value in enumerate(args)}
    known |= {f"{{$r{number}}}": value for number, value in enumerate(args)}
    for statement in filter(None, (part.strip() for part in _lines(text))):
        guard = re.match(r"@(!?)(\w+)\s+", statement)
        name, _, rest = statement[guard.end() if guard else 0 :].partition(" ")
        operands = [part.strip() for part in re.findall(r"\[[^]]*\]|\{(?!\$r)[^}]*\}|[^,\[]+", rest) if part.strip()]
        found = next((entry for entry in STATEMENTS if re.fullmatch(entry[0], name)), None)
        if found is None:
            raise UnknownCode(f"inline assembly: {text[:200]}")
        takes = _takes(known.get(guard[2]), bool(guard[1])) if guard else None
        with lanes(f, takes):
            if takes is None or f.active.any():
                found[1](f, op, name, [known.get(part.strip("[]"), part) for part in operands], known)
    return known["$0"] if outputs == 1 and not isinstance(known.get("$0", ""), str) else UNKNOWN


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


def _moved(f: Judge, op: Operation, name: str, operands: list[Any], known: dict[str, Any]) -> None:
    known[operands[0]] = operands[1]


def _compared(f: Judge, op: Operation, name: str, operands: list[Any], known: dict[str, Any]) -> None:
    a, b = (int(x) if isinstance(x, str) and x.lstrip("-").isdigit() else x for x in operands[1:])
    both = all(isinstance(x, (int, np.integer, np.ndarray)) for x in (a, b))
    known[operands[0]] = COMPARED[name.split(".")[1]](a, b) if both else UNKNOWN


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
    numbers = [x if isinstance(x, (int, np.integer, np.ndarray)) else None for x in values]
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


def _to_global(f: Judge, op: Operation, name: str, operands: list[Any], known: dict[str, Any]) -> None:
    f.store(op, at("gmem", operands[0], 1, 32), UNKNOWN)


def _arrival(f: Judge, op: Operation, name: str, operands: list[Any], known: dict[str, Any]) -> None:
    """At a barrier of any CTA of the cluster."""
    what, lanes_at, count, _ = f.arrivals(op, operands[1:])
    for barrier, each in lanes_at:
        f.arrive(op, what, barrier, count * each, 0, ".cta." in name and barrier[0] != f.place.rank)


def _nothing(f: Judge, op: Operation, name: str, operands: list[Any], known: dict[str, Any]) -> None:
    """Registers alone."""


STATEMENTS: list[tuple[str, Statement]] = [
    (r"cvt\.u32\.u64|cvta\.\S+|mov\.\S+", _moved),
    (r"setp\.(eq|ne|lt|le|gt|ge)\.[su]\d+", _compared),
    (r"cp\.async\.c[ag]\.shared\.global\S*", _async_copy),
    (r"(ld|st)matrix\.sync\.aligned\.\S+", _matrices),
    (r"st\.async\.\S*shared::cluster\.mbarrier::complete_tx::bytes\.\S+", _store_to_cluster),
    (r"cp\.reduce\.async\.bulk\.global\.shared::cta\.bulk_group\.\S+", _bulk_reduce),
    (r"mbarrier\.arrive\.release\.(cta|cluster)\.shared::cluster\.b64", _arrival),
    (r"red\.(relaxed\.\w+\.)?global\.\S+", _to_global),
    (r"fence\.proxy\.tensormap::generic\.(release|acquire)\.\S+", _tensor_map),
    (r"tensormap\.cp_fenceproxy\.global\.shared::cta\.tensormap::generic\.release\.\S+", _tensor_map),
    (r"mma\.sync\.\S+|cvt\.\S+", _nothing),
]
