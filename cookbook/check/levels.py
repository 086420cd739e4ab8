"""`check`: a recipe through all levels, as far as this machine goes, and what is recorded for the others.

Which levels there are a recipe's product says, and what each of them looks at: `cookbook/products/`. layout, model,
product, host, pipeline, banks, cost and compiled run anywhere. ran and timed run where a GPU can run the recipe;
counted and sanitized where NVIDIA's tools are there too, and only when asked for, for they take minutes. What does
not run here is shown as results/ has it, or as not checked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from types import ModuleType
from typing import Any

from cookbook.check import compiled as compiling
from cookbook.check import counted as counting
from cookbook.check import host, pipeline, subjects, tensor_memory, traffic
from cookbook.check import product as followed
from cookbook.check.banks import counted
from cookbook.check.chosen import chosen
from cookbook.check.cost import total
from cookbook.check.evaluated import evaluated
from cookbook.check.findings import Finding
from cookbook.check.ran import Shape
from cookbook.check.reports import (
    FAILED,
    NOT_CHECKED,
    PASSED,
    Level,
    Report,
    by_x,
    of_findings,
    recorded_levels,
)
from cookbook.check.stopped import stopped
from cookbook.check.traffic import Both, judged
from cookbook.check.watched import NotLaunched
from cookbook.recipe import catalog
from cookbook.recipe.catalog import Recipe
from cookbook.recipe.majors import DEFAULT

LEVELS = ("layout", "model", "compiled", "ran", "timed", "counted", "sanitized")
PRODUCT = "product"  # one more, of a GEMM: its kernel followed to C
HOST = "host"  # one more, of a GEMM: what its `matmul` launches
PIPELINE = "pipeline"  # one more, of a GEMM whose warps wait for one another, or for copies
BANKS, COST = "banks", "cost"  # two more, of a GEMM: the wavefronts of each line of its kernel, and what it moves
ON_GPU = ("ran", "timed", "counted", "sanitized")
TOOLS = ("counted", "sanitized")  # by NVIDIA's
BY_NAME = "measured of packaged recipes only"
NOT_LOOKED_AT = (pipeline.UnknownCode, NotLaunched, compiling.NoDisassembler, compiling.NoReport)
Progress = Callable[[str], None]


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
    return Report(subject.name, tuple(levels), subject.said)


@dataclass(frozen=True)
class Step:
    """A part of a check: which level, of what, and how."""

    level: str
    dtype: str | None
    run: Callable[[], list[Level]]
    target: str | None = None
    shape: Shape | None = None
    majors: str | None = None  # where the recipe takes several
    runs: Runs | None = None  # that other steps read too

    @property
    def text(self) -> str:
        """The text to show while it runs."""
        words = (self.level, self.target, self.majors, self.dtype, by_x(self.shape or ()))
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
    steps: list[Step] = []
    there, each = recipe.product.levels, tuple(product(dtypes or (None,), majors))

    def add(level: str, d: str | None, m: str, look: Callable[[], list[Level]], **where: Any) -> None:
        if level in there:
            steps.append(Step(level, d, look, majors=recipe.told_apart(m), **where))

    for d, m in each if recipe.tensor_cores else ():  # else nothing lies in tiles in shared memory
        add("layout", d, m, partial(layout_levels, recipe, d, targets, m))
        own = recipe.product.model_shapes(recipe, m)
        for s in (shapes or own) if own else ():
            add("model", d, m, partial(model_levels, recipe, d or "", s, targets, m), shape=s)
    runs = {(d, m): Runs(recipe, d or "", targets, m) for d, m in each}
    for d, m in each:
        add(PRODUCT, d, m, partial(product_levels, runs[d, m], d == each[0][0]), runs=runs[d, m])
    if HOST in there:
        steps.append(Step(HOST, None, lambda: [host_level(recipe)]))
    first = [(dtypes[0], m, runs[dtypes[0], m]) for m in majors if dtypes]  # dtypes have one width, and one program
    for d, m, run in first if pipeline.is_pipelined(recipe) else ():
        add(PIPELINE, d, m, partial(pipeline_levels, run), runs=run)
    for d, m, run in first:
        add(BANKS, d, m, partial(traffic_levels, run), runs=run)
    for t, (d, m) in product(targets, each):
        add("compiled", d, m, partial(compiled_levels, recipe, t, d, m), target=t)
    for (d, m), level in product(each, ON_GPU):
        add(level, d, m, partial(gpu_levels, recipe, level, d, shapes, tools, m))
    return steps


def run_step(step: Step) -> list[Level]:
    """Run a step and note how long it took; what it raises becomes a failed level, and the check goes on."""
    start = time.perf_counter()
    try:
        levels = step.run()
    except catalog.NotLoaded:
        raise  # nothing was looked at
    except NOT_LOOKED_AT as error:
        reason = f"not followed: {error}" if isinstance(error, pipeline.UnknownCode) else str(error)
        levels = [Level(step.level, NOT_CHECKED, step.dtype, step.target, step.shape, reason=reason)]
    except (Exception, SystemExit) as error:
        levels = [Level(step.level, FAILED, step.dtype, step.target, step.shape, reason=stopped(step.level, error))]
    seconds = round((time.perf_counter() - start) / max(len(levels), 1), 3)
    return [replace(level, majors=step.majors, seconds=seconds) for level in levels]


# --- levels that run anywhere -------------------------------------------------------------------------------


def configurations(
    recipe: Recipe, targets: tuple[str, ...], dtype: str | None = None, majors: str = DEFAULT
) -> dict[Any, dict[str, Any]]:
    """The distinct configurations of `targets`, each with what tells it from the others, as fields of `Level`.

    That is the variant where a recipe has several, else the targets it is for where these differ.
    """
    module, by_config = recipe.module, dict[Any, tuple[str, list[str]]]()
    for target in targets or ("",):
        for name, config in recipe.product.variants(module, target, dtype, majors).items():
            by_config.setdefault(config, (name, []))[1].append(target)
    each = len({name for name, _ in by_config.values()})
    return {
        config: ({"variant": name} if name else {}) | ({"target": "/".join(used_by)} if len(by_config) > each else {})
        for config, (name, used_by) in by_config.items()
    }


def layout_levels(recipe: Recipe, dtype: str | None, targets: tuple[str, ...], majors: str = DEFAULT) -> list[Level]:
    """The recipe's own shared-memory layouts: bijective, in bounds, the expected wavefronts of each copy. Of a study:
    what it claims."""
    module, levels = recipe.module, []
    for config, where in configurations(recipe, targets, dtype, majors).items():
        found = recipe.product.layouts(module, dtype, config)
        figures, too_large = recipe.product.layout_figures(found), _too_large(config, where, targets)
        levels.append(of_findings("layout", too_large + found, figures, dtype=dtype, **where))
    return levels


def _too_large(config: Any, where: dict[str, Any], targets: tuple[str, ...]) -> list[Finding]:
    """Return what shared memory lacks for a configuration, if it does: the cause of whatever else fails then."""
    if config is None:
        return []
    least = min(targets if "target" not in where else where["target"].split("/"), key=compiling.smem_limit)
    limit = compiling.smem_limit(least)
    detail = f"{config.smem_bytes} bytes; at most {limit} on {least}"
    return [] if config.smem_bytes <= limit else [Finding("smem", False, detail)]


def model_levels(
    recipe: Recipe, dtype: str, shape: Shape, targets: tuple[str, ...], majors: str = DEFAULT
) -> list[Level]:
    """`model_level` for every configuration that `targets` use."""
    each = configurations(recipe, targets, dtype, majors)
    levels = [replace(model_level(recipe, dtype, shape, config), **where) for config, where in each.items()]
    if found := recipe.product.functions(recipe.module):
        figures = {"epilogues": {one.name: one.detail for one in found}}
        levels.append(of_findings("model", found, figures, dtype=dtype, variant="epilogues"))
    return levels


def model_level(recipe: Recipe, dtype: str, shape: Shape, config: Any) -> Level:
    """The data path of the *layouts*, simulated in numpy: what it makes of numbers, not what the kernel does."""
    figures, problems, reason = recipe.product.modelled(recipe, recipe.module, dtype, shape, config)
    if reason:
        return Level("model", NOT_CHECKED, dtype, shape=shape, reason=reason)
    status = FAILED if problems else PASSED
    return Level("model", status, dtype, shape=shape, figures=figures, reason="; ".join(problems))


@dataclass
class Runs:
    """The kernels of a recipe that are followed, for one dtype and majors: one run of each serves all levels."""

    recipe: Recipe
    dtype: str
    targets: tuple[str, ...]
    majors: str = DEFAULT
    made: dict[Any, pipeline.Run] = field(default_factory=dict)

    def each(self) -> Iterator[tuple[pipeline.Run, dict[str, Any]]]:
        """Yield each run, and the fields of `Level` that tell it apart: a product's probes come last."""
        kind, module = self.recipe.product, self.recipe.module
        for config, where in configurations(self.recipe, self.targets, self.dtype, self.majors).items():
            uses = (t for t in self.targets if config in kind.variants(module, t, self.dtype, self.majors).values())
            yield self._run("", next(uses), config), where
        for name in kind.probes(module):
            with kind.probed(module, name) as config:
                yield self._run(name, self.targets[0], config), {"variant": name}

    def _run(self, probe: str, arch: str, config: Any) -> pipeline.Run:
        if (probe, config) not in self.made:
            given = self.recipe.module, arch, compiling.cutlass_dtype(self.dtype), config
            self.made[probe, config] = pipeline.Run(*given, self.recipe.product, Both)
        return self.made[probe, config]


def product_levels(runs: Runs, every: bool = True) -> list[Level]:
    """Return what each kernel computes, for small problems: its trace followed to C.

    Args:
        every: all problems; else the smallest, which shows that the types are right.
    """
    levels = []
    for run, where in runs.each():
        try:
            levels.append(_of_computed(followed.computed(run, every), runs.dtype, **where))
        except pipeline.UnknownCode:
            raise
        except followed.CannotFollow as error:
            reason = f"the kernel cannot be followed: {error}"
            levels.append(Level(PRODUCT, FAILED, runs.dtype, reason=reason, **where))
    return levels


def _of_computed(found: list[followed.Computed], dtype: str, **where: Any) -> Level:
    figures = {"problems": len(found), "stores": sum(one.stores for one in found)}
    return of_findings(PRODUCT, followed.findings(found), figures, dtype=dtype, **where)


def host_level(recipe: Recipe) -> Level:
    """Return what `matmul` launches for many kinds of calls, and what it refuses: no kernel runs."""
    found = host.findings(recipe.module, recipe)
    figures = {"launches": found[0].detail, "refused": len(recipe.product.illegal())}
    return of_findings(HOST, found, figures)


def pipeline_levels(runs: Runs) -> list[Level]:
    """Every interleaving of the warps over their barriers, for small problems, of each kernel."""
    return [_of_explored(pipeline.explored(run, repairs=True), runs.dtype, **where) for run, where in runs.each()]


def _of_explored(found: list[pipeline.Explored], dtype: str, **where: Any) -> Level:
    figures = {"problems": len({one.problem for one in found}), "steps": sum(one.steps for one in found)}
    figures |= {key: max((getattr(one, key) for one in found), default=0) for key in ("warps", "barriers")}
    return of_findings(PIPELINE, pipeline.findings(found), figures, dtype=dtype, **where)


def traffic_levels(runs: Runs) -> list[Level]:
    """Wavefronts by line, and what a cluster moves, of each kernel."""
    levels = []
    for run, where in runs.each():
        lines = judged(run.module, run.config, counted(run.first))
        said = [Finding("lines", True), *(line.finding() for line in lines)]  # maybe none: TMA and the MMA do all
        levels.append(
            of_findings(BANKS, said, {"lines": [line.figures() for line in lines]}, dtype=runs.dtype, **where)
        )
        moved = traffic.figures(run.problems[0], total(run.first))
        levels.append(Level(COST, PASSED, runs.dtype, figures=moved, **where))
    return levels


def compiled_levels(recipe: Recipe, target: str, dtype: str | None, majors: str = DEFAULT) -> list[Level]:
    """A real cubin for one target, of every variant where a recipe has several: what `compiled_level` says of each."""
    more = {config: {"variant": name} for name, config in recipe.product.more_kernels(recipe.module).items()}
    found = configurations(recipe, (target,), dtype, majors) | more
    each = compiling.compile_modules(recipe.module, recipe.name, target, dtype, found)
    levels = [compiled_level(recipe, compiled, config, majors) for compiled, config in zip(each, found, strict=True)]
    return [replace(level, **where) for level, where in zip(levels, found.values(), strict=True)]


def compiled_level(recipe: Recipe, compiled: compiling.Compiled, config: Any = None, majors: str = DEFAULT) -> Level:
    """Return what a compile gave: instructions, registers, spills, shared memory."""
    target, dtype = compiled.arch, compiled.dtype
    required = recipe.instructions_for(target, majors)
    if recipe.changed:  # another width, or no cluster, is as legal: the opcode is enough
        required = tuple(dict.fromkeys(name.partition(".")[0] for name in required))
    required += recipe.product.instructions(recipe.module, config)
    found = compiling.findings(compiled, required)
    found += compiling.type_findings(compiled, recipe.product.element(recipe))
    if "tcgen05.mma" in compiled.ptx:
        found += _tcgen05_findings(recipe, compiled, config)
    if recipe.max_smem is not None:
        detail = f"{compiled.smem_bytes} bytes; at most {recipe.max_smem} by the recipe"
        found.append(Finding("max_smem", compiled.smem_bytes <= recipe.max_smem, detail))
    figures = compiled.figures() | {"instructions": {p: compiled.count(p) for p in required}}
    return of_findings("compiled", found, dtype=dtype, target=target, figures=figures)


def _tcgen05_findings(recipe: Recipe, compiled: compiling.Compiled, config: Any) -> list[Finding]:
    """Return what the compiler wrote of descriptors and tensor memory, against the recipe's own layouts."""
    dtype = compiled.dtype or recipe.dtypes[0]
    found = evaluated(recipe.module, compiling.cutlass_dtype(dtype), config)
    return tensor_memory.compiled_findings(found, compiled, dtype)


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


def gpu_levels(
    recipe: Recipe, level: str, dtype: str | None, shapes: tuple[Shape, ...] = (), tools: bool = False, majors=DEFAULT
) -> list[Level]:
    """A level that needs a GPU, on the one that is here, or what is recorded of it; [] where a recipe has none."""
    kind = recipe.product
    if not kind.measures(recipe, level):
        return []
    device, reason = gpu_for(kind.runs(recipe, level))
    if recipe.changed and not kind.of_own_code(level):
        reason = reason or BY_NAME
    if level in kind.unmeasured_levels:
        reason = reason or kind.unmeasured(recipe)
    if level in TOOLS and not tools:
        reason = reason or "takes minutes: runs with --tools"
    if device is None or reason:
        return recorded_levels(recipe, level, dtype, reason, majors)
    try:
        return kind.measured(recipe, level, dtype, shapes, majors)
    except counting.ToolMissing as missing:
        return recorded_levels(recipe, level, dtype, str(missing), majors)
