"""The multi-stage pipeline of a GEMM's main loop as a timeline."""

from __future__ import annotations

from typing import Any, NamedTuple

from cookbook.arguments import checked, integer
from cookbook.draw import svg
from cookbook.draw.charts import Bar, bar_chart
from cookbook.draw.lanes import Span, lanes

MOST = 10_000  # k tiles, stages, units of time

__all__ = ["Step", "barriers", "pipeline", "schedule", "stages_chart"]


class Step(NamedTuple):
    """One k tile's passage: the stage it uses and when its load and its math start and end, in time units."""

    tile: int
    stage: int
    load_start: int
    load_end: int
    math_start: int
    math_end: int


@checked
def schedule(stages: int, k_tiles: int, load_time: int = 3, math_time: int = 1) -> list[Step]:
    """Return when each k tile is loaded and used.

    Tile i uses stage i mod `stages`. Its load starts as soon as that stage is empty: at once for the first round,
    else when the math on tile i - stages is done. At most one load is issued a time unit, and loads overlap, as
    copies in flight do. The math on tile i waits for its load and for the math before it.

    Args:
        stages: buffers in shared memory, at least 1.
        k_tiles: tiles along K, at least 1.
        load_time: how long a load takes, in time units.
        math_time: how long the math on a tile takes, in time units.
    """
    values = {"stages": stages, "k_tiles": k_tiles, "load_time": load_time, "math_time": math_time}
    for name, value in values.items():
        integer(name, value, at_least=1, at_most=MOST)
    steps: list[Step] = []
    for tile in range(k_tiles):
        empty = steps[tile - stages].math_end if tile >= stages else 0
        issued = steps[-1].load_start + 1 if steps else 0
        load = max(empty, issued)
        math = max(load + load_time, steps[-1].math_end if steps else 0)
        steps.append(Step(tile, tile % stages, load, load + load_time, math, math + math_time))
    return steps


@checked
def pipeline(
    stages: int, k_tiles: int, load_time: int = 3, math_time: int = 1, title: str | None = None
) -> svg.Picture:
    """Producer and consumer over the stages: one row a stage, time to the right, plus a row for the tensor cores.

    It shows who waits for whom (`schedule` says by which rules). The time units are chosen, not measured.

    Takes what `schedule` takes, and a title of your own; at most 32 stages and 64 tiles.
    """
    steps = schedule(stages, k_tiles, load_time, math_time)
    if k_tiles > 64 or stages > 32:
        raise ValueError(f"stages, k_tiles: got {stages}, {k_tiles}; needed at most 32 and 64 to be readable")
    unit, h, left, top = 34.0, 28.0, 104.0, 66.0
    load, math = svg.GROUPS[0], svg.GROUPS[1]
    end = steps[-1].math_end
    parts = []
    y_math = top + stages * h + 10
    rows = {f"stage {stage}": top + stage * h for stage in range(stages)} | {"tensor cores": y_math}
    for name, y in rows.items():
        parts.append(svg.rect(left, y + 1, end * unit, h - 2, "empty"))
        parts.append(svg.text(left - 10, y + h / 2, name, 11, "ink", "end"))
    for s in steps:
        y, of = top + s.stage * h, dict[str, Any](size=11, tile=s.tile, stage=s.stage)
        place = (left + s.load_start * unit, y, (s.load_end - s.load_start) * unit, h)
        parts.append(svg.cell(*place, f"load {s.tile}", load, **of, what="load", start=s.load_start))
        for row, where in ((y, "stage"), (y_math, "math")):
            place = (left + s.math_start * unit, row, (s.math_end - s.math_start) * unit, h)
            parts.append(svg.cell(*place, s.tile, math, **of, what=where, start=s.math_start))
    idle = end - steps[0].math_start - k_tiles * math_time
    notes = {
        44: "blue: load in flight; orange: math reads the stage; gap: empty or waiting",
        y_math + h + 20: f"after the first tile the tensor cores wait {idle} of {end - steps[0].math_start} units",
    }
    description = f"{k_tiles} k tiles through {stages} stages; a load takes {load_time} units, the math {math_time}."
    title = title or f"{stages} stages, {k_tiles} k tiles (chosen time units)"
    return svg.picture(left + end * unit + 16, y_math + h + 38, title, description, parts, notes)


@checked
def barriers(
    stages: int, k_tiles: int, load_time: int = 3, math_time: int = 1, title: str | None = None
) -> svg.Picture:
    """Producer and consumer with the two barriers of each stage, over time.

    The producer waits for a stage's *empty* barrier, then issues its load: TMA's bytes complete the *full* barrier. The
    consumer waits for *full*, multiplies, and arrives at *empty*. The time units are chosen, not measured.

    Takes what `schedule` takes, and a title of your own; at most 8 stages and 24 tiles.
    """
    steps = schedule(stages, k_tiles, load_time, math_time)
    if k_tiles > 24 or stages > 8:
        raise ValueError(f"stages, k_tiles: got {stages}, {k_tiles}; needed at most 8 and 24 to be readable")
    producer, consumer, issued, multiplied = list[Span](), list[Span](), 0, 0
    rows: dict[str, list[Span]] = {"producer": producer, "consumer": consumer, "": []}
    rows |= {f"stage {stage}": [] for stage in range(stages)}
    for s in steps:
        if s.load_start > issued:
            producer.append(Span(issued, s.load_start, f"empty {s.stage}?", "waits at a barrier"))
        producer.append(Span(s.load_start, s.load_start + 1, f"{s.tile}", "issues a load"))
        if s.math_start > multiplied:
            consumer.append(Span(multiplied, s.math_start, f"full {s.stage}?", "waits at a barrier"))
        consumer.append(Span(s.math_start, s.math_end, f"{s.tile}", "multiplies"))
        issued, multiplied = s.load_start + 1, s.math_end
        stage = rows[f"stage {s.stage}"]
        stage.append(Span(s.load_start, s.load_end, f"{s.tile} arrives", "bytes arrive: full is pending"))
        if s.math_start > s.load_end:
            stage.append(Span(s.load_end, s.math_start, "full", "full, and not read yet"))
        stage.append(Span(s.math_start, s.math_end, f"{s.tile}", "multiplies"))
    title = title or f"{stages} stages and their barriers, {k_tiles} k-tiles"
    note = "numbers: k-tiles; a stage is empty in its gaps; chosen time units"
    return lanes(rows, title, "units", note)


@checked
def stages_chart(
    k_tiles: int = 32, load_time: int = 6, math_time: int = 2, most: int = 6, title: str | None = None
) -> svg.Picture:
    """Return how long `k_tiles` k-tiles take with 1 to `most` stages, as `schedule` predicts it, in chosen time units.

    More stages help until the math never waits; from there on they cost shared memory and bring nothing.

    Args:
        k_tiles: tiles along K, as `schedule` has them.
        load_time: how long a load takes, in time units.
        math_time: how long the math on a tile takes, in time units.
        most: the largest number of stages, 1 to 12.
        title: a title of your own.
    """
    integer("most", most, at_least=1, at_most=12)
    ends = [schedule(stages, k_tiles, load_time, math_time)[-1].math_end for stages in range(1, most + 1)]
    named = [f"{stages} stage{'s' if stages > 1 else ''}" for stages in range(1, most + 1)]
    heading = f"{k_tiles} k-tiles; a load takes {load_time} units, the math {math_time}"
    bars = [Bar(heading, name, end) for name, end in zip(named, ends, strict=True)]
    bars.append(Bar(heading, "math alone", k_tiles * math_time))
    return bar_chart(
        bars, "time units", title or "Stages against time, predicted", "math alone", False, "shorter is faster"
    )
