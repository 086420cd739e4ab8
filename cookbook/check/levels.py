"""`check`: a recipe through all levels, as far as this machine goes, and what is recorded for the others.

Which levels there are depends on the recipe's kind: a study has layout (its facts), compiled if it has kernels, and
those of ran, timed and counted at which it measures something.
layout, model, product, host, pipeline and compiled run anywhere. ran and timed run where a GPU can run the recipe;
counted and sanitized where NVIDIA's tools are there too, and only when asked for, for they take minutes. What does not
run here is shown as results/ has it, or as not checked.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import product
from types import ModuleType
from typing import Any, NamedTuple

from cookbook.check import chains, counted, fused, host, pipeline, ran, scaled, subjects, tensor_memory, transpose
from cookbook.check import compiled as compiling
from cookbook.check import product as followed
from cookbook.check.evaluated import evaluated
from cookbook.check.findings import Finding
from cookbook.check.layout import check_layouts, predicted_copies, predicted_wavefronts
from cookbook.check.model.fp8 import simulate_fp8
from cookbook.check.model.int8 import simulate_int8
from cookbook.check.model.product import simulate
from cookbook.check.model.scaled import simulate_scaled
from cookbook.check.ran import Shape
from cookbook.check.subjects import Local, module_of
from cookbook.measure import bench, records, studies
from cookbook.recipe import catalog, formats
from cookbook.recipe.catalog import Recipe
from cookbook.recipe.contract import Fused
from cookbook.recipe.majors import DEFAULT, align, configured, misfit

PASSED, FAILED, RECORDED, STALE, NOT_CHECKED = "passed", "failed", "recorded", "stale", "not checked"
LEVELS = ("layout", "model", "compiled", "ran", "timed", "counted", "sanitized")
PRODUCT = "product"  # one more, of a GEMM: its kernel followed to C
HOST = "host"  # one more, of a GEMM: what its `matmul` launches
PIPELINE = "pipeline"  # one more, of a GEMM whose warps wait for one another, or for copies
MODEL_SHAPES: tuple[Shape, ...] = ((200, 333, 64), (72, 40, 136))  # ragged in M and N; in K too
TIMED_SHAPES: tuple[Shape, ...] = ((4096, 4096, 4096),)
BY_NAME = "measured of packaged recipes only"
UNTIMED = "not done yet for block-scaled operands"  # timing, and NVIDIA's tools
LARGEST_TRANSPOSED = 2**24  # elements
LARGEST_MODELLED = 2**28  # multiply-adds; numpy simulates about 2**26 of them in a second
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Level:
    """One line of a report."""

    level: str
    status: str  # passed, failed, recorded, stale, not checked
    dtype: str | None = None
    target: str | None = None
    shape: Shape | None = None
    variant: str | None = None  # of a recipe that has several kernels for one thing
    majors: str | None = None  # of the operands, of a recipe that takes several
    figures: dict[str, Any] = field(default_factory=dict)
    reason: str = ""  # why it failed, or why it was not checked here
    device: str | None = None  # of a recorded or GPU level
    date: str | None = None  # of a recorded level
    without: tuple[str, ...] = ()  # variants that a record says nothing of
    seconds: float = 0.0
    record: records.Record | None = None  # what `--record` would write: measured just now

    def to_json(self) -> dict[str, Any]:
        """The fields as a dict, without the record."""
        return {key: value for key, value in asdict(self).items() if key != "record"}


@dataclass(frozen=True)
class Report:
    """Every level of one recipe."""

    recipe: str
    levels: tuple[Level, ...]
    checked: str = ""  # which code was looked at, in words

    @property
    def ok(self) -> bool:
        """Whether all that could be checked here holds; stale or not checked levels say nothing."""
        return all(level.status != FAILED for level in self.levels)

    @property
    def failed(self) -> tuple[Level, ...]:
        """The levels that do not hold."""
        return tuple(level for level in self.levels if level.status == FAILED)

    @property
    def not_checked(self) -> tuple[Level, ...]:
        """The levels that this machine could not check and no current record covers."""
        return tuple(level for level in self.levels if level.status in (STALE, NOT_CHECKED))

    def to_json(self) -> dict[str, Any]:
        """`{"recipe", "checked", "ok", "levels": [...]}`."""
        levels = [level.to_json() for level in self.levels]
        return {"recipe": self.recipe, "checked": self.checked, "ok": self.ok, "levels": levels}


def check(
    what: str | ModuleType,
    shapes: Iterable[Shape] = (),
    dtypes: Iterable[str] = (),
    targets: Iterable[str] = (),
    on_progress: Progress = lambda text: None,
    tools: bool = False,
    majors: Iterable[str] = (),
    recipe: str = "",
) -> Report:
    """Check a recipe, or the module that a notebook or a copied file is, at every level that this machine can.

    Args:
        what: a recipe's name, or a module: in a notebook `cookbook.lab.check_cells` gives the one of its cells.
        shapes: (M, N, K), or (M, N) of a transpose, for model, ran and timed; each level's own if left out.
        dtypes: of the recipe's; all of them if left out.
        targets: to compile for; all of the recipe's if left out.
        on_progress: told each step before it is done; `plan` says how many there will be.
        tools: on a GPU also run the kernel under ncu and compute-sanitizer.
        majors: of the operands, out of the recipe's; all that can have the shapes if left out.
        recipe: of a module, the name of the recipe that it is made from; the head of a copied file says it.

    Returns:
        The report; `checked` says which code it is of. Of a module whose code differs from the packaged recipe's,
        levels that only a GPU can do say that they were not checked: no record is of that code.

    Raises:
        UnknownRecipe: there is no such recipe.
        TypeError: `what` is neither a name nor a module.
        ValueError: a dtype, a target or majors that are not of the recipe's, or a shape is none.
    """
    subject = subjects.find(what, recipe)
    wanted = chosen(subject, shapes, dtypes, targets, majors)
    levels: list[Level] = []
    for step in plan(subject, *wanted, tools):
        on_progress(step.text)
        levels += run_step(step)
    return Report(subject.name, tuple(levels), subjects.said(subject))


class Chosen(NamedTuple):
    """What to check of a recipe."""

    shapes: tuple[Shape, ...]  # none: each level's own
    dtypes: tuple[str, ...]
    targets: tuple[str, ...]
    majors: tuple[str, ...]


def chosen(
    recipe: Recipe,
    shapes: Iterable[Shape],
    dtypes: Iterable[str],
    targets: Iterable[str],
    majors: Iterable[str] = (),
) -> Chosen:
    """The arguments of `check`, validated, with the recipe's own dtypes, targets and majors where none were given."""
    shapes, dtypes, targets, majors = tuple(shapes), tuple(dtypes), tuple(targets), tuple(majors)
    for what, given in (("dtype", dtypes), ("target", targets), ("major", majors), ("shape", shapes)):
        for value in given:
            if reason := refusal(recipe, what, value):
                raise ValueError(reason)
    taken = _majors_for(recipe, shapes, majors)
    return Chosen(shapes, dtypes or recipe.dtypes, targets or recipe.targets, taken)


def _majors_for(recipe: Recipe, shapes: tuple[Shape, ...], majors: tuple[str, ...]) -> tuple[str, ...]:
    """Those asked for; if none, all of the recipe's that every one of the shapes can have."""
    if recipe.kind != "gemm":
        return recipe.majors
    taken = majors or tuple(m for m in recipe.majors if not any(misfit(s, m) for s in shapes)) or recipe.majors
    for which, shape in product(taken, shapes):
        if extent := misfit(shape, which):
            needed = f"a multiple of 8 along which {which} operands are contiguous (16-byte pieces)"
            raise ValueError(f"shape: got {shape!r}, {extent}; needed {needed}")
    return taken


def refusal(recipe: Recipe, what: str, value: Any) -> str:
    """Why a "dtype", "target", "major" or "shape" is not one of the recipe's; empty if it is."""
    if what == "shape":
        fits, needed = _fits(recipe, value)
    else:
        known = {"dtype": recipe.dtypes, "target": recipe.targets}.get(what, recipe.majors)
        known = () if what == "major" and recipe.kind != "gemm" else known
        fits, needed = value in known, f"one of {', '.join(known)}" if known else "none"
    return "" if fits else f"{what}: got {value!r}; needed {needed} for {recipe.name}"


def _fits(recipe: Recipe, shape: Shape) -> tuple[bool, str]:
    """Whether a recipe takes `shape`, and what it takes."""
    positive = min(shape, default=0) >= 1
    if recipe.kind == "gemm":
        needed = "M,N,K of 1 or more, K a multiple of 8 (16-byte rows)"
        if len(recipe.majors) > 1:
            needed = "M,N,K of 1 or more, multiples of 8 where operands are contiguous (16-byte pieces)"
        if form := formats.FORMATS.get(recipe.operands):
            return positive and len(shape) == 3 and not formats.misfit(
                shape, form
            ), f"M,N,K of 1 or more, {formats.needed(form)}"
        return positive and len(shape) == 3 and any(not misfit(shape, m) for m in recipe.majors), needed
    fits = recipe.kind == "transpose" and positive and len(shape) == 2
    return fits, "M,N of 1 or more" if recipe.kind == "transpose" else "none"


@dataclass(frozen=True)
class Step:
    """A part of a check: which level, of what, and how."""

    level: str
    dtype: str | None
    run: Callable[[], list[Level]]
    target: str | None = None
    shape: Shape | None = None
    majors: str | None = None  # where the recipe takes several

    @property
    def text(self) -> str:
        """What to show while it runs."""
        words = (self.level, self.target, self.majors, self.dtype, _x(self.shape or ()))
        return " ".join(word for word in words if word)


def plan(
    recipe: Recipe,
    shapes: tuple[Shape, ...],
    dtypes: tuple[str, ...],
    targets: tuple[str, ...],
    majors: tuple[str, ...],
    tools: bool = False,
) -> list[Step]:
    """The steps of a check in the order they run; arguments as `chosen` returns them."""
    if recipe.kind == "study":
        return _plan_of_study(recipe, targets, tools)
    steps: list[Step] = []

    def add(level: str, d: str, m: str, look: Callable[..., list[Level]], *arguments: Any, **where: Any) -> None:
        run = partial(look, recipe, *arguments, majors=m)
        steps.append(Step(level, d, run, majors=recipe.told_apart(m), **where))

    form = formats.FORMATS.get(recipe.operands)
    in_registers = recipe.chained or (form and form.packed)  # A of an MMA, which the model has not
    for d, m in product(dtypes, majors) if recipe.tensor_cores else ():  # else nothing lies in tiles in shared memory
        add("layout", d, m, layout_levels, d, targets)
        for s in () if in_registers else shapes or model_shapes(recipe, m):
            add("model", d, m, model_levels, d, s, targets, shape=s)
    for d, m in product(dtypes, majors) if recipe.kind == "gemm" else ():
        add(PRODUCT, d, m, product_levels, d, targets, d == dtypes[0])
    if recipe.kind == "gemm":
        steps.append(Step(HOST, None, lambda: [host_level(recipe)]))
    for m in majors if pipeline.is_pipelined(recipe, getattr(recipe, "source", "")) else ():
        add(PIPELINE, dtypes[0], m, pipeline_levels, dtypes[0], targets)  # its dtypes have one width, and one program
    for t, d, m in product(targets, dtypes, majors):
        add("compiled", d, m, compiled_levels, t, d, target=t)
    for d, m in product(dtypes, majors):
        add("ran", d, m, ran_levels, d, shapes)
        add("timed", d, m, timed_levels, d, shapes)
        add("counted", d, m, tool_levels, "counted", d, tools)
        add("sanitized", d, m, tool_levels, "sanitized", d, tools)
    return steps


def model_shapes(recipe: Recipe, majors: str) -> tuple[Shape, ...]:
    """What the model simulates when nothing is said."""
    if recipe.kind == "transpose":
        return transpose.MODEL_SHAPES
    form = formats.FORMATS.get(recipe.operands)
    return tuple(formats.align(shape, form) if form else align(shape, majors) for shape in MODEL_SHAPES)


def _plan_of_study(recipe: Recipe, targets: tuple[str, ...], tools: bool) -> list[Step]:
    facts = Step("layout", None, lambda: [facts_level(recipe)])
    compiles = [Step("compiled", None, lambda t=t: compiled_levels(recipe, t, None), target=t) for t in targets]
    on_gpu = ("ran", "timed", "counted")
    measured = [Step(level, None, lambda w=level: study_levels(recipe, w, tools)) for level in on_gpu]
    return [facts, *compiles, *measured]


def run_step(step: Step) -> list[Level]:
    """Run a step and note how long it took; what it raises becomes a failed level, and the check goes on."""
    start = time.perf_counter()
    try:
        levels = step.run()
    except catalog.NotLoaded:
        raise  # nothing was looked at
    except pipeline.UnknownCode as error:
        levels = [Level(step.level, NOT_CHECKED, step.dtype, step.target, step.shape, reason=f"not followed: {error}")]
    except (Exception, SystemExit) as error:
        levels = [Level(step.level, FAILED, step.dtype, step.target, step.shape, reason=_stopped(step.level, error))]
    seconds = round((time.perf_counter() - start) / max(len(levels), 1), 3)
    return [replace(level, majors=step.majors, seconds=seconds) for level in levels]


def _stopped(level: str, error: BaseException) -> str:
    """What ended a level, on one line: our own errors as they are, others with what could not be done for them."""
    text = _COLOURS.sub("", str(error)).strip()
    if isinstance(error, pipeline.CannotFollow):
        return f"the kernel cannot be followed: {text}"
    if isinstance(error, (TypeError, ValueError)) and ": got " in text and "; needed " in text:
        return text
    if found := _DIAGNOSTIC.search(text):
        return f"{_COULD_NOT.get(level, level)}: {found['said']} ({found['file']}:{found['line']})"
    place = _PLACE.search(text)
    where = f" ({place[1]})" if place else ""
    if found := _VERIFIED.search(text):
        return f"{_COULD_NOT.get(level, level)}: {' '.join(found[1].split())}{where}"
    first = next(iter(text.splitlines()), "").removeprefix("error: ")
    return f"{_COULD_NOT.get(level, level)}: {type(error).__name__}: {first}{where}"


_COLOURS = re.compile(r"\x1b\[[\d;]*m")
_PLACE = re.compile(r"--> \S*?([^/\s]+\.py:\d+)")  # in what CuTe says of the user's code
# Of an operation that MLIR refuses: error: "code"("file.py":372:16): 'cute.gemm' op expects ...
_DIAGNOSTIC = re.compile(r'^error: .*\("[^"]*?(?P<file>[^/"]+\.py)":(?P<line>\d+):\d+\): (?P<said>.+)$', re.MULTILINE)
_VERIFIED = re.compile(r"^ *error: IR verification failed: (.+?)(?=\n *suggestion:|\Z)", re.MULTILINE | re.DOTALL)
_COULD_NOT = {
    "layout": "the layouts cannot be evaluated",
    "model": "the layouts cannot be simulated",
    PRODUCT: "the kernel cannot be traced",
    HOST: "matmul cannot be looked at",
    PIPELINE: "the kernel cannot be traced",
    "compiled": "the kernel does not compile",
}


# --- levels that run anywhere -------------------------------------------------------------------------------


def configurations(
    recipe: Recipe, targets: tuple[str, ...], dtype: str | None = None, majors: str = DEFAULT
) -> dict[Any, dict[str, Any]]:
    """The distinct configurations of `targets`, each with what tells it from the others, as fields of `Level`.

    That is the variant where a recipe has several, else the targets it is for where these differ.
    """
    module = module_of(recipe)
    if recipe.kind == "transpose" and dtype is not None:
        variants = [module.configs_for(target, compiling.cutlass_dtype(dtype)) for target in targets]
        return {config: {"variant": name} for configs in variants for name, config in configs.items()}
    by_config: dict[Any, tuple[str, list[str]]] = {}
    for target in targets:
        for name, config in _variants(module, target, majors).items():
            by_config.setdefault(config, (name, []))[1].append(target)
    each = len({name for name, _ in by_config.values()})
    return {
        config: ({"variant": name} if name else {}) | ({"target": "/".join(used_by)} if len(by_config) > each else {})
        for config, (name, used_by) in by_config.items()
    }


def _variants(module: Any, target: str, majors: str) -> dict[str, Any]:
    """A GEMM's configurations for a target by variant; under the name "" if it has a single kernel."""
    found = compiling.variants(module, target) or {"": compiling.config_for(module, target)}
    return {name: configured(config, majors) for name, config in found.items()}


def layout_levels(recipe: Recipe, dtype: str, targets: tuple[str, ...], majors: str = DEFAULT) -> list[Level]:
    """The recipe's own shared-memory layouts: bijective, in bounds, the expected wavefronts of each copy."""
    module, kind = module_of(recipe), compiling.cutlass_dtype(dtype)
    look = transpose.check_layouts if recipe.kind == "transpose" else check_layouts
    levels = []
    for config, where in configurations(recipe, targets, dtype, majors).items():
        found = look(module, kind, config)
        figures = {each.name: each.detail for each in found}
        levels.append(_of_findings("layout", _too_large(config, where, targets) + found, figures, dtype=dtype, **where))
    return levels


def _too_large(config: Any, where: dict[str, Any], targets: tuple[str, ...]) -> list[Finding]:
    """What shared memory lacks for a configuration, if it does: the cause of whatever else fails then."""
    least = min(targets if "target" not in where else where["target"].split("/"), key=compiling.smem_limit)
    limit = compiling.smem_limit(least)
    detail = f"{config.smem_bytes} bytes; at most {limit} on {least}"
    return [] if config.smem_bytes <= limit else [Finding("smem", False, detail)]


def facts_level(recipe: Recipe) -> Level:
    """What a study claims: its `facts()`, each one computed anew."""
    found = [Finding(*fact) for fact in module_of(recipe).facts()]
    return _of_findings("layout", found, figures={"facts": {f.name: f.detail for f in found}})


def model_levels(
    recipe: Recipe, dtype: str, shape: Shape, targets: tuple[str, ...], majors: str = DEFAULT
) -> list[Level]:
    """`model_level` for every configuration that `targets` use."""
    look = transposed_level if recipe.kind == "transpose" else model_level
    each = configurations(recipe, targets, dtype, majors)
    levels = [replace(look(recipe, dtype, shape, c), **where) for c, where in each.items()]
    if isinstance(module := module_of(recipe), Fused):
        found = fused.function_findings(module)
        figures = {"epilogues": {one.name: one.detail for one in found}}
        levels.append(_of_findings("model", found, figures, dtype=dtype, variant="epilogues"))
    return levels


def model_level(recipe: Recipe, dtype: str, shape: Shape, config: Any) -> Level:
    """The data path of the *layouts*, simulated in numpy, against torch.matmul: exact on integers, to rounding on
    normals. The kernel is not looked at: not its coordinates, its guards, its accumulators or its order."""
    if shape[0] * shape[1] * shape[2] > LARGEST_MODELLED:
        reason = f"{_x(shape)} is too large to simulate in numpy: at most {LARGEST_MODELLED} multiply-adds"
        return Level("model", NOT_CHECKED, dtype, shape=shape, reason=reason)
    form = formats.FORMATS.get(recipe.operands)
    simulated = _simulated if not form else _simulated_scaled if form.scale else _simulated_integers
    exact = simulated(recipe, dtype, _integers(shape), config, integers=True)
    error = simulated(recipe, dtype, _normals(shape), config, integers=False)
    problems = []
    if exact:
        problems.append(f"{int(exact)} of {shape[0] * shape[1]} elements differ on integer inputs")
    if not error <= ran.tolerance(dtype):
        problems.append(f"relative error {error:.2e} on normal inputs; at most {ran.tolerance(dtype):.2e}")
    figures = {"integer_mismatches": int(exact), "relative_error": error}
    return Level(
        "model",
        FAILED if problems else PASSED,
        dtype,
        shape=shape,
        figures=figures,
        reason="; ".join(problems),
    )


def _simulated(recipe: Recipe, dtype: str, operands: tuple[Any, Any], config: Any, integers: bool) -> float:
    """Simulate the data path; how many elements differ (integers), or the relative error (otherwise)."""
    import torch

    module, kind = module_of(recipe), getattr(torch, dtype)
    a, b = (x.to(kind) for x in operands)
    product = simulate(module, a.float().numpy(), b.float().numpy(), compiling.cutlass_dtype(dtype), config)
    got = torch.as_tensor(product).to(kind)
    exact = a.double() @ b.double()
    if integers:
        return float((got != exact.to(kind)).sum())
    return ran.relative_error(got, exact)


def _simulated_scaled(recipe: Recipe, dtype: str, operands: tuple[Any, Any], config: Any, integers: bool) -> float:
    """`_simulated` of scaled operands: against the product, in float64, of what they stand for."""
    import torch

    (m, k), n, form = operands[0].shape, operands[1].shape[1], recipe.operands
    if integers:
        a, b = scaled.integers(m, k, form, 0), scaled.integers(n, k, form, 1, formats.FORMATS[form].b_rows)
    else:
        left, right = (x.float().numpy() for x in (operands[0], operands[1].T))
        a, b = scaled.quantized(left, form), scaled.quantized(right, form, formats.FORMATS[form].b_rows)
    model = simulate_scaled if formats.FORMATS[form].by_mma else simulate_fp8
    product = model(module_of(recipe), a, b, compiling.cutlass_dtype(dtype), config)
    got, exact = (
        torch.as_tensor(product),
        torch.from_numpy(a.values()).double() @ torch.from_numpy(b.values()).double().T,
    )
    if integers:
        return float((got != exact.to(getattr(torch, dtype)).float()).sum())
    return ran.relative_error(got, exact)


def _simulated_integers(recipe: Recipe, dtype: str, operands: tuple[Any, Any], config: Any, integers: bool) -> float:
    """`_simulated` of 8-bit integers of the full range; without `integers` of the two ends of the range alone."""
    import numpy as np

    (m, k), n, rng = operands[0].shape, operands[1].shape[1], np.random.default_rng(0)
    values = np.arange(-128, 128, dtype=np.int8) if integers else np.array([-128, 127], np.int8)
    a, b = (rng.choice(values, (rows, k)) for rows in (m, n))
    got = simulate_int8(module_of(recipe), a, b, compiling.cutlass_dtype(dtype), config)
    wrong = got != a.astype(np.int64) @ b.astype(np.int64).T
    return float(wrong.sum() if integers else wrong.mean())


def _integers(shape: Shape) -> tuple[Any, Any]:
    import torch

    m, n, k = shape
    # Products of values up to 3 sum exactly in float32, whatever the order, up to K = 2**24 / 9.
    return torch.randint(-3, 4, (m, k)), torch.randint(-3, 4, (n, k)).T


def _normals(shape: Shape) -> tuple[Any, Any]:
    import torch

    m, n, k = shape
    return torch.randn(m, k), torch.randn(n, k).T


def transposed_level(recipe: Recipe, dtype: str, shape: Shape, config: Any) -> Level:
    """The data path of a transpose simulated in numpy on random bits: every one must be where it belongs."""
    module = module_of(recipe)
    if shape[0] * shape[1] > LARGEST_TRANSPOSED:
        reason = f"{_x(shape)} is too large to simulate in numpy: at most {LARGEST_TRANSPOSED} elements"
    else:
        reason = transpose.refusal(module, shape, dtype, config.variant)
    if reason:
        return Level("model", NOT_CHECKED, dtype, shape=shape, reason=reason)
    wrong = transpose.simulated_mismatches(module, shape, compiling.cutlass_dtype(dtype), config)
    bad = f"{wrong} of {shape[0] * shape[1]} elements are not where they belong" if wrong else ""
    return Level("model", FAILED if bad else PASSED, dtype, shape=shape, figures={"mismatches": wrong}, reason=bad)


def product_levels(
    recipe: Recipe, dtype: str, targets: tuple[str, ...], every: bool = True, majors: str = DEFAULT
) -> list[Level]:
    """What the kernel computes, for small problems, of each configuration of `targets`: its trace followed to C.

    Args:
        every: all problems; else the smallest, which shows that the types are right.
    """
    module, kind = module_of(recipe), compiling.cutlass_dtype(dtype)
    levels = []
    for config, where in configurations(recipe, targets, dtype, majors).items():
        arch = next(t for t in targets if config in _variants(module, t, majors).values())
        try:
            found = followed.computed(module, arch, kind, config, every)
        except pipeline.UnknownCode:
            raise
        except followed.CannotFollow as error:
            reason = f"the kernel cannot be followed: {error}"
            levels.append(Level(PRODUCT, FAILED, dtype, reason=reason, **where))
            continue
        levels.append(_of_computed(found, dtype, **where))
    for name in fused.probes(module):
        with fused.probed(module, name) as config:
            found = followed.computed(module, targets[0], kind, config, every)
        levels.append(_of_computed(found, dtype, variant=name))
    return levels


def _of_computed(found: list[followed.Computed], dtype: str, **where: Any) -> Level:
    figures = {"problems": len(found), "stores": sum(one.stores for one in found)}
    return _of_findings(PRODUCT, followed.findings(found), figures, dtype=dtype, **where)


def host_level(recipe: Recipe) -> Level:
    """What `matmul` launches for many kinds of calls, and what it refuses: no kernel runs."""
    try:
        found = host.findings(module_of(recipe), recipe)
    except host.NotLaunched as reason:
        return Level(HOST, NOT_CHECKED, reason=str(reason))
    figures = {"launches": found[0].detail, "refused": len(host.illegal(recipe))}
    return _of_findings(HOST, found, figures)


def pipeline_levels(recipe: Recipe, dtype: str, targets: tuple[str, ...], majors: str = DEFAULT) -> list[Level]:
    """Every interleaving of the warps over their barriers, for small problems, of each configuration of `targets`."""
    module, kind = module_of(recipe), compiling.cutlass_dtype(dtype)
    levels = []
    for config, where in configurations(recipe, targets, dtype, majors).items():
        arch = next(t for t in targets if config in _variants(module, t, majors).values())
        levels.append(_of_explored(pipeline.explored(module, arch, kind, config), dtype, **where))
    for name in fused.probes(module):
        with fused.probed(module, name) as config:
            levels.append(_of_explored(pipeline.explored(module, targets[0], kind, config), dtype, variant=name))
    return levels


def _of_explored(found: list[pipeline.Explored], dtype: str, **where: Any) -> Level:
    figures = {"problems": len({one.problem for one in found}), "steps": sum(one.steps for one in found)}
    figures |= {key: max((getattr(one, key) for one in found), default=0) for key in ("warps", "barriers")}
    return _of_findings(PIPELINE, pipeline.findings(found), figures, dtype=dtype, **where)


def compiled_levels(recipe: Recipe, target: str, dtype: str | None, majors: str = DEFAULT) -> list[Level]:
    """A real cubin for one target, of every variant where a recipe has several: what `compiled_level` says of each."""
    try:
        if recipe.kind == "study":
            return [compiled_level(recipe, compiling.compile_module(module_of(recipe), recipe.name, target))]
        found = configurations(recipe, (target,), dtype, majors) | _with_epilogues(recipe)
        each = compiling.compile_modules(module_of(recipe), recipe.name, target, dtype, found)
    except (compiling.NoDisassembler, compiling.NoReport) as missing:
        return [Level("compiled", NOT_CHECKED, dtype, target, reason=str(missing))]
    levels = [compiled_level(recipe, compiled, config, majors) for compiled, config in zip(each, found, strict=True)]
    return [replace(level, **where) for level, where in zip(levels, found.values(), strict=True)]


def _with_epilogues(recipe: Recipe) -> dict[Any, dict[str, Any]]:
    """The configurations of the kernels that have an epilogue, where a recipe has such: those that are timed too."""
    module = module_of(recipe)
    named = module.PEERS if isinstance(module, Fused) else ()
    return {module.fused(name): {"variant": name} for name in named}


def compiled_level(recipe: Recipe, compiled: compiling.Compiled, config: Any = None, majors: str = DEFAULT) -> Level:
    """What a compile gave: instructions, registers, spills, shared memory."""
    target, dtype = compiled.arch, compiled.dtype
    required = recipe.instructions_for(target, majors)
    if subjects.differing(recipe):  # another width, or no cluster, is as legal: the opcode is enough
        required = tuple(dict.fromkeys(name.partition(".")[0] for name in required))
    if recipe.kind == "transpose":
        required += module_of(recipe).INSTRUCTIONS.get(config.variant, ())
    found = compiling.findings(compiled, required)
    if recipe.kind == "gemm":
        form = formats.FORMATS.get(recipe.operands)
        found += compiling.type_findings(compiled, form.element if form and not form.packed else "")
    if "tcgen05.mma" in compiled.ptx:
        found += _tcgen05_findings(recipe, compiled, config)
    if recipe.max_smem is not None:
        detail = f"{compiled.smem_bytes} bytes; at most {recipe.max_smem} by the recipe"
        found.append(Finding("max_smem", compiled.smem_bytes <= recipe.max_smem, detail))
    figures = compiled.figures() | {"instructions": {p: compiled.count(p) for p in required}}
    return _of_findings("compiled", found, dtype=dtype, target=target, figures=figures)


def _tcgen05_findings(recipe: Recipe, compiled: compiling.Compiled, config: Any) -> list[Finding]:
    """What the compiler wrote of descriptors and tensor memory, against the recipe's own layouts."""
    dtype = compiled.dtype or recipe.dtypes[0]
    found = evaluated(module_of(recipe), compiling.cutlass_dtype(dtype), config)
    return tensor_memory.compiled_findings(found, compiled, dtype)


def _of_findings(level: str, found: list[Any], figures: dict[str, Any] | None = None, **where: Any) -> Level:
    bad = [f"{finding.name}: {finding.detail}" for finding in found if not finding.ok]
    figures = figures if figures is not None else {f.name: f.detail for f in found}
    if not found:
        bad = ["nothing was looked at"]
    apart = "\n" if any("\n" in each for each in bad) else "; "
    return Level(level, FAILED if bad else PASSED, figures=figures, reason=apart.join(bad), **where)


# --- levels that need a GPU ---------------------------------------------------------------------------------


def gpu_for(recipe: Recipe) -> tuple[str | None, str]:
    """The name of this machine's GPU if it runs the recipe, else None and the reason."""
    import torch

    if not torch.cuda.is_available():
        return None, "no CUDA device here"
    name, capability = torch.cuda.get_device_name(), torch.cuda.get_device_capability()
    if not recipe.runs_on_capability(*capability):
        return None, f"runs on {recipe.runs_on}; this is {name}, sm_{capability[0]}{capability[1]}"
    return name, ""


def cannot_run(recipe: Recipe, targets: tuple[str, ...]) -> str:
    """Why this machine cannot run the recipe's kernels for any of `targets`; empty if it can."""
    device, reason = gpu_for(recipe)
    if device is None:
        return reason
    import torch

    here = recipe.target_of(*torch.cuda.get_device_capability())
    if here not in (None, *targets):
        return f"{device} runs {here}, not {', '.join(targets)}"
    return ""


def ran_levels(recipe: Recipe, dtype: str, shapes: tuple[Shape, ...], majors: str = DEFAULT) -> list[Level]:
    """The kernel on this GPU over `shapes` (`running.shapes_for` and `running.drawn` if empty), or what is recorded."""
    device, reason = gpu_for(recipe)
    if device is None:
        return recorded_levels(recipe, "ran", dtype, reason, majors)
    module = module_of(recipe)
    if recipe.kind == "transpose":
        cases: list[Any] = transpose.run_checks(module, shapes or transpose.SHAPES, dtype)
        figures = transpose.summary(cases)
    else:
        seed = random.SystemRandom().randrange(2**32)  # in the record, so that the same can be drawn again
        own = (*ran.shapes_for(majors), *ran.drawn(seed, majors))
        run = (
            partial(chains.run_variants, module) if recipe.chained else partial(ran.run_variants, module, majors=majors)
        )
        cases = run(shapes or own, dtype)
        cases += fused.run_epilogues(module, shapes or own, dtype)
        by = {"by": list(module.VARIANTS)} if hasattr(module, "VARIANTS") else {}
        figures = ran.summary(cases) | ({} if shapes else {"drawn": ran.DRAWN, "seed": seed}) | by
    bad = "; ".join(f"{_x(case.shape)}: {case.problem}" for case in cases if not case.ok)
    made = None
    if not shapes and not isinstance(recipe, Local):  # a record is of the whole list, and of packaged code
        made = records.make(
            "ran",
            recipe.name,
            dtype,
            None,
            passed=not bad,
            figures=figures,
            device=device,
            config=_config_here(recipe, dtype, majors),
            majors=recipe.told_apart(majors),
        )
    status = FAILED if bad else PASSED
    return [Level("ran", status, dtype, figures=figures, reason=bad, device=device, record=made)]


def timed_levels(recipe: Recipe, dtype: str, shapes: tuple[Shape, ...], majors: str = DEFAULT) -> list[Level]:
    """Ours against its peers on this GPU over `shapes` (TIMED_SHAPES if empty), or what is recorded."""
    device, reason = gpu_for(recipe)
    if device is None or untimed(recipe) or subjects.differing(recipe):
        return recorded_levels(recipe, "timed", dtype, reason or untimed(recipe) or BY_NAME, majors)
    own = transpose.TIMED_SHAPES if recipe.kind == "transpose" else TIMED_SHAPES
    made = bench.bench(recipe.name, shapes or own, [dtype], majors=[majors])
    return [replace(_of_record(record, PASSED), record=record) for record in made]


def untimed(recipe: Recipe) -> str:
    """Why a recipe is not timed yet, nor run by NVIDIA's tools; empty if it is."""
    return UNTIMED if recipe.operands and formats.FORMATS[recipe.operands].by_mma else ""


def tool_levels(recipe: Recipe, level: str, dtype: str, tools: bool, majors: str = DEFAULT) -> list[Level]:
    """counted (under ncu) or sanitized (under compute-sanitizer), or what is recorded."""
    device, reason = gpu_for(recipe)
    if device is None or not tools or untimed(recipe) or subjects.differing(recipe):
        reason = reason or untimed(recipe) or ("takes minutes: runs with --tools" if not tools else BY_NAME)
        return recorded_levels(recipe, level, dtype, reason, majors)
    look = {"counted": _counted, "sanitized": _sanitized}[level]
    try:
        shape, figures, problems = look(recipe, dtype, majors)
    except counted.ToolMissing as missing:
        return recorded_levels(recipe, level, dtype, str(missing), majors)
    made = records.make(
        level,
        recipe.name,
        dtype,
        shape,
        passed=not problems,
        figures=figures,
        device=device,
        config=_config_here(recipe, dtype, majors),
        majors=recipe.told_apart(majors),
    )
    status = FAILED if problems else PASSED
    return [replace(_of_record(made, status, "; ".join(problems)), record=made)]


def study_levels(recipe: Recipe, level: str, tools: bool) -> list[Level]:
    """What a study measures at "ran", "timed" or "counted", or what is recorded; where that is nothing, no level."""
    if not (wanted := studies.measurements(recipe, level)):
        return []
    device, reason = gpu_for(wanted[0].runs)
    if subjects.differing(recipe):
        return recorded_levels(recipe, level, None, reason or BY_NAME)
    if device is None or (level == "counted" and not tools):
        return recorded_levels(recipe, level, None, reason or "takes minutes: runs with --tools")
    try:
        found = [measurement.take() for measurement in wanted]
    except counted.ToolMissing as missing:
        return recorded_levels(recipe, level, None, str(missing))
    return [
        replace(_of_record(made, FAILED if problems else PASSED, "; ".join(problems)), record=made)
        for made, problems in found
    ]


def _config_here(recipe: Recipe, dtype: str, majors: str = DEFAULT) -> Any:
    """The configuration that this GPU runs, or all of them by variant."""
    module, arch = module_of(recipe), compiling.arch_here()
    if recipe.kind == "transpose":
        configs = module.configs_for(arch, compiling.cutlass_dtype(dtype))
        return {variant: asdict(config) for variant, config in configs.items()}
    own = _variants(module, arch, majors)
    return own.get("") or {name: asdict(config) for name, config in own.items()}


def _counted(recipe: Recipe, dtype: str, majors: str) -> tuple[Shape, dict[str, Any], list[str]]:
    module = module_of(recipe)
    if recipe.kind == "transpose":
        shape, arch = transpose.COUNTED_SHAPE, compiling.arch_here()
        kernels = counted.count_kernels(recipe.name, dtype, shape)
        return shape, *transpose.compare(module, compiling.cutlass_dtype(dtype), arch, kernels)
    configs = _variants(module, compiling.arch_here(), majors)
    kernels = counted.count_kernels(recipe.name, dtype, counted.COUNTED_SHAPE, majors)
    figures, problems = {}, [] if len(kernels) == len(configs) else [f"{len(kernels)} kernels; needed {len(configs)}"]
    for (name, config), lines in zip(configs.items(), kernels, strict=False):
        of = (module, compiling.cutlass_dtype(dtype), config)
        copied = predicted_copies(*of, counted.COUNTED_SHAPE) if recipe.tensor_cores else (0, 0)
        wanted = predicted_wavefronts(*of) if recipe.tensor_cores else {}
        found, bad = counted.compare(lines, wanted, copied)
        figures |= {f"{name} {opcode}".strip(): entry for opcode, entry in found.items()}
        problems += [f"{name}: {problem}" if name else problem for problem in bad]
    return counted.COUNTED_SHAPE, figures, problems


def _sanitized(recipe: Recipe, dtype: str, majors: str) -> tuple[None, dict[str, Any], list[str]]:
    shapes = transpose.SANITIZED_SHAPES
    if recipe.kind == "gemm":
        form = formats.FORMATS.get(recipe.operands)
        fitting = partial(formats.align, form=form) if form else partial(align, majors=majors)
        shapes = tuple(map(fitting, counted.SANITIZED_SHAPES))
    figures = counted.sanitize(recipe.name, dtype, shapes, majors)
    problems = [f"{tool}: {figures[tool]}; needed 0" for tool in counted.TOOLS if figures[tool]]
    if "hazards" in figures:
        reports = figures["hazards"]["reports"]
        problems[-1] = f"racecheck: {counted.hazards(figures)}; needed 0: {' | '.join(reports)}"
    return None, figures, problems


def recorded_levels(recipe: Recipe, level: str, dtype: str | None, reason: str, majors: str = DEFAULT) -> list[Level]:
    """What results/ holds for a level that is not checked here; nothing, of code that differs from the recipe's."""
    if own := subjects.differing(recipe):
        return [Level(level, NOT_CHECKED, dtype, reason=f"{reason}; no record: {own}")]
    found = records.select(recipe.name, level, dtype, majors=recipe.told_apart(majors))
    if not found:
        missing = "nothing recorded" + (": not run on hardware" if level == "ran" else "")
        return [Level(level, NOT_CHECKED, dtype, reason=f"{reason}; {missing}")]
    return [_recorded(record, reason) for record in found]


def added_since(record: records.Record) -> tuple[str, ...]:
    """The variants of a GEMM that a record says nothing of, for they came after it."""
    name = record["recipe"]
    named = {kernel.get("variant") for kernel in record.get("kernels", ()) if kernel["recipe"] == name} - {None}
    if not named or catalog.find(name).kind != "gemm":
        return ()
    today = compiling.variants(catalog.load(name), record["target"])
    return tuple(variant for variant in today if variant not in named)


def _recorded(record: records.Record, reason: str) -> Level:
    if records.is_stale(record):
        return _of_record(record, STALE, f"{reason}; the recipe's code has changed since this record")
    if record["status"] != PASSED:
        return _of_record(record, FAILED, "recorded as failed on this very code")
    return _of_record(record, RECORDED, reason)


def _of_record(record: records.Record, status: str, reason: str = "") -> Level:
    return Level(
        record["level"],
        status,
        record["dtype"],
        shape=tuple(record["shape"]) if record["shape"] else None,
        figures=records.figures_of(record),
        reason=reason,
        device=record["device"],
        date=record["date"],
        without=added_since(record),
    )


def _x(shape: Shape) -> str:
    return "x".join(map(str, shape))
