"""Measure on a GPU the choice's loss against the best recipe, and the host cost of a call of the operator.

results/<device>/operator.json keeps it. Of a shape it has the times of many kernels, so that the regret of a choice is
computed when it is shown, by the choice of today:

    {"device": ..., "calls": {"us": {...}, "steps": {...}, "date": ..., ...},
     "shapes": [{"shape", "majors", "dtype", "gpu", "us", "slow", "tuned", "code", "kernels", "rounds", "date",
                 "driver", "versions"}]}

"us" has microseconds by name: kernels (recipe and variant), "torch.matmul" and "ops.matmul"; "steps" those of
`steps.ways`. "slow" names the kernels that were timed once only, since that once they took FAR times as long as the
best; "tuned" the one that `ops.tune` takes. A shape is stale, and measured again, once device code of one of its
recipes changes, or another kernel is chosen than it has a time of; the calls, once the code of `host_code` does.

results/<device>/unseen.json has the same of products that are drawn by a seed (`tools.ops.unseen`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Container, Iterable
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

from cookbook import ops
from cookbook.check import ran
from cookbook.measure import contest, peers, records
from cookbook.ops import choice, launching, tuner
from cookbook.recipe import catalog, entry, operator, remapping
from cookbook.recipe.entry import Call
from cookbook.recipe.majors import MAJORS
from tools.ops import steps
from tools.records import device_code, of_device

__all__ = [
    "CASES",
    "FILE",
    "PEERS",
    "Case",
    "Regret",
    "calls",
    "gpu_of",
    "kernels",
    "laid",
    "made_of",
    "measure",
    "misfit",
    "name_of",
    "pending",
    "read",
    "reads_otherwise",
    "regrets",
    "summary",
    "write",
]

FILE, OURS = "operator.json", "ops.matmul"
PEERS = OURS, peers.TORCH  # what is timed beside kernels of ours
CALL_SHAPE = (64, 64, 64)  # so small that the GPU keeps up with the host
BATCH_MS = 10.0  # of each kernel in each round: a hundred shapes are to be timed in one go
WIDTHS = (8, 4, 2, 1)  # elements of C that one store can take
FAR = 1.4  # a kernel this many times as slow as the best, predicted or timed once, is not timed in rounds
LIKELY = 12  # kernels with the lowest predicted times: these are timed in any case
TRIES, LAUNCHES = 3, 8  # of that once: the fastest of some batches


class Case(NamedTuple):
    """One product whose choice is judged."""

    shape: tuple[int, int, int]  # (M, N, K)
    majors: str = "tn"
    dtype: str = "bfloat16"  # torch's name


_CUBES = (256, 384, 512, 768, 1024, 1280, 1536, 1792, 2048, 2560, 3072, 5120, 6144, 8192, 16384)
_LAYERS = (  # (N, K) of the weights of language models of 8 to 70 billion parameters
    (4096, 4096), (6144, 4096), (14336, 4096), (4096, 14336), (1024, 8192), (8192, 8192), (28672, 8192), (2048, 7168),
)  # fmt: skip
_ROWS = (1, 8, 16, 32, 64, 128, 256, 1024, 4096)
_RAGGED = ((8191, 8191, 8192), (1000, 1000, 1000), (2047, 4097, 1023), (4096, 4096, 4095), (4096, 4096, 4097))
CASES: tuple[Case, ...] = (
    *(Case((n, n, n)) for n in _CUBES),
    *(Case((m, n, k)) for n, k in _LAYERS for m in _ROWS),
    *(Case(shape) for shape in _RAGGED),
    *(Case(shape, majors) for shape in ((4096, 4096, 4096), (64, 4096, 4096)) for majors in ("tt", "nn", "nt")),
    *(Case((4096, 4096, 4097), majors) for majors in ("tt", "nt")),
)


# --- the choice -------------------------------------------------------------------------------------------------------


def measure(
    case: Case, rounds: int, time: Callable[..., Any] = contest.time_contest, tune: bool = True
) -> dict[str, Any]:
    """The record of one case on the GPU that is here: kernels of ours, the operator, torch.matmul, and what tuning
    takes."""
    import torch

    sets = peers.input_sets(case.shape, case.dtype, case.majors)
    gpu = launching.gpu_of(sets[0][0])
    found = kernels(case, gpu)
    variants: dict[str, contest.Call] = {name: _of_kernel(option) for name, option in found.items()}
    variants |= {OURS: lambda a, b, out: ops.matmul(a, b), peers.TORCH: lambda a, b, out: torch.matmul(a, b, out=out)}
    a, b, _ = sets[0]
    limit, exact = 2 * ran.tolerance(case.dtype), ran.reference(a, b)
    for name, call in variants.items():
        if not (error := ran.relative_error(call(*sets[0]), exact)) <= limit:
            raise RuntimeError(f"{name} is wrong at {case}: relative error {error:.2e}; at most {limit:.2e}")
    work = 2.0 * case.shape[0] * case.shape[1] * case.shape[2]
    few = list(found)[: tuner.KERNELS]
    slow = _slow({name: partial(variants[name], *sets[0]) for name in found}, keep=few)
    near = {name: call for name, call in variants.items() if name not in slow}
    timed = time(contest.Contest(near, sets, peers.TORCH, work), rounds, BATCH_MS)
    us = slow | {name: round(1000 * timed[name]["median_ms"], 3) for name in near}
    of = {"shape": list(case.shape), "majors": case.majors, "dtype": case.dtype, "gpu": list(gpu)}
    of |= {"us": us, "slow": sorted(slow)}
    if tune:
        tried = tuner.time_options([found[name] for name in few], None, [each[:2] for each in sets])
        of["tuned"] = few[tried.index(min(tried))]
    return of | {"code": {name: records.code_of(name) for name in {x.recipe for x in found.values()}}} | _about(rounds)


def kernels(case: Case, gpu: choice.Gpu) -> dict[str, choice.Option]:
    """Return what is timed at a product, by recipe and variant, the best predicted first: those with the lowest
    predicted times; every variant that a page speaks of, and the best of each recipe, where they are not FAR off."""
    options = choice.ranked(*laid(case), case.dtype, gpu)
    near = [each for each in options if each.us < FAR * options[0].us]
    best = {each.recipe: each for each in reversed(options)}.values()
    wanted = [*options[:LIKELY], *(each for each in near if isinstance(each.kernel, str) or each in best)]
    return {name_of(each): each for each in wanted}


def name_of(option: choice.Option) -> str:
    """A kernel by its recipe and variant."""
    return f"{option.recipe} {option.variant}".strip()


def made_of(case: Case, option: choice.Option, gpu: choice.Gpu) -> tuple[Any, ...]:
    """Return what a recipe's plan of this case compiles: what `compile_for` takes behind the dtype. It needs no GPU."""
    import torch

    gemm, dtype = catalog.load(option.recipe).GEMM, getattr(torch, case.dtype)
    majors = tuple(each.major for each in operator.fit(gemm, *laid(case)))
    m, n, k = case.shape
    vec = next(each for each in WIDTHS if n % each == 0)
    direct = vec == WIDTHS[0] or not gemm.padded
    lines = [-(-each // 8) * 8 for each in (k if majors[0] == "k" else m, k if majors[1] == "k" else n, n)]
    strides = (*lines[:2], n if direct else lines[2])
    here = "sm_{}{}".format(*gpu.capability)
    facts = 0, here, gpu.sms, case.shape, majors, strides, vec, direct, (), option.kernel, (m, n), {}
    call = Call(dtype, (dtype, dtype), *facts)  # pyright: ignore[reportArgumentType]
    with mock.patch.object(remapping, "REMAPS", _Tables()):
        return gemm.prepare(call)[0]


class _Tables(dict):
    """Tables of remapping where no GPU has memory for them: each is there, and has an address."""

    def __contains__(self, key: object) -> bool:
        return True

    def __missing__(self, key: object) -> Any:
        return SimpleNamespace(data_ptr=lambda: 1)


def _slow(calls: dict[str, Callable[[], Any]], keep: Container[str]) -> dict[str, float]:
    """Microseconds of the kernels that are far from the best; those to `keep` are none of them.

    A short kernel waits for its launch, so that all of them look alike: then none is left out.
    """
    us = {}
    for name, call in calls.items():
        batch = contest.loop([call], LAUNCHES)
        us[name] = round(1000 * min(contest.elapsed_ms(batch) for _ in range(TRIES)) / LAUNCHES, 3)
    return {name: found for name, found in us.items() if name not in keep and found > FAR * min(us.values())}


def _of_kernel(option: choice.Option) -> contest.Call:
    """One kernel, of copies of the operands that it cannot read as they lie."""
    module = catalog.load(option.recipe)
    told = {"variant": option.kernel} if option.kernel else {}
    return lambda a, b, out: module.matmul(*operator.fitted(module.GEMM, a, b), out=out, **told)


def _about(rounds: int) -> dict[str, Any]:
    about = {"driver": records.driver_version(), "versions": records.versions()}
    return {"rounds": rounds, "date": records.now()} | about


class Regret(NamedTuple):
    """One case, by the choice of today."""

    case: Case
    chosen: str  # recipe and variant
    best: str
    part: float  # what the choice loses of the best kernel's time
    against_torch: float  # torch.matmul's time over that of the chosen kernel
    slower: float  # the chosen kernel's time over the predicted one


def regrets(shapes: Iterable[dict[str, Any]], tuned: bool = False) -> list[Regret]:
    """List the regret of each case that has the chosen kernel's time. tuned: of what tuning takes, where recorded."""
    found = []
    for record in shapes:
        case, us = case_of(record), record["us"]
        ours = {name: us[name] for name in us if name not in PEERS}
        options = {name_of(each): each for each in choice.ranked(*laid(case), case.dtype, gpu_of(record))}
        chosen = record.get("tuned", "") if tuned else next(iter(options))
        if chosen not in ours or chosen not in options:
            continue
        best = min(ours, key=ours.__getitem__)
        part, slower = ours[chosen] / ours[best] - 1, ours[chosen] / options[chosen].us
        found.append(Regret(case, chosen, best, part, us[peers.TORCH] / ours[chosen], slower))
    return found


def misfit(shapes: Iterable[dict[str, Any]], memory: float | None = None) -> float:
    """Return how far predictions are from the recorded times: the root mean square of the logarithms of their ratios.

    Of kernels that were timed in rounds, on operands that none has to copy.

    Args:
        memory: the bandwidth to predict with, as part of an H200's; the GPU's own if left out.
    """
    found = []
    for record in shapes:
        case, gpu = case_of(record), gpu_of(record)
        gpu = gpu if memory is None else gpu._replace(memory=memory)
        options = choice.ranked(*laid(case), case.dtype, gpu)
        timed = {name: us for name, us in record["us"].items() if name not in record["slow"]}
        if not any(option.copies for option in options):
            found += [math.log(each.us / timed[name_of(each)]) for each in options if name_of(each) in timed]
    return math.sqrt(statistics.mean(x * x for x in found))


def gpu_of(record: dict[str, Any]) -> choice.Gpu:
    """Return what the choice knew of the GPU of a record; the first records do not name its memory: they are an
    H200's."""
    capability, *others = record["gpu"]
    return choice.Gpu(tuple(capability), *others)


def laid(case: Case) -> tuple[choice.Laid, choice.Laid]:
    """Its operands, without padding."""
    (m, n, k), (a_major, b_major) = case.shape, MAJORS[case.majors]
    a = choice.Laid((m, k), (k, 1) if a_major == "k" else (1, m))
    return a, choice.Laid((k, n), (1, k) if b_major == "k" else (n, 1))


def summary(found: list[Regret]) -> str:
    """A line: mean and worst regret, and the chosen recipes against torch.matmul."""
    worst, slowest = max(found, key=lambda each: each.part), min(found, key=lambda each: each.against_torch)
    mean, against = (
        statistics.mean(each.part for each in found),
        statistics.geometric_mean(each.against_torch for each in found),
    )
    many = f"{len(found)} product{'' if len(found) == 1 else 's'}"
    return (
        f"{many}: regret {mean:.1%} in the mean, {worst.part:.1%} at worst ({_named(worst)}); what is taken has "
        f"{against:.3f} of torch.matmul's speed in the geometric mean, {slowest.against_torch:.3f} at worst "
        f"({_named(slowest)})"
    )


def _named(regret: Regret) -> str:
    return f"{'x'.join(map(str, regret.case.shape))}, {regret.case.dtype}"


# --- the call ---------------------------------------------------------------------------------------------------------


def calls(synchronize: Callable[[], Any], device: str = "cuda") -> dict[str, Any]:
    """Microseconds of the host until a call returns, by the way it takes: no `out` is given."""
    import torch

    (m, n, k), kind = CALL_SHAPE, {"dtype": torch.bfloat16, "device": device}
    a, weight = torch.randn(m, k, **kind), torch.randn(n, k, **kind)
    b, tracked = weight.T, weight.clone().requires_grad_().T
    ops.matmul(a, b)
    *_, plan = launching.PLANS.values()
    out, stream = torch.empty(m, n, **kind), torch._C._cuda_getCurrentRawStream(plan.device)
    addresses = a.data_ptr(), b.data_ptr(), out.data_ptr()
    recipe = catalog.load(ops.explain(a, b).recipe)
    ways: dict[str, Callable[[], Any]] = {
        "the launch alone": partial(plan.launch, *addresses, *plan.arguments, stream),  # pyright: ignore[reportArgumentType, reportCallIssue]
        "the recipe's matmul": partial(recipe.matmul, a, b),
        "ops.matmul": partial(ops.matmul, a, b),
        "define and impl": partial(ops.OPERATOR, a, b),
        "torch.library.custom_op": partial(_as_custom_op(), a, b),
        "ops.matmul, a gradient wanted": partial(ops.matmul, a, tracked),
        "torch.matmul": partial(torch.matmul, a, b),
        "torch.matmul, a gradient wanted": partial(torch.matmul, a, tracked),
    }
    for name, function in (("ops.matmul", ops.matmul), ("torch.matmul", torch.matmul)):
        ways |= {f"{name}, compiled": _compiled(function, a, b)} if device == "cuda" else {}
        ways |= {f"{name}, replayed in a graph": _captured(partial(function, a, b))} if device == "cuda" else {}
    taken = {"us": contest.us_per_call(ways, synchronize), "host": host_code()} | _about(contest.HOST_BATCHES)
    if device == "cuda" and torch.cuda.get_device_capability() >= (9, 0):  # the steps have TMA's among them
        taken["steps"] = contest.us_per_call(steps.ways(a, b, steps.compile_all(), synchronize), synchronize)
    return taken


def host_code() -> str:
    """A hash of what a call executes on the host once its plan is made; recorded times of calls are stale when it is
    another."""
    return device_code.of_files([Path(str(module.__file__)) for module in (ops, launching, operator, entry)])[:12]


@cache
def _as_custom_op() -> Callable[..., Any]:
    """The same product, defined in the other way that PyTorch offers."""
    import torch

    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return launching.product(a, b)

    product.__annotations__ = {"a": torch.Tensor, "b": torch.Tensor, "return": torch.Tensor}
    made = torch.library.custom_op(f"{ops.NAME}_as_custom_op", product, mutates_args=())
    made.register_fake(operator.fake_product)
    return made


def _compiled(function: Callable[..., Any], a: Any, b: Any) -> Callable[[], Any]:
    import torch

    fast = torch.compile(lambda a, b: function(a, b), fullgraph=True)
    fast(a, b)
    return partial(fast, a, b)


def _captured(call: Callable[[], Any]) -> Callable[[], Any]:
    import torch

    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


# --- the file ---------------------------------------------------------------------------------------------------------


def read(root: Path | None = None) -> dict[str, dict[str, Any]]:
    """By device: {"shapes": {case: record}, "calls": record or None}.

    Raises ValueError if a file is not what `write` writes.
    """

    def cases_of(content: dict[str, Any]) -> dict[str, Any]:
        return {"shapes": {case_of(each): each for each in content["shapes"]}, "calls": content["calls"]}

    return of_device.read(FILE, cases_of, "the operator", root)


def write(device: str, new: Iterable[dict[str, Any]] = (), called: Any = None, root: Path | None = None) -> Path:
    """Merge cases, and times of calls, into a device's file."""
    known = read(root).get(device, {"shapes": {}, "calls": None})
    shapes = known["shapes"] | {case_of(each): each for each in new}
    content = {"device": device, "shapes": [shapes[case] for case in sorted(shapes)], "calls": called or known["calls"]}
    return of_device.write(FILE, content, root)


def case_of(record: dict[str, Any]) -> Case:
    return Case(tuple(record["shape"]), record["majors"], record["dtype"])


def pending(device: str, dtype: str = "bfloat16", root: Path | None = None) -> list[Case]:
    """The cases of a dtype that have no current record."""
    known = read(root).get(device, {"shapes": {}})["shapes"]
    cases = (case._replace(dtype=dtype) for case in CASES)
    return [case for case in cases if case not in known or is_stale(known[case])]


def is_stale(record: dict[str, Any]) -> bool:
    """Return whether device code of one of the recipes has changed since, or is gone, or the chosen kernel was not
    timed."""
    return reads_otherwise(record) or not regrets([record])


def reads_otherwise(record: dict[str, Any]) -> bool:
    """Return whether device code of one of the recipes has changed since, or is gone."""
    try:
        return any(records.code_of(name) != code for name, code in record["code"].items())
    except catalog.UnknownRecipe:
        return True
