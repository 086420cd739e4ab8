"""A study of copies by TMA, held against the model and the device's own copy.

Such a study says `measures: copies` in its front matter. `expected` and `restored` are what `cookbook.model` makes of
its `dump` and `restore`. The rest needs a GPU: `run_checks` copies matrices of every mode, major and size of element
into poisoned memory, and `contest` is what is timed: the study's copy in every mode, against torch's.

    cookbook check NAME      level "ran", and "timed" at the first of BENCHED_SHAPES
    cookbook bench NAME      level "timed" at all of them
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import product
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from cookbook import model
from cookbook.check import poisoning
from cookbook.check.ran import Shape
from cookbook.measure import records
from cookbook.measure.contest import OURS, ROUNDS, Call, Contest, how_many_sets, record_of, time_contest
from cookbook.recipe.catalog import Recipe

__all__ = ["DTYPES", "Case", "contest", "expected", "ran", "restored", "run_checks", "summary", "timed_record"]

COPY = "device copy"
DTYPES = ("uint8", "bfloat16", "float32")  # one of each size
# (lines, 16-byte pieces of a line): whole tiles and ragged ones, less than a box, more tiles than CTAs
SIZES = ((1, 1), (3, 5), (64, 16), (65, 17), (200, 23), (129, 64), (1000, 300), (4096, 1024))
GAPS = (0, 1, 5)  # 16-byte pieces between two lines of x; twice as many between those of the output
BENCHED_SHAPES: tuple[Shape, ...] = ((16384, 16384), (32768, 8192), (8192, 32768))
BENCHED_DTYPE = "bfloat16"
DEVICE = "cuda"
POISON = 0xFF  # bytes that are a NaN of every floating-point type here


# --- by the model --------------------------------------------------------------------------------------------------


def _boxes(config: Any, itemsize: int, origin: tuple[int, int]) -> Iterator[tuple[int, tuple[int, int]]]:
    """(bytes from the tile's beginning, (line, element) of its corner in the matrix) of each box of a tile."""
    for number in range(config.line_bytes // config.box_bytes):
        yield number * config.lines * config.box_bytes, (origin[0], origin[1] + number * config.box_bytes // itemsize)


def _box(config: Any, itemsize: int) -> tuple[tuple[int, int], int]:
    """The (lines, elements) of a box, and the model's name of the mode: 0, 32, 64 or 128."""
    return (config.lines, config.box_bytes // itemsize), 0 if config.mode == "none" else config.box_bytes


def expected(lines: np.ndarray, config: Any, origin: tuple[int, int] = (0, 0), base: int = 0) -> np.ndarray:
    """The bytes of shared memory from the tile's first to its last after TMA has loaded it.

    Args:
        lines: the matrix as (lines, elements of a line), whatever its major.
        config: the tile's sizes and mode; one stage.
        origin: (line, element) of the tile's corner.
        base: bytes from a multiple of 1024 to where the tile begins.
    """
    smem = model.SharedMemory(base + config.tile_bytes)
    for at, corner in _boxes(config, lines.itemsize, origin):
        model.tma_load(smem, base + at, lines, corner, *_box(config, lines.itemsize))
    return smem.view(np.uint8)[base:].copy()


def restored(
    memory: np.ndarray, out: np.ndarray, config: Any, origin: tuple[int, int] = (0, 0), base: int = 0
) -> np.ndarray:
    """`out` (lines, elements of a line) after TMA has stored a tile from `memory`, bytes as `expected` gives them."""
    smem, out = model.SharedMemory(base + config.tile_bytes), out.copy()
    smem.view(np.uint8)[base:] = memory
    for at, corner in _boxes(config, out.itemsize, origin):
        model.tma_store(smem, base + at, out, corner, *_box(config, out.itemsize))
    return out


# --- ran -------------------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """One copy, or one look into shared memory, on the GPU."""

    what: str  # "copy", "dump" or "restore"
    dtype: str
    mode: str
    major: str
    lines: int
    line_bytes: int
    problem: str  # "" if it was right

    @property
    def ok(self) -> bool:
        return not self.problem


def _random(lines: int, line_bytes: int, gap: int, dtype: str, guard: int = 0) -> Any:
    """Random bits on the GPU as (lines, elements), lines `gap` x 16 bytes apart; the buffer they lie in, as bytes."""
    import torch

    pitch = line_bytes + 16 * gap
    buffer = torch.randint(0, 256, (2 * guard + lines, pitch), device=DEVICE, dtype=torch.uint8)
    return buffer[guard : guard + lines].view(getattr(torch, dtype))[:, : line_bytes // _size(dtype)], buffer


def _size(dtype: str) -> int:
    import torch

    return getattr(torch, dtype).itemsize


def _as(x: Any, major: str) -> Any:
    """Lines as the matrix (M, K) of that major."""
    return x if major == "k" else x.t()


def run_copy(module: ModuleType, size: tuple[int, int], dtype: str, mode: str, major: str, gap: int = 0) -> Case:
    """Copy random bits into memory full of ones: equal inside, still ones around and between the lines."""
    import torch

    lines, line_bytes = size[0], 16 * size[1]
    x, _ = _random(lines, line_bytes, gap, dtype)
    out, buffer = _random(lines, line_bytes, 2 * gap, dtype, guard=2)
    buffer.fill_(POISON)
    poisoning.shared_memory()
    module.copy(_as(x, major), _as(out, major), mode, major)
    torch.cuda.synchronize()
    wrong = int((out.view(torch.uint8) != x.view(torch.uint8)).sum())
    out.view(torch.uint8).fill_(POISON)
    beside = int((buffer != POISON).sum())
    problem = ", ".join(f"{n} bytes {what}" for n, what in ((wrong, "differ"), (beside, "written outside")) if n)
    return Case("copy", dtype, mode, major, lines, line_bytes, problem)


# Corners of a tile in a matrix of 40 lines of 144 bytes, in lines and 16-byte pieces: inside, ragged, past the end.
CORNERS = ((0, 0), (3, 1), (30, 4), (40, 0))
BEFORE = ((-3, 0), (-3, -1))  # of a load
BASES = (0, 640)  # 640: no mode's pattern begins there


def run_looks(module: ModuleType, dtype: str, mode: str, major: str) -> list[Case]:
    """`dump` and `restore` at every corner and at bases that are and are not multiples of 1024, against the model."""
    import torch

    config, size = replace(module.LOOK, mode=mode, major=major), _size(dtype)
    x, _ = _random(40, 144, 0, dtype)
    bits = {1: np.uint8, 2: np.uint16, 4: np.uint32}[size]
    lines = x.view(torch.uint8).cpu().numpy().view(bits)
    found = []
    for (line, piece), base in product((*CORNERS, *BEFORE), BASES):
        corner = (line, 16 * piece // size)
        origin = corner if major == "k" else corner[::-1]
        memory = module.dump(_as(x, major), origin, mode, major, base)
        got = memory.view(torch.uint8).cpu().numpy().reshape(-1)
        found.append(("dump", (got != expected(lines, config, corner, base)).sum()))
        if min(corner) < 0:
            continue
        memory = torch.randint(0, 256, (16, 128), device=DEVICE, dtype=torch.uint8)
        out = torch.full_like(x.view(torch.uint8), POISON).view(x.dtype)
        module.restore(memory.view(x.dtype), _as(out, major), origin, mode, major, base)
        poisoned = np.full((40, 144), POISON, np.uint8).view(bits)
        wanted = restored(memory.cpu().numpy().reshape(-1), poisoned, config, corner, base)
        found.append(("restore", (out.view(torch.uint8).cpu().numpy() != wanted.view(np.uint8)).sum()))
    return [Case(what, dtype, mode, major, 40, 144, f"{wrong} bytes differ" if wrong else "") for what, wrong in found]


def run_checks(module: ModuleType, dtype: str, sizes: tuple[tuple[int, int], ...] = SIZES) -> list[Case]:
    """Every mode and major: copies of every size and gap, and looks into shared memory."""
    cases = []
    for mode, major in product(module.MODES, module.MAJORS):
        cases += [run_copy(module, size, dtype, mode, major, gap) for size in sizes for gap in GAPS]
        cases += run_looks(module, dtype, mode, major)
    return cases


def summary(cases: list[Case]) -> dict[str, Any]:
    """The figures of a `ran` record."""
    counts = {what: sum(case.what == what for case in cases) for what in ("copy", "dump", "restore")}
    return counts | {"failed": [str(case) for case in cases if not case.ok][:40]}


# --- what is launched ----------------------------------------------------------------------------------------------


def launches(module: ModuleType, looks: bool) -> list[tuple[tuple[str, Any], ...]]:
    """Return what tells the kernels of `run_checks` (looks: those of `dump` and `restore` too) or of `contest`
    apart."""
    found = []
    for mode, major in product(module.MODES, module.MAJORS):
        found.append((("major", major), ("mode", mode)))
        for base, restores in product(BASES, (False, True)) if looks else ():
            found.append((("base", base), ("major", major), ("mode", mode), ("restores", restores)))
    return found


def compile_launch(module: ModuleType, dtype: str, changes: dict[str, Any]) -> Any:
    """Compile one of `launches`, for the target that CuTe is set to."""
    bits, where = 8 * _size(dtype), {key: changes[key] for key in ("mode", "major")}
    if "base" not in changes:
        return inspect.unwrap(module.compiled_copy)(bits, replace(module.CONFIG, **where), (0, 0))
    look = replace(module.LOOK, **where)
    return inspect.unwrap(module.compiled_look)(bits, look, changes["base"], changes["restores"], (0, 0))


# --- timed -----------------------------------------------------------------------------------------------------------


def contest(module: ModuleType, shape: Shape, dtype: str) -> Contest:
    """The copy in its default mode against torch's, the other modes, and the same memory taken as MN-major.

    Raises:
        RuntimeError: a variant is wrong: nothing is timed.
    """
    import torch

    set_bytes = 2 * shape[0] * shape[1] * _size(dtype)  # read and written
    kind = {"device": "cuda", "dtype": getattr(torch, dtype)}
    sets = [(torch.randn(shape, **kind), torch.empty(shape, **kind)) for _ in range(how_many_sets(set_bytes))]
    own = module.CONFIG.mode
    variants: dict[str, Call] = {
        OURS: lambda x, out: module.copy(x, out),
        COPY: lambda x, out: out.copy_(x),
    }
    variants |= {m: lambda x, out, m=m: module.copy(x, out, m) for m in reversed(module.MODES) if m != own}
    variants[f"{own} MN-major"] = lambda x, out: module.copy(x.t(), out.t(), own, "mn")
    x, out = sets[0]
    for name, call in variants.items():
        out.fill_(float("nan"))
        call(x, out)
        if not torch.equal(out, x):
            raise RuntimeError(f"{name} is wrong: not timed")
    return Contest(variants, sets, COPY, float(set_bytes), "gbps", module.CONFIG, graphs=False)


def ran(recipe: Recipe, dtype: str) -> tuple[records.Record, list[str]]:
    """Run all of a study's copies on this GPU in one dtype: the record, and what was wrong, in words."""
    import torch

    module = recipe.module
    figures = summary(run_checks(module, dtype))
    made = records.make(
        "ran",
        recipe.name,
        dtype,
        None,
        passed=not figures["failed"],
        figures=figures,
        config=asdict(module.CONFIG),
        device=torch.cuda.get_device_name(),
        distribution="random bits",
    )
    return made, figures["failed"]


def timed_record(recipe: Recipe, shape: Shape, dtype: str = BENCHED_DTYPE, rounds: int = ROUNDS) -> records.Record:
    """Time a study's copies at one shape on this GPU."""
    found = contest(recipe.module, shape, dtype)
    return record_of(recipe.name, found, shape, dtype, time_contest(found, rounds))
