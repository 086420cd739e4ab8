"""Markdown that several pages are made of: tables, fences, figures, and where a record comes from."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from cookbook.measure.records import Record

LEAST_TEXT = 9.5  # pixels: what is smaller cannot be read on a phone
_TEXT_SIZES, _WIDTH = re.compile(r'font-size="([\d.]+)"'), re.compile(r'<svg[^>]*? width="([\d.]+)"')

COLUMNS = 10  # of times: a screen of 1440 pixels has no room for more beside the navigation
NOT_MEASURED, NOT_MEASURED_ON_A_GPU = "*Not measured yet.*", "*Not measured on a GPU yet.*"
Laid = Callable[[Mapping[str, str]], str]  # lays out what is shown of each GPU: `by_gpu` or `tabs`
_BAR = re.compile(r"(?<!\\)\|")  # that ends a cell of a table


def table(header: list[str], rows: list[list[str]], right: int = 1) -> str:
    """A markdown table whose columns from number `right` on are set flush right. A `|` in a cell does not end it."""
    rule = ["---" if column < right else "---:" for column in range(len(header))]
    lines = ([_BAR.sub(r"\|", cell) for cell in cells] for cells in (header, rule, *rows))
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def fitting(header: list[str], rows: list[list[str]], about: int = 1) -> str:
    """`table` with its first `about` columns flush left; if it has more than COLUMNS, with rows and columns exchanged.

    Exchanged, each further column is a row, and the first `about` cells of a row head its column. A cell that all rows
    share moves to the corner. After COLUMNS the table goes on below.
    """
    if len(header) <= COLUMNS:
        return table(header, rows, right=about)
    most = COLUMNS - 1
    each = math.ceil(len(rows) / math.ceil(len(rows) / most))
    return "\n\n".join(_exchanged(header, rows[first : first + each], about) for first in range(0, len(rows), each))


def _exchanged(header: list[str], rows: list[list[str]], about: int) -> str:
    columns = list(zip(*rows, strict=True))
    shared = [place for place in range(1, about) if len(set(columns[place])) == 1]
    corner = [rows[0][place] if place in shared else header[place] for place in range(about)]
    heads = [" ".join(row[place] for place in range(about) if place not in shared).strip() for row in rows]
    body = [[name, *cells] for name, cells in zip(header[about:], columns[about:], strict=True)]
    return table([", ".join(filter(None, corner)), *heads], body)


def filled(header: list[str], rows: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    """The columns of a table in which any row says something."""
    places = [place for place in range(len(header)) if any(row[place] for row in rows)]
    return [header[place] for place in places], [[row[place] for place in places] for row in rows]


def wrapped(content: str) -> str:
    """A table in which lines of code may break between words."""
    return f'<div class="wrapped" markdown="1">\n\n{content}\n\n</div>'


def fence(content: str, language: str) -> str:
    """A fenced block, its fence longer than any run of backticks inside."""
    marks = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", content)), default=0))
    return f"{marks}{language}\n{content.rstrip()}\n{marks}"


def figure(svg: str) -> str:
    """An SVG document as one block of HTML: markdown must see no blank line in it.

    `--least` is the width in pixels at which its smallest text is LEAST_TEXT high: on a screen that is narrower the
    figure scrolls in its own box and does not shrink."""
    flat = re.sub(r"\s*\n\s*", " ", svg.strip())
    sizes, width = _TEXT_SIZES.findall(flat), _WIDTH.match(flat)
    least = f' style="--least:{float(width[1]) * LEAST_TEXT / min(map(float, sizes)):.0f}px"' if sizes and width else ""
    return f'<figure class="picture"{least}>{flat}</figure>'


def by_gpu(shown: Mapping[str, str]) -> str:
    """Return what is shown of each GPU; where there are several, a line that lists them, then each under its name."""
    if len(shown) < 2:
        return "".join(shown.values())
    listed = f"Below, one after the other: {', '.join(shown)}."
    return "\n\n".join([listed, *(f"**GPU: {gpu}**\n\n{content}" for gpu, content in shown.items())])


def tabs(shown: Mapping[str, str]) -> str:
    """Return what is shown of each GPU as tabs of the site, the first one open; one alone is no tab."""
    if len(shown) < 2:
        return "".join(shown.values())
    return "\n\n".join(f'=== "{gpu}"\n\n{indented(content)}' for gpu, content in shown.items())


def indented(content: str) -> str:
    """`content` as the site has it inside a tab, or behind a line that opens it."""
    return "\n".join(f"    {line}" if line else "" for line in content.split("\n"))


def circumstances(found: list[Record]) -> str:
    """One sentence for each set of circumstances: the device, on which days, which inputs, which versions."""
    days: dict[tuple[str, str], dict[str, None]] = {}
    for r in found:
        versions = ", ".join(f"{name} {version}" for name, version in r["versions"].items() if version)
        driver = f", driver {r['driver']}" if r.get("driver") else ""
        said = f"inputs {r['distribution']}; {versions}{driver}."
        days.setdefault((r["device"], said), {})[r["date"].split()[0]] = None
    return " ".join(f"{device}, {', '.join(sorted(on))}, {said}" for (device, said), on in days.items())


def times_in_us(figures: Mapping[str, Any], unit: str = "") -> str:
    """A recorded time, its fastest and its slowest round, in microseconds: "212.4 (206.1 to 219.2)"."""
    median, least, most = (in_us(figures[key]) for key in ("median_ms", "min_ms", "max_ms"))
    return f"{median}{unit} ({least} to {most})"


def in_us(milliseconds: float) -> str:
    """A recorded time in microseconds, to four digits: "8.712", "212.4", "12,350"."""
    return f"{float(f'{1000 * milliseconds:.4g}'):,.10g}"
