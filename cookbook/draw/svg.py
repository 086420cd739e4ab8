"""The few SVG elements the pictures are made of, as strings, and the class that carries a finished picture.

A picture draws its own card, so it never depends on the page behind it. Colours are given twice: as plain
attributes (the light ones, for viewers that drop style sheets) and as classes, which a style sheet inside the
picture recolours for dark themes, following the reader's system or mkdocs-material's own switch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from cookbook.arguments import checked, shown

__all__ = ["Picture", "picture"]

FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
LARGEST = 10_000_000  # units of a picture
CHAR_WIDTH = 0.62  # of the font size: the widest of the fonts above

# One hue per group of four banks (16 bytes); all light enough for dark text, so they serve both themes.
GROUPS = ("#8ecae6", "#ffb703", "#95d5b2", "#f4a3a3", "#cdb4db", "#dbe64c", "#c8ced6", "#d4a373")
ON_COLOUR = "#14171a"
CONFLICT = "#d62839"
ON_CONFLICT = "#ffffff"

_LIGHT = {"card": "#ffffff", "ink": "#1c2024", "soft": "#5a6470", "line": "#c3cad2", "empty": "#eef1f4"}
_DARK = {"card": "#1e2127", "ink": "#e8eaed", "soft": "#a4adb8", "line": "#4a515b", "empty": "#2b3038"}


def _theme(selector: str, colours: dict[str, str]) -> str:
    rules = [f"{selector} .f-{name}{{fill:{value}}}" for name, value in colours.items()]
    rules += [f"{selector} .s-{name}{{stroke:{value}}}" for name, value in colours.items()]
    return "".join(rules)


def _style() -> str:
    return (
        _theme(".ckd", _LIGHT)
        + "@media (prefers-color-scheme:dark){"
        + _theme(".ckd", _DARK)
        + "}"
        + _theme("[data-md-color-scheme=default] .ckd", _LIGHT)
        + _theme("[data-md-color-scheme=slate] .ckd", _DARK)
    )


def _paint(kind: str, colour: str) -> str:
    """`fill` or `stroke` attributes: a theme name becomes a class with its light value, anything else is kept."""
    if colour in _LIGHT:
        return f'{kind}="{_LIGHT[colour]}" class="{kind[0]}-{colour}"'
    return f'{kind}="{colour}"'


def _data(data: dict[str, object]) -> str:
    return "".join(f" data-{name.replace('_', '-')}={quoteattr(str(value))}" for name, value in data.items())


def num(value: float) -> str:
    """A coordinate with at most two decimals and no trailing zeros."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def rect(x: float, y: float, width: float, height: float, fill: str, **data: object) -> str:
    """A rounded rectangle. `fill` is a colour or one of the theme's names; `data` becomes data-* attributes."""
    box = f'x="{num(x)}" y="{num(y)}" width="{num(width)}" height="{num(height)}" rx="2"'
    return f"<rect {box} {_paint('fill', fill)}{_data(data)}/>"


def text(
    x: float, y: float, content: object, size: float = 12, fill: str = "ink", anchor: str = "middle", bold: bool = False
) -> str:
    """One line of text whose middle height is `y`."""
    weight = ' font-weight="600"' if bold else ""
    place = f'x="{num(x)}" y="{num(y)}" dy="0.35em" font-size="{num(size)}" text-anchor="{anchor}"'
    return f"<text {place}{weight} {_paint('fill', fill)}>{escape(str(content))}</text>"


def line(x1: float, y1: float, x2: float, y2: float, stroke: str = "line", width: float = 1) -> str:
    """A straight line."""
    ends = f'x1="{num(x1)}" y1="{num(y1)}" x2="{num(x2)}" y2="{num(y2)}"'
    return f'<line {ends} stroke-width="{num(width)}" {_paint("stroke", stroke)}/>'


def frame(x: float, y: float, width: float, height: float, stroke: str, **data: object) -> str:
    """A frame on the inner edge of a box, to mark a cell on top of its fill.

    Of the theme's colours it gets a dark line inside: cells are light in both themes, and so is ink on a dark card.
    """
    made = _outline(x, y, width, height, 1, 2.5, stroke, **data)
    return made + (_outline(x, y, width, height, 2.5, 1, ON_COLOUR) if stroke in _LIGHT else "")


def _outline(x: float, y: float, width: float, height: float, inset: float, thick: float, stroke: str, **data) -> str:
    sides = (num(width - 2 * inset), num(height - 2 * inset))
    box = f'x="{num(x + inset)}" y="{num(y + inset)}" width="{sides[0]}" height="{sides[1]}" rx="2"'
    return f'<rect {box} fill="none" stroke-width="{num(thick)}" {_paint("stroke", stroke)}{_data(data)}/>'


def path(points: Iterable[tuple[float, float]], stroke: str, width: float) -> str:
    """A line through points. `stroke` is a colour or one of the theme's names."""
    through = " ".join(f"{num(x)},{num(y)}" for x, y in points)
    return f'<polyline points="{through}" fill="none" stroke-width="{num(width)}" {_paint("stroke", stroke)}/>'


def group(elements: Iterable[str], **data: object) -> str:
    """Elements that belong together, such as a cell and its label."""
    return f"<g{_data(data)}>{''.join(elements)}</g>"


def cell(
    x: float,
    y: float,
    width: float,
    height: float,
    label: object,
    fill: str,
    ink: str = ON_COLOUR,
    size: float = 12,
    **data: object,
) -> str:
    """A filled box with a centred label, in one group that carries the data attributes."""
    box = rect(x + 0.75, y + 0.75, width - 1.5, height - 1.5, fill)
    return group([box, text(x + width / 2, y + height / 2, label, size, ink)], **data)


def text_width(content: object, size: float = 12) -> float:
    """An upper estimate of how wide a line of text is, in the picture's units."""
    return len(str(content)) * CHAR_WIDTH * size


def legend(kinds: Mapping[str, str]) -> list[str]:
    """A square of each colour with its name, under the title."""
    parts, x = [], 16.0
    for kind, colour in kinds.items():
        parts.append(rect(x, 38, 12, 12, colour))
        parts.append(text(x + 18, 44, kind, 11, "soft", "start"))
        x += text_width(kind, 11) + 40
    return parts


@checked
@dataclass(frozen=True)
class Picture:
    """A finished picture: a whole SVG document in `svg`. Notebooks show it; `save` writes it to a file."""

    svg: str

    def _repr_svg_(self) -> str:
        return self.svg

    def __str__(self) -> str:
        return self.svg

    @checked
    def save(self, path: str | Path) -> Path:
        """Writes the picture as UTF-8. `path` must end in `.svg`; returns it as a Path."""
        path = Path(path)
        if path.suffix != ".svg":
            raise ValueError(f"path: got {str(path)!r}; needed a name that ends in .svg")
        path.write_text(self.svg + "\n", encoding="utf-8")
        return path


@checked
def picture(
    width: float,
    height: float,
    title: str,
    description: str,
    elements: Iterable[str],
    notes: dict[float, str] | dict[int, str],
) -> Picture:
    """Puts elements on a card under a visible title, with a text for readers who do not see it.

    The card is `width` by `height` units, wider if the title or a note needs it; `notes` are lines of text by their
    height. The document's ids come from its content, so several fit on one page and a picture made
    twice is the same text."""
    for name, extent in (("width", width), ("height", height)):
        if not 0 <= extent <= LARGEST:
            raise ValueError(f"{name}: got {shown(extent)}; needed 0 to {LARGEST} units")
    width = max(width, text_width(title, 14) + 32, *(text_width(note, 11) + 32 for note in notes.values()))
    body = "".join([*elements, *(text(16, y, note, 11, "soft", "start") for y, note in notes.items())])
    key = hashlib.sha256((title + description + body).encode()).hexdigest()[:10]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="ckd" role="img" viewBox="0 0 {num(width)} {num(height)}" '
        f'width="{num(width)}" height="{num(height)}" style="max-width:100%;height:auto" '
        f'font-family="{FONT}" aria-labelledby="t{key} d{key}">'
        f'<title id="t{key}">{escape(title)}</title><desc id="d{key}">{escape(description)}</desc>'
        f"<style>{_style()}</style>"
    )
    card = f'<rect width="{num(width)}" height="{num(height)}" rx="8" {_paint("fill", "card")}/>' + text(
        16, 22, title, 14, anchor="start", bold=True
    )
    return Picture(head + card + body + "</svg>")
