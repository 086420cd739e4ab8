"""Swizzle<B,M,S> as wiring: which address bits are XORed into which."""

from __future__ import annotations

from collections.abc import Mapping

from cookbook.arguments import checked
from cookbook.draw import svg
from cookbook.swizzle import Swizzle

__all__ = ["swizzle_bits"]

_W, _H, _LEFT = 46.0, 26.0, 84.0
_COLOURS = {"yyy": svg.GROUPS[1], "zzz": svg.GROUPS[0], "base": "empty", "other": "empty"}


def part_of(swizzle: Swizzle, bit: int) -> str:
    """ "yyy" (read), "zzz" (changed), "base" (the M lowest, kept together) or "other"."""
    if swizzle.yyy >> bit & 1:
        return "yyy"
    if swizzle.zzz >> bit & 1:
        return "zzz"
    return "base" if bit < swizzle.base else "other"


def _box(swizzle: Swizzle, bit: int, x: float, y: float, side: str, said: str, size: float) -> str:
    part = part_of(swizzle, bit)
    ink = "soft" if part in ("base", "other") else svg.ON_COLOUR
    return svg.cell(x, y, _W, _H, said, _COLOURS[part], ink, size, side=side, bit=bit, part=part)


def _wire(swizzle: Swizzle, bit: int, x: dict[int, float], top: float, bottom: float, level: int) -> list[str]:
    """From the yyy bit that is XORed into zzz bit `bit`: down, across, and into the plus above the result."""
    source = bit + swizzle.shift
    y = top + 14 + 12 * level
    start, end = x[source] + 6, x[bit]
    return [
        svg.line(start, top, start, y, "ink", 1.5),
        svg.line(start, y, end, y, "ink", 1.5),
        svg.group([svg.text(end, y, "⊕", 15, "ink")], xor=f"{source}->{bit}"),
        svg.line(end, y + 6, end, bottom, "ink", 1.5),
    ]


def _fields(fields: Mapping[str, int], x: dict[int, float], n: int, y: float) -> list[str]:
    parts, low = [], 0
    for name, bits in fields.items():
        high = min(low + bits, n) - 1
        if high < low:
            break
        left, right = x[high] - _W / 2 + 3, x[low] + _W / 2 - 3
        parts.append(svg.line(left, y, right, y, "soft", 2))
        parts.append(svg.group([svg.text((left + right) / 2, y - 9, name, 11, "soft")], field=name))
        low = high + 1
    return parts


@checked
def swizzle_bits(
    swizzle: Swizzle, n: int | None = None, fields: Mapping[str, int] | None = None, title: str | None = None
) -> svg.Picture:
    """The bits of an offset before (top) and after (bottom), highest on the left, and the XORs between.

    Args:
        swizzle: S<B,M,S>.
        n: how many bits to draw; those of the swizzle's period if left out.
        fields: what groups of bits mean in your layout, name -> how many bits, lowest first, such as
            {"byte": 2, "column": 3, "row": 3}.
        title: a title of your own.
    """
    if not isinstance(swizzle, Swizzle):
        raise TypeError(f"swizzle: got {type(swizzle).__name__}; needed a cookbook.swizzle.Swizzle")
    needed = (swizzle.yyy | swizzle.zzz | 1).bit_length()
    n = max(needed, swizzle.base) if n is None else n
    if not needed <= n <= 32:
        raise ValueError(f"n: got {n}; needed {needed} to 32 bits for {swizzle!r}")
    x = {bit: _LEFT + (n - bit - 0.5) * _W for bit in range(n)}
    top = 76.0 + (22 if fields else 0)
    bottom = top + _H + 34 + 12 * swizzle.bits
    parts = _fields(fields or {}, x, n, top - 22)
    parts += [svg.text(x[bit], top - 9, bit, 10, "soft") for bit in range(n)]
    parts += [svg.text(_LEFT - 10, y + _H / 2, name, 11, "ink", "end") for y, name in ((top, "in"), (bottom, "out"))]
    changed = [bit for bit in range(n) if swizzle.zzz >> bit & 1]
    for bit in range(n):
        parts.append(_box(swizzle, bit, x[bit] - _W / 2, top, "in", part_of(swizzle, bit), 10))
        said = f"b{bit}^b{bit + swizzle.shift}" if bit in changed else f"b{bit}"
        parts.append(_box(swizzle, bit, x[bit] - _W / 2, bottom, "out", said, min(11, _W / len(said) / 0.66)))
        if bit in changed:
            parts.append(svg.line(x[bit], top + _H, x[bit], bottom))
    for level, bit in enumerate(changed):
        parts += _wire(swizzle, bit, x, top + _H, bottom, level)
    masks = f"yyy mask {swizzle.yyy:#x}, zzz mask {swizzle.zzz:#x}, period {swizzle.period}"
    wiring = "; ".join(f"bit {bit} ^= bit {bit + swizzle.shift}" for bit in changed) or "no bit changes"
    title = title or f"{swizzle!r}: {wiring}"
    return svg.picture(_LEFT + n * _W + 16, bottom + _H + 16, title, f"{wiring}. {masks}.", parts, {44: masks})
