"""Which problems a kernel is followed for, and what its host function is called with for one."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from cookbook.check.pipeline import shapes
from cookbook.check.pipeline.programs import Problem, named_arguments
from cookbook.check.pipeline.reading import Module
from cookbook.check.pipeline.shapes import UNKNOWN
from cookbook.check.product import origins
from cookbook.check.product.memory import Operand, Scales, base_of
from cookbook.check.product.places import Ptr, element
from cookbook.check.product.sums import Factors
from cookbook.recipe import formats
from cookbook.recipe.majors import align, letters, of_config

RAGGED = 24  # elements beyond whole tiles: whole vectors of 8

ELEMENTS = {"e4m3": "f8E4M3FN", "e5m2": "f8E5M2", "e2m1": "f4E2M1FN"}  # as the IR spells them


@dataclass(frozen=True)
class Case:
    """A problem, and the kernel that is followed for it."""

    problem: Problem
    config: Any
    options: tuple[tuple[str, Any], ...] = ()  # what more the recipe's `compile_for` takes
    one_scale: bool = False  # of scale factors of rows: all rows of A have one, and those of B


def cases(module: Any, config: Any) -> tuple[Case, ...]:
    """Small problems that go round the corners of a kernel: what lies at the edge of C, and who computes which tile.

    * M, N and K ragged against tile, cluster, stages and split, and a cluster's worth of tiles more than fits at once;
    * less than one tile, with room for several, and C stored by single elements where a kernel may be compiled so;
    * tiles that are full, as many k-tiles as there are stages, one cluster for all, and one scale factor for all rows;
    * one row and a few columns more than whole tiles, in groups of the rasterization that are made small for it.
    """
    down, across = (getattr(config, f"cluster_{x}", getattr(config, f"pairs_{x}", 1)) for x in "mn")
    ctas = getattr(config, "cluster", down * across)
    m, n, k = config.tile_m * down, config.tile_n * across, config.tile_k * getattr(config, "split_k", 1)
    stages = getattr(config, "stages", 2)
    vectors = "vec" in inspect.signature(module.compile_for).parameters
    odd = 0 if vectors else 1  # a kernel that is told how wide it may store is told of an even N here

    def case(shape: tuple[int, int, int], sms: int, other: Any = config, *options: tuple[str, Any]) -> Case:
        form = formats.of_module(module)
        fitting = formats.align(shape) if form else align(shape, letters(*of_config(config)))
        return Case(Problem(fitting[0], fitting[1], fitting[2], sms), other, options)

    single = (("vec", 1),) if vectors else ()
    found = [
        case((m + config.tile_m // 2 + RAGGED, 2 * n + RAGGED + odd, (stages + 1) * k + RAGGED), 5 * ctas),
        case((RAGGED + 13, RAGGED + 5, RAGGED), 4 * ctas, config, *single),
        case((2 * m, n, stages * k), ctas),
    ]
    found[2] = replace(found[2], one_scale=True)
    if grouped := _small_groups(config, 2 * down):
        found.append(case((2 * m + 1, 2 * n + 8, RAGGED), 2 * ctas, grouped))
    return tuple(found)


def _small_groups(config: Any, rows: int) -> Any:
    """The configuration with that many rows of tiles in a group; None of one that has no groups, or none so small."""
    for name in ("raster_group", "swizzle_size"):
        if getattr(config, name, rows) > rows:
            try:
                return replace(config, **{name: rows})
            except ValueError:
                return None
    return None


@dataclass(frozen=True)
class Given:
    """What a launch is given."""

    arguments: list[Any]  # of the host function
    operands: dict[str, Operand]
    tables: dict[str, tuple[int, ...]]
    k: int  # of A and B as memory has them: bytes of elements of 4 bits
    block: int  # how many of these share a scale factor that MMAs multiply by; 0: there are none
    factors: dict[int, Factors]  # the scale factors that the kernel multiplies by itself, by kind


def given(module: Any, trace: Module, config: Any, problem: Problem, one_scale: bool = False) -> Given:
    """What the host function of a recipe is called with.

    Pointers are its parameters pA, pB and pC; pSA and pSB to scale factors that the kernel multiplies by, pSFA and pSFB
    to those that the MMA does.
    Addresses and rows are as aligned as the kernel is compiled for, and no more.
    """
    form = formats.of_module(module)
    host = trace.find("func.func")[0].regions[0]
    names = [name[1:] for name in inspect.signature(module.gemm).parameters if name[0] == "p" and name[1:2].isupper()]
    texts = [text for text in host.argument_types if text.startswith("!cute.ptr")]
    kinds = {name: shapes.kind(text) for name, text in zip(names, texts, strict=False)}
    dtypes = {name: element(text) for name, text in zip(names, texts, strict=False)}
    per = 8 // form.bits if form and form.bits < 8 else 1
    aligns = {name: max(kind.align, kind.bits // 8) for name, kind in kinds.items()}
    lines = strides_of(config, problem, {name: 8 * aligns[name] // kind.bits for name, kind in kinds.items()}, per)
    m, n, k = problem.m, problem.n, problem.k // per
    operands: dict[str, Operand] = {}
    for number, name in enumerate(names):
        bits, dtype = kinds[name].bits, dtypes[name]
        if form and name in "AB":
            dtype = ELEMENTS[form.element]
        base = base_of(number) + aligns[name]
        one = one_scale and name in ("SA", "SB") and form is not None and not form.block
        scaled = (1, 1, k, problem.k) if one else (m, n, k, problem.k)
        operands[name] = _operand(name, scaled, lines, config, (bits, dtype, base), form)
    tables: dict[str, tuple[int, ...]] = {}
    pointers = iter(names)
    arguments: list[Any] = []
    for value, text in zip(_values(module, config, problem, lines, operands), host.argument_types, strict=True):
        if not text.startswith("!cute.ptr"):
            arguments.append(value)
        elif isinstance(value, tuple):
            tables["table"] = value
            arguments.append(Ptr("table", 0, name="table"))
        else:
            arguments.append(Ptr("gmem", operands[next(pointers)].base))
    mine = [name for name in operands if name in ("SA", "SB")]
    factors = {origins.OPERANDS[name]: _factors(name, form, one_scale) for name in mine}
    return Given(arguments, operands, tables, k, form.block // per if form and form.by_mma else 0, factors)


def _factors(name: str, form: Any, one_scale: bool) -> Factors:
    """Which elements of A or B share one."""
    rows = 0 if one_scale and not form.block else form.b_rows if name == "SB" else 1
    return Factors(rows, form.block)


def _values(
    module: Any, config: Any, problem: Problem, lines: tuple[int, int, int], operands: dict[str, Operand]
) -> list[Any]:
    """The host function's arguments; scale factors lie as their operands say: of rows, or of blocks down and along."""
    steps: dict[str, Iterator[int]] = {}
    for name in ("SA", "SB"):
        if name in operands:
            apart = operands[name].strides if name == "SA" else operands[name].strides[::-1]
            steps[f"strides_{name.lower()}"] = iter(apart)
            steps[f"stride_{name.lower()}"] = iter(operands[name].strides[:1])
    named = named_arguments(module, config, problem, lines)
    return [next(steps[name]) if value is UNKNOWN and name in steps else value for name, value in named]


def _operand(
    name: str, extents: tuple[int, int, int, int], lines: Any, config: Any, said: tuple[int, str, int], form: Any
) -> Operand:
    m, n, k, elements = extents
    bits, dtype, base = said
    if name in ("SFA", "SFB"):
        return Scales(name, (m if name == "SFA" else n, elements // form.block), (1, 1), 8, dtype, base)
    if name in ("SA", "SB") and not form.block:
        rows = m if name == "SA" else n
        return Operand(name, (rows, 1), (0 if rows == 1 else 1, 1), bits, dtype, base)
    if name in ("SA", "SB"):
        down, along = (m if name == "SA" else -(-n // form.b_rows)), -(-k // form.block)
        return Operand(name, (down, along), (1, down + 3) if name == "SA" else (along + 3, 1), bits, dtype, base)
    number = "ABC".index(name)
    major = (*of_config(config), "n")[number]
    line = lines[number]
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
