"""Which problems a kernel is followed for, and what its host function is called with for one."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from cookbook.check import fused, packed
from cookbook.check.pipeline import shapes
from cookbook.check.pipeline.programs import Problem, named_arguments
from cookbook.check.pipeline.reading import Module
from cookbook.check.pipeline.shapes import UNKNOWN
from cookbook.check.product import origins
from cookbook.check.product.maxima import Maximum
from cookbook.check.product.memory import Operand, Scales, Scratch, base_of
from cookbook.check.product.places import Ptr, element
from cookbook.check.product.words import Words, laid
from cookbook.recipe import chained, formats, grouped
from cookbook.recipe.majors import align, letters, of_config

RAGGED = 24  # elements beyond whole tiles: whole vectors of 8
UP_FURTHER = 32  # elements that the lines of a second weight lie further apart than those of B

ELEMENTS = {"e4m3": "f8E4M3FN", "e5m2": "f8E5M2", "e2m1": "f4E2M1FN", "int8": "si8"}  # as the IR spells them


@dataclass(frozen=True)
class Case:
    """A problem, and the kernel that is followed for it."""

    problem: Problem
    config: Any
    options: tuple[tuple[str, Any], ...] = ()  # what more the recipe's `compile_for` takes
    one_scale: bool = False  # of operands with scale factors of rows: all rows of A have one, and those of B


def cases(module: Any, config: Any) -> tuple[Case, ...]:
    """Small problems that go round the corners of a kernel: what lies at the edge of C, and who computes which tile.

    * M, N and K ragged against tile, cluster, stages and split, and a cluster's worth of tiles more than fits at once;
    * less than one tile, with room for several, and C stored by single elements where a kernel may be compiled so;
    * tiles that are full, as many k-tiles as there are stages, one cluster for all, and one scale factor for all rows;
    * one row and a few columns more than whole tiles, in groups of the rasterization that are made small for it;
    * a tile, and two, for five clusters, where clusters tell one another something through global memory.
    """
    down, across = (getattr(config, f"cluster_{x}", getattr(config, f"pairs_{x}", 1)) for x in "mn")
    ctas = getattr(config, "cluster", down * across)
    m, n, k = config.tile_m * down, config.tile_n * across, config.tile_k * getattr(config, "split_k", 1)
    m, n = (n, m) if getattr(config, "swap_ab", False) else (m, n)
    stages = getattr(config, "stages", 2)
    vectors = "vec" in inspect.signature(module.compile_for).parameters
    odd = 0 if vectors else 1  # a kernel that is told how wide it may store is told of an even N here
    more, fewer = min(RAGGED, 3 * config.tile_m), min(13, 2 * config.tile_m - 1)  # rows; of low tiles not many more

    def case(shape: tuple[int, int, int], sms: int, other: Any = config, *options: tuple[str, Any]) -> Case:
        form = formats.of_module(module)
        fitting = formats.align(shape, form) if form else align(shape, letters(*of_config(config)))
        return Case(Problem(fitting[0], fitting[1], fitting[2], sms), other, options)

    single = (("vec", 1),) if vectors else ()
    if packed.is_packed(formats.of_module(module)):  # of a weight of more rows than a tile has, and columns of C
        few = _few_stages(config)
        large = (config.tile_n + 5, m + 64, (few.stages + 1) * k + RAGGED)
        return case(large, 3 * ctas, few), case((3, 64, RAGGED), ctas), case((config.tile_n, m, k), ctas)
    found = [
        case((m + config.tile_m // 2 + more, 2 * n + RAGGED + odd, (stages + 1) * k + RAGGED), 5 * ctas),
        case((more + fewer, RAGGED + 5, RAGGED), 4 * ctas, config, *single),
        case((2 * m, n, stages * k), ctas),
    ]
    found[2] = replace(found[2], one_scale=True)
    if grouped := _small_groups(config, 2 * down):
        found.append(case((2 * m + 1, 2 * n + 8, RAGGED), 2 * ctas, grouped))
    if "flags" in inspect.signature(module.gemm).parameters:
        found += [case((m, tiles * n, (2 * stages + 1) * k), 5 * ctas) for tiles in (1, 2)]
    return tuple(found)


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
    tables: dict[str, tuple[int, ...]]
    scratch: list[Scratch]
    k: int  # of A and B as memory has them: bytes of elements of 4 bits
    middle: int  # of a chained GEMM, the columns of A B; 0 of another
    block: int  # how many of these share a scale factor that MMAs multiply by; 0: there are none
    further: dict[int, Operand]  # by kind: scale factors that the kernel multiplies by, and a residual
    owners: tuple[int, ...]  # of each row of C, its group, whose B it needs; -1: it is of none; (): there are none
    parts: tuple[range, ...]  # of each group along K, its k; the groups' C follow one another
    words: Words | None = None  # of a packed weight


FACTORS = ("SA", "SB")  # scale factors that the kernel multiplies by itself


def given(module: Any, trace: Module, config: Any, problem: Problem, one_scale: bool = False) -> Given:
    """What the host function of a recipe is called with.

    Pointers are its parameters pA, pB and pC; pSA and pSB to scale factors that the kernel multiplies by, pSFA and pSFB
    to those that the MMA does; and the operands of the kernel's epilogue.
    Addresses and rows are as aligned as the kernel is compiled for, and no more. `sums` is memory that nothing has
    written, `flags` are numbers that earlier launches have left, `amax` is a word that is 0.
    """
    form = formats.of_module(module)
    host = trace.find("func.func")[0].regions[0]
    said = named_arguments(module, config, problem)
    names = {name: name[1:] for name, _ in said if re.match("p[A-Z]", name)}
    names |= {name: name for name in fused.of_config(module, config)}
    texts = {names[name]: text for (name, _), text in zip(said, host.argument_types, strict=True) if name in names}
    kinds = {name: shapes.kind(text) for name, text in texts.items()}
    dtypes = {name: element(text) for name, text in texts.items()}
    per = 8 // form.bits if form and form.bits < 8 and not form.packed else 1
    aligns = {name: max(kind.align, kind.bits // 8) for name, kind in kinds.items()}
    lines = strides_of(config, problem, {name: 8 * aligns[name] // kind.bits for name, kind in kinds.items()}, per)
    m, n, k = problem.m, problem.n, problem.k // per
    owners = grouped.owners(m, grouped.ends(m)) if grouped.takes_groups(module) == "m" else ()
    operands: dict[str, Operand] = {}
    for number, name in enumerate(kinds):
        bits, dtype = kinds[name].bits, dtypes[name]
        if form and form.packed and name == "B":
            dtype = dtypes["A"]  # of what its threads make of it
        elif form and not form.packed and name in "AB":
            dtype = ELEMENTS[form.element]
        base = base_of(number) + aligns[name]
        one = one_scale and form and not form.block and not owners and name in FACTORS
        scaled = (1, 1, k, problem.k) if one else (m, n, k, problem.k)
        operands[name] = _operand(name, scaled, lines, config, (bits, dtype, base), form)
    parts = grouped.parts(k, grouped.ends(k)) if grouped.takes_groups(module) == "k" else ()
    if parts:
        operands["C"] = replace(operands["C"], shape=(grouped.ENDS * m, n))
    for name in operands.keys() & {"B", "SB"} if owners else ():  # the groups' B, and their factors, follow one another
        operands[name] = replace(operands[name], shape=(grouped.ENDS * n, operands[name].shape[1]))
    words = None
    if form and form.packed:
        words, order = laid(module, config, n, k, operands)
        operands |= order
    middle = chained.middle(config) if chained.is_chained(module) else 0
    if middle:
        operands["B"] = replace(operands["B"], shape=(middle, k))
    tables: dict[str, tuple[int, ...]] = {}
    arguments: list[Any] = []
    scratch: list[Scratch] = []
    values = _values(module, config, problem, lines, operands)
    for (name, value), text in zip(values, host.argument_types, strict=True):
        if not text.startswith("!cute.ptr"):
            arguments.append(value)
        elif name in SCRATCH:
            scratch.append(SCRATCH[name](base_of(len(names) + len(scratch))))
            arguments.append(Ptr("gmem", scratch[-1].base))
        elif isinstance(value, tuple):
            table = f"table {len(tables)}"
            tables[table] = value
            arguments.append(Ptr("table", 0, name=table))
        else:  # what is no operand here has no memory: reading there is a fault
            arguments.append(Ptr("gmem", operands[names[name]].base if name in names else 0))
    used = (*FACTORS, *fused.AFTER)  # after the MMAs
    further = {origins.OPERANDS[name]: one for name, one in operands.items() if name in used}
    if fused.of_second_product(config):  # then C needs the products with the second weight: to the checks it is B
        b, up = operands["B"], operands["up"]
        operands |= {"B": replace(up, name="B"), "up": replace(b, name="up")}
    block = form.block // per if form and form.by_mma else 0
    return Given(arguments, operands, tables, scratch, k, middle, block, further, owners, parts, words)


SCRATCH: dict[str, Callable[[int], Scratch]] = {  # parameters of a launch, and the memory at such an address
    "sums": partial(Scratch, first=origins.UNWRITTEN),
    "flags": partial(Scratch, first=5),
    "amax": Maximum,
}


def _values(
    module: Any, config: Any, problem: Problem, lines: tuple[int, int, int], operands: dict[str, Operand]
) -> list[tuple[str, Any]]:
    """The host function's arguments by name; scale factors lie as their operands say: of rows, or of blocks."""
    steps = {"stride_residual": iter(lines[2:]), "stride_up": iter((lines[1] + UP_FURTHER,))}
    if "B2" in operands:
        steps["stride_b2"] = iter(operands["B2"].strides[:1])
    for name in operands.keys() & set(FACTORS):
        apart = operands[name].strides
        steps[f"stride_{name.lower()}"] = iter(apart[:1])
        steps[f"strides_{name.lower()}"] = iter(apart if name == "SA" else apart[::-1])  # those of B: along K first
    named = named_arguments(module, config, problem, lines)
    return [(name, next(steps[name]) if x is UNKNOWN and name in steps else x) for name, x in named]


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
        rows = m if name == "SA" else n
        apart, shared = (1, 1) if rows > 1 else (0, 0)
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
        line = chained.middle(config) + UP_FURTHER
        return Operand(name, (n, chained.middle(config)), (line, 1), bits, dtype, base)
    number = {"residual": 2, "up": 1}.get(name, "ABC".find(name))  # a residual lies as C does, a second weight as B
    major = (*of_config(config), "n")[number]
    line = lines[number] + (UP_FURTHER if name == "up" else 0)
    shape = ((m, k), (n, k), (m, n))[number]
    return Operand(name, shape, (line, 1) if major == "kkn"[number] else (1, line), bits, dtype, base)


def strides_of(config: Any, problem: Problem, steps: dict[str, int], per: int) -> tuple[int, int, int]:
    """Elements between the lines of A, B and C, with room that no line fills, all different.

    Args:
        config: the recipe's `Config`, which says the majors.
        problem: the sizes.
        steps: of each operand, the elements that its lines are an odd multiple of apart.
        per: elements of A and B in one of memory.
    """
    majors = (*of_config(config), "n")
    extents = {"m": problem.m, "n": problem.n, "k": problem.k // per}
    found = []
    for number, (name, major) in enumerate(zip("ABC", majors, strict=True)):
        pieces = -(-extents[major] // steps[name]) + 1
        found.append(steps[name] * ((pieces | 1) + 2 * number))
    a, b, c = found
    return a, b, c
