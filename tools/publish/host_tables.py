"""What docs/host_time.md shows: the steps of a call, from results/<device>/operator.json, and a kernel's parameters."""

from __future__ import annotations

import re
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import cutlass

from cookbook import draw
from cookbook.draw.lanes import Span
from cookbook.measure import records
from cookbook.ops import measuring, steps
from cookbook.publish.markdown import figure, table
from cookbook.recipe import catalog
from tools.publish.benchmarks import MISSING, OLD

ARCH, RECIPE = "sm_90a", "hopper/tma_wgmma_gemm"


class Told(NamedTuple):
    """A step of a call, for a reader."""

    lane: str
    what: str


PYTHON, FFI, CODE, DRIVER, GPU = "Python", "TVM-FFI", "generated host code", "CUDA driver", "GPU"
STEPS = {  # in the order in which they happen
    "the plan looked up": Told(
        PYTHON, "is nobody else interested (autograd, a compiler)? The kind of the operands: a key of a dict"
    ),
    "C made": Told(PYTHON, "`new_empty`: PyTorch's allocator hands out memory that it has"),
    "addresses and stream": Told(PYTHON, "`data_ptr()` three times, the current device and stream"),
    "arguments handed over": Told(FFI, "Python's integers become C's, their types are checked"),
    "two tensor maps": Told(CODE, "128 bytes for A and 128 for B, computed from address, sizes, strides"),
    "the rest of this kernel's launch": Told(CODE, "the grid, shared memory and cluster, more numbers"),
    "the driver's launch": Told(DRIVER, "parameters are copied into the command queue of the stream"),
}
_PARTS = {name for whole, parts in steps.STEPS.values() for name in (whole, *parts)}  # that a record must have
START, SEEN = "begins, ends, is seen", "an empty kernel, until the host sees its end"
WAYS = {  # what takes steps away, or adds some: how it is named on the page, and in the record
    "`ops.matmul`": ("us", "ops.matmul"),
    "the launch alone, arguments ready": ("us", "the launch alone"),
    "in a `torch.compile`d function": ("us", "ops.matmul, compiled"),
    "replayed in a CUDA graph": ("us", "ops.matmul, replayed in a graph"),
    "an empty kernel, addresses and integers": ("steps", "an empty kernel"),
    "an empty kernel, a signature of three tensors": ("steps", "an empty kernel, by a signature of tensors"),
    "only handing the arguments over": ("steps", "arguments handed over"),
    "the same by `compiled.__tvm_ffi_object__()`": ("steps", "arguments handed over, beneath the DSL's wrapper"),
    "`from_dlpack(x).mark_layout_dynamic()`, three times": ("steps", "three from_dlpack"),
}


def _measured(root: Path | None = None) -> tuple[dict[str, dict[str, Any]], str]:
    """Current records of calls by device; and what to say where there is none."""
    known = {device: found["calls"] for device, found in measuring.read(root).items() if found["calls"]}
    of_today = {d: found for d, found in known.items() if found["host"] == measuring.host_code()}
    current = {d: found for d, found in of_today.items() if set(found.get("steps", ())) >= _PARTS}
    return current, OLD if set(known) - set(of_today) else MISSING


def number(root: Path | None = None) -> str:
    """The N of the page's title."""
    current, missing = _measured(root)
    if not current:
        return f"N, a call of `ops.matmul` on the host: *{missing}*."
    said = [f"{found['steps']['ops.matmul']:.1f} on {device}, {found['date']}" for device, found in current.items()]
    return f"N, a call of `ops.matmul` on the host, is {'; '.join(said)}."


def shortest() -> str:
    """The recorded GEMM kernel that takes a GPU the least time."""
    timed = [
        (1000 * r["figures"]["median_ms"], recipe.name, "x".join(map(str, r["shape"])), r["device"])
        for recipe in catalog.recipes()
        if recipe.kind == "gemm" and not recipe.operands
        for r in records.select(recipe.name, "timed")
        if r["shape"] and r["status"] == "passed" and not records.is_stale(r)
    ]
    if not timed:
        return f"The shortest kernel: *{MISSING}*."
    us, name, shape, device = min(timed)
    return f"The shortest kernel in our records takes {us:.1f} us: [{name}](recipes/{name}.md) at {shape} on {device}."


def timeline(root: Path | None = None) -> str:
    """Who works when in a call: to scale where it was measured."""
    current, missing = _measured(root)
    drawn = [_drawn(found["steps"], f"One call of ops.matmul, {device}") for device, found in current.items()]
    return "\n\n".join(map(figure, drawn or [_drawn(None, f"One call of ops.matmul, step by step: {missing}")]))


def _drawn(us: dict[str, float] | None, title: str) -> str:
    rows: dict[str, list[Span]] = {lane: [] for lane in (PYTHON, FFI, CODE, DRIVER, GPU)}
    costs, at = steps.costs(us) if us else dict.fromkeys(STEPS, 1.0), 0.0
    for number, (step, told) in enumerate(STEPS.items(), 1):
        length = max(costs[step], 0.0)  # a difference of two times may be less than nothing
        rows[told.lane].append(Span(at, at + length, str(number), told.lane))
        at += length
    last = max(us[SEEN] - us["an empty kernel"], 0.0) if us else 1.0
    rows[GPU].append(Span(at, at + last, f"{len(STEPS) + 1}: {START}" if us else str(len(STEPS) + 1), GPU))
    note = "numbers: the steps of the table below" + ("" if us else "; all drawn as long as each other")
    return draw.lanes(rows, title, "us" if us else "steps", note).svg


def step_table(root: Path | None = None) -> str:
    """Each step, who does it, and what it costs."""
    current, missing = _measured(root)
    costs = [steps.costs(found["steps"]) for found in current.values()]
    rows = [
        [f"{number}. {step}", told.lane, told.what, *(f"{each[step]:.2f}" for each in costs or [])]
        for number, (step, told) in enumerate(STEPS.items(), 1)
    ]
    ends = [f"{found['steps'][SEEN] - found['steps']['an empty kernel']:.2f}" for found in current.values()]
    rows.append([f"{len(STEPS) + 1}. {START}", GPU, "an empty kernel, until a waiting host sees its end", *ends])
    header = ["step", "who", "what", *(f"us, {device}" for device in current)]
    return table(header, rows, right=3) + ("" if current else f"\n\nThe microseconds of each: *{missing}*.")


def ways(root: Path | None = None) -> str:
    """What a call costs if it is made in another way."""
    current, missing = _measured(root)
    rows = [
        [name, *(f"{found[part][way]:.2f}" if way in found[part] else "" for found in current.values())]
        for name, (part, way) in WAYS.items()
    ]
    header = ["what is called", *(f"us of the host, {device}" for device in current)]
    if not current:
        header, rows = [*header, "us of the host"], [[*row, missing] for row in rows]
    return table(header, rows)


# --- what a launch brings along ---------------------------------------------------------------------------------

PARAMETERS = {  # of the recipe's `kernel`, in order
    "tma_a": "the tensor map of A: address, sizes, strides, box, swizzle",
    "mA": "M and K: coordinates that TMA is asked for begin there",
    "tma_b": "the tensor map of B",
    "mB": "N and K",
    "mC": "address, M and N, row stride",
}


class Launch(NamedTuple):
    """What the compiler made of a recipe's launch."""

    parameters: tuple[int, ...]  # bytes of each
    asks_for: tuple[str, ...]  # functions that the host code calls and does not have: names in its object


@cache
def launch() -> Launch:
    """Compiled for a GPU that need not be here."""
    module = catalog.load(RECIPE)
    with tempfile.TemporaryDirectory(prefix="cookbook-") as folder:
        kept = f"--enable-tvm-ffi --keep-ptx --dump-dir {folder}"
        made: Any = module.compile_for(ARCH, cutlass.BFloat16, options=kept)
        made.export_to_c(f"{folder}/gemm.o", function_name="gemm")
        (ptx,), code = (f.read_text() for f in Path(folder).glob("*.ptx")), Path(folder, "gemm.o").read_bytes()
    sizes = re.findall(r"\.param \.align \d+ \.b8 \w+_param_\d+\[(\d+)\]", ptx)
    names = sorted(set(re.findall(rb"\0_?(cu[A-Za-z]+)(?=\0)", code)))
    return Launch(tuple(map(int, sizes)), tuple(name.decode() for name in names))


def parameters() -> str:
    """What the driver copies at each launch."""
    sizes = launch().parameters
    rows = [[f"`{name}`", what, str(size)] for (name, what), size in zip(PARAMETERS.items(), sizes, strict=True)]
    return table(["parameter of the kernel", "holds", "bytes"], [*rows, ["", "together", str(sum(sizes))]], right=2)


MARKS = {
    "<!-- host number -->": number,
    "<!-- host shortest -->": shortest,
    "<!-- host timeline -->": timeline,
    "<!-- host steps -->": step_table,
    "<!-- host ways -->": ways,
    "<!-- host parameters -->": parameters,
}
