"""C = A B of two matrices of one dtype, accumulated in float32: `kind: gemm`, and what other kinds begin with."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from typing import Any

from cookbook.check import calls, compiled, counted, levels, ran, reports
from cookbook.check.findings import Finding
from cookbook.check.layout import check_layouts, predicted_copies, predicted_wavefronts
from cookbook.check.model.product import simulate
from cookbook.check.reports import Level
from cookbook.measure import bench, ceilings, peers, records
from cookbook.measure.contest import OURS, Call, Contest
from cookbook.measure.kernels import SHAPES, WIDTHS, Kernel
from cookbook.measure.peers import TORCH
from cookbook.products.base import Modelled, Product, Shape, Usage
from cookbook.recipe import catalog, contract
from cookbook.recipe.catalog import Recipe
from cookbook.recipe.majors import DEFAULT, MAJORS, align, configured, misfit

MODEL_SHAPES: tuple[Shape, ...] = ((200, 333, 64), (72, 40, 136))  # ragged in M and N; in K too
TIMED_SHAPES: tuple[Shape, ...] = ((4096, 4096, 4096),)
LARGEST_MODELLED = 2**28  # multiply-adds; numpy simulates about 2**26 of them in a second
GPC_AWARE = "gpc_aware"  # a field of Config that the host chooses by the chip
FRONT_MATTER = {
    "name": "a GEMM",
    "extents": "MNK",
    "keys": "majors operands tensor_cores compared_with bench_shapes tuned baselines serves fuses",
}


class Gemm(Product):
    """A product of matrices (M, K) and (K, N)."""

    is_gemm = True
    of_one_product = True
    of_two_matrices = True
    levels = (
        *levels.LEVELS[:2],
        levels.PRODUCT,
        levels.HOST,
        levels.PIPELINE,
        levels.BANKS,
        levels.COST,
        *levels.LEVELS[2:],
    )
    modelled_in_registers = True  # the model has its data path

    def asked(self, recipe: Recipe) -> tuple[type, ...]:
        return (contract.Gemm, *((contract.TensorCores,) if recipe.tensor_cores else ()))

    def usage(self, recipe: Recipe) -> Usage:
        where = "a: (M, K), b: (K, N), both with K contiguous: b is usually weight.T"
        if len(recipe.majors) > 1:
            where = "a: (M, K), b: (K, N), each with rows or columns of adjacent elements"
        return Usage("matmul", "c = matmul(a, b)", where)

    # --- shapes and operands ---

    def align(self, recipe: Recipe, shape: Shape, majors: str) -> Shape:
        """A shape rounded up to one that a recipe takes."""
        return align(shape, majors)

    def fits(self, recipe: Recipe, shape: Shape) -> tuple[bool, str]:
        needed = "M,N,K of 1 or more, K a multiple of 8 (16-byte rows)"
        if len(recipe.majors) > 1:
            needed = "M,N,K of 1 or more, multiples of 8 where operands are contiguous (16-byte pieces)"
        whole = len(shape) == 3 and min(shape) >= 1
        return whole and any(not misfit(shape, majors) for majors in recipe.majors), needed

    def majors_for(self, recipe: Recipe, shapes: Iterable[Shape], majors: tuple[str, ...]) -> tuple[str, ...]:
        shapes = tuple(shapes)
        taken = majors or tuple(m for m in recipe.majors if not any(misfit(s, m) for s in shapes)) or recipe.majors
        for which, shape in product(taken, shapes):
            if extent := misfit(shape, which):
                needed = f"a multiple of 8 along which {which} operands are contiguous (16-byte pieces)"
                raise ValueError(f"shape: got {shape!r}, {extent}; needed {needed}")
        return taken

    def model_shapes(self, recipe: Recipe, majors: str) -> tuple[Shape, ...]:
        if not (recipe.tensor_cores and self.modelled_in_registers):
            return ()
        return tuple(self.align(recipe, shape, majors) for shape in MODEL_SHAPES)

    def bench_shapes(self, recipe: Recipe) -> tuple[Shape, ...]:
        return recipe.bench_shapes or bench.DEFAULT_SHAPES

    def fitting(self, recipe: Recipe, shapes: tuple[Shape, ...], majors: str) -> tuple[Shape, ...]:
        return tuple(shape for shape in shapes if not misfit(shape, majors))

    def ran_shapes(self, recipe: Recipe, majors: str, seed: int) -> tuple[Shape, ...]:
        """Return those of level "ran": `ran.SHAPES` and as many drawn anew."""
        return (*ran.shapes_for(majors), *ran.drawn(seed, majors))

    def multiplied(self, recipe: Recipe, shape: Shape, dtype: str, majors: str) -> tuple[Any, Any]:
        """Fresh torch operands (M, K) and (K, N): what those of the kernel stand for, exactly."""
        return ran.inputs(shape, dtype, majors=majors)

    def as_matmul(self, recipe: Recipe, module: Any, matmul: Callable[..., Any], config: Any) -> Callable[..., Any]:
        """A recipe's `matmul` as one of (a, b, out), of the operands of `multiplied`."""
        return matmul

    def torch_error(self, recipe: Recipe, a: Any, b: Any, exact: Any, out: Any) -> float:
        """The relative error of torch's own product."""
        import torch

        return ran.relative_error(torch.matmul(a, b), exact)

    def lost(self, recipe: Recipe, a: Any, b: Any, exact: Any) -> float:
        """Return what accumulating may add to the relative error of the product `exact`."""
        return 0.0

    def read_bytes(self, recipe: Recipe, shape: Shape) -> float:
        m, n, k = shape
        return 2 * k * (m + n) if self.of_one_product else 0

    # --- levels that run anywhere ---

    def variants(self, module: Any, target: str, dtype: str | None, majors: str) -> dict[str, Any]:
        found = compiled.variants(module, target) or {"": compiled.config_for(module, target)}
        return {name: configured(config, majors) for name, config in found.items()}

    def layouts(self, module: Any, dtype: str | None, config: Any) -> list[Finding]:
        return check_layouts(module, compiled.cutlass_dtype(str(dtype)), config)

    def modelled(self, recipe: Recipe, module: Any, dtype: str, shape: Shape, config: Any) -> Modelled:
        """Exact on integers, to rounding on normals. The kernel is not looked at: not its coordinates, its guards, its
        accumulators or its order."""
        if shape[0] * shape[1] * shape[2] > LARGEST_MODELLED:
            text = f"{_x(shape)} is too large to simulate in numpy: at most {LARGEST_MODELLED} multiply-adds"
            return Modelled({}, [], text)
        exact = self.simulated(recipe, module, dtype, shape, config, integers=True)
        error = self.simulated(recipe, module, dtype, shape, config, integers=False)
        problems = []
        if exact:
            problems.append(f"{int(exact)} of {shape[0] * shape[1]} elements differ on integer inputs")
        if not error <= ran.tolerance(dtype):
            problems.append(f"relative error {error:.2e} on normal inputs; at most {ran.tolerance(dtype):.2e}")
        return Modelled({"integer_mismatches": int(exact), "relative_error": error}, problems)

    def simulated(self, recipe: Recipe, module: Any, dtype: str, shape: Shape, config: Any, integers: bool) -> float:
        """Simulate the data path; how many elements differ (integers), or the relative error (otherwise)."""
        import torch

        kind = getattr(torch, dtype)
        a, b = (x.to(kind) for x in (small_integers(shape) if integers else normals(shape)))
        found = simulate(module, a.float().numpy(), b.float().numpy(), compiled.cutlass_dtype(dtype), config)
        got, exact = torch.as_tensor(found).to(kind), a.double() @ b.double()
        if integers:
            return float((got != exact.to(kind)).sum())
        return ran.relative_error(got, exact)

    def drawn_call(self, recipe: Recipe, drawn: dict[str, Any]) -> calls.Call:
        import torch

        which, dtype = drawn["majors"], getattr(torch, drawn["dtype"])
        (m, n, k), (a_major, b_major) = self.align(recipe, shape_of(drawn), which), MAJORS[which]
        a = calls.matrix(m, k, dtype, a_major == "m", drawn["gap_a"])
        b = calls.matrix(k, n, dtype, b_major == "k", drawn["gap_b"])
        return calls.Call(a, b, calls.out_of(m, n, dtype, drawn), (), (m, n, k), which)

    def illegal(self) -> dict[str, Callable[[calls.Call], None]]:
        return calls.ILLEGAL

    # --- levels that need a GPU ---

    def of_own_code(self, level: str) -> bool:
        return level == "ran"

    def measured(
        self, recipe: Recipe, level: str, dtype: str | None, shapes: tuple[Shape, ...], majors: str
    ) -> list[Level]:
        return getattr(self, level)(recipe, str(dtype), shapes, majors)

    def ran(self, recipe: Recipe, dtype: str, shapes: tuple[Shape, ...], majors: str) -> list[Level]:
        """The kernel on this GPU; a record is of the whole list of shapes, and of packaged code."""
        module, seed = recipe.module, random.SystemRandom().randrange(2**32)  # to draw the same again
        cases = self.cases(recipe, module, shapes or self.ran_shapes(recipe, majors, seed), dtype, majors)
        figures = self.ran_summary(module, cases) | ({} if shapes else {"drawn": ran.DRAWN, "seed": seed})
        figures |= {"by": list(module.VARIANTS)} if hasattr(module, "VARIANTS") else {}
        bad = "; ".join(f"{_x(case.shape)}: {case.problem}" for case in cases if not case.ok)
        found = self.record(recipe, module, "ran", dtype, None, figures, bad, majors)
        made = None if shapes or recipe.where else found
        return [reports.of_gpu(found, bad, dtype, made)]

    def ran_summary(self, module: Any, cases: list[Any]) -> dict[str, Any]:
        """The figures of a record of "ran"."""
        return ran.summary(cases)

    def cases(self, recipe: Recipe, module: Any, shapes: Iterable[Shape], dtype: str, majors: str) -> list[ran.Case]:
        """Every shape by every variant; a problem says whose it is."""
        shapes, found = tuple(dict.fromkeys(self.align(recipe, shape, majors) for shape in shapes)), []
        for name, matmul in self.matmuls(recipe, module).items():
            for number, shape in enumerate(shapes):
                case = self.run_case(recipe, matmul, shape, dtype, majors, row_stride=ran.row_stride(shape, number))
                found.append(
                    replace(case, problem=f"{name}: {case.problem}" if name and case.problem else case.problem)
                )
        return found

    def matmuls(self, recipe: Recipe, module: Any) -> dict[str, Callable[..., Any]]:
        """The entry point by variant, as `as_matmul` makes it; under the name "" if there are no `VARIANTS`."""
        named = getattr(module, "VARIANTS", ())
        found = {name: (partial(module.matmul, variant=name), named[name]) for name in named}
        found = found or {"": (module.matmul, getattr(module, "CONFIG", None))}
        return {name: self.as_matmul(recipe, module, call, config) for name, (call, config) in found.items()}

    def run_case(
        self,
        recipe: Recipe,
        matmul: Callable[..., Any],
        shape: Shape,
        dtype: str,
        majors: str = DEFAULT,
        row_stride: int | None = None,
    ) -> ran.Case:
        """Run one of `matmuls` once."""
        a, b = self.multiplied(recipe, shape, dtype, majors)
        return ran.run_case(
            matmul, (a, b), dtype, partial(self.torch_error, recipe), partial(self.lost, recipe), row_stride
        )

    def run_cells(self, recipe: Recipe, cells: Any, matmul: Callable[..., Any], shape: Shape, dtype: str) -> ran.Case:
        """Run a reader's `matmul` once; `cells` is the module that it stands in."""
        own = self.as_matmul(recipe, cells, matmul, getattr(cells, "CONFIG", None))
        return self.run_case(recipe, own, shape, dtype, recipe.majors[0])

    def timed(self, recipe: Recipe, dtype: str, shapes: tuple[Shape, ...], majors: str) -> list[Level]:
        """Ours against its peers."""
        made = self.bench(recipe, bench.Options(shapes or TIMED_SHAPES, (dtype,), (majors,)))
        return [reports.of_gpu(record, "", dtype, record) for record in made]

    def counted(self, recipe: Recipe, dtype: str, shapes: tuple[Shape, ...], majors: str) -> list[Level]:
        """Wavefronts as ncu counts them, against those predicted."""
        module = recipe.module
        configs = self.variants(module, compiled.arch_here(), dtype, majors)
        kernels = counted.count_kernels(recipe.name, dtype, counted.COUNTED_SHAPE, majors)
        figures, problems = (
            {},
            [] if len(kernels) == len(configs) else [f"{len(kernels)} kernels; needed {len(configs)}"],
        )
        for (name, config), lines in zip(configs.items(), kernels, strict=False):
            of = (module, compiled.cutlass_dtype(dtype), config)
            copied = predicted_copies(*of, counted.COUNTED_SHAPE) if recipe.tensor_cores else (0, 0)
            wanted = predicted_wavefronts(*of) if recipe.tensor_cores else {}
            found, bad = counted.compare(lines, wanted, copied)
            figures |= {f"{name} {opcode}".strip(): entry for opcode, entry in found.items()}
            problems += [f"{name}: {problem}" if name else problem for problem in bad]
        bad = "; ".join(problems)
        made = self.record(recipe, module, "counted", dtype, counted.COUNTED_SHAPE, figures, bad, majors)
        return [reports.of_gpu(made, bad, dtype, made)]

    def sanitized(self, recipe: Recipe, dtype: str, shapes: tuple[Shape, ...], majors: str) -> list[Level]:
        """Return what memcheck and racecheck find."""
        own = tuple(self.align(recipe, shape, majors) for shape in counted.SANITIZED_SHAPES)
        figures, bad = counted.sanitized(recipe.name, dtype, own, majors)
        made = self.record(recipe, recipe.module, "sanitized", dtype, None, figures, bad, majors)
        return [reports.of_gpu(made, bad, dtype, made)]

    def config_here(self, module: Any, dtype: str, majors: str) -> Any:
        """The configuration that this GPU runs, or all of them by variant."""
        own = self.variants(module, compiled.arch_here(), dtype, majors)
        return own.get("") or {name: asdict(config) for name, config in own.items()}

    def record(
        self,
        recipe: Recipe,
        module: Any,
        level: str,
        dtype: str,
        shape: Shape | None,
        figures: dict[str, Any],
        bad: str,
        majors: str,
    ) -> records.Record:
        """The record of a level that was run here."""
        import torch

        config, device = self.config_here(module, dtype, majors), torch.cuda.get_device_name()
        made = {"figures": figures, "device": device, "config": config, "majors": recipe.told_apart(majors)}
        return records.make(level, recipe.name, dtype, shape, passed=not bad, **made)

    def launch(self, recipe: Recipe, dtype: str, majors: str, shapes: Iterable[Shape]) -> None:
        import torch

        own = self.matmuls(recipe, recipe.module)
        for shape in shapes:
            a, b = self.multiplied(recipe, shape, dtype, majors)
            exact = ran.reference(a, b)
            allowed = ran.tolerance(dtype) + self.lost(recipe, a, b, exact)
            for variant, matmul in own.items():
                out = torch.full_like(exact, ran.poison(dtype), dtype=getattr(torch, dtype))
                error = ran.relative_error(matmul(a, b, out=out), exact)
                if not error <= allowed:
                    raise SystemExit(f"{recipe.name} {variant} {dtype} {majors} {shape}: relative error {error:.2e}")

    # --- peers ---

    def bench(self, recipe: Recipe, options: bench.Options) -> Iterator[records.Record]:
        return bench.of_contests(recipe, options)

    def standard(self, recipe: Recipe) -> str:
        return TORCH

    def contest(self, recipe: Recipe, shape: Shape, dtype: str, majors: str, quack: bool, own: bool) -> Contest:
        module = recipe.module
        made = self.plain_contest(module, shape, dtype, majors, quack, recipe.compared_with, own)
        return ceilings.with_ceiling(recipe, replace(made, majors=recipe.told_apart(majors)), dtype)

    def plain_contest(
        self,
        module: Any,
        shape: Shape,
        dtype: str,
        majors: str = DEFAULT,
        quack: bool = True,
        compared_with: str | None = None,
        own: bool = True,
    ) -> Contest:
        """A recipe's matmul, with all its variants if `own`, against torch.matmul, QuACK, and `compared_with`.

        A wrong or failing peer is left out; of ours it is an error.
        """
        sets, variants_of_ours = peers.input_sets(shape, dtype, majors), peers.own_variants(module) if own else {}
        others = peers.peers(quack=quack)
        others |= {compared_with: peers.into(catalog.load(compared_with).matmul)} if compared_with else {}
        variants: dict[str, Call] = {OURS: peers.into(module.matmul), **others, **variants_of_ours}
        variants |= self.more_peers(module)
        ours = (OURS, *variants_of_ours)
        usable = {name: call for name, call in variants.items() if peers.agrees(name, call, sets[0], dtype, ours)}
        self.verify(module, usable, sets[0])
        more, scale = self.more_calls(module, shape, sets) if own else ({}, {})
        config = configured(compiled.config_for(module, compiled.arch_here()), majors)
        of = (compared_with,) if compared_with in usable else ()
        return Contest(usable | more, sets, TORCH, peers.work_of(shape), config=config, of=of, scale=scale)

    def more_peers(self, module: Any) -> dict[str, Call]:
        """Torch's own that do what a recipe does besides."""
        return {}

    def verify(self, module: Any, usable: dict[str, Call], operands: tuple[Any, Any, Any]) -> None:
        """Make sure of what `peers.agrees` does not look at. Raises RuntimeError where it is wrong."""

    def more_calls(
        self, module: Any, shape: Shape, sets: list[tuple[Any, Any, Any]]
    ) -> tuple[dict[str, Call], dict[str, float]]:
        """More that is timed of a recipe, each with how much more work than its own the contest's is, where it is."""
        return {}, {}

    def against_torch(self, recipe: Recipe, matmul: Callable[..., Any], shape: Shape, dtype: str) -> Contest:
        """A `matmul` that a reader may have changed, against torch's alone: no record is made of it.

        Raises:
            RuntimeError: `matmul` is wrong.
        """
        sets = peers.input_sets(shape, dtype, recipe.majors[0])
        ran.verify(OURS, peers.into(matmul), sets[0], dtype)
        both = {OURS: peers.into(matmul), TORCH: peers.peers(quack=False)[TORCH]}
        return Contest(both, sets, TORCH, peers.work_of(shape))

    def host_costs(self, recipe: Recipe, dtype: str, majors: str, quack: bool) -> dict[str, dict[str, float]]:
        return peers.host_costs(recipe.module.matmul, dtype, majors, quack) if self.of_two_matrices else {}

    # --- records ---

    def kernels(self, recipe: Recipe, module: Any, record: records.Record, target: str) -> list[Kernel]:
        """All variants, for `matmul` chooses among them. All widths of stores where many shapes were run, and the one
        that fits N where it was one shape."""
        variants = list(compiled.variants(module, target)) or [""]
        chosen = getattr(compiled.config_for(module, target), GPC_AWARE, False)  # no host turns on one that is off
        by_host = [((GPC_AWARE, True),), ((GPC_AWARE, False),)] if chosen else [()]
        of = record.get("majors") or (DEFAULT if len(recipe.majors) > 1 else "")
        return [
            Kernel(recipe.name, target, record["dtype"], of, variant, vec, changes)
            for variant in variants
            for vec in _widths(module, record)
            for changes in by_host
        ]

    def compile(self, module: Any, kernel: Kernel) -> Any:
        dtype, named = compiled.cutlass_dtype(kernel.dtype), compiled.variants(module, kernel.target)
        config = named[kernel.variant] if kernel.variant else compiled.config_for(module, kernel.target)
        config = configured(config, kernel.majors) if kernel.majors else config
        config = replace(config, **dict(kernel.changes))
        return module.compile_for(kernel.target, dtype, config, **({"vec": kernel.vec} if kernel.vec else {}))


def shape_of(drawn: dict[str, Any]) -> Shape:
    """M, N and K out of `calls.CHOICES`."""
    return drawn["m"], drawn["n"], drawn["k"]


def _widths(module: Any, record: records.Record) -> tuple[int, ...]:
    if "vec" not in (takes := inspect.signature(module.compile_for).parameters):
        return (0,)
    widths = tuple(vec for vec in WIDTHS if vec <= takes["vec"].default)  # the default is the widest
    if record["level"] in SHAPES or not record["shape"]:
        return widths
    return (next(vec for vec in widths if record["shape"][1] % vec == 0),)


def small_integers(shape: Shape) -> tuple[Any, Any]:
    """Operands of which any product sums exactly in float32, whatever the order, up to K = 2**24 / 9."""
    import torch

    m, n, k = shape
    return torch.randint(-3, 4, (m, k)), torch.randint(-3, 4, (n, k)).T


def normals(shape: Shape) -> tuple[Any, Any]:
    """Normal operands on the CPU."""
    import torch

    m, n, k = shape
    return torch.randn(m, k), torch.randn(n, k).T


def _x(shape: Shape) -> str:
    return "x".join(map(str, shape))


PRODUCT = Gemm()
