"""What a recipe's `matmul` launches, with no GPU: tensors of the CPU pass for CUDA's, and no kernel is compiled.

Calls of many kinds are made, again and again, so that plans are found again. Each launch must be told of the very
matrices of its call: addresses, sizes and strides, a kernel for their dtypes and majors, stores no wider than the rows
of C allow. In place of the kernel a stand-in fills C where it was told to, and `matmul` must return that. Calls that
the kernels cannot serve must be refused.

Memory that CTAs share is looked at when the kernel is launched: what must be 0, and whether there is as much of it as
the level *product* sees touched. `chain` is called too: no kernel may read early what an earlier one may still write.
"""

from __future__ import annotations

import inspect
import random
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

from cookbook.check import compiled, groups, packed, product, scaled
from cookbook.check.findings import Finding
from cookbook.check.pipeline import trace_of
from cookbook.check.pipeline.programs import Problem, at_rest, host_arguments, launched, named_arguments
from cookbook.recipe import catalog, chained, formats, grouped, majors
from cookbook.recipe.catalog import Recipe, capabilities
from cookbook.recipe.contract import Linked

__all__ = ["findings"]

SMS, STREAM, CALLS = 132, 7, 240
# What a call is drawn from. Extents, and gaps between lines, are counted in elements.
CHOICES: dict[str, tuple[Any, ...]] = {
    "m": (1, 2, 3, 40),
    "n": (1, 5, 8, 12, 24),
    "k": (32, 64),
    "gap_a": (0, 8, 16),
    "gap_b": (0, 8, 16),
    "out": (True, True, False),
    "out_gap": (0, 1, 2, 4, 8),
    "out_start": (0, 0, 1, 2, 4, 8),
    "one_scale": (True, False),  # of scale factors of rows
}
TORCH_NAMES = {"BFloat16": "bfloat16", "Float16": "float16", "Int8": "int8"}  # of element types; narrow floats vary
FACTORS = ("pSB", "pZB")  # of a packed weight
SCALES = ("stride_sa", "stride_sb")  # parameters of a kernel that multiplies by scale factors of rows
SHARED = ("sums", "flags")  # memory that CTAs of a launch share, which `matmul` makes
ZEROS = ("flags", "amax")  # what is 0 when the kernel that counts it up, or raises it, is launched for the first time
FEW = 8  # SMs of a small GPU
KEPT = ("FLAGS", "SPARE")  # what the host side keeps of these, by device and stream
POISON, POISONED = 0x42, 1 << 14  # what is in memory that nothing has written, in bytes: and in how many at most


class NotLaunched(Exception):
    """`matmul` has no host side that can be looked at."""


@dataclass
class Launched:
    """One launch: what was to be compiled, and what the kernel was called with."""

    pointers: tuple[tuple[Any, int], ...]  # (element type, alignment in bytes) that the kernel is compiled for
    constants: dict[str, Any]  # compile-time arguments of `gemm`, by name
    arguments: tuple[Any, ...]


class Number(NamedTuple):
    """A number that a kernel was called with."""

    name: str
    got: Any
    needed: Any  # None: not known


@dataclass
class Watched:
    """A module whose `matmul` launches stand-ins."""

    module: Any
    launches: list[Launched] = field(default_factory=list)
    made: list[Any] = field(default_factory=list)  # tensors that were made during a call
    compiles: Any = None  # its own `compile_host`
    ever: list[Any] = field(default_factory=list)  # weak references to all that were
    gpu: Any = field(default_factory=lambda: SimpleNamespace(multi_processor_count=SMS))
    fill: Callable[[int], None] = lambda address: None  # what stands for the kernel: it is told where C is

    def compile_host(self, host: Any, arch: str, pointers: tuple, constants: tuple, options: str = "") -> Any:
        """Stands for `entry.compile_host`: a kernel that notes what it is called with."""
        parameters = inspect.signature(host).parameters.items()
        names = [name for name, each in parameters if getattr(each.annotation, "__name__", "") == "Constexpr"]
        place = [name for name, _ in parameters].index("pC")

        def kernel(*arguments: Any) -> None:
            self.launches.append(Launched(pointers, dict(zip(names, constants, strict=True)), arguments))
            self.fill(arguments[place])

        return kernel

    def trace(self, recipe: Recipe, config: Any) -> Any:
        """What CuTe traces of a kernel that was launched."""
        with patch.dict(self.module.compile_for.__globals__, compile_host=self.compiles):
            return trace_of(self.module, recipe.targets[0], compiled.cutlass_dtype(recipe.dtypes[0]), config)

    def note(self, tensor: Any, empty: bool) -> Any:
        """Keep a tensor that was made; what nothing has written is poisoned, where it is not much."""
        import torch

        if empty and tensor.nbytes <= POISONED:
            tensor.view(-1).view(torch.uint8).fill_(POISON)
        self.made.append(tensor)
        self.ever.append(weakref.ref(tensor))
        return tensor

    def at(self, address: int) -> Any:
        """The tensor that was made there, and is still there; None if there is none."""
        there = (tensor for each in reversed(self.ever) if (tensor := each()) is not None)
        return next((tensor for tensor in there if tensor.data_ptr() == address), None)


@contextmanager
def watched(module: Any, runs_on: str) -> Iterator[Watched]:
    """`module`, its plans put aside, on a machine that seems to have the GPU that `runs_on` names first.

    Raises:
        NotLaunched: its host side is not that of `cookbook.recipe.entry`.
    """
    import torch

    scope = getattr(module.compile_for, "__globals__", {})
    sides = [side for side in _leaves(vars(module).values()) if hasattr(side, "plans") and hasattr(side, "kernels")]
    if "compile_host" not in scope or not sides:
        raise NotLaunched("matmul: got a host side of another kind; needed `Gemm` and `compile_host`, as recipes have")
    capability, seen = capabilities(runs_on)[0], Watched(module, compiles=scope["compile_host"])
    kept = [kept for name in KEPT if (kept := getattr(type(sides[0]).matmul, "__globals__", {}).get(name)) is not None]
    with ExitStack() as stack:
        for owner, name, value in (
            (torch.Tensor, "is_cuda", True),
            (torch.cuda, "get_device_capability", lambda device=None: capability),
            (torch.cuda, "get_device_properties", lambda device=None: seen.gpu),
            (torch.cuda, "current_device", lambda: -1),  # what get_device() says of a CPU tensor
            (torch.cuda, "device", _NoDevice),
            (torch.cuda, "is_current_stream_capturing", lambda: False),
            (torch._C, "_cuda_getCurrentRawStream", lambda device: STREAM),
            *((side, name, {}) for side in sides for name in ("plans", "kernels")),
            *((owner, name, _noting(getattr(owner, name), seen, "empty" in name)) for owner, name in _makers(torch)),
        ):
            stack.enter_context(patch.object(owner, name, value, create=True))
        for each in kept:
            stack.enter_context(patch.dict(each, clear=True))
        stack.enter_context(patch.dict(scope, compile_host=seen.compile_host))
        yield seen


def _makers(torch: Any) -> list[tuple[Any, str]]:
    return [(torch.Tensor, "new_empty"), (torch, "empty"), (torch, "zeros"), (torch, "empty_like")]


def _noting(make: Callable[..., Any], seen: Watched, empty: bool) -> Callable[..., Any]:
    return lambda *args, **named: seen.note(make(*args, **named), empty)


class _NoDevice:
    """`torch.cuda.device`."""

    def __init__(self, device: Any) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *error: Any) -> None: ...


def _leaves(values: Any) -> Iterator[Any]:
    """The values, and those that dicts, lists and tuples among them hold."""
    for value in values:
        if isinstance(value, dict):
            yield from _leaves(value.values())
        elif isinstance(value, (list, tuple)):
            yield from _leaves(value)
        else:
            yield value


# --- calls -------------------------------------------------------------------------------------------------------


@dataclass
class Call:
    """A legal call of `matmul`."""

    a: Any  # (M, K)
    b: Any  # (K, N), or of groups of rows (GROUPS, K, N)
    out: Any  # (M, N), or of groups along K (GROUPS, M, N); or None
    scales: tuple[Any, ...]  # of A and B; of a grouped GEMM its offs; of a chained one, b2
    mnk: tuple[int, int, int]  # in elements
    majors: str

    def __str__(self) -> str:
        m, n, k = self.mnk
        dtype = str(self.a.dtype).removeprefix("torch.")
        out = "no out" if self.out is None else f"out with strides {self.out.stride()}"
        lines = f"strides {self.a.stride()} and {self.b.stride()}"
        return f"{m}x{n}x{k} {self.majors} {dtype}, {lines}, {out}"


def calls(recipe: Recipe, draw: random.Random) -> Iterator[Call]:
    """Calls of many kinds: of each one, another that differs in one thing, and the first again."""
    choices = CHOICES | {"majors": recipe.majors, "dtype": recipe.dtypes}
    for _ in range(CALLS // 3):
        one = {name: draw.choice(values) for name, values in choices.items()}
        name = draw.choice(list(choices))
        for kind in (one, one | {name: draw.choice(choices[name])}, one):
            yield _made(recipe, kind)


def _made(recipe: Recipe, kind: dict[str, Any]) -> Call:
    """The call of a kind: see `CHOICES`."""
    import torch

    shape = (kind["m"], kind["n"], kind["k"])
    if recipe.grouped and recipe.operands:
        (m, n, k), c = formats.align(shape, formats.FORMATS[recipe.operands]), torch.bfloat16
        return _grouped((m, -(-n // 8) * 8, k), torch.float8_e4m3fn, kind | {"gap_a": 2 * kind["gap_a"]}, c)
    if recipe.operands:
        form = formats.FORMATS[recipe.operands]
        made = _packed if form.packed else _scaled if form.scale else _integer
        return made(recipe, formats.align(shape, form), kind)
    (m, n, k), dtype = majors.align(shape, kind["majors"]), getattr(torch, kind["dtype"])
    a_major, b_major = majors.MAJORS[kind["majors"]]
    if recipe.grouped == "k":
        return _grouped_along_k((m, n, k), dtype, kind)
    if recipe.grouped:
        return _grouped((m, -(-n // 8) * 8, k), dtype, kind, dtype)
    a = _matrix(m, k, dtype, a_major == "m", kind["gap_a"])
    if recipe.chained:
        middle = chained.columns(shape)
        b = _matrix(k, middle, dtype, True, kind["gap_b"])
        b2 = _matrix(middle, n, dtype, True, kind["gap_b"] + -middle % 8)  # columns whole 16-byte pieces apart
        return Call(a, b, _out(m, n, dtype, kind), (b2,), (m, n, k), majors.DEFAULT)
    b = _matrix(k, n, dtype, b_major == "k", kind["gap_b"])
    return Call(a, b, _out(m, n, dtype, kind), (), (m, n, k), kind["majors"])


def _grouped(shape: tuple[int, int, int], dtype: Any, kind: dict[str, Any], of_c: Any) -> Call:
    """Groups of rows, each with its own B, a gap between any two of them; rows of `out` that TMA can write. Where C is
    `of_c`, another dtype, with scale factors, a gap between those of two groups too."""
    import torch

    (m, n, k), gap = shape, kind["gap_b"] * of_c.itemsize // dtype.itemsize
    a, (weights, offs, _) = _matrix(m, k, dtype, False, kind["gap_a"]), groups.operands(m, torch.zeros(k, n))
    count = len(weights)
    b = _matrix(count * (n + gap), k + gap, dtype, False, 0)[:, :k].unflatten(0, (count, n + gap))[:, :n]
    aligned = kind | {name: 8 * kind[name] for name in ("out_gap", "out_start")}
    factors = (torch.ones(m), _matrix(count, n, torch.float32, False, gap)) if of_c != dtype else ()
    return Call(a, b.transpose(1, 2), _out(m, n, of_c, aligned), (*factors, offs), (m, n, k), majors.DEFAULT)


def _grouped_along_k(shape: tuple[int, int, int], dtype: Any, kind: dict[str, Any]) -> Call:
    """Groups along K, with a gap between their C; rows of `out` that TMA can write."""
    import torch

    m, n, k = shape
    a, b = _matrix(m, k, dtype, True, kind["gap_a"]), _matrix(k, n, dtype, False, kind["gap_b"])
    offs, out = torch.tensor(grouped.ends(k), dtype=torch.int32), None
    if kind["out"]:
        apart = m + kind["out_start"]  # rows from group to group
        rows = _out(grouped.ENDS * apart, n, dtype, kind | {"out_gap": 8 * kind["out_gap"], "out_start": 0})
        out = rows.unflatten(0, (grouped.ENDS, apart))[:, :m]
    return Call(a, b, out, (offs,), shape, "nt")


def _matrix(rows: int, columns: int, dtype: Any, by_columns: bool, gap: int) -> Any:
    """A matrix whose lines lie `gap` elements apart, at a multiple of 16 bytes."""
    import torch

    if by_columns:
        return _matrix(columns, rows, dtype, False, gap).T
    memory = torch.zeros(rows * (columns + gap) + 8, dtype=dtype)
    return memory[-memory.data_ptr() % 16 // memory.element_size() :].as_strided((rows, columns), (columns + gap, 1))


def _out(m: int, n: int, dtype: Any, kind: dict[str, Any]) -> Any:
    import torch

    if not kind["out"]:
        return None
    step, start = n + kind["out_gap"], kind["out_start"]
    memory = torch.zeros(m * step + start + 8, dtype=dtype)
    return memory.as_strided((m, n), (step, 1), -memory.data_ptr() % 16 // memory.element_size() + start)


def _scaled(recipe: Recipe, shape: tuple[int, ...], kind: dict[str, Any]) -> Call:
    """Operands with scale factors: of blocks, in either order, of rows, or one for all rows."""
    import torch

    m, n, k = shape
    form = formats.FORMATS[recipe.operands]
    sides = ((m, 1), (n, form.b_rows))
    (a, sa), (b, sb) = (scaled.tensors(scaled.integers(rows, k, form.name, rows, each)) for rows, each in sides)
    if not form.by_mma:
        sb = sb.T
        if form.block and kind["one_scale"]:  # as torch wants them: those of a block of K lie together
            sa = sa.T.contiguous().T
        elif kind["one_scale"]:
            sa, sb = torch.tensor(1.0), torch.tensor(1.0)
    return Call(a, b.T, _out(m, n, torch.bfloat16, kind), (sa, sb), (m, n, k), majors.DEFAULT)


def _integer(recipe: Recipe, shape: tuple[int, ...], kind: dict[str, Any]) -> Call:
    """Operands of 8-bit integers, their rows whole 16-byte pieces apart."""
    import torch

    m, n, k = shape
    a = _matrix(m, k, torch.int8, False, 2 * kind["gap_a"])
    b = _matrix(k, n, torch.int8, True, 2 * kind["gap_b"])
    return Call(a, b, _out(m, n, getattr(torch, kind["dtype"]), kind), (), (m, n, k), majors.DEFAULT)


def _packed(recipe: Recipe, shape: tuple[int, ...], kind: dict[str, Any]) -> Call:
    """A packed weight: elements of 4 bits, with zero points or without, integers of 8 bits, or e4m3."""
    import torch

    (m, n, k), dtype = shape, getattr(torch, kind["dtype"])
    k *= 2  # more groups than one
    weight = torch.arange(n * k).remainder(7).sub(3).view(n, k).to(dtype)
    wide = packed.Kind(8, floats=bool(kind["gap_a"]))
    of = packed.Kind(zeros=True) if kind["one_scale"] else wide if kind["gap_b"] else packed.Kind()
    b, *factors = packed.operands(catalog.load(recipe.name), weight.T, of)
    a = _matrix(m, k, dtype, False, kind["gap_a"])
    return Call(a, b, _out(m, n, dtype, kind), tuple(factors), (m, n, k), majors.DEFAULT)


# --- what must hold of a launch ----------------------------------------------------------------------------------


def findings(module: Any, recipe: Recipe) -> list[Finding]:
    """What `matmul` launches for many calls, and what it refuses, as lines of a level.

    Args:
        module: a GEMM recipe's.
        recipe: its front matter.

    Raises:
        NotLaunched: as `watched`.
    """
    with watched(module, recipe.runs_on) as seen:
        draw, done = random.Random(0), 0
        for call in calls(recipe, draw):
            if wrong := _wrong(seen, call):
                return [Finding("launches", False, f"{wrong} (matmul of {call})")]
            done += 1
        kernels = {str((one.pointers, one.constants)) for one in seen.launches}
        found = [Finding("launches", True, f"{done} calls, {len(kernels)} kernels")]
        return found + _refusals(seen, recipe) + _room(seen, recipe) + _chain(seen, recipe)


def _wrong(seen: Watched, call: Call) -> str:
    """What is wrong with the launch of a call; "" if nothing."""
    import torch

    before, told = len(seen.launches), {}
    seen.made.clear()
    m, n, _ = call.mnk
    along_k = grouped.takes_groups(seen.module) == "k"
    shape = (grouped.ENDS, m, n) if along_k else (m, n)
    pattern = (torch.arange(prod(shape)) % 97 + 1).reshape(shape)

    def fill(address: int) -> None:
        told["target"] = next((x for x in (call.out, *seen.made) if _begins(x, address, shape)), None)
        if told["target"] is not None:
            told["target"][..., :n] = pattern
        told["shared"] = _not_zero(seen)

    seen.fill = fill
    try:
        result = seen.module.matmul(call.a, call.b, *call.scales, out=call.out)
    except Exception as error:
        return f"matmul: got {type(error).__name__} ({str(error).splitlines()[0]}); needed a launch: this call is legal"
    if len(seen.launches) != before + 1:
        return f"matmul: got {len(seen.launches) - before} launches; needed 1"
    one = seen.launches[-1]
    numbers = _numbers(seen.module, call, one)
    given = seen.module, call, one, numbers
    if wrong := _of_operands(*given) or _of_output(*given, told["target"]) or told["shared"]:
        return wrong
    if call.out is not None and result is not call.out:
        return "matmul: got another tensor returned; needed out"
    if not torch.equal(result, pattern.to(result.dtype)):
        return "matmul: got a result that is not what the kernel stored; needed C, all of it"
    return ""


def _begins(x: Any, address: int, shape: tuple[int, ...]) -> bool:
    """Whether a tensor is one that C of this shape can be, and begins there."""
    *before, n = shape
    return x is not None and x.data_ptr() == address and [*x.shape[:-1]] == before and x.shape[-1] >= n


def _of_operands(module: Any, call: Call, one: Launched, numbers: list[Number]) -> str:
    """Whether a launch was told of its call's operands."""
    for (name, got), (element, align) in zip(_pointers(module, one), one.pointers, strict=False):  # then: a table
        further = ("B2",) if chained.is_chained(module) else ("SA", "SB")
        further = () if packed.is_packed(formats.of_module(module)) else further
        tensor = ({"A": call.a, "B": call.b} | dict(zip(further, call.scales, strict=False))).get(name)
        if got % align:
            return f"p{name}: got address {got:#x}; needed a multiple of {align}, for which the kernel is compiled"
        if tensor is not None and got != tensor.data_ptr():
            return f"p{name}: got another address; needed that of {name.lower()}"
        if tensor is not None and (wrong := _type(name, element, tensor)):
            return wrong
    wrong = next((each for each in numbers if each.needed is not None and each.got != each.needed), None)
    if wrong is not None:
        return f"{wrong.name}: got {wrong.got}; needed {wrong.needed}"
    which = majors.letters(*majors.of_config(one.constants["config"]))
    return "" if which == call.majors else f"config: got a kernel for {which} operands; needed one for {call.majors}"


def _type(name: str, element: Any, tensor: Any) -> str:
    said, needed = TORCH_NAMES.get(element.__name__), str(tensor.dtype).removeprefix("torch.")
    return f"p{name}: got a kernel for {said}; needed one for {needed}" if said and said != needed else ""


def _pointers(module: Any, one: Launched) -> list[tuple[str, int]]:
    """The addresses of a launch, with the names of their matrices: `pSFA` is that of "SFA"."""
    named = named_arguments(module, one.constants["config"], Problem(1, 1, 1, SMS))
    names = [name[1:] for name, _ in named if name[0] == "p" and name[1:2].isupper()]
    return list(zip(names, _flat(one.arguments), strict=False))


def _numbers(module: Any, call: Call, one: Launched) -> list[Number]:
    """The numbers of a launch, each with what it has to be for this call.

    Raises:
        ValueError: there are more or fewer than `gemm` takes.
    """
    count = len(_pointers(module, one))
    flat = list(_flat(one.arguments))[count:]
    named = named_arguments(module, one.constants["config"], Problem(*call.mnk, SMS), (-1, -1, -1))[count:]
    if len(named) != len(flat):
        raise ValueError(f"arguments: got {len(flat)} numbers at the launch; needed {len(named)}, as gemm takes")
    b = call.b[0] if call.b.ndim == 3 else call.b
    own: dict[str, Iterator[Any]] = {
        "strides": iter((_line(call.a), _line(b), None)),  # C's goes with its address: see `_of_output`
        "stream": iter((STREAM,)),
    }
    if packed.is_packed(formats.of_module(module)):
        own["strides"] = iter((_line(call.a), None, None))
        own |= {name: iter((0 if x is None else x.data_ptr(),)) for name, x in zip(FACTORS, call.scales, strict=True)}
    elif call.b.ndim == 3:
        *factors, offs = call.scales
        own |= {"offs": iter((offs.data_ptr(),)), "groups": iter((len(call.b),))}
        own["group_stride"] = iter((call.b.stride(0),))
        own["group_stride_sb"] = iter([of_b.stride(0) for of_b in factors[1:]])
    elif grouped.takes_groups(module):
        own |= {"offs_k": iter((call.scales[0].data_ptr(),)), "groups": iter((len(call.scales[0]),))}
        own["group_stride"] = iter((None if call.out is None else call.out.stride(0),))
    elif chained.is_chained(module):
        own |= {"middle": iter((call.b.shape[1],)), "stride_b2": iter((_line(call.scales[0]),))}
    else:
        own |= {SCALES[along]: iter((_apart(scale, along),)) for along, scale in enumerate(call.scales)}
        for name, scale in zip(("strides_sa", "strides_sb"), call.scales, strict=False):
            apart = zip(scale.stride(), scale.shape, strict=True)
            own[name] = iter([stride if extent > 1 else None for stride, extent in apart])
    found, sizes = [], iter("MNK")
    for (name, known), got in zip(named, flat, strict=True):
        needed = next(own[name]) if name in own else known if isinstance(known, int) else None
        found.append(Number(next(sizes) if name == "mnk" else name, got, needed))
    return found


def _flat(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, tuple):
            yield from _flat(value)
        else:
            yield value


def _line(x: Any) -> int | None:
    """Elements from line to line of an operand; None of one that has a single line."""
    return next((stride for extent, stride in zip(x.shape, x.stride(), strict=True) if extent > 1 and stride > 1), None)


def _apart(scale: Any, along: int) -> int | None:
    """Elements from one scale factor to the next; 0 of one for all."""
    return scale.stride(along) if scale.ndim == 2 and scale.shape[along] > 1 else 0 if scale.numel() == 1 else None


def _of_output(module: Any, call: Call, one: Launched, numbers: list[Number], target: Any) -> str:
    """Whether stores of the kernel's width fit the rows that it was told of, and these are those of `target`."""
    m, n, _ = call.mnk
    if target is None:
        return "pC: got an address that is neither out's nor that of memory made for it; needed the first element of C"
    rows = [each.got for each in numbers if each.name == "strides"][2]
    if m > 1 and rows != target.stride(-2):
        return f"strides: got {rows} from row to row of C; needed {target.stride(-2)}"
    apart = next((each.got for each in numbers if each.name == "group_stride"), None)
    if target.ndim == 3 and apart != target.stride(0):
        return f"group_stride: got {apart} from group to group of C; needed {target.stride(0)}"
    align = next(p[1] for (name, _), p in zip(_pointers(module, one), one.pointers, strict=False) if name == "C")
    vec, far = one.constants.get("vec"), rows if m > 1 else 0
    if vec is not None and (n % vec or far % vec or target.data_ptr() % (target.element_size() * vec)):
        where = f"N = {n}, the row stride {rows} and the address in elements"
        return f"vec: got stores of {vec} elements; needed a width that divides {where}"
    if vec is None and align == 16 and (far % 8 or (n % 8 and target is call.out)):
        return f"pC: got rows of {n} elements, {rows} apart, for TMA; needed padded rows of whole 16-byte pieces"
    return ""


# --- memory that CTAs share ---------------------------------------------------------------------------------------


def _shared(seen: Watched, names: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Those of the last launch's parameters, each with the tensor that it was given; None: memory of no tensor."""
    one = seen.launches[-1]
    named = named_arguments(seen.module, one.constants["config"], Problem(1, 1, 1, SMS))
    for (name, _), address in zip(named, _flat(one.arguments), strict=False):
        if name in names:
            yield name, seen.at(address)


def _not_zero(seen: Watched) -> str:
    """Which memory of the launch is not 0 that has to be; "" if all is."""
    for name, tensor in _shared(seen, ZEROS):
        if tensor is None or tensor.count_nonzero():
            got = "memory of no tensor" if tensor is None else "what was in memory before"
            return f"{name}: got {got}; needed 0 when the kernel is launched"
    return ""


def _room(seen: Watched, recipe: Recipe) -> list[Finding]:
    """Whether a launch has as much memory for its CTAs to share as the kernel touches, as the level *product* sees."""
    module = seen.module
    if not {*SHARED} & inspect.signature(module.gemm).parameters.keys():
        return []
    import torch

    config, there = module.CONFIG, dict[str, int]()

    def fill(address: int) -> None:
        there.update((name, 0 if tensor is None else tensor.nbytes) for name, tensor in _shared(seen, SHARED))

    seen.fill = fill
    m, n, k = (getattr(config, f"tile_{x}") for x in "mnk")
    problem = Problem(m, n, FEW * k, FEW)  # SMs that share the k-tiles of one tile
    which, kind = majors.MAJORS[recipe.majors[0]], getattr(torch, recipe.dtypes[0])
    a, b = _matrix(m, problem.k, kind, which[0] == "m", 0), _matrix(problem.k, n, kind, which[1] == "k", 0)
    seen.gpu.multi_processor_count = FEW
    seen.module.matmul(a, b)
    seen.gpu.multi_processor_count = SMS
    config, found = seen.launches[-1].constants["config"], []
    for name, size in product.compute(module, seen.trace(recipe, config), config, problem).touched.items():
        detail = f"got {there[name]} bytes for {problem}; needed {size}, which the kernel touches"
        found.append(Finding(name, there[name] >= size, detail))
    return found


# --- a chain of products ------------------------------------------------------------------------------------------

WIDTHS = 40, 24, 64, 32, 48  # of the matrices of a chain
ROWS = 24


def _chain(seen: Watched, recipe: Recipe) -> list[Finding]:
    """What `chain` launches, and what it must refuse: of a weight that is read early none may still write a part."""
    if not isinstance(seen.module, Linked):
        return []
    import torch

    dtype, seen.fill = getattr(torch, recipe.dtypes[0]), lambda address: None
    x = _matrix(ROWS, WIDTHS[0], dtype, False, 0)
    weights = [_matrix(k, n, dtype, True, 0) for k, n in pairwise(WIDTHS)]
    out = _matrix(ROWS, WIDTHS[-1], dtype, False, 0)
    before = len(seen.launches)
    seen.made.clear()
    try:
        seen.module.chain(x, weights, out=out)
    except (TypeError, ValueError) as error:
        detail = f"got {type(error).__name__} ({error}); needed launches: this call is legal"
        return [Finding("chain", False, detail)]
    wrong = _of_chain(seen, recipe, seen.launches[before:], x, weights, out)
    found = [Finding("chain", not wrong, wrong or f"{len(weights)} launches")]
    over = weights[1].T.as_strided((ROWS, WIDTHS[-1]), (WIDTHS[-1], 1))
    before = len(seen.launches)
    try:
        seen.module.chain(x, weights, out=over)
        said = "no error"
    except (TypeError, ValueError):
        said = "a launch" if len(seen.launches) > before else ""
    detail = f"got {said or 'an error'}; needed a TypeError or ValueError, and no launch"
    return [*found, Finding("a chain whose out overlaps a weight", not said, detail)]


def _of_chain(seen: Watched, recipe: Recipe, made: list[Launched], x: Any, weights: list[Any], out: Any) -> str:
    """What is wrong with the launches of a chain; "" if nothing."""
    if len(made) != len(weights):
        return f"got {len(made)} launches; needed {len(weights)}"
    activations, sizes, element = x.data_ptr(), WIDTHS[1:], x.element_size()
    for i, (one, weight) in enumerate(zip(made, weights, strict=True)):
        a, b, c = (dict(_pointers(seen.module, one))[name] for name in "ABC")
        config = one.constants["config"]
        for name, got, needed in (("pA", a, activations), ("pB", b, weight.data_ptr())):
            if got != needed:
                return f"kernel {i}: {name}: got another address; needed that of what it multiplies"
        if max(a, c) < min(a + ROWS * WIDTHS[i] * element, c + ROWS * sizes[i] * element):
            return f"kernel {i}: got a C that overlaps A, which other CTAs still read; needed two buffers at least"
        if not i and at_rest(seen.module, config) and _begins_early(seen, recipe, config):
            text = "got a load of the weight before the kernel before has ended, which may write it"
            return f"kernel 0: {text}; needed a launch without PDL, or a late load"
        activations = c
    return "" if activations == out.data_ptr() else "got another C of the last product; needed out"


def _begins_early(seen: Watched, recipe: Recipe, config: Any) -> bool:
    """Whether a kernel is launched so that it may begin before the one before it has ended."""
    given = host_arguments(seen.module, config, Problem(ROWS, WIDTHS[1], WIDTHS[0], SMS))
    return launched(seen.trace(recipe, config), given).dependent


# --- what must be refused ----------------------------------------------------------------------------------------


def _refusals(seen: Watched, recipe: Recipe) -> list[Finding]:
    """Calls that no kernel here can serve: nothing may be launched."""
    found = []
    for name, change in illegal(recipe).items():
        call = _legal(recipe)
        seen.module.matmul(call.a, call.b, *call.scales)  # so that there is a plan for calls that look like it
        change(call)
        before = len(seen.launches)
        try:
            seen.module.matmul(call.a, call.b, *call.scales, out=call.out)
            said = "a launch" if len(seen.launches) > before else "no error"
        except (TypeError, ValueError):
            said = "a launch" if len(seen.launches) > before else ""
        found.append(Finding(name, not said, f"got {said or 'an error'}; needed a TypeError or ValueError"))
    return found


def illegal(recipe: Recipe) -> dict[str, Callable[[Call], None]]:
    """By name, what makes a legal call one that a recipe must refuse."""
    if recipe.grouped == "k":
        return ILLEGAL_ALONG_K
    if packed.is_packed(formats.FORMATS.get(recipe.operands)):
        return ILLEGAL_PACKED
    of_factors = ILLEGAL_FACTORS if recipe.grouped and recipe.operands else {}
    return ILLEGAL | of_factors | (ILLEGAL_GROUPS if recipe.grouped else ILLEGAL_CHAIN if recipe.chained else {})


def _legal(recipe: Recipe) -> Call:
    kind = {name: values[-1] for name, values in CHOICES.items()} | {"m": 8, "n": 16, "dtype": recipe.dtypes[0]}
    given = majors.DEFAULT if majors.DEFAULT in recipe.majors else recipe.majors[0]
    return _made(recipe, kind | {"majors": given, "gap_a": 0, "out": False})


def _shifted(call: Call) -> None:
    rows, columns = call.a.shape
    memory = call.a.new_zeros(rows * columns + 32) if call.a.element_size() > 1 else _bytes(call.a)
    start = -memory.data_ptr() % 16 // memory.element_size() + 1
    call.a = memory[start:].as_strided((rows, columns), (columns, 1))


def _bytes(x: Any) -> Any:
    import torch

    return torch.zeros(x.numel() + 64, dtype=torch.uint8).view(x.dtype)


def _shorter(call: Call) -> None:
    call.b = call.b[..., : call.b.shape[-2] // 2, :]


def _odd_rows(call: Call) -> None:
    rows, columns = 3, call.a.shape[1]
    memory = call.a.new_zeros(rows * (columns + 1)) if call.a.element_size() > 1 else _bytes(call.a.new_empty(3, 256))
    call.a = memory.as_strided((rows, columns), (columns + 1, 1))


def _wide(call: Call) -> None:
    import torch

    call.out = torch.zeros(call.mnk[0], call.mnk[1] + 1, dtype=_of_c(call))


def _overlaps(call: Call) -> None:
    m, n, _ = call.mnk
    call.out = call.b.mT.view(_of_c(call)).as_strided((m, n), (n, 1))


def _of_c(call: Call) -> Any:
    """A dtype that C can have."""
    import torch

    return torch.int32 if call.a.dtype == torch.int8 else torch.bfloat16


def _over_offs(call: Call) -> None:
    """An `out` and `offs` in one piece of memory, offs at a row's end."""
    m, n, _ = call.mnk
    *factors, offs = call.scales
    memory = _matrix(m + 1, n, _of_c(call), False, 0)
    call.out, within = memory[:m], memory[m - 1, n - 8 :].view(offs.dtype)
    call.scales = (*factors, within.copy_(offs))


def _shifted_along_m(call: Call) -> None:
    m, k = call.a.shape
    call.a = _matrix(k, m + 8, call.a.dtype, False, 0)[:, 1 : m + 1].T


def _of_groups(call: Call, count: int) -> Any:
    return call.a.new_zeros(count, *call.mnk[:2])


def _wide_middle(call: Call) -> None:
    _, n, k = call.mnk
    call.b, call.scales = _matrix(k, 264, call.a.dtype, True, 0), (_matrix(264, n, call.a.dtype, True, 0),)


def _over_b2(call: Call) -> None:
    m, n, _ = call.mnk
    b2 = _matrix(call.b.shape[1], m * n, call.a.dtype, True, 0)[:, :n]
    call.scales, call.out = (b2,), b2.T.as_strided((m, n), (n, 1))


# Of a legal call: what makes it one that cannot be served.
ILLEGAL: dict[str, Callable[[Call], None]] = {
    "a at an odd address": _shifted,
    "rows of a that are not 16 bytes apart": _odd_rows,
    "b of another K": _shorter,
    "an out of another shape": _wide,
    "an out that overlaps b": _overlaps,
}
ODD = {"out": True, "out_gap": 4, "out_start": 0}


def _other(place: int, change: Callable[[Any], Any]) -> Callable[[Call], None]:
    """A call with another one of its further tensors."""

    def changed(call: Call) -> None:
        further = list(call.scales)
        further[place] = change(further[place])
        call.scales = tuple(further)

    return changed


# The same of a grouped GEMM.
ILLEGAL_GROUPS: dict[str, Callable[[Call], None]] = {
    "offs of fewer groups": _other(-1, lambda offs: offs[1:]),
    "rows of out that are not 16 bytes apart": lambda call: setattr(call, "out", _out(*call.mnk[:2], _of_c(call), ODD)),
    "offs of 64 bits": _other(-1, lambda offs: offs.long()),
    "an out that overlaps offs": _over_offs,
    "one b for all groups": lambda call: setattr(call, "b", call.b[0]),
}
# The same of one with scale factors.
ILLEGAL_FACTORS: dict[str, Callable[[Call], None]] = {
    "a factor for all rows": _other(0, lambda factors: factors[:1]),
    "factors of rows that are not adjacent": _other(0, lambda factors: factors.repeat(2)[::2]),
    "factors of fewer groups": _other(1, lambda factors: factors[1:]),
    "factors of a group that are not adjacent": _other(1, lambda factors: factors.T.contiguous().T),
    "factors of 16 bits": _other(1, lambda factors: factors.bfloat16()),
    "an out that overlaps factors": lambda call: setattr(
        call, "out", call.scales[1].view(_of_c(call)).as_strided(call.mnk[:2], (call.mnk[1], 1))
    ),
}
# The same of groups along K.
ILLEGAL_ALONG_K: dict[str, Callable[[Call], None]] = {
    "a K-major": lambda call: setattr(call, "a", call.a.contiguous()),
    "b K-major": lambda call: setattr(call, "b", call.b.T.contiguous().T),
    "a at an odd address": _shifted_along_m,
    "b of another K": _shorter,
    "M that is no multiple of 8": lambda call: setattr(call, "a", call.a[:-1]),
    "an out of another shape": _wide,
    "an out of fewer groups": lambda call: setattr(call, "out", _of_groups(call, grouped.ENDS - 1)),
    "an out whose groups overlap": lambda call: setattr(call, "out", _of_groups(call, 1).expand(grouped.ENDS, -1, -1)),
    "an out that overlaps a": lambda call: setattr(call, "out", call.a.T.as_strided((grouped.ENDS, 8, 8), (64, 8, 1))),
    "offs of 64 bits": lambda call: setattr(call, "scales", (call.scales[0].long(),)),
    "offs that are not adjacent": lambda call: setattr(call, "scales", (call.scales[0].repeat(2)[::2],)),
}
# The same of a packed weight.
ILLEGAL_PACKED: dict[str, Callable[[Call], None]] = {
    "a at an odd address": _shifted,
    "rows of a that are not 16 bytes apart": _odd_rows,
    "a weight of another K": lambda call: setattr(call, "b", call.b[:, :1].contiguous()),
    "a weight that is not contiguous": lambda call: setattr(call, "b", call.b.mT.contiguous().mT),
    "scales of fewer blocks": lambda call: setattr(call, "scales", (call.scales[0][:-1], call.scales[1])),
    "scales of another dtype": lambda call: setattr(call, "scales", (call.scales[0].float(), call.scales[1])),
    "zero points of 8-bit elements": lambda call: setattr(call, "scales", (call.scales[0], call.scales[0])),
    "an out of another shape": _wide,
    "an out that overlaps scales": lambda call: setattr(
        call, "out", call.scales[0].view(-1)[: call.mnk[1]].expand(call.mnk[0], -1)
    ),
}
# The same of a chained one.
ILLEGAL_CHAIN: dict[str, Callable[[Call], None]] = {
    "b2 of another N1": lambda call: setattr(call, "scales", (call.scales[0][:1],)),
    "b2 with rows of adjacent elements": lambda call: setattr(call, "scales", (call.scales[0].contiguous(),)),
    "b2 of another dtype": lambda call: setattr(call, "scales", (call.scales[0].float(),)),
    "a product in the middle of more than 256 columns": _wide_middle,
    "an out that overlaps b2": _over_b2,
}
