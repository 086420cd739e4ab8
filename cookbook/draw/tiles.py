"""The tiles of a GEMM, one inside the other: the product, a CTA's tile, a warp's part, an instruction."""

from __future__ import annotations

from cookbook.arguments import checked, choice, integer
from cookbook.draw import svg

__all__ = ["gemm_tiles"]

_SIDE, _TOP = 190.0, 92.0  # of the longer side of C, and where C begins
_MOST = 1 << 20
ISSUERS = ("warp", "warpgroup", "CTA")


def _sizes(name: str, sizes: tuple[int, int, int], inside: tuple[int, int, int]) -> None:
    for size, outer in zip(sizes, inside, strict=True):
        integer(name, size, at_least=1, at_most=_MOST)
        if outer % size or outer // size > 64:
            raise ValueError(f"{name}: got {sizes}; needed divisors of {inside}, at most 64 of them in each mode")


@checked
def gemm_tiles(
    mnk: tuple[int, int, int],
    cta: tuple[int, int, int],
    warps: tuple[int, int],
    instruction: tuple[int, int, int],
    title: str | None = None,
    of: str = "warp",
) -> svg.Picture:
    """The product in CTA tiles, a CTA tile in parts of its warps, and such a part in instructions: three panels.

    In the first, the rows of A and columns of B that one CTA needs are in its colour, cut into k-tiles.

    Args:
        mnk: M, N and K of the product.
        cta: rows and columns of C of a CTA, and the depth of a k-tile; divisors of `mnk`.
        warps: how many warps (or warpgroups: `of`) share the CTA's tile, down and across.
        instruction: M, N and K of one MMA instruction.
        title: a title of your own.
        of: what issues an instruction, one of ISSUERS.

    Raises:
        ValueError: a size that does not divide the one outside of it, or more than 64 parts in one mode.
    """
    choice("of", of, ISSUERS)
    for size in mnk:
        integer("mnk", size, at_least=1, at_most=_MOST)
    _sizes("cta", cta, mnk)
    for count in warps:
        integer("warps", count, at_least=1, at_most=64)
    part = (cta[0] // warps[0], cta[1] // warps[1], cta[2])
    if part[0] * warps[0] != cta[0] or part[1] * warps[1] != cta[1]:
        raise ValueError(f"warps: got {warps}; needed divisors of {cta[:2]}")
    _sizes("instruction", instruction, part)
    first, left = _product(mnk, cta)
    low = _TOP + 12 + (mnk[0] + mnk[2]) * _SIDE / max(mnk)
    for outer in (cta, part):
        low = max(low, _TOP + 1.5 * _SIDE * outer[0] / max(outer[:2]))
    second, left = _split(left, cta[:2], part[:2], f"a CTA's tile: {warps[0]} x {warps[1]} {of}s", of)
    many = f"{part[0] // instruction[0]} x {part[1] // instruction[1]}"
    each = f"a {of}'s part: {many} instructions, {cta[2] // instruction[2]} deep"
    third, left = _split(left, part[:2], instruction[:2], each, "instruction")
    title = title or f"{mnk[0]} x {mnk[1]} x {mnk[2]}: CTA {_x(cta)}, {of} {part[0]} x {part[1]}, MMA {_x(instruction)}"
    said = f"{mnk[0] // cta[0]} x {mnk[1] // cta[1]} CTA tiles, {mnk[2] // cta[2]} k-tiles each; {each}."
    return svg.picture(left, low + 32, title, said, [*first, *second, *third], {})


def _x(sizes: tuple[int, ...]) -> str:
    return " x ".join(map(str, sizes))


def _product(mnk: tuple[int, int, int], cta: tuple[int, int, int]) -> tuple[list[str], float]:
    """A on the left, B above, C where they meet, the tile of one CTA in colour; and where the next panel begins."""
    scale = _SIDE / max(mnk)
    (m, n, k), step = (size * scale for size in mnk), [size * scale for size in cta]
    x, y, parts = 40 + k + 12, _TOP + k + 12, []
    down, across = (mnk[0] // cta[0] - 1) // 2, (mnk[1] // cta[1] - 1) // 2
    parts.append(svg.text(16, 64, "the product: C = A B", 12, "ink", "start", bold=True))
    for name, box in (("A", (40, y, k, m)), ("B", (x, _TOP, n, k)), ("C", (x, y, n, m))):
        parts.append(svg.rect(*box, "empty", matrix=name))
    for i in range(mnk[2] // cta[2]):
        parts.append(svg.rect(40 + i * step[2], y + down * step[0], step[2] - 1, step[0], svg.GROUPS[0], k_tile=i))
        parts.append(svg.rect(x + across * step[1], _TOP + i * step[2], step[1], step[2] - 1, svg.GROUPS[0], k_tile=i))
    for i in range(mnk[0] // cta[0] + 1):
        parts.append(svg.line(x, y + i * step[0], x + n, y + i * step[0]))
    for j in range(mnk[1] // cta[1] + 1):
        parts.append(svg.line(x + j * step[1], y, x + j * step[1], y + m))
    parts.append(
        svg.rect(x + across * step[1], y + down * step[0], step[1], step[0], svg.GROUPS[1], cta=f"{down},{across}")
    )
    parts.append(svg.text(40 + k / 2, y + m + 14, f"A: {mnk[0]} x {mnk[2]}", 11, "soft"))
    parts.append(svg.text(x + n / 2, _TOP - 10, f"B: {mnk[2]} x {mnk[1]}", 11, "soft"))
    parts.append(svg.text(x + n / 2, y + m + 14, f"C: {mnk[0]} x {mnk[1]}", 11, "soft"))
    return parts, max(x + n, 16 + svg.text_width("the product: C = A B")) + 48


def _split(
    left: float, outer: tuple[int, ...], inner: tuple[int, ...], heading: str, kind: str
) -> tuple[list[str], float]:
    """A tile cut into parts, the first in colour and with its size; and where the next panel begins."""
    scale = 1.5 * _SIDE / max(outer)
    high, wide = (size * scale for size in inner)
    parts = [svg.text(left, 64, heading, 12, "ink", "start", bold=True)]
    for i in range(outer[0] // inner[0]):
        for j in range(outer[1] // inner[1]):
            fill = svg.GROUPS[1] if i == j == 0 else "empty"
            place = (left + j * wide + 0.5, _TOP + i * high + 0.5, max(wide - 1, 0.5), max(high - 1, 0.5), fill)
            parts.append(svg.rect(*place, part=kind, row=i, col=j))
    words = f"{outer[0]} x {outer[1]}; one {kind}: {inner[0]} x {inner[1]}"
    parts.append(svg.text(left, _TOP + outer[0] * scale + 14, words, 11, "soft", "start"))
    return parts, left + max(outer[1] * scale, svg.text_width(heading), svg.text_width(words, 11)) + 40
