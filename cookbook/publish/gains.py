"""What stands at the top of a GEMM's page: how fast it is next to what a reader would take else, from its records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cookbook import draw
from cookbook.measure import peers, records
from cookbook.measure.records import Record
from cookbook.publish.markdown import NOT_MEASURED_ON_A_GPU
from cookbook.recipe import catalog
from cookbook.recipe.catalog import Recipe

__all__ = ["Gain", "gain", "recorded", "spread"]


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
    """How many times as fast a GEMM is as each of `over` and as torch's own: all speeds in multiples of torch's.

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
    found = _timed(recipe, shape, dtype, majors, root)
    if found is None:
        return Gain(NOT_MEASURED_ON_A_GPU, None)
    standard, ours = peers.standard(recipe), found["figures"]["ratio"]
    asked = [each for each in over if each in found["peers"] or each not in recipe.baselines]
    speeds = {each: _speed(each, found, recipe, dtype, root) for each in asked}
    size = " x ".join(map(str, found["shape"]))
    ratios = [f"**{ours / speed:.2f}** times as fast as {_called(each)}" for each, speed in speeds.items()]
    ratios.append(f"**{ours:.2f}** times as fast as {_called(standard)}")
    day = found["date"].split()[0]
    where = ", ".join(filter(None, (found["device"], size, found.get("majors"), dtype, day)))
    said = f"Measured ({where}), this kernel is {_listed(ratios)}."
    if any("/" in each and each not in found["peers"] for each in speeds):
        said += " Kernels of other pages were timed in runs of their own, each next to torch's."
    bars = [draw.Bar(size, each, speed, note=f"{speed:.2f}") for each, speed in speeds.items()]
    bars += [draw.Bar(size, "ours", ours, note=f"{ours:.2f}"), draw.Bar(size, standard, 1.0, note="1")]
    title = f"{recipe.name}, {dtype}, {found['device']}"
    picture = draw.bar_chart(bars, f"speed, {standard} = 1", title, ratios=False, meaning="longer is faster")
    return Gain(said, picture)


def recorded(name: str, shape: Sequence[int], dtype: str = "bfloat16", root: Path | None = None) -> str:
    """What is recorded of a GEMM at a shape, in a line: device, date, time, rate, and ours next to torch's.

    Raises:
        UnknownRecipe: there is no such recipe.
    """
    recipe = catalog.find(name)
    found = _timed(recipe, shape, dtype, None, root)
    if found is None:
        return "no GPU has timed this kernel as it is"
    figures = found["figures"]
    where = f"{found['device']}, {found['date'].split()[0]}, {' x '.join(map(str, found['shape']))}, {dtype}"
    return f"{where}: {spread(figures)}, {figures['ratio']:.3f} times as fast as {peers.standard(recipe)}"


def spread(figures: dict[str, Any]) -> str:
    """A time and its rate: "0.212 ms (0.206 to 0.219), 647 TFLOP/s"."""
    times = f"{figures['median_ms']:.4g} ms ({figures['min_ms']:.4g} to {figures['max_ms']:.4g})"
    return f"{times}, {figures['tflops']:.0f} TFLOP/s"


def _timed(recipe: Recipe, shape: Sequence[int], dtype: str, majors: str | None, root: Path | None) -> Record | None:
    """The current record of a shape."""
    wanted = recipe.told_apart(majors or recipe.majors[0])
    for record in records.select(recipe.name, "timed", dtype, root):
        same = tuple(record["shape"] or ()) == tuple(shape) and record.get("majors") == wanted
        if same and not records.is_stale(record):
            return record
    return None


def _speed(each: str, found: Record, recipe: Recipe, dtype: str, root: Path | None) -> float:
    """How many times as fast as torch's one of `over` was: torch's time over its own, both of one run."""
    if peer := found["peers"].get(each):
        return found["figures"]["ratio"] / peer["ratio"]
    other = _timed(catalog.find(each), found["shape"], dtype, None, root) if "/" in each else None
    if other is None:
        raise ValueError(f"over: got {each!r}; needed what was timed: {', '.join(found['peers'])}")
    return other["figures"]["ratio"]


def _called(peer: str) -> str:
    """A peer's name in a sentence: another recipe is a link to its page."""
    return f"[`{peer}`](../{peer}.ipynb)" if "/" in peer else f"`{peer}`"


def _listed(parts: list[str]) -> str:
    return ", ".join(parts[:-1]) + (" and " if len(parts) > 1 else "") + parts[-1]
