"""Measured GEMMs side by side, as markdown: by size, as a ladder of steps, and by raster. For docs/benchmarks.md.

Everything is read from results/. A record counts while its hash is that of the code as it is now; of what has only
older records it is said that it was not measured since, and of the rest that it was not measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, TypeAlias

from cookbook import draw
from cookbook.check.ran import Shape
from cookbook.measure import ceilings, records
from cookbook.measure.bench import ALL_SIZES, GROWN_FROM, all_grown, grown
from cookbook.measure.contest import OURS
from cookbook.measure.peers import QUACK, TORCH
from cookbook.measure.records import Record
from cookbook.products import scaled
from cookbook.publish import gains, study_tables
from cookbook.publish.colours import CEILING_COLOUR, OURS_COLOUR, coloured
from cookbook.publish.markdown import figure, in_us, table, tabs, times_in_us
from cookbook.publish.pages import SPEED_UP
from cookbook.recipe import catalog
from cookbook.recipe.catalog import Recipe
from cookbook.recipe.majors import DEFAULT
from tools import deep_gemm, threefold
from tools.publish import charts, oddities
from tools.publish.unchanged import base_of

LADDERS = ("hopper", "ampere")  # tracks
DTYPE = "bfloat16"
Shapes: TypeAlias = tuple[Shape, ...]
LADDER_SHAPES: Shapes = ((4096, 4096, 4096), (8192, 8192, 8192))
CEILING = ceilings.PEER
_READ = {"by the model": CEILING_COLOUR, "counted": OURS_COLOUR}
MEMORY = "foundations/memory_ceiling"
MISSING, OLD = "not measured", "not measured since the code changed"


# --- records ----------------------------------------------------------------------------------------------------


def tuned() -> tuple[str, ...]:
    """Find the GEMM to use of each track of LADDERS, by name."""
    return tuple(r.name for track in LADDERS for r in catalog.recipes() if r.tuned and r.track == track)


def timed(name: str, root: Path | None = None) -> list[Record]:
    """A GEMM's timed records of DTYPE with K-major operands, stale ones too."""
    return [r for r in records.select(name, "timed", DTYPE, root) if r["shape"] and r.get("majors", DEFAULT) == DEFAULT]


def current_of(found: list[Record]) -> list[Record]:
    return [r for r in found if r["status"] == "passed" and not records.is_stale(r)]


def of_gpus(
    found: list[Record], current: list[Record], root: Path | None
) -> dict[str, tuple[list[Record], list[Record]]]:
    """(what was found, what is current of it) by GPU: the first GPU, then the others that have something current.

    Nothing was found: under "".
    """
    each = {gpu: (here, [r for r in here if r in current]) for gpu, here in records.by_gpu(found, root).items()}
    return {gpu: both for gpu, both in each.items() if both[1] or gpu == next(iter(each))} or {"": (found, [])}


def absent(found: list[Record], shape: Shape) -> str:
    """Return what is said of a shape that no current record is of."""
    return OLD if any(tuple(r["shape"]) == shape for r in found) else MISSING


def origin(found: list[Record]) -> str:
    """Devices, days, inputs and versions of all these records: a sentence for each set of versions."""
    days: dict[str, set[str]] = {}
    for r in found:
        versions = ", ".join(f"{name} {version}" for name, version in r["versions"].items() if version)
        driver = f", driver {r['driver']}" if r.get("driver") else ""
        said = f"{r['device']}, {{}}, inputs {r['distribution']}; {versions}{driver}."
        days.setdefault(said, set()).add(r["date"].split()[0])
    return " ".join(said.format(" to ".join(dict.fromkeys((min(d), max(d))))) for said, d in days.items())


def _cube(shape: Shape | list[int]) -> bool:
    return len(set(shape)) == 1


def _by(shape: Shape) -> str:
    return " x ".join(map(str, shape))


def in_short(shape: Shape) -> str:
    return f"{shape[0]}³" if _cube(shape) else _by(shape)


# --- by size ----------------------------------------------------------------------------------------------------


def sizes(root: Path | None = None) -> str:
    """Plot each tuned recipe's speed and share of the ceiling by size, and list all shapes in a table.

    Args:
        root: the folder of the records; results/ if left out.
    """
    return "\n\n".join(_sizes_of(name, root) for name in tuned())


def _sizes_of(name: str, root: Path | None) -> str:
    found, shown = timed(name, root), {}
    for gpu, (known, here) in of_gpus(found, current_of(found), root).items():
        pictures = (speed_chart(name, here), share_chart(name, here))
        parts = [figure(picture.svg) for picture in pictures if picture]
        parts += [size_table(known, here, whole=not shown), oddities.explained(here), origin(here)]
        shown[gpu] = "\n\n".join(part for part in parts if part)
    return f"### {_link(name)}\n\n{tabs(shown)}"


def _link(name: str) -> str:
    return f"[`{name}`](recipes/{name}.md)"


def speed_chart(name: str, current: list[Record]) -> draw.Picture | None:
    """TFLOP/s of a recipe and its peers over the cubes; None if no cube was measured."""
    lines: dict[str, list[draw.Point]] = {}
    for r in _cubes(current):
        for who, f in {name: r["figures"], **_peers(r)}.items():
            spread = (f["tflops"] * f["median_ms"] / f[end] for end in ("max_ms", "min_ms"))
            lines.setdefault(who, []).append(draw.Point(r["shape"][0], f["tflops"], *spread))
    title = f"{name}, {DTYPE}" + (f", {current[0]['device']}" if current else "")
    return draw.line_chart(lines, title=title, x_title="M = N = K", colours=coloured(lines, name)) if lines else None


def share_chart(name: str, current: list[Record]) -> draw.Picture | None:
    """Return which share of the ceiling, timed in the same run, a recipe and its peers reach over the cubes; or
    None."""
    lines: dict[str, list[draw.Point]] = {}
    for r in _cubes(current):
        peers = _peers(r)
        if CEILING not in peers:
            continue
        bound = peers.pop(CEILING)["median_ms"]
        for who, f in {name: r["figures"], **peers}.items():
            lines.setdefault(who, []).append(draw.Point(r["shape"][0], bound / f["median_ms"]))
    title = "Share of the ceiling" + (f", {current[0]['device']}" if current else "")
    unit, colours = "share of the ceiling in the same run", coloured(lines, name)
    return draw.line_chart(lines, unit, title, "M = N = K", colours=colours) if lines else None


def _cubes(current: list[Record]) -> list[Record]:
    return sorted((r for r in current if _cube(r["shape"])), key=lambda r: r["shape"])


def _peers(record: Record) -> dict[str, dict]:
    """The peers of a record that every GEMM has; its own variants are none of them."""
    return {who: record["peers"][who] for who in (TORCH, QUACK, CEILING) if who in record["peers"]}


def size_table(found: list[Record], current: list[Record], whole: bool = True) -> str:
    """A row for each of ALL_SIZES and for what else was measured: ours, and how it stands to its peers.

    Args:
        found: the records of a recipe, stale ones too.
        current: those of them that are current.
        whole: whether a size that nothing was found of has a row.
    """
    of_shape = {tuple(r["shape"]): r for r in current}
    others = sorted(set(of_shape) - {*ALL_SIZES} - _only_grown(), key=lambda shape: (math.prod(shape), shape))
    header = ["M x N x K", "ours, µs (min to max)", "ours, TFLOP/s"]
    header += [f"{who}, TFLOP/s ({SPEED_UP})" for who in (TORCH, QUACK)] + ["of the ceiling"]
    rows = []
    for shape in (*ALL_SIZES, *others):
        if not whole and absent(found, shape) == MISSING:
            continue
        cells = _size_cells(of_shape[shape]) if shape in of_shape else [absent(found, shape), *[""] * 4]
        rows.append([in_short(shape), *cells])
    return table(header, rows)


def _size_cells(record: Record) -> list[str]:
    f, peers = record["figures"], _peers(record)
    cells = [times_in_us(f), f"{f['tflops']:.0f}"]
    for who in (TORCH, QUACK):
        cells.append(f"{peers[who]['tflops']:.0f} ({peers[who]['ratio']:.3f})" if who in peers else "not timed")
    return [*cells, f"{peers[CEILING]['ratio']:.1%}" if CEILING in peers else "not timed"]


# --- the roofline -----------------------------------------------------------------------------------------------

# (M, N, K) from few bytes to many for each operation: what memory bounds, and what the tensor cores do.
ON_ROOF: Shapes = ((64, 8192, 8192), (512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (8192, 8192, 8192))


def rooflines(root: Path | None = None) -> str:
    """Plot each tuned recipe's rate at ON_ROOF below the measured roof; "" of one with no current records for it."""
    return "\n\n".join(figure(picture.svg) for name in tuned() if (picture := roofline(name, root)))


def roofline(name: str, root: Path | None = None) -> draw.Picture | None:
    """The rate of a recipe by FLOP a byte, under its ceiling in the same runs and the bandwidth of a read, on the first
    GPU whose bandwidth is recorded; or None."""
    bandwidths = records.of_one_gpu(MEMORY, records.CEILING, None, root)
    devices = {r["device"] for r in bandwidths}
    here = [r for r in current_of(timed(name, root)) if r["device"] in devices and CEILING in r["peers"]]
    of_shape = {tuple(r["shape"]): r for r in here}
    shown = {shape: of_shape[shape] for shape in ON_ROOF if shape in of_shape}
    if not shown:
        return None
    reads = bandwidths[0]["figures"]["read"]
    size = max(reads, key=lambda mib: int(mib.split()[0]))  # far more than L2 holds
    points = {in_short(shape): (round(intensity(shape), 1), r["figures"]["tflops"]) for shape, r in shown.items()}
    peak = max(r["peers"][CEILING]["tflops"] for r in shown.values())
    device = bandwidths[0]["device"]
    note = f"roof: the ceiling in the same runs, and {reads[size]['gbps']:.0f} GB/s, read from {size} of memory"
    return draw.roofline(peak, reads[size]["gbps"], points, f"{name}, {DTYPE}, {device}", note)


def intensity(shape: Shape, bytes_each: int = 2) -> float:
    """FLOP for each byte of A, B and C, were each of them read or written once."""
    m, n, k = shape
    return 2 * m * n * k / (bytes_each * (m * k + n * k + m * n))


# --- by dimension -----------------------------------------------------------------------------------------------


def growth(root: Path | None = None) -> str:
    """Plot each tuned recipe's time as M, N or K grows and the two others stay, with a table.

    Args:
        root: the folder of the records; results/ if left out.
    """
    return "\n\n".join(_growth_of(name, root) for name in tuned())


def _growth_of(name: str, root: Path | None) -> str:
    found, shown = timed(name, root), {}
    grew = {r["device"] for r in found if tuple(r["shape"]) in _only_grown()}  # a GPU may have but the other sizes
    found = [r for r in found if r["device"] in grew]
    current = [r for r in current_of(found) if tuple(r["shape"]) in all_grown()]
    for gpu, (known, now) in of_gpus(found, current, root).items():
        here = {tuple(r["shape"]): r for r in now}
        picture = growth_chart(name, here)
        parts = [figure(picture.svg)] if picture else []
        parts += [growth_table(known, here), origin(now)]
        shown[gpu] = "\n\n".join(part for part in parts if part)
    return f"### {_link(name)}\n\n{tabs(shown)}"


def _only_grown() -> set[Shape]:
    """The shapes that `growth` shows and nothing else does."""
    return {*all_grown()} - {*ALL_SIZES}


def growth_chart(name: str, here: dict[Shape, Record]) -> draw.Picture | None:
    """TFLOP/s of a recipe, a line for each dimension that grows: level where time is in proportion. None of none."""
    lines: dict[str, list[draw.Point]] = {}
    for dimension, letter in enumerate("MNK"):
        for shape in grown(dimension):
            if shape in here:
                at = draw.Point(shape[dimension], here[shape]["figures"]["tflops"])
                lines.setdefault(f"{letter} grows", []).append(at)
    if not lines:
        return None
    device = next(iter(here.values()))["device"]
    others = f"M, N or K; the two others {GROWN_FROM[0]}"
    return draw.line_chart(lines, title=f"{name}, {DTYPE}, {device}", x_title=others, limit=None)


def growth_table(found: list[Record], here: dict[Shape, Record]) -> str:
    """A row for each size, and for each dimension that has it: ours, and how it stands to torch.matmul."""
    header = ["size", *(f"as {letter}, µs ({SPEED_UP} over {TORCH})" for letter in "MNK")]
    rows = []
    for shapes in zip(*(grown(dimension) for dimension in range(3)), strict=True):
        cells = [_growth_cell(here[shape]) if shape in here else absent(found, shape) for shape in shapes]
        rows.append([str(shapes[0][0]), *cells])
    return table(header, rows)


def _growth_cell(record: Record) -> str:
    us, peers = in_us(record["figures"]["median_ms"]), _peers(record)
    return f"{us} ({peers[TORCH]['ratio']:.3f})" if TORCH in peers else us


# --- the ladder -------------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """The best kernel of a recipe in its current record at one shape."""

    record: Record
    kernel: str  # a variant's name, or OURS
    figures: dict[str, float]  # of that kernel
    to_torch: float | None  # how many times as fast as torch.matmul in the same run

    @property
    def spread(self) -> tuple[float, float]:
        """`to_torch` with the slowest and the fastest round of ours; NaN where torch.matmul was not timed."""
        at_median = math.nan if self.to_torch is None else self.to_torch * self.figures["median_ms"]
        return at_median / self.figures["max_ms"], at_median / self.figures["min_ms"]


Best: TypeAlias = dict[tuple[str, Shape], Step | None]  # by recipe and shape


def ladder(root: Path | None = None) -> str:
    """The GEMMs of each track as steps, at LADDER_SHAPES: a chart and a table for each device."""
    parts = []
    for track in LADDERS:
        steps, shown = _steps(track), {}
        found = [r for recipe in steps for r in timed(recipe.name, root)]
        for gpu, (known, here) in of_gpus(found, climbed(found, root), root).items():
            shown[gpu] = "\n\n".join(filter(None, [*_ladder_of(steps, known, gpu, not shown), origin(here)]))
        parts.append(f"### {track.capitalize()}\n\n{tabs(shown)}")
    return "\n\n".join(parts)


def climbed(found: list[Record], root: Path | None) -> list[Record]:
    """The current records of ladders: at LADDER_SHAPES, of the first GPU and of those with several steps."""
    everything = [r for r in current_of(found) if tuple(r["shape"]) in LADDER_SHAPES]
    first, *others = records.by_gpu(everything, root).values() or [[]]
    return [*first, *(r for here in others if len({r["recipe"] for r in here}) > 1 for r in here)]


def _ladder_of(steps: list[Recipe], known: list[Record], device: str, whole: bool) -> list[str]:
    """The chart, if anything was measured, and the table: of all steps if `whole`, else of those that were timed."""
    found = {recipe.name: [r for r in known if r["recipe"] == recipe.name] for recipe in steps}
    best = {(r.name, shape): step(found[r.name], device, shape) for r in steps for shape in LADDER_SHAPES}
    found = {name: some for name, some in found.items() if some or whole}
    chart = ladder_chart(steps, best, device, LADDER_SHAPES)
    return [*([figure(chart.svg)] if chart else []), ladder_table(steps, best, found, LADDER_SHAPES)]


def _steps(track: str) -> list[Recipe]:
    """The GEMMs of a track that are timed at a shape of the ladder; one made for other shapes is no step of it."""
    return [r for r in gemms(track) if not r.bench_shapes or set(r.bench_shapes) & set(LADDER_SHAPES)]


def main_line(track: str) -> list[Recipe]:
    """The GEMMs that are steps of a track's ladder: those that stand in no group of side pages."""
    return [r for r in gemms(track) if not r.aside]


def gemms(track: str) -> list[Recipe]:
    """Return those that multiply one matrix by one other: a grouped product is no torch.matmul's, nor are two."""
    found = (r for r in catalog.recipes() if r.track == track and DTYPE in r.dtypes)
    return [r for r in found if r.product.of_one_product]


def before(recipe: Recipe, steps: list[Recipe]) -> Recipe | None:
    """The step that a recipe is held against: the one that it changes, else the one before it in the track."""
    names = [r.name for r in steps]
    if (base := base_of(recipe)) and base.name in names:
        return steps[names.index(base.name)]
    at = names.index(recipe.name)
    return steps[at - 1] if at else None


def step(found: list[Record], device: str, shape: Shape) -> Step | None:
    """The best kernel of the current record of a recipe on a device at a shape; None if there is no such record.

    Its kernels are ours and what `gains.variants` says.
    """
    for r in current_of(found):
        if r["device"] == device and tuple(r["shape"]) == shape:
            kernels = {OURS: r["figures"], **gains.variants(r)}
            best = min(kernels, key=lambda who: kernels[who]["median_ms"])
            torch = r["peers"].get(TORCH)
            ratio = torch["median_ms"] / kernels[best]["median_ms"] if torch else None
            return Step(r, best, kernels[best], ratio)
    return None


def gain_of(recipe: Recipe, shape: Shape, steps: list[Recipe], best: Best) -> tuple[float, str] | None:
    """Return how many times as fast as the step before, and that step's name; both measured against torch.matmul in
    their own
    runs, so that the clocks of the two runs fall out. None if one of them was not measured, or on another GPU."""
    other = before(recipe, steps)
    ours, theirs = best[recipe.name, shape], best[other.name, shape] if other else None
    if not (other and ours and theirs and ours.to_torch and theirs.to_torch):
        return None
    same = ours.record["device"] == theirs.record["device"]
    return (ours.to_torch / theirs.to_torch, other.name.split("/")[1]) if same else None


class Gained(NamedTuple):
    """Speed-up over the step before, that step's name, and the GPU that timed both."""

    times: float
    over: str
    device: str


def gained(recipe: Recipe, shape: Shape, steps: list[Recipe], bests: Mapping[str, Best]) -> Gained | None:
    """`gain_of` on the first of several GPUs that timed both steps: no gain is taken from two.

    Args:
        bests: the best kernels by GPU, in the order to ask them.
    """
    for device, best in bests.items():
        if gain := gain_of(recipe, shape, steps, best):
            return Gained(*gain, device)
    return None


def ladder_chart(steps: list[Recipe], best: Best, device: str, shapes: Shapes) -> draw.Picture | None:
    """Bars: each step's speed as a multiple of torch.matmul's, in brackets as one of the step before; or None."""
    bars = []
    for shape in shapes:
        for recipe in steps:
            one, gain = best[recipe.name, shape], gain_of(recipe, shape, steps, best)
            if one is not None and one.to_torch is not None:
                note = f"{one.to_torch:.3f}" + (f" ({gain[0]:.2f}x)" if gain else "")
                low, high = one.spread
                bars.append(draw.Bar(_by(shape), recipe.name.split("/")[1], one.to_torch, low, high, note))
    if not bars:
        return None
    own = next((n.split("/")[1] for n in tuned() if n in {r.name for r in steps}), OURS)
    unit, meaning = (
        "times torch.matmul in the same run",
        "in brackets: that ratio over the step before's; line: min to max",
    )
    title = f"{steps[0].track}, {DTYPE}, {device}"
    colours = coloured((bar.name for bar in bars), own)
    return draw.bar_chart(bars, unit, title, highlight=own, meaning=meaning, colours=colours)


def ladder_table(steps: list[Recipe], best: Best, found: dict[str, list[Record]], shapes: Shapes) -> str:
    """A row for each step of `found`: its best kernel, TFLOP/s, its speed over torch.matmul's and over a step's."""
    header = ["step", "step before"]
    for shape in shapes:
        header += [f"TFLOP/s at {in_short(shape)} (times {TORCH})", "times the step before"]
    rows = []
    for recipe in (each for each in steps if each.name in found):
        other = before(recipe, steps)
        row = [_link(recipe.name), f"`{other.name.split('/')[1]}`" if other else ""]
        for shape in shapes:
            row += _step_cells(recipe, shape, steps, best, found)
        rows.append(row)
    return table(header, rows, right=2)


def _step_cells(
    recipe: Recipe, shape: Shape, steps: list[Recipe], best: Best, found: dict[str, list[Record]]
) -> list[str]:
    one = best[recipe.name, shape]
    if one is None:
        return [absent(found[recipe.name], shape), ""]
    gain = gain_of(recipe, shape, steps, best)
    ratio = f"{one.to_torch:.3f}" if one.to_torch is not None else "not timed"
    speed = f"{one.figures['tflops']:.0f} ({ratio})" + (f" `{one.kernel}`" if one.kernel != OURS else "")
    return [speed, f"{gain[0]:.2f}" if gain else ""]


# --- made for other shapes --------------------------------------------------------------------------------------


def threefold_table(root: Path | None = None) -> str:
    """A peer's time over ours three ways, and its joules over ours, a row for each contest, by GPU."""
    shown, known = {}, threefold.read(root)
    for device, contests in known.items():
        rows = []
        for found in (each for each in contests if records.code_of(each["recipe"]) == each["code"]):
            for ours, peer in threefold.pairs(found):
                quotients = threefold.quotients(found, ours, peer)
                what = f"{_link(found['recipe'])}" + ("" if ours == OURS else f", `{ours}`")
                clocks = [f"{found['variants'][who]['mhz']:.0f}" for who in (ours, peer)]
                cells = [f"{x:.3f}" for x in quotients.values()]
                rows.append([what, in_short(found["shape"]), f"`{peer}`", *cells, " / ".join(clocks)])
        if rows:
            header = ["GEMM", "M x N x K", "against", *quotients, "MHz, ours / its"]
            shown[device] = f"{device}:\n\n{table(header, rows)}"
    return tabs(shown) or f"*{(OLD if known else MISSING).capitalize()}*."


def deep_gemm_table(root: Path | None = None) -> str:
    """DeepGEMM's time over ours by its protocol and three ways by ours, and torch's over ours, by GPU."""
    shown, known, ours = {}, deep_gemm.read(root), records.code_of(deep_gemm.NAME)
    for device, kept in known.items():
        rows = []
        for found in (each for each in kept["products"] if each["code"] == ours):
            quotients = threefold.quotients(found, OURS, deep_gemm.PEER)
            cold = found.get("cold", {})
            first = f"{cold[deep_gemm.PEER] / cold[OURS]:.3f}" if cold else MISSING
            torch = threefold.quotients(found, OURS, scaled.BLOCKWISE)["alone"]
            us = f"{found['variants'][OURS]['alone_us']:.1f}"
            rows.append([in_short(found["shape"]), us, first, *(f"{x:.3f}" for x in (*quotients.values(), torch))])
        if rows:
            header = ["M x N x K", "ours, µs", "its own protocol", *quotients, "torch, alone"]
            shown[device] = f"{device}, DeepGEMM {kept['version']}:\n\n{table(header, rows)}"
    return tabs(shown) or f"*{(OLD if known else MISSING).capitalize()}*."


def apart(root: Path | None = None) -> str:
    """The GEMMs that are timed at none of LADDER_SHAPES, each at the shapes that it is made for: a chart of its speed
    and of the recipe's against it, as multiples of torch.matmul's, and a table with times in microseconds."""
    parts = []
    for recipe in _made_for_others():
        found, shown = timed(recipe.name, root), {}
        for gpu, (known, here) in of_gpus(found, current_of(found), root).items():
            chart = apart_chart(recipe, here)
            drawn = figure(chart.svg) if chart else ""
            table = apart_table(recipe, known, here, whole=not shown)
            shown[gpu] = "\n\n".join(filter(None, [drawn, table, origin(here)]))
        parts.append(f"### {_link(recipe.name)}\n\n{tabs(shown)}")
    return "\n\n".join(parts)


def _made_for_others() -> list[Recipe]:
    """The GEMMs of the tracks of LADDERS that are no step of them."""
    steps = {r.name for track in LADDERS for r in _steps(track)}
    return [r for track in LADDERS for r in gemms(track) if r.name not in steps]


def apart_chart(recipe: Recipe, current: list[Record]) -> draw.Picture | None:
    """Bars at each shape: speed as a multiple of torch.matmul's in the same run; None if nothing was measured."""
    bars, of_shape = [], {tuple(r["shape"]): r for r in current if TORCH in r["peers"]}
    for r in filter(None, map(of_shape.get, recipe.bench_shapes)):
        torch = r["peers"][TORCH]["median_ms"]
        timed_too = {recipe.name: r["figures"], recipe.compared_with or "": r["peers"].get(recipe.compared_with)}
        for who, f in sorted(((w, f) for w, f in timed_too.items() if f), key=lambda each: each[1]["median_ms"]):
            value, low, high = (torch / f[end] for end in ("median_ms", "max_ms", "min_ms"))
            bars.append(draw.Bar(_by(r["shape"]), who, value, low, high, f"{value:.3f}"))
    if not bars:
        return None
    title = f"{recipe.name}, {DTYPE}, {current[0]['device']}"
    colours = coloured((bar.name for bar in bars), recipe.name)
    return draw.bar_chart(bars, "times torch.matmul in the same run", title, recipe.name, colours=colours)


def apart_table(recipe: Recipe, found: list[Record], current: list[Record], whole: bool = True) -> str:
    """A row for each shape that the recipe is timed at: microseconds, and how ours stands to its peers.

    The arguments are those of `size_table`.
    """
    of_shape = {tuple(r["shape"]): r for r in current}
    peers = [TORCH, *([recipe.compared_with] if recipe.compared_with else [])]
    rows = []
    for shape in recipe.bench_shapes:
        if not whole and absent(found, shape) == MISSING:
            continue
        row = [in_short(shape)]
        if shape in of_shape:
            r = of_shape[shape]
            us = [1000 * r["figures"][end] for end in ("median_ms", "min_ms", "max_ms")]
            row.append("{:.2f} ({:.2f} to {:.2f})".format(*us))
            timed_too = (r["peers"].get(who) for who in peers)
            row += [f"{1000 * f['median_ms']:.2f} ({f['ratio']:.3f})" if f else "not timed" for f in timed_too]
        else:
            row += [absent(found, shape), *[""] * len(peers)]
        rows.append(row)
    return table(["M x N x K", "ours, µs (min to max)", *(f"{who}, µs ({SPEED_UP})" for who in peers)], rows)


# --- rasters ----------------------------------------------------------------------------------------------------


def rasters(root: Path | None = None) -> str:
    """The experiments with orders of tiles: what each reads and how often L2 has it, the model, and its time."""
    return "\n\n".join(_experiment(r.name, root) for r in catalog.recipes() if r.measures == "experiment")


def _experiment(name: str, root: Path | None) -> str:
    pictures = (_read_chart(name, root), charts.experiment_chart(name, root))
    shown = [figure(picture.svg) for picture in pictures if picture]
    return "\n\n".join([*shown, study_tables.experiment_table(name, root)])


def _read_chart(name: str, root: Path | None) -> draw.Picture | None:
    """Bytes from memory by order, by the model and as counted; None if none were counted."""
    found = [r for r in records.select(name, "counted", None, root) if not records.is_stale(r)]
    if not found:
        return None
    bars = []
    for order, f in found[0]["figures"].items():
        bars.append(draw.Bar(order, "by the model", f["predicted_bytes"] / study_tables.GB))
        note = f"{f['read_bytes'] / study_tables.GB:.3g}, L2 hits {f['l2_hit_rate']:.0%}"
        bars.append(draw.Bar(order, "counted", f["read_bytes"] / study_tables.GB, note=note))
    title = f"Read from memory, {found[0]['device']}"
    return draw.bar_chart(bars, "GB", title, "counted", ratios=False, meaning="shorter is better", colours=_READ)


# --- README -----------------------------------------------------------------------------------------------------
