"""Tables of docs/host_time.md: the steps of a call, from results/<device>/operator.json, and a kernel's parameters."""

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
from cookbook.publish.markdown import figure, table
from cookbook.recipe import catalog
from tools.ops import measuring, steps
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
    "compiled by `torch.compile`": ("us", "ops.matmul, compiled"),
    "replayed in a CUDA graph": ("us", "ops.matmul, replayed in a graph"),
    "an empty kernel, addresses and integers": ("steps", "an empty kernel"),
    "an empty kernel, a signature of three tensors": ("steps", "an empty kernel, by a signature of tensors"),
    "only handing the arguments over": ("steps", "arguments handed over"),
    "the same by `compiled.__tvm_ffi_object__()`": ("steps", "arguments handed over, beneath the DSL's wrapper"),
    "`from_dlpack(x).mark_layout_dynamic()`, three times": ("steps", "three from_dlpack"),
}


class Measured(NamedTuple):
    """Current records of calls by device: all of them, and those that have the steps."""

    calls: dict[str, dict[str, Any]]
    steps: dict[str, dict[str, float]]
    missing: str  # what to say where there is none

    @property
    def missing_steps(self) -> str:
        return MISSING if self.calls else self.missing


def _measured(root: Path | None = None) -> Measured:
    known = {device: found["calls"] for device, found in measuring.read(root).items() if found["calls"]}
    calls = {d: found for d, found in known.items() if found["host"] == measuring.host_code()}
    with_steps = {d: found["steps"] for d, found in calls.items() if set(found.get("steps", ())) >= _PARTS}
    return Measured(calls, with_steps, OLD if known else MISSING)


def number(root: Path | None = None) -> str:
    """The N of the page's title."""
    found = _measured(root)
    said = [f"{each['us']['ops.matmul']:.1f} on {device} ({each['date']})" for device, each in found.calls.items()]
    return (
        f"N, the microseconds that a call of `ops.matmul` takes the host, is {'; '.join(said) or f'*{found.missing}*'}."
    )


def shortest() -> str:
    """The recorded GEMM kernel that takes a GPU the least time."""
    timed = [
        (1000 * r["figures"]["median_ms"], recipe.name, "x".join(map(str, r["shape"])), r["device"])
        for recipe in catalog.recipes()
        if recipe.product.is_gemm and not recipe.operands
        for r in records.select(recipe.name, "timed")
        if r["shape"] and r["status"] == "passed" and not records.is_stale(r)
    ]
    if not timed:
        return f"The shortest kernel: *{MISSING}*."
    us, name, shape, device = min(timed)
    return f"The shortest kernel in our records takes {us:.1f} us: [{name}](recipes/{name}.md) at {shape} on {device}."


def timeline(root: Path | None = None) -> str:
    """Return who works when in a call: to scale where it was measured."""
    found = _measured(root)
    drawn = []
    for device, each in found.calls.items():
        title = f"One call of ops.matmul, {device}"
        drawn.append(_to_scale(found.steps[device], title) if device in found.steps else _in_two(each["us"], title))
    return "\n\n".join(map(figure, drawn or [_to_scale(None, f"One call of ops.matmul: {found.missing}")]))


def _to_scale(us: dict[str, float] | None, title: str) -> str:
    """Each step; all as long as each other where none was measured."""
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


def _in_two(us: dict[str, float], title: str) -> str:
    """Python's steps, and the launch, where no more was told apart."""
    before, whole = us["ops.matmul"] - us["the launch alone"], us["ops.matmul"]
    last = sum(told.lane == PYTHON for told in STEPS.values())
    launch = f"{FFI}, {CODE}, {DRIVER}"
    rows = {
        PYTHON: [Span(0, before, f"1 to {last}", PYTHON)],
        launch: [Span(before, whole, f"{last + 1} to {len(STEPS)}", launch)],
    }
    note = "numbers: the steps of the table below; these two parts of a call were told apart"
    return draw.lanes(rows, title, "us", note).svg


def step_table(root: Path | None = None) -> str:
    """Each step, who does it, and what it costs."""
    found = _measured(root)
    costs = [steps.costs(us) for us in found.steps.values()]
    rows = [
        [f"{number}. {step}", told.lane, told.what, *(f"{each[step]:.2f}" for each in costs)]
        for number, (step, told) in enumerate(STEPS.items(), 1)
    ]
    ends = [f"{us[SEEN] - us['an empty kernel']:.2f}" for us in found.steps.values()]
    rows.append([f"{len(STEPS) + 1}. {START}", GPU, "an empty kernel, until a waiting host sees its end", *ends])
    shown = table(["step", "who", "what", *(f"us, {device}" for device in found.steps)], rows, right=3)
    return shown + ("" if costs else f"\n\nThe microseconds of each: *{found.missing_steps}*.")


def ways(root: Path | None = None) -> str:
    """Return what a call costs if it is made in another way."""
    found = _measured(root)
    shown = {
        device: {"us": each["us"], "steps": found.steps.get(device, {})} for device, each in found.calls.items()
    } or {"": {"us": {}, "steps": {}}}
    missing = found.missing_steps
    rows = [
        [name, *(f"{of[part][way]:.2f}" if way in of[part] else missing for of in shown.values())]
        for name, (part, way) in WAYS.items()
    ]
    return table(["what is called", *(f"us of the host, {device}".rstrip(", ") for device in shown)], rows)


# --- what a launch brings along ---------------------------------------------------------------------------------

PARAMETERS = {  # of the recipe's `kernel`, in order
    "tma_a": "the tensor map of A: address, sizes, strides, box, swizzle",
    "mA": "M and K: coordinates that TMA is asked for begin there",
    "tma_b": "the tensor map of B",
    "mB": "N and K",
    "mC": "address, M and N, row stride",
}


class Launch(NamedTuple):
    """A recipe's launch as the compiler made it."""

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
    """Return what the driver copies at each launch."""
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
