"""Which problems a kernel is followed for, and what its host function is called with for one."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from cookbook.check import fused, packed
from cookbook.check.pipeline.programs import Problem, named_arguments
from cookbook.check.product import origins
from cookbook.check.product.maxima import Maximum
from cookbook.check.product.memory import Operand, Scales, Scratch
from cookbook.check.product.words import Words, laid
from cookbook.recipe import chained, formats, grouped
from cookbook.recipe.majors import align, letters, of_config
from cookbook.simulate import types
from cookbook.simulate.trace import Trace
from cookbook.simulate.types import element
from cookbook.simulate.values import Pointer, base_of

RAGGED = 24  # elements beyond whole tiles: whole vectors of 8
FURTHER = 32  # elements that the lines of a second weight, or a residual, lie further apart than those of B, or C
FAR = 1 << 30  # elements that lines lie further apart where offsets are to need 64 bits

ELEMENTS = {"e4m3": "f8E4M3FN", "e5m2": "f8E5M2", "e2m1": "f4E2M1FN", "int8": "si8"}  # as the IR spells them


@dataclass(frozen=True)
class Corner:
    """What is unusual of a problem's operands."""

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


def cases(module: Any, config: Any) -> tuple[Case, ...]:
    """Small problems that go round the corners of a kernel: what lies at the edge of C, and who computes which tile.

    * M, N and K ragged against tile, cluster, stages and split, an even number of k-tiles, and a cluster's worth of
      tiles more than fits at once;
    * less than one tile, with room for several, and C stored by single elements where a kernel may be compiled so;
      lines far apart, ends of groups outside of the matrix, and one scale factor for all of A;
    * tiles and groups of the rasterization that are full, as many k-tiles as there are stages, one cluster for all, and
      one scale factor for all of B;
    * one row and a few columns more than whole tiles, in groups of the rasterization that are made small for it;
    * a tile for six clusters, and two for five, where clusters tell one another something through global memory.

    Where a kernel takes an A and a B of two types, some of them are.
    """
    down, across = (getattr(config, f"cluster_{x}", getattr(config, f"pairs_{x}", 1)) for x in "mn")
    ctas = getattr(config, "cluster", down * across)
    m, n, k = config.tile_m * down, config.tile_n * across, config.tile_k * getattr(config, "split_k", 1)
    m, n = (n, m) if getattr(config, "swap_ab", False) else (m, n)
    stages = getattr(config, "stages", 2)
    if grouped.takes_groups(module) == "k":  # of which the longest group has more than a work tile has at least
        stages = max(stages, getattr(config, "min_k_tiles", 0))
    vectors = "vec" in inspect.signature(module.compile_for).parameters
    odd = 0 if vectors else 1  # a kernel that is told how wide it may store is told of an even N here
    more, fewer = min(RAGGED, 3 * config.tile_m), min(13, 2 * config.tile_m - 1)  # rows; of low tiles not many more

    def case(shape: tuple[int, int, int], sms: int, kernel: Kernel = (config, ()), **corner: Any) -> Case:
        form = formats.of_module(module)
        m, n, k = formats.align(shape, form) if form else align(shape, letters(*of_config(config)))
        return Case(Problem(m, n, k, sms), kernel[0], kernel[1], Corner(**corner))

    if packed.is_packed(formats.of_module(module)):  # of a weight of more rows than a tile has, and columns of C
        few = _few_stages(config)
        large = (config.tile_n + 5, m + 64, (few.stages + 1) * k + RAGGED)
        smallest = case((3, 64, RAGGED), ctas, far=True)
        return case(large, 3 * ctas, (few, ())), smallest, case((config.tile_n, m, k), ctas)
    small, mixed = _small_groups(config, 2 * down), _two_types(module)  # in one kernel, where there are both
    single = config, (*(("vec", 1),) * vectors, *(() if small else mixed))
    other = small or config, mixed if small else ()
    deep = max(stages + 1 - stages % 2, 3)  # and the ragged one: an even number of k-tiles, more than stages
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


def _two_types(module: Any) -> tuple[tuple[str, Any], ...]:
    """The options of a kernel whose B has another type than A; none of one whose operands have one type."""
    import cutlass

    known = inspect.signature(module.compile_for).parameters
    return (("b", cutlass.Float8E5M2),) if {"a", "b"} <= known.keys() else ()


def _few_stages(config: Any) -> Any:
    """The configuration with as few stages, but two at least, as it has where several CTAs share an SM."""
    each = (replace(config, per_sm=count) for count in range(config.per_sm, 9))
    return min((one for one in each if one.stages > 1), key=lambda one: one.stages)


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
    """What a launch is given."""

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


def ends(module: Any, problem: Problem, beyond: bool = False) -> tuple[int, ...]:
    """Where the groups of a problem end, of rows or along K; () where there are none.

    Along K one of them has most of K. beyond: the first is below 0, the last above all rows, and those between are out
    of order.
    """
    along = grouped.takes_groups(module)
    size = problem.k if along == "k" else problem.m
    if not along:
        return ()
    if beyond:
        return -1 - size // 5, size // 2, size // 3, size + RAGGED
    return grouped.ends(size) if along == "m" else (size // 16, size // 18, size - size // 16, size - size // 32)


def given(module: Any, trace: Trace, config: Any, problem: Problem, corner: Corner = NOTHING_UNUSUAL) -> Given:
    """What the host function of a recipe is called with.

    Pointers are its parameters pA, pB and pC; pSA and pSB to scale factors that the kernel multiplies by, pSFA and pSFB
    to those that the MMA does; and the operands of the kernel's epilogue.
    Addresses and rows are as aligned as the kernel is compiled for, and no more. `sums` is memory that nothing has
    written, `flags` are numbers that earlier launches have left, `amax` is a word that is 0.
    """
    form = formats.of_module(module)
    host = trace.host
    said = named_arguments(module, config, problem)
    names = {name: name[1:] for name, _ in said if re.match("p[A-Z]", name)}
    names |= {name: name for name in fused.of_config(module, config)}
    texts = {names[name]: text for (name, _), text in zip(said, host.argument_types, strict=True) if name in names}
    kinds = {name: types.kind(text) for name, text in texts.items()}
    dtypes = {name: element(text) for name, text in texts.items()}
    per = 8 // form.bits if form and form.bits < 8 and not form.packed else 1
    aligns = {name: max(kind.align, kind.bits // 8) for name, kind in kinds.items()}
    steps = {name: 8 * aligns[name] // kind.bits for name, kind in kinds.items()}
    lines = strides_of(config, problem, steps, per, FAR if corner.far else 0)
    m, n, k, along = problem.m, problem.n, problem.k // per, grouped.takes_groups(module)
    offs = ends(module, problem, corner.beyond)
    owners = grouped.owners(m, offs) if along == "m" else ()
    operands: dict[str, Operand] = {}
    for number, name in enumerate(kinds):
        bits, dtype = kinds[name].bits, dtypes[name]
        if form and form.packed and name == "B":
            dtype = dtypes["A"]  # of what its threads make of it
        elif form and not form.packed and name in "AB" and dtype not in ELEMENTS.values():  # but bytes
            dtype = ELEMENTS[form.element]
        base = base_of(number) + aligns[name]
        one = name == corner.one_scale and form and not form.block and not owners
        scaled = (1, 1, k, problem.k) if one else (m, n, k, problem.k)
        operands[name] = _operand(name, scaled, (*lines, FAR if corner.far else 0), config, (bits, dtype, base), form)
        if owners and name in FACTORS:  # the kernel takes them for adjacent
            operands[name] = replace(operands[name], strides=(1, 1))
    parts = grouped.parts(k, offs) if along == "k" else ()
    for name, rows in (("B", n), ("SB", n)) if owners else (("C", m),) if parts else ():
        if name in operands:  # as many as groups, with room between them that no group fills
            operands[name] = _in_groups(operands[name], rows, steps[name])
    words = None
    if form and form.packed:
        words, order = laid(module, config, n, k, operands)
        operands |= order
    middle = chained.middle(config) if chained.is_chained(module) else 0
    if middle:
        operands["B"] = replace(operands["B"], shape=(middle, k))
    arguments: list[Any] = []
    scratch: list[Scratch] = []
    values = _values(module, config, problem, lines, operands, offs)
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
    block = form.block // per if form and form.by_mma else 0
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
    offs: tuple[int, ...],
) -> list[tuple[str, Any]]:
    """The host function's arguments by name, as the operands lie: scale factors are of rows, or of blocks."""
    steps: dict[str, Iterator[Any]] = {"offs": iter((offs,)), "offs_k": iter((offs,))}
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


def _operand(
    name: str, extents: tuple[int, int, int, int], lines: Any, config: Any, said: tuple[int, str, int], form: Any
) -> Operand:
    m, n, k, elements = extents
    bits, dtype, base = said
    if name in ("SFA", "SFB"):
        return Scales(name, (m if name == "SFA" else n, elements // form.block), (1, 1), 8, dtype, base)
    if form and form.packed and name in ("SB", "ZB"):  # where they lie `words.laid` says
        return Operand(name, (n, k // form.block), (1, 1), bits, dtype, base)
    if name in FACTORS and not form.block:
        rows, more = (m, 3) if name == "SA" else (n, 2)
        apart, shared = ((1 << 31) // (rows - 1) + more, 1) if rows > 1 else (0, 0)  # the last one needs 64 bits
        return Operand(name, (rows, 1), (apart, 1), bits, dtype, base, (shared, 0))
    if name in FACTORS:
        rows, each = (m, 1) if name == "SA" else (n, form.b_rows)
        down, along = -(-rows // each), -(-k // form.block)
        apart = (1, down + 3) if name == "SA" else (along + 3, 1)
        return Operand(name, (down, along), apart, bits, dtype, base, (each, form.block))
    if name in fused.SCALES:
        rows = {"row_scale": m, "column_scale": n}.get(name, 1)
        return Operand(name, (rows, 1), (1, 1), bits, dtype, base, (1 if name.endswith("_scale") else 0, 0))
    if name == "bias":
        return Operand(name, (1, n), (n, 1), bits, dtype, base)
    if (
        name == "B2"
    ):  # of as many columns as the product in the middle has, and no line of it ends where the next begins
        line = chained.middle(config) + FURTHER + lines[3]
        return Operand(name, (n, chained.middle(config)), (line, 1), bits, dtype, base)
    number = {"residual": 2, "up": 1}.get(name, "ABC".find(name))  # a residual lies as C does, a second weight as B
    major = (*of_config(config), "n")[number]
    line = lines[number] + (FURTHER if name not in "ABC" else 0)
    shape = ((m, k), (n, k), (m, n))[number]
    return Operand(name, shape, (line, 1) if major == "kkn"[number] else (1, line), bits, dtype, base)


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
