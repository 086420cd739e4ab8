"""The top of a GEMM's page: its speed next to a reader's alternatives, from its records."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cookbook import draw
from cookbook.measure import ceilings, records
from cookbook.measure.peers import QUACK
from cookbook.measure.records import Record
from cookbook.publish.colours import coloured
from cookbook.publish.markdown import NOT_MEASURED_ON_A_GPU, table, times_in_us
from cookbook.recipe import catalog
from cookbook.recipe.catalog import Recipe

__all__ = ["Gain", "Idea", "gain", "idea", "k_tile_clocks", "recorded", "spread", "step_table", "variants"]

SMS = {"NVIDIA H100 80GB HBM3": 132, "NVIDIA H200": 132}  # by device


class Gain(NamedTuple):
    """A sentence in markdown, and its picture; None where no GPU has run the kernel as it is."""

    said: str
    picture: draw.Picture | None


def gain(
    name: str,
    shape: Sequence[int],
    over: Iterable[str] = (),
    dtype: str = "bfloat16",
    majors: str | None = None,
    root: Path | None = None,
) -> Gain:
    """Return how many times as fast a GEMM is as each of `over` and as torch's own: all speeds in multiples of torch's.

    Where one of its variants is faster than its default, the sentence is the variant's. All is of one GPU, the first on
    which all of them were timed.

    Args:
        name: the GEMM's recipe.
        shape: (M, N, K) of the record.
        over: what else to show. Peers and variants by the names that they have in the record; another recipe by its
            own, of which its record of the same shape says how it stood to torch's in its own run. A baseline of
            the recipe is left out where the record was taken without variants (`bench` with `own=False`).
        dtype: of the record.
        majors: of the record; the first that the recipe takes if left out.
        root: of the records; results/ if left out.

    Raises:
        UnknownRecipe: there is no such recipe.
        ValueError: `over` names what was not timed.
    """
    recipe = catalog.find(name)
    over, timed = list(over), _timed(recipe, shape, dtype, majors, root)
    if not timed:
        return Gain(NOT_MEASURED_ON_A_GPU, None)
    found = next((record for record in timed if None not in _speeds(over, record, recipe, root).values()), timed[0])
    asked = _speeds(over, found, recipe, root)
    speeds = {each: speed for each, speed in asked.items() if speed is not None}
    if untimed := [each for each in asked if each not in speeds]:
        raise ValueError(f"over: got {untimed[0]!r}; needed what was timed: {', '.join(found['peers'])}")
    standard, ours = recipe.product.standard(recipe), found["figures"]["ratio"]
    size = " x ".join(map(str, found["shape"]))
    lead = max(speeds.keys() & variants(found).keys(), key=speeds.__getitem__, default="")
    lead, fastest = (lead, speeds[lead]) if lead and round(speeds[lead] / ours, 2) > 1 else ("", ours)
    against = {_called(each): speed for each, speed in speeds.items() if each != lead}
    against |= ({"its default": ours} if lead else {}) | {_called(standard): 1.0}
    ratios = [f"**{fastest / speed:.2f}** times as fast as {each}" for each, speed in against.items()]
    day = found["date"].split()[0]
    where = ", ".join(filter(None, (found["device"], size, found.get("majors"), dtype, day)))
    who = f"this kernel as {_called(lead)}" if lead else "this kernel"
    said = f"Measured ({where}), {who} is {_listed(ratios)}."
    if any("/" in each and each not in found["peers"] for each in speeds):
        said += " Kernels of other pages were timed in runs of their own, each next to torch's."
    bars = [draw.Bar(size, each, speed, note=f"{speed:.2f}") for each, speed in speeds.items()]
    bars += [draw.Bar(size, "ours", ours, note=f"{ours:.2f}"), draw.Bar(size, standard, 1.0, note="1")]
    title = f"{recipe.name}, {dtype}, {found['device']}"
    unit, colours = f"speed, {standard} = 1", coloured(bar.name for bar in bars)
    picture = draw.bar_chart(bars, unit, title, ratios=False, meaning="longer is faster", colours=colours)
    return Gain(said, picture)


class Idea(NamedTuple):
    """Speed-up of a step by its idea, and the GPU that timed both."""

    times: float
    device: str


def idea(recipe: Recipe, dtype: str = "bfloat16", root: Path | None = None, device: str = "") -> Idea | None:
    """Compare a step's fastest kernel with what it `pays` over, at its shape; None where no GPU timed both as they are.

    Args:
        device: the GPU to prefer; else it is the first that timed both.
    """
    found = _timed(recipe, recipe.pays["at"], dtype, None, root) if recipe.pays else []
    for record in sorted(found, key=lambda r: r["device"] != device):
        if speed := _speed(recipe.pays["over"], record, root):
            own = (figures["ratio"] for name, figures in variants(record).items() if name != recipe.pays["over"])
            return Idea(record["figures"]["ratio"] / speed / min((1.0, *own)), record["device"])
    return None


def step_table(name: str, predicted: float, counted: Mapping[str, float], root: Path | None = None) -> str:
    """A step next to what it `pays` over, as markdown: the gain and the clocks of a k-tile, as counted and as timed.

    Args:
        name: the step's recipe.
        predicted: how many times as fast it should be.
        counted: the clocks that a k-tile should take of an SM, by recipe.
        root: of the records; results/ if left out.
    """
    before, rows = catalog.find(name).pays["over"], []
    for r in records.select(name, "timed", None, root):
        if before in r["peers"] and not records.is_stale(r):
            taken = {before: r["peers"][before]["median_ms"], name: r["figures"]["median_ms"]}
            measured = {each: k_tile_clocks(each, r, ms) for each, ms in taken.items()}
            clocks = (f"{counted[each]:.0f} / {found:.0f}" if found else "" for each, found in measured.items())
            where = [r["device"], " x ".join(map(str, r["shape"])), r["dtype"]]
            rows.append([*where, f"{predicted:.2f}x", f"{taken[before] / taken[name]:.2f}x", *clocks])
    of_both = (f"k-tile of `{each}`, clocks: counted / measured" for each in (before, name))
    header = ["device", "M x N x K", "dtype", f"gain over `{before}`, predicted", "measured", *of_both]
    return table(header, rows, right=4) if rows else NOT_MEASURED_ON_A_GPU


def k_tile_clocks(name: str, record: Record, milliseconds: float) -> float | None:
    """Clocks of an SM for one k-tile of a recipe, at the median clock of the run; None where that is not known.

    All SMs are taken to be busy all the time, so what the last wave leaves idle counts too.
    """
    sms, clock = SMS.get(record["device"]), (record.get("gpu") or {}).get("clock_mhz")
    if not sms or not clock:
        return None
    config = catalog.load(name).CONFIG
    tile = config.tile_m, config.tile_n, config.tile_k
    k_tiles = math.prod(-(-size // each) for size, each in zip(record["shape"], tile, strict=True)) / sms
    return milliseconds * 1e-3 * clock * 1e6 / k_tiles


def variants(record: Record) -> dict[str, Any]:
    """The figures of a recipe's own kernels next to which a record was taken, by name.

    Not those of torch, of QuACK, of a ceiling or of another recipe; no baseline, for it lacks the recipe's idea; and
    none that does more than a product, for which torch stands beside it under its name: "torch.addmm (add_bias)".
    """
    torchs = [name for name in record["peers"] if name.startswith("torch")]
    others = {*torchs, QUACK, ceilings.PEER, *catalog.find(record["recipe"]).baselines}

    def is_own(name: str) -> bool:
        does_more = any(each.endswith((f"({name})", f", {name}")) for each in torchs)
        return name not in others and "/" not in name and not does_more

    return {name: figures for name, figures in record["peers"].items() if is_own(name)}


def recorded(name: str, shape: Sequence[int], dtype: str = "bfloat16", root: Path | None = None) -> str:
    """Return what the first GPU has of a GEMM at a shape, in a line: device, date, time, rate, and ours next to
    torch's.

    Raises:
        UnknownRecipe: there is no such recipe.
    """
    recipe = catalog.find(name)
    timed = _timed(recipe, shape, dtype, None, root)
    if not timed:
        return "no GPU has timed this kernel as it is"
    found, figures = timed[0], timed[0]["figures"]
    where = f"{found['device']}, {found['date'].split()[0]}, {' x '.join(map(str, found['shape']))}, {dtype}"
    return f"{where}: {spread(figures)}, {figures['ratio']:.3f} times as fast as {recipe.product.standard(recipe)}"


def spread(figures: dict[str, Any]) -> str:
    """A time and its rate: "212.4 µs (206.1 to 219.2), 647 TFLOP/s"."""
    return f"{times_in_us(figures, ' µs')}, {figures['tflops']:.0f} TFLOP/s"


def _timed(recipe: Recipe, shape: Sequence[int], dtype: str, majors: str | None, root: Path | None) -> list[Record]:
    """The current records of a shape, the first GPU's first."""
    wanted = recipe.told_apart(majors or recipe.majors[0])
    found = [r for r in records.select(recipe.name, "timed", dtype, root) if r.get("majors") == wanted]
    return [r for r in found if tuple(r["shape"] or ()) == tuple(shape) and not records.is_stale(r)]


def _speeds(over: list[str], found: Record, recipe: Recipe, root: Path | None) -> dict[str, float | None]:
    """The speeds of those of `over` that a record can be compared with: a baseline may be missing."""
    asked = [each for each in over if each in found["peers"] or each not in recipe.baselines]
    return {each: _speed(each, found, root) for each in asked}


def _speed(each: str, found: Record, root: Path | None) -> float | None:
    """Return how many times as fast as torch's one of `over` was: torch's time over its own, both of one run.

    Another recipe's run is one on the same GPU. None: there is none.
    """
    if peer := found["peers"].get(each):
        return found["figures"]["ratio"] / peer["ratio"]
    others = _timed(catalog.find(each), found["shape"], found["dtype"], None, root) if "/" in each else []
    return next((r["figures"]["ratio"] for r in others if r["device"] == found["device"]), None)


def _called(peer: str) -> str:
    """A peer's name in a sentence: another recipe is a link to its page."""
    return f"[`{peer}`](../{peer}.ipynb)" if "/" in peer else f"`{peer}`"


def _listed(parts: list[str]) -> str:
    return ", ".join(parts[:-1]) + (" and " if len(parts) > 1 else "") + parts[-1]
