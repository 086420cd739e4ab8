"""Choose the problems that a kernel is followed for, and the arguments of its host function for each."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from cookbook.check import fused
from cookbook.check.pipeline.programs import Problem, named_arguments
from cookbook.check.pipeline.run import Run
from cookbook.check.product import origins
from cookbook.check.product.maxima import Maximum
from cookbook.check.product.memory import Operand, Scratch
from cookbook.check.product.words import Words
from cookbook.recipe import catalog, formats, grouped
from cookbook.recipe.majors import align, letters, of_config
from cookbook.simulate import types
from cookbook.simulate.trace import Trace
from cookbook.simulate.types import element
from cookbook.simulate.values import CannotFollow, Pointer, base_of

RAGGED = 24  # elements beyond whole tiles: whole vectors of 8
FURTHER = 32  # elements that the lines of a second weight, or a residual, lie further apart than those of B, or C
FAR = 1 << 30  # elements that lines lie further apart where offsets are to need 64 bits

ELEMENTS = {"e4m3": "f8E4M3FN", "e5m2": "f8E5M2", "e2m1": "f4E2M1FN", "int8": "si8"}  # as the IR spells them


@dataclass(frozen=True)
class Corner:
    """An unusual trait of a problem's operands."""

    one_scale: str = ""  # scale factors of rows, SA or SB, of which all rows have one
    far: bool = False  # lines lie so far apart that offsets need 64 bits
    beyond: bool = False  # ends of groups lie below 0 and above the last row


NOTHING_UNUSUAL = Corner()
Kernel = tuple[Any, tuple[tuple[str, Any], ...]]  # the configuration, and what more the recipe's `compile_for` takes


@dataclass(frozen=True)
class Case:
    """A problem, and the kernel that is followed for it."""

    problem: Problem
    config: Any
    options: tuple[tuple[str, Any], ...] = ()  # what more the recipe's `compile_for` takes
    corner: Corner = NOTHING_UNUSUAL


def cases(module: Any, config: Any, kind: Any = None) -> tuple[Case, ...]:
    """Small problems that go round the corners of a kernel: what lies at the edge of C, and who computes which tile.

    * M, N and K ragged against tile, cluster, stages and split, an even number of k-tiles, and a cluster's worth of
      tiles more than fits at once;
    * less than one tile, with room for several, and C stored by single elements where a kernel may be compiled so;
      lines far apart, ends of groups outside of the matrix, and one scale factor for all of A;
    * tiles and groups of the rasterization that are full, as many k-tiles as there are stages, one cluster for all, and
      one scale factor for all of B;
    * one row and a few columns more than whole tiles, in groups of the rasterization that are made small for it;
    * a tile for six clusters, and two for five, where clusters tell one another something through global memory.

    Where a kernel takes an A and a B of two types, some of them are. A kind of product may have problems of its own.
    """
    return (kind or catalog.product_of("gemm")).problems(module, config)


def usual(module: Any, config: Any, least_stages: int = 0) -> tuple[Case, ...]:
    """`cases` of most kinds. least_stages: k-tiles of a work tile, where a configuration's stages are fewer."""
    down, across = (getattr(config, f"cluster_{x}", getattr(config, f"pairs_{x}", 1)) for x in "mn")
    ctas = getattr(config, "cluster", down * across)
    m, n, k = config.tile_m * down, config.tile_n * across, config.tile_k * getattr(config, "split_k", 1)
    m, n = (n, m) if getattr(config, "swap_ab", False) else (m, n)
    stages = max(getattr(config, "stages", 2), least_stages)
    vectors = "vec" in inspect.signature(module.compile_for).parameters
    odd = 0 if vectors else 1  # a kernel that is told how wide it may store is told of an even N here
    more, fewer = min(RAGGED, 3 * config.tile_m), min(13, 2 * config.tile_m - 1)  # rows; of low tiles not many more

    case = partial(case_of, module, config)
    small, mixed = _small_groups(config, 2 * down), _two_types(module)  # in one kernel, where there are both
    single = config, (*(("vec", 1),) * vectors, *(() if small else mixed))
    other = small or config, mixed if small else ()
    deep = stages + 1 + stages % 2  # and the ragged one: an even number of k-tiles, enough for a stage index to turn
    found = [
        case((m + config.tile_m // 2 + more, 2 * n + RAGGED + odd, deep * k + RAGGED), 5 * ctas),
        case((more + fewer, RAGGED + 5, RAGGED), 4 * ctas, single, one_scale="SA", far=True, beyond=True),
        case((2 * m, n, stages * k), ctas, other, one_scale="SB"),
    ]
    if small:
        found.append(case((2 * m + 1, 2 * n + 8, RAGGED), 2 * ctas, other))
    if "flags" in inspect.signature(module.gemm).parameters:
        found += [case((m, tiles * n, (2 * stages + 1) * k), each * ctas) for tiles, each in ((1, 6), (2, 5))]
    return tuple(found)


def case_of(
    module: Any, config: Any, shape: tuple[int, int, int], sms: int, kernel: Kernel | None = None, **corner: Any
) -> Case:
    """A case whose shape is rounded up to one that the kernel takes."""
    form = formats.of_module(module)
    m, n, k = formats.align(shape, form) if form else align(shape, letters(*of_config(config)))
    return Case(Problem(m, n, k, sms), *(kernel or (config, ())), Corner(**corner))


def _two_types(module: Any) -> tuple[tuple[str, Any], ...]:
    """The options of a kernel whose B has another type than A; none of one whose operands have one type."""
    import cutlass

    known = inspect.signature(module.compile_for).parameters
    return (("b", cutlass.Float8E5M2),) if {"a", "b"} <= known.keys() else ()


def _small_groups(config: Any, rows: int) -> Any:
    """The configuration with that many rows of tiles in a group; None of one that has no groups, or none so small."""
    if getattr(config, "swizzle_size", rows) <= rows:
        return None
    try:
        return replace(config, swizzle_size=rows)
    except ValueError:
        return None


@dataclass(frozen=True)
class Given:
    """The arguments of a launch."""

    arguments: list[Any]  # of the host function
    operands: dict[str, Operand]
    scratch: list[Scratch]
    k: int  # of A and B as memory has them: bytes of elements of 4 bits
    middle: int  # of a chained GEMM, the columns of A B; 0 of another
    block: int  # how many of these share a scale factor that MMAs multiply by; 0: there are none
    further: dict[int, Operand]  # by kind: scale factors that the kernel multiplies by, and a residual
    owners: tuple[int, ...]  # of each row of C, its group, whose B it needs; -1: it is of none; (): there are none
    parts: tuple[range, ...]  # of each group along K, its k; the groups' C follow one another
    words: Words | None = None  # of a packed weight


FACTORS = ("SA", "SB")  # scale factors that the kernel multiplies by itself


class Judged(NamedTuple):
    """A kind of product's say on a problem: what the launch is told besides, and what C has to be."""

    tables: Mapping[str, tuple[int, ...]] = MappingProxyType(
        {}
    )  # by the parameter of the launch: numbers on the device
    owners: tuple[int, ...] = ()  # of each row of C, its group, whose B it needs; -1: it is of none; (): there are none
    parts: tuple[range, ...] = ()  # of each group along K, its k; the groups' C follow one another
    middle: int = 0  # columns of the product in the middle; 0: there is none


class Place(NamedTuple):
    """An operand before it is placed: its sizes, and what the kernel's pointer says."""

    name: str  # of the pointer, without its p
    m: int
    n: int
    k: int  # in elements of memory
    elements: int  # along K
    lines: tuple[int, int, int]  # elements between the lines of A, B and C
    far: int  # elements that lines lie further apart
    bits: int
    dtype: str
    base: int
    config: Any
    form: Any  # formats.Format; None: elements are not narrow
    one_scale: bool  # one scale factor for all rows


def given(run: Run, trace: Trace, case: Case) -> Given:
    """Return what the host function of a recipe is called with.

    Pointers are its parameters pA, pB and pC; pSA and pSB to scale factors that the kernel multiplies by, pSFA and pSFB
    to those that the MMA does; and the operands of the kernel's epilogue.
    Addresses and rows are as aligned as the kernel is compiled for, and no more. `sums` is memory that nothing has
    written, `flags` are numbers that earlier launches have left, `amax` is a word that is 0.
    """
    module, config, problem, corner = run.module, case.config, case.problem, case.corner
    form, kind = formats.of_module(module), run.product or catalog.product_of("gemm")
    host = trace.host
    said = named_arguments(module, config, problem)
    names = {name: name[1:] for name, _ in said if re.match("p[A-Z]", name)}
    names |= {name: name for name in fused.of_config(module, config)}
    texts = {names[name]: text for (name, _), text in zip(said, host.argument_types, strict=True) if name in names}
    pointers = {name: types.kind(text) for name, text in texts.items()}
    dtypes = {name: element(text) for name, text in texts.items()}
    per = kind.per_byte(form)
    aligns = {name: max(each.align, each.bits // 8) for name, each in pointers.items()}
    steps = {name: 8 * aligns[name] // each.bits for name, each in pointers.items()}
    lines = strides_of(config, problem, steps, per, FAR if corner.far else 0)
    m, n, k, judged = problem.m, problem.n, problem.k // per, kind.judged(config, problem, corner.beyond)
    owners, parts = judged.owners, judged.parts
    operands: dict[str, Operand] = {}
    for number, name in enumerate(pointers):
        dtype = kind.multiplied_as(name, dtypes, form)
        one, base = name == corner.one_scale, base_of(number) + aligns[name]
        far, bits = FAR if corner.far else 0, pointers[name].bits
        place = Place(name, m, n, k, problem.k, lines, far, bits, dtype, base, config, form, one)
        operands[name] = kind.placed(place) or matrix_of(place)
    for name, rows in (("B", n), ("SB", n)) if owners else (("C", m),) if parts else ():
        if name in operands:  # as many as groups, with room between them that no group fills
            operands[name] = _in_groups(operands[name], rows, steps[name])
    words, order = kind.words(module, config, n, k, operands)
    operands |= order
    middle = judged.middle
    if middle:
        operands["B"] = replace(operands["B"], shape=(middle, k))
    arguments: list[Any] = []
    scratch: list[Scratch] = []
    values = _values(module, config, problem, lines, operands, judged.tables)
    for (name, value), text in zip(values, host.argument_types, strict=True):
        if not text.startswith("!cute.ptr"):
            arguments.append(value)
        elif name in SCRATCH:
            scratch.append(SCRATCH[name](base_of(len(names) + len(scratch))))
            scratch[-1].name = name
            arguments.append(Pointer("gmem", scratch[-1].base))
        elif isinstance(value, tuple):
            arguments.append(Pointer("table", 0, numbers=value))
        else:  # what is no operand here has no memory: reading there is a fault
            arguments.append(Pointer("gmem", operands[names[name]].base if name in names else 0))
    used = (*FACTORS, *fused.AFTER)  # after the MMAs
    further = {origins.OPERANDS[name]: one for name, one in operands.items() if name in used}
    if fused.of_second_product(config):  # then C needs the products with the second weight: to the checks it is B
        b, up = operands["B"], operands["up"]
        operands |= {"B": replace(up, name="B"), "up": replace(b, name="up")}
    block = kind.block(form, per)
    return Given(arguments, operands, scratch, k, middle, block, further, owners, parts, words)


SCRATCH: dict[str, Callable[[int], Scratch]] = {  # parameters of a launch, and the memory at such an address
    "sums": partial(Scratch, first=origins.UNWRITTEN),
    "flags": partial(Scratch, first=5),
    "amax": Maximum,
}


def _in_groups(one: Operand, rows: int, step: int) -> Operand:
    """An operand of `rows` rows for each group, which are not adjacent."""
    return replace(one, shape=(grouped.ENDS * rows, one.shape[1]), groups=(rows, rows * one.strides[0] + 3 * step))


def _values(
    module: Any,
    config: Any,
    problem: Problem,
    lines: tuple[int, int, int],
    operands: dict[str, Operand],
    told: Mapping[str, tuple[int, ...]],
) -> list[tuple[str, Any]]:
    """The host function's arguments by name, as the operands lie: scale factors are of rows, or of blocks."""
    steps: dict[str, Iterator[Any]] = {name: iter((table,)) for name, table in told.items()}
    further = {"stride_residual": lines[2] + FURTHER, "stride_up": lines[1] + FURTHER}  # also where there are none
    steps |= {name: iter((apart,)) for name, apart in further.items()}
    if "B2" in operands:
        steps["stride_b2"] = iter(operands["B2"].strides[:1])
    for name, parameter in (("B", "group_stride"), ("C", "group_stride"), ("SB", "group_stride_sb")):
        if name in operands and operands[name].groups[1]:
            steps[parameter] = iter(operands[name].groups[1:])
    for name in operands.keys() & set(FACTORS):
        apart = operands[name].strides
        steps[f"stride_{name.lower()}"] = iter(apart[:1])
        steps[f"strides_{name.lower()}"] = iter(apart if name == "SA" else apart[::-1])  # those of B: along K first
    named = named_arguments(module, config, problem, lines)
    return [(name, next(steps[name]) if name in steps else x) for name, x in named]


def matrix_of(place: Place) -> Operand:
    """A, B or C; a residual lies as C does, a second weight as B."""
    name = place.name
    number = {"residual": 2, "up": 1}.get(name, "ABC".find(name))
    if number < 0:
        raise CannotFollow(f"gemm: got a pointer p{name}; needed one that the kind of product places")
    major = (*of_config(place.config), "n")[number]
    line = place.lines[number] + (FURTHER if name not in "ABC" else 0)
    shape = ((place.m, place.k), (place.n, place.k), (place.m, place.n))[number]
    strides = (line, 1) if major == "kkn"[number] else (1, line)
    return Operand(name, shape, strides, place.bits, place.dtype, place.base)


def strides_of(config: Any, problem: Problem, steps: dict[str, int], per: int, far: int) -> tuple[int, int, int]:
    """Elements between the lines of A, B and C, with room that no line fills, all different.

    Args:
        config: the recipe's `Config`, which says the majors.
        problem: the sizes.
        steps: of each operand, the elements that its lines are an odd multiple of apart.
        per: elements of A and B in one of memory.
        far: elements that they lie further apart.
    """
    majors = (*of_config(config), "n")
    extents = {"m": problem.m, "n": problem.n, "k": problem.k // per}
    found = []
    for number, (name, major) in enumerate(zip("ABC", majors, strict=True)):
        pieces = -(-extents[major] // steps[name]) + 1
        found.append(steps[name] * ((pieces | 1) + 2 * number) + far)
    a, b, c = found
    return a, b, c
