"""An experiment of a study: another recipe's GEMM in several configurations, timed against each other and counted.

What such a study defines is `cookbook.recipe.contract.Experiment`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

from cookbook.check import compiled, ran
from cookbook.check import counted as counting
from cookbook.measure import peers, records
from cookbook.measure.contest import ROUNDS, Contest, time_contest
from cookbook.recipe import catalog
from cookbook.recipe.catalog import Recipe
from cookbook.recipe.contract import Experiment

VEC = 8  # elements per store of the output: 16 bytes
HITS, MISSES = (f"lts__t_sectors_op_read_lookup_{which}.sum" for which in ("hit", "miss"))  # of L2, in sectors
READ = "dram__bytes_read.sum"


def configs(experiment: Experiment) -> tuple[dict[str, Any], str]:
    """The configurations by name, for the GPU that is here, and the name of the recipe's own.

    Raises:
        ValueError: none of them is the recipe's own.
    """
    own = compiled.config_for(catalog.load(experiment.recipe), compiled.arch_here())
    made = {name: replace(own, **changes) for name, changes in experiment.configs.items()}
    standard = next((name for name, config in made.items() if config == own), None)
    if standard is None:
        raise ValueError(f"configs: got {', '.join(made)}; needed one that is {experiment.recipe}'s own: {own}")
    return made, standard


def launcher(module: ModuleType, dtype: str, config: Any) -> Callable[..., Any]:
    """A GEMM recipe's kernel in any configuration, as a call (a, b, out) on the current stream. Needs a GPU.

    a is (M, K), b (K, N), both with K contiguous, out (M, N) with N contiguous; K, N and the other strides are
    multiples of 8 elements. The call raises ValueError for others.

    Args:
        module: the recipe's module.
        dtype: torch's name of the operands' type.
        config: its `Config`.
    """
    import torch

    kind = compiled.cutlass_dtype(dtype)
    kernel = module.compile_for("", kind, config, VEC, catalog.TVM_FFI)

    def call(a: Any, b: Any, out: Any) -> Any:
        operands = {"a": a, "b": b.T, "out": out}
        for name, x in operands.items():
            if x.stride(1) != 1 or x.stride(0) % VEC or x.shape[1] % VEC:
                needed = f"contiguous rows of a multiple of {VEC} elements, as far apart"
                raise ValueError(f"{name}: got shape {tuple(x.shape)}, strides {x.stride()}; needed {needed}")
        pointers = tuple(x.data_ptr() for x in operands.values())
        strides = tuple(x.stride(0) for x in operands.values())
        stream = torch.cuda.current_stream().cuda_stream
        kernel(*pointers, (*out.shape, a.shape[1]), strides, stream)
        return out

    return call


def calls(experiment: Experiment) -> tuple[dict[str, Callable[..., Any]], str]:
    """The kernel in each configuration, compiled for the GPU that is here, and the name of the recipe's own."""
    made, standard = configs(experiment)
    module = catalog.load(experiment.recipe)
    return {name: launcher(module, experiment.dtype, config) for name, config in made.items()}, standard


def launch(experiment: Experiment) -> None:
    """Launch each configuration once, in their order, and make sure that it was right."""
    (operands, *_), (variants, _) = peers.input_sets(experiment.shape, experiment.dtype), calls(experiment)
    for name, call in variants.items():
        ran.verify(name, call, operands, experiment.dtype)


def timed(recipe: Recipe, rounds: int = ROUNDS) -> tuple[records.Record, list[str]]:
    """All configurations timed interleaved: the recipe's own, and the others as its peers. Needs a GPU."""
    experiment = recipe.module.EXPERIMENT
    m, n, k = experiment.shape
    sets, (variants, standard) = peers.input_sets(experiment.shape, experiment.dtype), calls(experiment)
    for variant, call in variants.items():
        ran.verify(variant, call, sets[0], experiment.dtype)
    found = time_contest(Contest(variants, sets, standard, 2.0 * m * n * k), rounds)
    own = found[standard] | {key: value for key, value in found.items() if key not in variants}
    others = {other: found[other] for other in variants if other != standard}
    for figures in others.values():
        figures["ratio"] = round(figures["median_ms"] / own["median_ms"], 4)
    return _record(recipe, "timed", own | {"name": standard}, others), []


def counted(recipe: Recipe) -> tuple[records.Record, list[str]]:
    """Return what each configuration reads from memory and how often L2 has it, as ncu counts. Needs a GPU.

    Every launch begins with an empty L2: ncu flushes it.

    Raises:
        ToolMissing: no ncu, or not with its counters.
    """
    page = counting.profile(counting.study_launcher(recipe.name), ["--metrics", ",".join((HITS, MISSES, READ))], "raw")
    figures, problems = traffic(recipe.module.EXPERIMENT, page)
    return _record(recipe, "counted", figures, passed=not problems), problems


def traffic(experiment: Experiment, page: str) -> tuple[dict[str, Any], list[str]]:
    """The figures in ncu's raw page (CSV) of one launch of each configuration: by its name

        read_bytes       from memory
        predicted_bytes  by the study's model
        l2_hit_rate      of the sectors that L2 was asked to read, the share that it had; sectors that one half of L2
                         fetches from the other are asked for twice

    and what is wrong, in words.
    """
    hits, misses, read = (counting.parse_metric(page, metric) for metric in (HITS, MISSES, READ))
    names = list(experiment.configs)
    if not len(hits) == len(misses) == len(read) == len(names):
        return {}, [f"{len(read)} launches were counted; needed one for each of {', '.join(names)}"]
    figures = {
        name: {
            "read_bytes": round(of_memory),
            "predicted_bytes": experiment.read_bytes[name],
            "l2_hit_rate": round(hit / (hit + miss), 4),
        }
        for name, hit, miss, of_memory in zip(names, hits, misses, read, strict=True)
    }
    return figures, []


def _record(
    recipe: Recipe, level: str, figures: dict[str, Any], peers: dict[str, Any] | None = None, *, passed: bool = True
) -> records.Record:
    import torch

    experiment = recipe.module.EXPERIMENT
    made, standard = configs(experiment)
    return records.make(
        level,
        recipe.name,
        experiment.dtype,
        experiment.shape,
        passed=passed,
        figures=figures,
        peers=peers,
        config=made[standard],
        device=torch.cuda.get_device_name(),
        of=(experiment.recipe,),
    )
