"""A contest measured three ways, in one run: at the power limit, at equal clock, and in joules.

Each variant runs alone for ALONE_MS before it is timed, as in `contest.time_contest`; then each has SHARED_MS of its
own while all alternate. At the power limit a kernel sets the clock that the next one starts with: alone each has its
own clock, alternating they share one, and the two quotients differ. What both divide by is read in the same run: all
SMs note `%clock64` and `%globaltimer` before and behind what is timed, so that the clock is that of the SMs, not a
sample of it. Times by the clock are cycles: their quotient is what two kernels do at equal clock. Joules are read from
the GPU's own counter, over the whole time that a variant runs alone.

results/<device>/threefold.json keeps the contests that the page of benchmarks shows.
"""
# The annotations of `cute.jit` functions are read as types: no `from __future__ import annotations` here.

import ctypes
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import torch

from cookbook.measure import contest, power, records
from cookbook.recipe import catalog
from cookbook.recipe.cache import TVM_FFI
from cookbook.recipe.entry import compile_host
from tools.records import of_device

__all__ = [
    "FILE",
    "Clock",
    "Measured",
    "contest_of",
    "joules_now",
    "measure",
    "pairs",
    "quotients",
    "read",
    "record_of",
    "write",
]

FILE = "threefold.json"
ALONE_MS, SHARED_MS, ROUNDS = 100.0, 50.0, 8
SHARED_ROUNDS = 16
ENERGY_MS = 1200.0  # long against the time after which the GPU's counter of energy moves on


class Measured(NamedTuple):
    """One variant of a contest."""

    alone_us: float  # after ALONE_MS of itself
    shared_us: float  # alternating with the others
    mhz: float  # the clock of the SMs, alone
    joules: float  # of one launch

    @property
    def cycles(self) -> float:
        """Cycles of one launch, in thousands."""
        return self.alone_us * self.mhz / 1000


@cute.kernel
def stamp(pStamps: cute.Pointer):
    """Each SM notes its clock and the time."""
    tidx, _, _ = cute.arch.thread_idx()
    if tidx == 0:
        stamps = cute.make_tensor(pStamps, cute.make_layout((512, 2), stride=(2, 1)))
        sm = cute.arch.smid()
        stamps[sm, 0] = cute.arch.clock64()
        stamps[sm, 1] = cute.arch.globaltimer()


@cute.jit
def stamped(pStamps: cute.Pointer, ctas: cutlass.Int32, stream: cuda.CUstream):
    """Launch it; `ctas`: enough that each SM has one."""
    stamp(pStamps).launch(grid=(ctas, 1, 1), block=(32, 1, 1), stream=stream)


class Clock:
    """The mean clock of the SMs between two moments of a stream."""

    def __init__(self) -> None:
        self.launch = compile_host(stamped, "", ((cutlass.Int64, 16),), (), TVM_FFI)
        self.ctas = 4 * torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count

    def note(self) -> torch.Tensor:
        """Clocks and nanoseconds by SM, when the stream comes this far."""
        stamps = torch.zeros(512, 2, dtype=torch.int64, device="cuda")
        self.launch(stamps.data_ptr(), self.ctas, torch._C._cuda_getCurrentRawStream(torch.cuda.current_device()))
        return stamps

    def mhz(self, before: torch.Tensor, behind: torch.Tensor) -> float:
        """The median over SMs that both moments have."""
        there = (before[:, 1] > 0) & (behind[:, 1] > before[:, 1])
        clocks, ns = (behind - before)[there].double().unbind(1)
        return float((1000 * clocks / ns).median())


def joules_now() -> float:
    """Return what this GPU has used since its driver was loaded, by NVML's counter.

    Raises Unmeasurable where there is none.
    """
    try:
        nvml, handle, used = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p(), ctypes.c_ulonglong()
        failed = nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByUUID(power.gpu_id().encode(), ctypes.byref(handle))
        failed = failed or nvml.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(used))
    except (OSError, AttributeError) as error:
        raise power.Unmeasurable(f"NVML has no counter of energy here ({error})") from None
    if failed:
        raise power.Unmeasurable(f"NVML has no counter of energy here (error {failed})")
    return used.value / 1000


def measure(
    held: contest.Contest,
    clock: Any = None,
    joules: Callable[[], float] = joules_now,
    rounds: int = ROUNDS,
) -> dict[str, Measured]:
    """All variants of a contest, by name."""
    clock = clock or Clock()
    run, counts, _ = contest.make_batches(held.variants, held.sets, held.graphs, ALONE_MS)
    contest.warm_up(run, contest.WARM_UP_MS)
    alone: dict[str, list[tuple[float, float]]] = {name: [] for name in run}
    for number in range(rounds):
        for name in contest.shuffled(list(run), number):
            run[name]()  # untimed: the clock settles on this variant
            before = clock.note()
            ms = contest.elapsed_ms(run[name])
            alone[name].append((1000 * ms / counts[name], clock.mhz(before, clock.note())))
    short, fewer, _ = contest.make_batches(held.variants, held.sets, held.graphs, SHARED_MS)
    shared: dict[str, list[float]] = {name: [] for name in run}
    for number in range(SHARED_ROUNDS):
        for name in contest.shuffled(list(short), number):
            shared[name].append(1000 * contest.elapsed_ms(short[name]) / fewer[name])
    found = {}
    for name in run:
        us, mhz = (statistics.median(each) for each in zip(*alone[name], strict=True))
        found[name] = Measured(us, statistics.median(shared[name]), mhz, _energy(run[name], counts[name], us, joules))
    return found


def _energy(batch: contest.Batch, count: int, us: float, joules: Callable[[], float]) -> float:
    """Joules of one launch, while nothing else runs."""
    times = max(1, round(ENERGY_MS / (us * count / 1000)))
    contest.elapsed_ms(batch)
    before = joules()
    for _ in range(times):
        batch()
    torch.cuda.synchronize()
    return (joules() - before) / (times * count)


def contest_of(name: str, shape: tuple[int, int, int], dtype: str) -> contest.Contest:
    """A recipe's GEMM and torch's, or of one with fused epilogues each of them and torch's own call for it."""
    recipe = catalog.find(name)
    module = catalog.load(name)
    fused = set(recipe.product.more_kernels(module))
    held = recipe.product.contest(recipe, shape, dtype, recipe.majors[0], quack=False, own=bool(fused))
    wanted = {contest.OURS, recipe.product.standard(recipe), *fused}
    calls = {who: call for who, call in held.variants.items() if who in wanted or who.partition(" (")[2][:-1] in fused}
    return replace(held, variants=calls)


def record_of(name: str, shape: tuple[int, ...], dtype: str, peer: str, found: dict[str, Measured]) -> dict[str, Any]:
    """Return what is kept of a contest."""
    about = {"recipe": name, "shape": list(shape), "dtype": dtype, "peer": peer}
    variants = {who: {key: float(f"{x:.5g}") for key, x in each._asdict().items()} for who, each in found.items()}
    return about | {"variants": variants, "code": records.code_of(name), "date": records.now()}


def quotients(record: dict[str, Any], ours: str, peer: str) -> dict[str, float]:
    """A peer's figures over ours: above 1, ours is faster, or needs less energy."""
    one, other = (Measured(**record["variants"][who]) for who in (ours, peer))
    return {
        "alone": other.alone_us / one.alone_us,
        "alternating": other.shared_us / one.shared_us,
        "equal clock": other.cycles / one.cycles,
        "joules": other.joules / one.joules,
    }


def pairs(record: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what is compared in a contest: ours and the standard, and each epilogue with torch's call for it."""
    there = record["variants"]
    fused = [(who, other) for who in there for other in there if other.endswith(f" ({who})")]
    return [(contest.OURS, record["peer"]), *fused]


def write(device: str, new: list[dict[str, Any]], root: Path | None = None) -> Path:
    """Put measured contests into a device's file, each in place of an older one."""
    known = {_case(each): each for each in (*read(root).get(device, []), *new)}
    return of_device.write(FILE, {"device": device, "contests": [known[case] for case in sorted(known)]}, root)


def _case(record: dict[str, Any]) -> tuple[str, tuple[int, ...], str]:
    return record["recipe"], tuple(record["shape"]), record["dtype"]


def read(root: Path | None = None) -> dict[str, list[dict[str, Any]]]:
    """The measured contests by device.

    Raises ValueError if a file is not what `write` writes.
    """
    return of_device.read(FILE, lambda content: list(content["contests"]), "contests measured three ways", root)
