"""Measure on this GPU what keeps a GEMM from its ceiling: `python -m tools.limits NAME ... [--record]`.

Each variant, torch.matmul and the ceiling run one at a time: at 8192 cubed, in the first dtype and majors if left out.

A time says how far a kernel is from its ceiling, not why. Two instruments say more.

`sustained` runs one kernel for a second and a half, as a long computation would, while `nvidia-smi` reports clock and
power every 50 ms. A GPU at its power limit lowers its clock until it keeps to the limit. Then it is not the clocks that
a kernel needs that decide how fast it is, but the energy: a rate is power divided by the joules of each operation.

`profiled` has ncu look at two launches of each of our own variants: how busy the tensor pipe is, what warps wait for
and at which instructions, and what is read through L2 and from memory. ncu runs one kernel at a time, so that the GPU
is not at its power limit and its clock is another one. So we take counts and shares from it, and no times.
"""

from __future__ import annotations

import argparse
import csv
import io
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from cookbook.check import counted, levels
from cookbook.check.ran import Shape
from cookbook.cli.console import say, show_json
from cookbook.measure import contest, peers, records
from cookbook.measure.experiments import HITS, MISSES, READ
from cookbook.measure.power import Sampler, Unmeasurable, gpu_id, medians, number
from cookbook.publish import limits as shown
from cookbook.recipe import catalog, formats
from cookbook.recipe.majors import DEFAULT

LEVEL = records.LIMITS
SHAPE: Shape = (8192, 8192, 8192)  # long enough that nothing but the loop over K counts
SECONDS = 1.5  # a kernel runs for so long,
SETTLE = 0.5  # and before that clock and power have not settled
OF_THE_GPU = ("power_limit_w", "max_clock_mhz")  # the same whatever runs

# Of ncu: the cycles in which the tensor pipe was active, by the names that GPUs have for it.
TENSOR_PIPE = (
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active",
)
STALLS = "WarpStateStats"  # a section: every GPU has its own list of reasons
LATENCY = "smsp__average_warp_latency_per_inst_issued.ratio"  # of that section: a warp's clocks to an instruction
SAMPLED = "SourceCounters"  # a section: at which instruction warps stood when ncu looked
SECTOR_BYTES = 32
TOP = 4  # reasons shown
_STALLED = re.compile(r"smsp__average_warps_issue_stalled_(\w+)(?<!_not_issued)_per_issue_active\.ratio")


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
    """Return what a launch of `work` floating-point operations in `ms` means, at this clock and power."""
    tflops = work / ms / 1e9
    found = {"tflops": round(tflops, 2), **{k: v for k, v in measured.items() if k not in OF_THE_GPU}}
    if "power_w" in measured:
        found["joules_per_tflop"] = round(measured["power_w"] / tflops, 4)
    if "clock_mhz" in measured:
        found["flops_per_clock"] = round(tflops * 1e6 / (measured["clock_mhz"] * sms), 1)
    return found


# --- ncu ----------------------------------------------------------------------------------------------------------


def profiled(name: str, dtype: str, shape: Shape, majors: str = DEFAULT) -> tuple[dict[str, dict[str, Any]], str]:
    """Return what ncu finds of each own variant of a recipe, by name, or {} and the reason why there is nothing."""
    recipe = catalog.find(name)
    variants = [variant or contest.OURS for variant in recipe.product.matmuls(recipe, catalog.load(name))]
    try:
        command = counted.launcher(name, dtype, [shape], majors)
        raw = parse_raw(counted.profile(command, ["--section", STALLS, "--metrics", ",".join(_known_metrics())], "raw"))
        lines = counted.parse_kernels(counted.profile(command, ["--section", SAMPLED], "source"))
        kernels = [of_kernel(*each) for each in zip(raw, lines, strict=False)]  # fewer: said below
    except counted.ToolMissing as error:
        return {}, str(error)
    if len(kernels) != len(variants):
        return {}, f"ncu saw {len(kernels)} kernels; needed {len(variants)}: one of each variant"
    return dict(zip(variants, kernels, strict=True)), ""


def _known_metrics() -> list[str]:
    """Return what to ask ncu for: of several names those that it lists, for it may refuse all for one it does not
    know."""
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
    numbers = [{metric: number(text.replace(",", "")) for metric, text in kernel.items()} for kernel in kernels]
    return [{metric: n for metric, n in kernel.items() if n is not None} for kernel in numbers]


def of_kernel(raw: dict[str, float], lines: Sequence[counted.Line] = ()) -> dict[str, Any]:
    """A kernel's figures from ncu's metrics and its SASS lines; what ncu did not report is left out.

    Returns:
        tensor_pipe_pct: of the cycles in which an SM worked, those in which its tensor pipe did; stalls: what warps
        wait for, as the share of the cycles between two instructions of a warp, largest first; where: `stood`;
        l2_hit_pct and l2_read_bytes of reads that reach L2; dram_read_bytes.
    """
    found: dict[str, Any] = {}
    if pipe := next((metric for metric in TENSOR_PIPE if metric in raw), None):
        found["tensor_pipe_pct"] = round(raw[pipe], 2)
    spent = {match[1]: raw[metric] for metric in raw if (match := _STALLED.fullmatch(metric))}
    if total := sum(spent.values()):
        waits = Counter({reason: cycles for reason, cycles in spent.items() if reason != "selected"})  # that one issues
        found["stalls"] = {reason: round(cycles / total, 4) for reason, cycles in waits.most_common(TOP) if cycles}
    if LATENCY in raw and (where := stood(lines, raw[LATENCY])):
        found["where"] = where
    if HITS in raw and MISSES in raw and (reads := raw[HITS] + raw[MISSES]):
        found |= {"l2_hit_pct": round(100 * raw[HITS] / reads, 2), "l2_read_bytes": round(reads * SECTOR_BYTES)}
    if READ in raw:
        found["dram_read_bytes"] = round(raw[READ])
    return found


def stood(lines: Sequence[counted.Line], latency: float) -> dict[str, list[float]]:
    """At which instructions warps stand, by the first two words of their SASS names: the TOP of them.

    Args:
        latency: a warp's clocks from one instruction to the next, in the mean.

    Returns:
        Of each [the share of all samples, a warp's clocks each time].
    """
    samples, executed = Counter(), Counter()
    for line in lines:
        name = ".".join(line.opcode.split(".")[:2])
        samples[name] += line.samples
        executed[name] += line.executed
    clocks = samples.total() and latency * executed.total() / samples.total()  # that one sample stands for
    most = [(name, count) for name, count in samples.most_common(TOP) if count and executed[name]]
    return {name: [round(n / samples.total(), 4), round(n * clocks / executed[name], 1)] for name, n in most}


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
    """Return what limits each variant of a GEMM recipe, its peers and its ceiling on this GPU.

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
    held = recipe.product.contest(recipe, shape, dtype, majors, quack=False, own=True)
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
    if not recipe.product.is_gemm:
        return f"a {recipe.kind}; needed a GEMM"
    by_mma = recipe.operands and formats.FORMATS[recipe.operands].by_mma
    return (
        f"a GEMM of {recipe.operands} operands; needed one whose scale factors, if any, no MMA takes" if by_mma else ""
    )


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


def main(words: Sequence[str] | None = None) -> int:
    """Measure what is asked for, each with its tables; the exit status is 1 if something could not be measured here."""
    parser = argparse.ArgumentParser(prog="python -m tools.limits", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="+", metavar="NAME", help="GEMMs; see `cookbook list`")
    parser.add_argument("--shape", default="x".join(map(str, SHAPE)), metavar="MxNxK")
    parser.add_argument("--dtype", help="torch's name; a recipe's first if left out")
    parser.add_argument("--major", help="of the operands, tn or the like; a recipe's first if left out")
    parser.add_argument("--record", action="store_true", help="write what was measured into results/")
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else on stdout")
    asked = parser.parse_args(words)
    if not re.fullmatch(r"\d+x\d+x\d+", asked.shape):
        parser.error(f"--shape: got {asked.shape!r}; needed MxNxK: three integers")
    shape, made, missing = tuple(map(int, asked.shape.split("x"))), [], 0
    for name in asked.names:
        try:
            recipe = catalog.find(name)
            if reason := refusal(recipe):
                parser.error(f"NAME: got {name}, {reason}")
            given = [asked.dtype] * bool(asked.dtype), (), [asked.major] * bool(asked.major)
            chosen = levels.chosen(recipe, [shape], *given)
        except (LookupError, ValueError) as error:
            parser.error(str(error))
        reason = levels.cannot_run(recipe, chosen.targets)
        try:
            if not reason:
                made.append(measure(name, chosen.shapes[0], chosen.dtypes[0], chosen.majors[0], on_progress=say))
        except Unmeasurable as error:
            reason = str(error)
        if reason:
            say(f"{name}: not measured: {reason}")
            missing += 1
        elif asked.record:
            records.write(made[-1:])
        if not reason and not asked.json:
            print("\n\n".join(filter(None, (name, *shown.tables(made[-1]), made[-1]["figures"].get("reason")))))
    if asked.json:
        show_json(made)
    return int(missing > 0)


if __name__ == "__main__":
    sys.exit(main())
