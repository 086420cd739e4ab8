"""A roofline: what a GPU can compute at each ratio of work to bytes, and where measured kernels stand below it."""

from __future__ import annotations

import math
from collections.abc import Mapping

from cookbook.arguments import checked
from cookbook.draw import svg
from cookbook.draw.charts import LINES

__all__ = ["roofline"]

_LEFT, _TOP, _WIDE, _HIGH = 70.0, 86.0, 540.0, 300.0


@checked
def roofline(
    peak: float,
    bandwidth: float,
    points: Mapping[str, tuple[float, float]],
    title: str = "Roofline",
    note: str = "",
) -> svg.Picture:
    """Both axes are logarithmic. Left of the ridge memory bounds the rate, right of it the tensor cores do.

    Args:
        peak: the most that the tensor cores do, in TFLOP/s; measured or as the data sheet has it: say which in `note`.
        bandwidth: of memory, in GB/s.
        points: by name, (FLOP for each byte of memory traffic, TFLOP/s reached); one to five.
        title: the picture's title; say the device here.
        note: a line below the title.

    Raises:
        ValueError: a figure that is not positive and finite, no point, or more than five.
    """
    figures = [("peak", peak), ("bandwidth", bandwidth), *(("points", x) for point in points.values() for x in point)]
    for name, figure in figures:
        if not (math.isfinite(figure) and 1e-6 <= figure <= 1e9):
            raise ValueError(f"{name}: got {figure!r}; needed a figure from 1e-6 to 1e9")
    if not 1 <= len(points) <= len(LINES):
        raise ValueError(f"points: got {len(points)}; needed 1 to {len(LINES)}")
    ridge = peak * 1000 / bandwidth
    xs = [ridge, *(x for x, _ in points.values())]
    low, high = math.floor(math.log2(min(xs))) - 1, math.ceil(math.log2(max(xs))) + 1
    ys = [peak, peak * 2.0**low / ridge, *(y for _, y in points.values())]
    bottom, top = math.floor(math.log2(min(ys))), math.ceil(math.log2(max(ys)))

    def at(x: float, y: float) -> tuple[float, float]:
        across, up = (math.log2(x) - low) / (high - low), (math.log2(y) - bottom) / max(top - bottom, 1)
        return _LEFT + across * _WIDE, _TOP + _HIGH * (1 - up)

    parts = _axes((low, high), (bottom, top), at)
    start = at(2.0**low, peak * 2.0**low / ridge)
    parts.append(svg.path([start, at(ridge, peak), at(2.0**high, peak)], "ink", 2))
    words = f"{peak:g} TFLOP/s; ridge at {ridge:.0f} FLOP a byte"
    parts.append(svg.text(at(2.0**high, peak)[0], at(ridge, peak)[1] - 12, words, 11, "ink", "end"))
    for (name, (x, y)), colour in zip(points.items(), LINES, strict=False):
        px, py = at(x, y)
        mark = [svg.rect(px - 4, py - 4, 8, 8, colour), svg.text(px + 9, py + 3, name, 11, "ink", "start")]
        parts.append(svg.group(mark, point=name, x=f"{x:g}", y=f"{y:g}"))
    said = "; ".join(f"{name}: {y:g} TFLOP/s at {x:g} FLOP a byte" for name, (x, y) in points.items())
    wide = max(_LEFT + _WIDE + 24, *(at(x, y)[0] + svg.text_width(name, 11) + 25 for name, (x, y) in points.items()))
    described = f"Peak {peak:g} TFLOP/s, memory {bandwidth:g} GB/s. {said}"
    return svg.picture(wide, _TOP + _HIGH + 58, title, described, parts, {44: note} if note else {})


def _axes(across: tuple[int, int], up: tuple[int, int], at) -> list[str]:
    parts = [svg.text(_LEFT + _WIDE / 2, _TOP + _HIGH + 38, "FLOP for each byte of memory traffic", 12, "soft")]
    for power in range(across[0], across[1] + 1, max(1, (across[1] - across[0]) // 8)):
        x, y = at(2.0**power, 2.0 ** up[0])
        parts += [svg.line(x, y, x, y + 5), svg.text(x, y + 16, f"{2.0**power:g}", 12, "soft")]
    for power in range(up[0], up[1] + 1, max(1, (up[1] - up[0]) // 6)):
        x, y = at(2.0 ** across[0], 2.0**power)
        parts += [svg.line(x, y, x + _WIDE, y), svg.text(x - 8, y, f"{2.0**power:.4g}", 12, "soft", "end")]
    return [*parts, svg.text(16, _TOP - 22, "TFLOP/s", 12, "soft", "start")]
