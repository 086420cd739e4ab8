"""Level "limits": what keeps a GEMM from its ceiling, measured against its peers and that ceiling.

A time says how far a kernel is from its ceiling, not why. Two instruments say more.

`sustained` runs one kernel for a second and a half, as a long computation would, while `nvidia-smi` reports clock and
power every 50 ms. A GPU at its power limit lowers its clock until it keeps to the limit. Then it is not the clocks that
a kernel needs that decide how fast it is, but the energy: a rate is power divided by the joules of each operation.

`profiled` has ncu look at one launch of each of our own variants: how busy the tensor pipe is, what warps wait for, and
what is read through L2 and from memory. ncu runs one kernel at a time, so that the GPU is not at its power limit and
its clock is another one. So we take counts and shares from it, and no times.
"""

from __future__ import annotations

import csv
import io
import re
import shutil
import statistics
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from cookbook.check import counted, ran
from cookbook.check.ran import Shape
from cookbook.measure import contest, peers, records
from cookbook.measure.experiments import HITS, MISSES, READ
from cookbook.recipe import catalog
from cookbook.recipe.majors import DEFAULT

LEVEL = records.LIMITS
SHAPE: Shape = (8192, 8192, 8192)  # long enough that nothing but the loop over K counts
SECONDS = 1.5  # a kernel runs for so long,
SETTLE = 0.5  # and before that clock and power have not settled
EVERY_MS = 50
FIRST_SAMPLE_S = 10.0  # nvidia-smi takes its time to start

# A figure -> nvidia-smi's name for it. Drivers that do not know the others have the first two.
FIELDS = {
    "clock_mhz": "clocks.sm",
    "power_w": "power.draw.instant",
    "power_limit_w": "enforced.power.limit",
    "max_clock_mhz": "clocks.max.sm",
    "capped": "clocks_event_reasons.sw_power_cap",  # whether the clock is lowered to keep to the power limit
}
BASIC = ("clock_mhz", "power_w")
OF_THE_GPU = ("power_limit_w", "max_clock_mhz")  # the same whatever runs

# Of ncu: the cycles in which the tensor pipe was active, by the names that GPUs have for it.
TENSOR_PIPE = (
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active",
)
STALLS = "WarpStateStats"  # a section: every GPU has its own list of reasons
SECTOR_BYTES = 32
TOP = 4  # reasons shown
_STALLED = re.compile(r"smsp__average_warps_issue_stalled_(\w+)(?<!_not_issued)_per_issue_active\.ratio")


class Unmeasurable(RuntimeError):
    """Clock and power cannot be had here."""


# --- clock and power ----------------------------------------------------------------------------------------------


class Sampler:
    """One nvidia-smi that reports every EVERY_MS for as long as the `with` lasts; a thread reads what it prints.

    Raises:
        Unmeasurable: on entering: there is no nvidia-smi, or it reports neither clock nor power.
    """

    def __init__(self, gpu: str) -> None:
        """gpu: as nvidia-smi's -i takes it: a UUID, or a place on the PCI bus."""
        if shutil.which("nvidia-smi") is None:
            raise Unmeasurable("nvidia-smi is not on PATH: it comes with the driver")
        self.command = ["nvidia-smi", "-i", gpu, "--format=csv,noheader,nounits"]
        self.fields = _known_fields(self.command)
        self.samples: list[tuple[float, dict[str, float]]] = []  # when each was read, and its values
        self.said = ""  # the last line that is no sample

    def __enter__(self) -> Sampler:
        command = [*self.command, _query(self.fields), "-lms", str(EVERY_MS)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        until = time.monotonic() + FIRST_SAMPLE_S
        while not self.samples and self._thread.is_alive() and time.monotonic() < until:
            time.sleep(0.01)
        if not self.samples:
            self.__exit__()
            raise Unmeasurable(f"nvidia-smi reported neither clock nor power: {self.said or 'it printed nothing'}")
        return self

    def __exit__(self, *_: Any) -> None:
        self._process.terminate()
        self._process.wait()
        self._thread.join()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            if values := parse_sample(line, self.fields):
                self.samples.append((time.monotonic(), values))
            elif line.strip():
                self.said = line.strip()

    def between(self, start: float, stop: float) -> list[dict[str, float]]:
        """The samples that were read between two times of `time.monotonic`."""
        return [values for at, values in list(self.samples) if start <= at <= stop]


@contextmanager
def watched() -> Iterator[dict[str, Any]]:
    """A dict that is filled when the `with` is over: the medians of this GPU's clock and power meanwhile, or under
    "reason" why there are none."""
    found: dict[str, Any] = {}
    sampler: Sampler | None = None
    with ExitStack() as stack:
        try:
            sampler = stack.enter_context(Sampler(gpu_id()))
        except Unmeasurable as error:
            found["reason"] = str(error)
        yield found
    if sampler is not None:
        found |= medians([values for _, values in sampler.samples])


def _query(fields: Iterable[str]) -> str:
    return "--query-gpu=" + ",".join(FIELDS[key] for key in fields)


def _known_fields(command: list[str]) -> tuple[str, ...]:
    """All of FIELDS, or BASIC: nvidia-smi refuses the whole query for one name that it does not know."""
    asked = subprocess.run([*command, _query(FIELDS)], capture_output=True, text=True, check=False)
    return tuple(FIELDS) if asked.returncode == 0 else BASIC


def parse_sample(line: str, fields: Iterable[str]) -> dict[str, float]:
    """A line of nvidia-smi's CSV by field. What the GPU does not report ("[N/A]") is left out; {} of any other line."""
    names, words = tuple(fields), [word.strip() for word in line.split(",")]
    if len(words) != len(names):
        return {}
    numbers = {name: _number(word) for name, word in zip(names, words, strict=True)}
    return {name: number for name, number in numbers.items() if number is not None}


def _number(word: str) -> float | None:
    if word in ("Active", "Not Active"):
        return float(word == "Active")
    try:
        return float(word)
    except ValueError:
        return None


def medians(samples: list[dict[str, float]]) -> dict[str, float]:
    """The median of each field over the samples that have it; of `capped`, the share of them that are."""
    found = {}
    for key in FIELDS:
        if values := [sample[key] for sample in samples if key in sample]:
            found[key] = round(statistics.fmean(values) if key == "capped" else statistics.median(values), 3)
    return found


def gpu_id() -> str:
    """The current CUDA device as nvidia-smi knows it. Its index will not do: CUDA_VISIBLE_DEVICES changes that."""
    import torch

    gpu = torch.cuda.get_device_properties(torch.cuda.current_device())
    if uuid := str(getattr(gpu, "uuid", "")):
        return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
    return f"{gpu.pci_domain_id:08x}:{gpu.pci_bus_id:02x}:{gpu.pci_device_id:02x}.0"


def sustained(
    batch: contest.Batch, sampler: Sampler, seconds: float = SECONDS, settle: float = SETTLE
) -> tuple[float, dict[str, float]]:
    """Run a batch again and again for `seconds`: the median of its milliseconds, and of clock and power.

    Neither counts what was before `settle` seconds had passed.

    Raises:
        Unmeasurable: no sample came while the batch ran.
    """
    start, taken = time.monotonic(), []
    while (began := time.monotonic()) - start < seconds:
        taken.append((began - start, contest.elapsed_ms(batch)))
    settled = [ms for after, ms in taken if after >= settle] or [taken[-1][1]]
    samples = sampler.between(start + settle, time.monotonic())
    if not samples:
        raise Unmeasurable("nvidia-smi reported nothing while a kernel ran")
    return statistics.median(settled), medians(samples)


def rates(work: float, ms: float, measured: dict[str, float], sms: int) -> dict[str, float]:
    """What a launch of `work` floating-point operations in `ms` means, at this clock and power."""
    tflops = work / ms / 1e9
    found = {"tflops": round(tflops, 2), **{k: v for k, v in measured.items() if k not in OF_THE_GPU}}
    if "power_w" in measured:
        found["joules_per_tflop"] = round(measured["power_w"] / tflops, 4)
    if "clock_mhz" in measured:
        found["flops_per_clock"] = round(tflops * 1e6 / (measured["clock_mhz"] * sms), 1)
    return found


# --- ncu ----------------------------------------------------------------------------------------------------------


def profiled(name: str, dtype: str, shape: Shape, majors: str = DEFAULT) -> tuple[dict[str, dict[str, Any]], str]:
    """What ncu finds of each own variant of a recipe, by name, or {} and the reason why there is nothing."""
    variants = [variant or contest.OURS for variant in ran.matmuls(catalog.load(name))]
    try:
        collect = ["--section", STALLS, "--metrics", ",".join(_known_metrics())]
        page = counted.profile(counted.launcher(name, dtype, [shape], majors), collect, "raw")
        kernels = [of_kernel(raw) for raw in parse_raw(page)]
    except counted.ToolMissing as error:
        return {}, str(error)
    if len(kernels) != len(variants):
        return {}, f"ncu saw {len(kernels)} kernels; needed {len(variants)}: one of each variant"
    return dict(zip(variants, kernels, strict=True)), ""


def _known_metrics() -> list[str]:
    """What to ask ncu for: of several names those that it lists, for it may refuse all for one it does not know."""
    listed = counted.run([counted.path_of("ncu"), "--query-metrics"]).stdout
    known = {line.split()[0] for line in listed.splitlines() if line.strip()}
    pipe = [metric for metric in TENSOR_PIPE if metric.split(".")[0] in known]
    return [*(pipe or TENSOR_PIPE[:1]), HITS, MISSES, READ]


def parse_raw(page: str) -> list[dict[str, float]]:
    """Every metric with a number in the CSV of ncu's raw page, one dict for each kernel that was profiled.

    Raises:
        ToolMissing: the page has no header.
    """
    rows = list(csv.reader(io.StringIO(page)))
    start = next((i for i, row in enumerate(rows) if "ID" in row), None)
    if start is None:
        raise counted.ToolMissing("ncu's raw page has no column ID")
    header = rows[start]
    kernels = [dict(zip(header, row, strict=False)) for row in rows[start + 1 :]]
    kernels = [kernel for kernel in kernels if kernel.get("ID", "").isdigit()]  # under the header stand the units
    numbers = [{metric: _number(text.replace(",", "")) for metric, text in kernel.items()} for kernel in kernels]
    return [{metric: n for metric, n in kernel.items() if n is not None} for kernel in numbers]


def of_kernel(raw: dict[str, float]) -> dict[str, Any]:
    """A kernel's figures from ncu's metrics; what ncu did not report is left out.

    Returns:
        tensor_pipe_pct: of the cycles in which an SM worked, those in which its tensor pipe did; stalls: what warps
        wait for, as the share of the cycles between two instructions of a warp, largest first; l2_hit_pct and
        l2_read_bytes of reads that reach L2; dram_read_bytes.
    """
    found: dict[str, Any] = {}
    if pipe := next((metric for metric in TENSOR_PIPE if metric in raw), None):
        found["tensor_pipe_pct"] = round(raw[pipe], 2)
    spent = {match[1]: raw[metric] for metric in raw if (match := _STALLED.fullmatch(metric))}
    if total := sum(spent.values()):
        waits = Counter({reason: cycles for reason, cycles in spent.items() if reason != "selected"})  # that one issues
        found["stalls"] = {reason: round(cycles / total, 4) for reason, cycles in waits.most_common(TOP) if cycles}
    if HITS in raw and MISSES in raw and (reads := raw[HITS] + raw[MISSES]):
        found |= {"l2_hit_pct": round(100 * raw[HITS] / reads, 2), "l2_read_bytes": round(reads * SECTOR_BYTES)}
    if READ in raw:
        found["dram_read_bytes"] = round(raw[READ])
    return found


# --- a record -----------------------------------------------------------------------------------------------------


def measure(
    name: str,
    shape: Shape = SHAPE,
    dtype: str | None = None,
    majors: str | None = None,
    *,
    on_progress: Callable[[str], None] = lambda text: None,
    seconds: float = SECONDS,
) -> records.Record:
    """What limits each variant of a GEMM recipe, its peers and its ceiling on this GPU.

    Args:
        name: a recipe's name.
        shape: (M, N, K).
        dtype: torch's name; the recipe's first if left out.
        majors: of the operands; the recipe's first if left out.
        on_progress: told once what is being measured.
        seconds: for how long each of them runs.

    Raises:
        UnknownRecipe: there is no such recipe.
        ValueError: it is no GEMM, or one of block-scaled operands.
        Unmeasurable: no nvidia-smi, or none that reports clock and power.
        RuntimeError: no CUDA device.
    """
    import torch

    recipe = catalog.find(name)
    if reason := refusal(recipe):
        raise ValueError(f"name: got {recipe.name}, {reason}")
    if not torch.cuda.is_available():
        raise RuntimeError("no CUDA device: nothing can be measured here")
    dtype, majors = dtype or recipe.dtypes[0], majors or recipe.majors[0]
    words = (LEVEL, recipe.name, recipe.told_apart(majors), dtype, "x".join(map(str, shape)))
    on_progress(" ".join(word for word in words if word))
    held = peers.contest_of(recipe, shape, dtype, majors, quack=False)
    own = list(peers.own_variants(catalog.load(recipe.name))) or [contest.OURS]
    skip = {contest.OURS} - set(own)  # it is one of the variants
    found, gpu = _of_contest(held, skip, seconds)
    counts, reason = profiled(recipe.name, dtype, shape, majors)
    for variant, figures in counts.items():
        found[variant] |= _a_second(figures, held.work / found[variant]["tflops"] / 1e12)
    figures = {"variants": {who: found.pop(who) for who in own}, "gpu": gpu, "seconds": seconds}
    return records.make(
        LEVEL,
        recipe.name,
        dtype,
        shape,
        passed=True,
        figures=figures | ({"reason": reason} if reason else {}),
        peers=found,
        config=held.config,
        of=held.of,
        majors=held.majors,
        device=torch.cuda.get_device_name(),
    )


def refusal(recipe: catalog.Recipe) -> str:
    """Why nothing says what limits a recipe, "needed ..."; empty if it can be measured."""
    if recipe.kind != "gemm":
        return f"a {recipe.kind}; needed a GEMM"
    return f"a GEMM of {recipe.operands} operands; needed one of 16-bit operands" if recipe.operands else ""


def _of_contest(
    held: contest.Contest, skip: set[str], seconds: float
) -> tuple[dict[str, dict[str, Any]], dict[str, float]]:
    """`rates` of each variant but `skip`, by name, and the figures of the GPU itself."""
    import torch

    sms = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
    variants = {who: call for who, call in held.variants.items() if who not in skip}
    batches, counts, _ = contest.make_batches(variants, held.sets, held.graphs)
    found, gpu = {}, {}
    with Sampler(gpu_id()) as sampler:
        contest.warm_up(batches, contest.WARM_UP_MS)
        for who, batch in batches.items():
            ms, measured = sustained(batch, sampler, seconds)
            found[who] = rates(held.work, ms / counts[who] * held.scale.get(who, 1.0), measured, sms)
            gpu |= {key: measured[key] for key in OF_THE_GPU if key in measured}
    return found, gpu


def _a_second(figures: dict[str, Any], seconds: float) -> dict[str, Any]:
    """ncu's figures with the bytes of a launch as gigabytes a second, at the rate that the kernel sustains."""
    each = {key.replace("_bytes", "_gbps"): figures[key] for key in figures if key.endswith("_bytes")}
    return figures | {key: round(count / seconds / 1e9, 1) for key, count in each.items()}


# --- what is shown ------------------------------------------------------------------------------------------------

# Columns by figure: heading, and how the figure is written.
SUSTAINED = {
    "tflops": ("TFLOP/s", "{:.0f}"),
    "clock_mhz": ("SM clock, MHz", "{:.0f}"),
    "power_w": ("W", "{:.0f}"),
    "joules_per_tflop": ("J for each TFLOP", "{:.3f}"),
    "flops_per_clock": ("FLOP a clock and SM", "{:.0f}"),
    "capped": ("clock lowered for power", "{:.0%}"),
}
PROFILED = {
    "tensor_pipe_pct": ("tensor pipe busy", "{:.1f}%"),
    "stalls": ("a warp waits for", ""),
    "l2_hit_pct": ("hits of L2", "{:.1f}%"),
    "l2_read_gbps": ("read from L2, GB/s", "{:.0f}"),
    "dram_read_gbps": ("from memory, GB/s", "{:.0f}"),
}


def rows(
    record: records.Record, columns: dict[str, tuple[str, str]], own: bool = False
) -> tuple[list[str], list[list[str]]]:
    """Headings and a row for each variant (and, if not `own`, each peer) that has any of the columns' figures.

    Columns that are empty in every row are left out.
    """
    everyone = record["figures"]["variants"] | ({} if own else record["peers"])
    keys = [key for key in columns if any(key in figures for figures in everyone.values())]
    made = [
        [who, *(_written(columns[key][1], figures.get(key)) for key in keys)]
        for who, figures in everyone.items()
        if any(key in figures for key in keys)
    ]
    return [columns[key][0] for key in keys], made


def _written(form: str, value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{reason.replace('_', ' ')} {share:.0%}" for reason, share in value.items())
    return "" if value is None else form.format(value)


def in_words(figures: dict[str, Any]) -> str:
    """A record's figures in a line: each variant and peer with rate, clock and power."""
    everyone = figures["variants"] | figures.get("peers", {})
    said = []
    for who, f in everyone.items():
        each = [f"{f[key]:.{digits}f} {unit}" for key, digits, unit in _SAID if key in f]
        said.append(f"{who}: {', '.join(each)}")
    return "; ".join(said)


_SAID = (
    ("tflops", 0, "TFLOP/s"),
    ("clock_mhz", 0, "MHz"),
    ("power_w", 0, "W"),
    ("joules_per_tflop", 2, "J/TFLOP"),
    ("tensor_pipe_pct", 0, "% tensor pipe"),
)


def of_the_gpu(record: records.Record) -> str:
    """The power limit and the highest clock, in a sentence; empty if the driver did not say."""
    gpu = record["figures"]["gpu"]
    said = {"power_limit_w": "a power limit of {:.0f} W", "max_clock_mhz": "a highest SM clock of {:.0f} MHz"}
    parts = [text.format(gpu[key]) for key, text in said.items() if key in gpu]
    return f"The GPU has {' and '.join(parts)}." if parts else ""
