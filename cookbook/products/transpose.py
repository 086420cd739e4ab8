"""A matrix (M, N) as (N, M): `kind: transpose`. See docs/contract.md for what such a recipe defines.

The result of a transpose is its input's bits in another order, so every comparison here is for equality. It is timed
against torch's own, its other variants, and a copy of as many bytes, which is the ceiling.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from cookbook.check import compiled, counted, levels, poisoning, ran, reports
from cookbook.check.findings import Finding
from cookbook.check.model.transpose import simulate
from cookbook.check.moves import coordinates, layouts, move_wavefronts, predicted_wavefronts
from cookbook.check.reports import Level
from cookbook.layouts import SmemLayout
from cookbook.measure import bench, records
from cookbook.measure.contest import OURS, Contest, how_many_sets
from cookbook.measure.kernels import Kernel
from cookbook.products.base import Modelled, Product, Shape, Usage
from cookbook.recipe import contract
from cookbook.recipe.catalog import Recipe

COPY, TORCH_TRANSPOSE = "device copy", "torch"
LARGEST = 2**24  # elements that are simulated

MODEL_SHAPES: tuple[Shape, ...] = ((160, 224), (136, 72), (8, 8))  # ragged, and in vectors of 16 bytes
SHAPES: tuple[Shape, ...] = (
    *((1, 1), (1, 8), (8, 1), (1, 4096), (4096, 1), (2, 3), (7, 9), (31, 33), (32, 32), (33, 31), (5, 1000), (1000, 5)),
    *((61, 67), (127, 131), (257, 263), (1021, 1031), (63, 64), (64, 63), (64, 64), (65, 64), (64, 65), (128, 128)),
    *((127, 128), (128, 129), (129, 255), (256, 512), (200, 336), (72, 40), (136, 264), (1032, 1016), (2040, 128)),
    *((16384, 8), (8, 16384), (33, 16384), (16384, 33), (16384, 264), (1000, 1000), (3000, 3000), (4096, 4096)),
)


# --- shared memory ----------------------------------------------------------------------------------------------


def check_layouts(module: ModuleType, dtype: Any, config: Any) -> list[Finding]:
    """Level "layout": no two elements in one place, all within `config.smem_bytes`; each move touches every element
    once, in the wavefronts expected of it: the ideal, unless the recipe's `expected_excess` says otherwise."""
    found, expected = layouts(module, dtype, config), module.expected_excess(config)
    findings = [_injective(name, layout) for name, layout in found.items()]
    size = sum(layout.size_bytes for layout in found.values())
    detail = f"{size} bytes; the launch asks for {config.smem_bytes}"
    findings.append(Finding("smem.fits", size <= config.smem_bytes, detail))
    for name, move in module.moves(config).items():
        findings += _move_findings(name, move, found[move.tile], config, *expected.get(name, (0, "")))
    return findings


def _injective(name: str, layout: SmemLayout) -> Finding:
    distinct = len(np.unique(layout.byte_offsets()))
    detail = f"{layout.swizzle!r} over {layout.outer!r}: {distinct} places for {layout.outer.size} elements"
    return Finding(f"{name}.injective", distinct == layout.outer.size, detail)


def _move_findings(name: str, move: Any, layout: SmemLayout, config: Any, excess: int, why: str) -> list[Finding]:
    rows, columns = coordinates(move, config.threads)
    times = np.zeros(layout.outer.sizes, np.int64)
    np.add.at(times, (rows[..., None], columns[..., None] + np.arange(move.width)), 1)
    once = Finding(
        f"{name}.covers", bool((times == 1).all()), f"each element is moved {times.min()} to {times.max()} times"
    )
    try:
        counts = move_wavefronts(layout, move, config.threads)
    except ValueError as error:
        return [once, Finding(f"{name}.wavefronts", False, str(error))]
    each = ", ".join(
        f"{n} accesses take {actual} wavefronts each (ideal {ideal})" for (actual, ideal), n in sorted(counts.items())
    )
    wanted = f"; expected an excess of {excess} each: {why}" if excess else ""
    ok = all(actual - ideal == excess for actual, ideal in counts)
    return [once, Finding(f"{name}.wavefronts", ok, each + wanted)]


# --- the model --------------------------------------------------------------------------------------------------


def refusal(module: ModuleType, shape: Shape, dtype: str, variant: str) -> str:
    """Return what a variant needs of contiguous matrices and this shape does not have; empty if it takes them."""
    import torch

    x = torch.empty(shape, dtype=getattr(torch, dtype), device="meta")
    reason = module.usable(x, x.new_empty(shape[::-1]), (9, 0))[variant]
    return f"{variant} needs {reason}" if reason else ""


def random_bits(shape: Shape, bits: int) -> np.ndarray:
    """Any bits at all, NaNs among them: uint16 or uint32."""
    kind = {16: np.uint16, 32: np.uint32}[bits]
    return np.random.default_rng().integers(0, np.iinfo(kind).max, shape, kind)


def simulated_mismatches(module: ModuleType, shape: Shape, dtype: Any, config: Any) -> int:
    """Return how many elements the simulated data path puts elsewhere."""
    x = random_bits(shape, dtype.width)
    return int((simulate(module, x, dtype, config) != x.T).sum())


# --- on a GPU -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One run of one variant, and what went wrong, if anything."""

    shape: Shape
    dtype: str
    variant: str
    problem: str  # empty: every bit is where it belongs

    @property
    def ok(self) -> bool:
        return not self.problem

    def to_json(self) -> dict[str, Any]:
        """The fields as a dict, `ok` among them."""
        return asdict(self) | {"ok": self.ok}


def padded_input(shape: Shape, dtype: str, gap: int) -> Any:
    """Normal (M, N) on the GPU, with `gap` NaNs between its rows."""
    import torch

    wide = torch.full((shape[0], shape[1] + gap), torch.nan, device="cuda", dtype=getattr(torch, dtype))
    wide[:, : shape[1]].normal_()
    return wide[:, : shape[1]]


def run_case(
    module: ModuleType, shape: Shape, dtype: str, variant: str, gaps: tuple[int, int] = (0, 0), *, poison: bool = True
) -> Case | None:
    """Run a variant once into a poisoned, guarded `out`; None if it does not take such matrices.

    Args:
        gaps: elements between the rows of x and between those of out.
        poison: shared memory too, by a kernel of its own.
    """
    import torch

    x = padded_input(shape, dtype, gaps[0])
    out, intact = ran.guarded(shape[1], shape[0], dtype, row_stride=shape[0] + gaps[1])
    if variant != "auto" and module.usable(x, out, torch.cuda.get_device_capability())[variant]:
        return None
    if poison:
        poisoning.shared_memory()
    returned = module.transpose(x, out=out, variant=variant)
    torch.cuda.synchronize()
    problem = "" if returned.data_ptr() == out.data_ptr() else "transpose did not return out"
    if not torch.equal(out, x.t()):  # a NaN that was left over equals nothing
        problem = f"{int((out != x.t()).sum())} of {out.numel()} elements differ"
    return Case(shape, dtype, variant, problem or ("" if intact() else "wrote outside out"))


def run_checks(module: ModuleType, shapes: Iterable[Shape], dtype: str) -> list[Case]:
    """Every variant over every shape: rows close together, whole vectors apart, and odd distances apart."""
    cases = []
    for shape in shapes:
        for variant in ("auto", *module.VARIANTS):
            for gaps in ((0, 0), (8, 16), (3, 1)):
                case = run_case(module, shape, dtype, variant, gaps)
                cases += [case] if case else []
    return cases


def summary(cases: list[Case]) -> dict[str, Any]:
    """The figures of a `ran` record: shapes, runs by variant, and what failed."""
    return {
        "shapes": len({case.shape for case in cases}),
        "variants": dict(Counter(case.variant for case in cases)),
        "failed": [case.to_json() for case in cases if not case.ok],
    }


# --- timed ---------------------------------------------------------------------------------------------------------

TIMED_SHAPES: tuple[Shape, ...] = ((16384, 16384),)
BENCHED_SHAPES: tuple[Shape, ...] = ((4096, 4096), (16384, 16384), (32768, 8192), (8192, 32768))


# --- under NVIDIA's tools -------------------------------------------------------------------------------------------

COUNTED_SHAPE: Shape = (1024, 1024)  # whole tiles: every lane of every instruction is active
SANITIZED_SHAPES: tuple[Shape, ...] = ((200, 336), (129, 255), (8, 512))


def compare(module: ModuleType, dtype: Any, arch: str, kernels: list[list[Any]]) -> tuple[dict[str, Any], list[str]]:
    """Measured against predicted wavefronts of every variant: figures by variant and opcode, mismatches in words.

    Args:
        kernels: what `counting.count_kernels` found, in the order of the recipe's VARIANTS.
    """
    configs, figures, problems = module.configs_for(arch, dtype), {}, []
    if len(kernels) != len(configs):
        problems.append(f"{len(kernels)} kernels were counted; needed one for each of {', '.join(configs)}")
    for (variant, config), lines in zip(configs.items(), kernels, strict=False):
        moves = predicted_wavefronts(module, dtype, config)
        stores_and_loads = {"r2s" if name.startswith("r2s") else "s2g": each for name, each in moves.items()}
        found, bad = counted.compare(lines, stores_and_loads)
        figures |= {f"{variant} {opcode}": entry for opcode, entry in found.items()}
        problems += [f"{variant}: {problem}" for problem in bad]
    return figures, problems


def launch(module: ModuleType, dtype: str, shapes: Iterable[Shape]) -> None:
    """Run every variant once per shape that it takes, for a tool that looks on, and make sure that it was right."""
    for shape in shapes:
        for variant in module.VARIANTS:
            case = run_case(module, shape, dtype, variant, poison=False)  # the tool is to see one kernel
            if case and not case.ok:
                raise SystemExit(f"{variant} {dtype} {shape}: {case.problem}")


# --- the kind -------------------------------------------------------------------------------------------------------


FRONT_MATTER = {"name": "a transpose", "extents": "MN", "keys": "bench_shapes"}


class Transpose(Product):
    """`transpose(x)`."""

    levels = levels.LEVELS

    def asked(self, recipe: Recipe) -> tuple[type, ...]:
        return (contract.Transpose,)

    def usage(self, recipe: Recipe) -> Usage:
        return Usage("transpose", "y = transpose(x)", "x: (M, N), rows of adjacent elements; y: (N, M)")

    def fits(self, recipe: Recipe, shape: Shape) -> tuple[bool, str]:
        return len(shape) == 2 and min(shape) >= 1, "M,N of 1 or more"

    def model_shapes(self, recipe: Recipe, majors: str) -> tuple[Shape, ...]:
        return MODEL_SHAPES

    def bench_shapes(self, recipe: Recipe) -> tuple[Shape, ...]:
        return recipe.bench_shapes or BENCHED_SHAPES

    # --- levels ---

    def variants(self, module: Any, target: str, dtype: str | None, majors: str) -> dict[str, Any]:
        return module.configs_for(target, compiled.cutlass_dtype(str(dtype)))

    def layouts(self, module: Any, dtype: str | None, config: Any) -> list[Finding]:
        return check_layouts(module, compiled.cutlass_dtype(str(dtype)), config)

    def modelled(self, recipe: Recipe, module: Any, dtype: str, shape: Shape, config: Any) -> Modelled:
        """Simulated in numpy on random bits: every one must be where it belongs."""
        if shape[0] * shape[1] > LARGEST:
            text = f"{shape[0]}x{shape[1]} is too large to simulate in numpy: at most {LARGEST} elements"
            return Modelled({}, [], text)
        if reason := refusal(module, shape, dtype, config.variant):
            return Modelled({}, [], reason)
        wrong = simulated_mismatches(module, shape, compiled.cutlass_dtype(dtype), config)
        bad = f"{wrong} of {shape[0] * shape[1]} elements are not where they belong"
        return Modelled({"mismatches": wrong}, [bad] if wrong else [])

    def instructions(self, module: Any, config: Any) -> tuple[str, ...]:
        return tuple(module.INSTRUCTIONS.get(config.variant, ()))

    def of_own_code(self, level: str) -> bool:
        return level == "ran"

    def measured(
        self, recipe: Recipe, level: str, dtype: str | None, shapes: tuple[Shape, ...], majors: str
    ) -> list[Level]:
        return getattr(self, level)(recipe, recipe.module, str(dtype), shapes)

    def ran(self, recipe: Recipe, module: Any, dtype: str, shapes: tuple[Shape, ...]) -> list[Level]:
        """Every variant on this GPU; a record is of the whole list of shapes, and of packaged code."""
        cases = run_checks(module, shapes or SHAPES, dtype)
        bad = "; ".join(f"{'x'.join(map(str, case.shape))}: {case.problem}" for case in cases if not case.ok)
        found = self.record(recipe, module, "ran", dtype, None, summary(cases), bad)
        made = None if shapes or recipe.where else found
        return [reports.of_gpu(found, bad, dtype, made)]

    def timed(self, recipe: Recipe, module: Any, dtype: str, shapes: tuple[Shape, ...]) -> list[Level]:
        """Against a copy of the same bytes, and the rest of `contest`."""
        made = self.bench(recipe, bench.Options(shapes or TIMED_SHAPES, (dtype,), recipe.majors))
        return [reports.of_gpu(record, "", dtype, record) for record in made]

    def counted(self, recipe: Recipe, module: Any, dtype: str, shapes: tuple[Shape, ...]) -> list[Level]:
        """Wavefronts as ncu counts them, against those predicted."""
        kernels = counted.count_kernels(recipe.name, dtype, COUNTED_SHAPE)
        figures, problems = compare(module, compiled.cutlass_dtype(dtype), compiled.arch_here(), kernels)
        made = self.record(recipe, module, "counted", dtype, COUNTED_SHAPE, figures, "; ".join(problems))
        return [reports.of_gpu(made, "; ".join(problems), dtype, made)]

    def sanitized(self, recipe: Recipe, module: Any, dtype: str, shapes: tuple[Shape, ...]) -> list[Level]:
        """Return what memcheck and racecheck find."""
        figures, bad = counted.sanitized(recipe.name, dtype, SANITIZED_SHAPES)
        made = self.record(recipe, module, "sanitized", dtype, None, figures, bad)
        return [reports.of_gpu(made, bad, dtype, made)]

    def record(
        self, recipe: Recipe, module: Any, level: str, dtype: str, shape: Shape | None, figures: Any, bad: str
    ) -> records.Record:
        """The record of a level that was run here."""
        import torch

        configs = self.variants(module, compiled.arch_here(), dtype, "")
        made, device = {name: asdict(config) for name, config in configs.items()}, torch.cuda.get_device_name()
        return records.make(
            level, recipe.name, dtype, shape, passed=not bad, figures=figures, device=device, config=made
        )

    # --- timed ---

    def bench(self, recipe: Recipe, options: bench.Options) -> Iterator[records.Record]:
        return bench.of_contests(recipe, options)

    def standard(self, recipe: Recipe) -> str:
        return COPY

    def contest(self, recipe: Recipe, shape: Shape, dtype: str, majors: str, quack: bool, own: bool) -> Contest:
        return contest(recipe.module, shape, dtype)

    def launch(self, recipe: Recipe, dtype: str, majors: str, shapes: Iterable[Shape]) -> None:
        launch(recipe.module, dtype, shapes)

    # --- records ---

    def kernels(self, recipe: Recipe, module: Any, record: records.Record, target: str) -> list[Kernel]:
        dtype = record["dtype"]
        return [Kernel(recipe.name, target, dtype, variant=name) for name in compiled_configs(module, target, dtype)]

    def compile(self, module: Any, kernel: Kernel) -> Any:
        config = compiled_configs(module, kernel.target, kernel.dtype)[kernel.variant]
        return module.compile_for(kernel.target, compiled.cutlass_dtype(kernel.dtype), config)


def compiled_configs(module: Any, target: str, dtype: str) -> dict[str, Any]:
    """Every configuration that is timed, by name."""
    kind = compiled.cutlass_dtype(dtype)
    return module.configs_for(target, kind) | getattr(module, "beside", lambda *_: {})(target, kind)


def contest(module: Any, shape: Shape, dtype: str) -> Contest:
    """The fastest variant against a copy of the same bytes, torch's transpose, the other variants and `beside`'s.

    Raises:
        RuntimeError: a variant is wrong: nothing is timed.
    """
    import torch

    (m, n), kind = shape, getattr(torch, dtype)
    set_bytes = 2 * m * n * kind.itemsize
    count = how_many_sets(set_bytes)
    empty = partial(torch.empty, n, m, device="cuda", dtype=kind)
    sets = [(padded_input(shape, dtype, 0), empty()) for _ in range(count)]
    (x, out), capability = sets[0], torch.cuda.get_device_capability()
    able = [name for name, reason in module.usable(x, out, capability).items() if not reason]
    variants: dict[str, Callable[..., Any]] = {
        OURS: lambda x, out: module.transpose(x, out=out),
        COPY: lambda x, out: out.view(m, n).copy_(x),
        TORCH_TRANSPOSE: lambda x, out: out.copy_(x.t()),
    }
    variants |= {name: lambda x, out, name=name: module.transpose(x, out=out, variant=name) for name in able}
    arch, known = "sm_{}{}".format(*capability), compiled.cutlass_dtype(dtype)
    others = {name: config for name, config in module.beside(arch, known).items() if config.variant in able}
    variants |= {name: lambda x, out, c=config: module.run(x, out, c) for name, config in others.items()}
    for name in variants.keys() - {COPY, TORCH_TRANSPOSE}:
        out.fill_(float("nan"))
        variants[name](x, out)
        if not torch.equal(out, x.t()):
            raise RuntimeError(f"{name} is wrong: not timed")
    config = module.configs_for(arch, known)[able[0]]
    return Contest(variants, sets, COPY, float(set_bytes), "gbps", config, graphs=False)


PRODUCT = Transpose()
