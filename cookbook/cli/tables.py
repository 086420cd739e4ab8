"""Tables of the command line: recipes, reports, records, diagnoses, as rich renderables."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markup import escape
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from cookbook.recipe.catalog import front_matter_of

if TYPE_CHECKING:
    from rich.console import Group

    from cookbook.check.levels import Level, Report
    from cookbook.measure.doctor import Diagnosis
    from cookbook.recipe.catalog import Recipe

COLOURS = {
    "passed": "green",
    "ok": "green",
    "recorded": "cyan",
    "stale": "yellow",
    "differs": "bold red",
    "not compared": "yellow",
    "not checked": "yellow",
    "limited": "yellow",
    "failed": "bold red",
    "missing": "bold red",
}


_WIDTHS = (11, 8, 30, 23)  # column widths of `in_short`; 75 with separators, more where a cell needs it


_WORDS = re.compile(r"(?:^\s+)?\S+")  # with the indentation, which stays with the first


class Listing(Table):
    """A table that loses no character: columns wrap between words; where words do not fit, a row becomes lines."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if widths := self._widths(console, options):
            for column, width in zip(self.columns, widths, strict=True):
                column.width = width
            yield from super().__rich_console__(console, options)
        else:
            yield from self._lines(console)

    def _widths(self, console: Console, options: ConsoleOptions) -> list[int]:
        """A width for each column: the longest word at least, the longest line at most; [] where they do not fit."""
        wide = []
        for column in self.columns:
            cells = [*([column.header] if self.show_header else ()), *column.cells]
            lines = [line for cell in cells for line in _text(console, cell).plain.splitlines()]
            words = lines if column.no_wrap else [word for line in lines for word in _WORDS.findall(line)]
            column.width = max(map(cell_len, words), default=0)
            wide.append(max([*map(cell_len, lines), column.min_width or 0]))
        widths = [column.width or 0 for column in self.columns]
        room = options.update(max_width=sum(widths) + options.max_width)
        spare = options.max_width - Measurement.get(console, room, self).maximum
        if spare < 0:
            return []
        while spare and (growing := [n for n, width in enumerate(widths) if width < wide[n]]):
            widths[max(growing, key=lambda n: wide[n] / max(widths[n], 1))] += 1  # that of most lines
            spare -= 1
        return widths

    def _lines(self, console: Console) -> RenderResult:
        """A line a cell under the names of the columns, or a line a row where columns have none."""
        for row in zip(*(column.cells for column in self.columns), strict=True):
            texts = [_text(console, cell) for cell in row]
            if not self.show_header:
                yield _folded(Text("  ").join(text for text in texts if text.plain))
                continue
            for column, text in zip(self.columns, texts, strict=True):
                if text.plain:
                    yield _folded(Text.assemble((f"{_text(console, column.header)}: ", "dim"), text))
            yield Text()


def _text(console: Console, cell: Any) -> Text:
    return cell if isinstance(cell, Text) else console.render_str(cell)


def _folded(text: Text) -> Text:
    """The text as it wraps in a terminal: between words, and within one that is longer than a line."""
    text.overflow, text.no_wrap = "fold", False
    return text


def coloured(status: str) -> str:
    """A status in the colour that it has in every table."""
    return f"[{COLOURS[status]}]{status}[/]"


def of_recipes(recipes: Iterable[Recipe]) -> Listing:
    """`cookbook list`."""
    table = new_table("recipe", "what it shows", "targets", "runs on")
    for recipe in recipes:
        table.add_row(f"[bold]{recipe.name}[/]", escape(recipe.claim), " ".join(recipe.targets), recipe.runs_on)
    return table


def of_reports(reports: Iterable[Report]) -> Group:
    """`cookbook check --details`: one line per recipe and level, lines that say the same made one; why some failed,
    below."""
    from rich.console import Group

    from cookbook.publish.words import describe

    table, reports = new_table("recipe", "level", "of", "status", "figures"), list(reports)
    for number, report in enumerate(reports):
        if number:
            table.add_section()
        alike: dict[tuple[str, str, str], list[Level]] = {}
        for level in report.levels:
            alike.setdefault((level.level, level.status, describe(level)), []).append(level)
        for row, ((level, status, words), levels) in enumerate(alike.items()):
            name = f"[bold]{report.recipe}[/]" if row == 0 else ""
            table.add_row(
                name, level, _of(levels), coloured(status), "see below" if status == "failed" else escape(words)
            )
    below = [(f"{report.recipe} ", report) for report in reports]
    return Group(table, *(line for name, report in below for line in _failures(report, name)))


def in_short(reports: Iterable[Report]) -> Group:
    """`cookbook check`: a line a level under the recipe's name, so that two recipes fit a screen; of a level that
    failed, why, below the table."""
    from rich.console import Group

    parts: list[Any] = []
    for report in reports:
        table = Listing(box=None, show_header=False, pad_edge=False)
        for width in _WIDTHS:
            table.add_column(min_width=width, overflow="fold")
        alike: dict[tuple[str, str], list[Level]] = {}
        for level in report.levels:
            alike.setdefault((level.level, level.status), []).append(level)
        for (level, status), levels in alike.items():
            table.add_row(f"  {level}", coloured(status), escape(_counted(levels)), escape(_where(levels)))
        parts += [f"[bold]{report.recipe}[/]", table, *_failures(report)]
    return Group(*parts)


def _failures(report: Report, name: str = "") -> list[Padding]:
    """Below a table: each failure in the order of the levels, which is from cause to effect, with its whole story."""
    alike: dict[tuple[str, str], list[Level]] = {}
    for level in report.failed:
        alike.setdefault((level.level, level.reason), []).append(level)
    said = [(" ".join(filter(None, (level, _of(found)))), why) for (level, why), found in alike.items()]
    lines = [(n, line) for of, why in said for n, line in enumerate(f"{name}{of}: {why}".splitlines())]
    indents = [len(line) - len(line.lstrip()) + (4 if n else 2) for n, line in lines]
    texts = [_folded(Text(line.strip())) for _, line in lines]
    return [Padding(text, (0, 0, 0, indent), expand=False) for text, indent in zip(texts, indents, strict=True)]


def verdict(report: Report) -> str:
    """Return what a check came to: which levels fail, of how many that were checked, or that all hold."""
    failing = dict.fromkeys(level.level for level in report.failed)
    missing = dict.fromkeys(level.level for level in report.not_checked)
    checked = {level.level for level in report.levels if level.status in ("passed", "failed")}
    rest = f"; not checked here: {', '.join(missing)}" if missing else ""
    if not failing:
        return f"{report.checked}: all that could be checked here holds{rest}"
    fail = "fails" if len(failing) == 1 else "fail"
    return f"{report.checked}: {len(failing)} of {len(checked)} levels {fail}: {', '.join(failing)}{rest}"


def _counted(levels: list[Level]) -> str:
    """Return how many targets, variants, majors, dtypes and shapes these levels are of, a single one by its name."""
    said = []
    for what in ("target", "variant", "majors", "dtype", "shape"):
        found = {getattr(level, what) for level in levels} - {None}
        if what == "target":
            found = {one for several in found for one in several.split("/")}
        if len(found) == 1:
            (only,) = found
            said.append("x".join(map(str, only)) if what == "shape" else only)
        elif found:
            said.append(f"{len(found)} {what}" + ("" if what == "majors" else "s"))
    return ", ".join(said)


def _where(levels: list[Level]) -> str:
    """The devices, each with the last day of what was recorded; why of what was not checked."""
    if levels[0].status == "not checked":
        return "; ".join(dict.fromkeys(level.reason for level in levels))
    last: dict[str, str] = {}
    for level in levels:
        if level.device:
            last[level.device] = max(last.get(level.device, ""), (level.date or "").split(" ")[0])
    return "\n".join(", ".join(filter(None, each)) for each in last.items()) or "this machine"


def of_records(records: Iterable[dict[str, Any]], is_stale: Any) -> Listing:
    """`cookbook results`."""
    from cookbook.measure.records import figures_of
    from cookbook.publish.words import WORDS

    table = new_table("recipe", "level", "of", "status", "figures", "device", "date")
    for r in records:
        shape = "x".join(map(str, r["shape"])) if r["shape"] else ""
        words = WORDS[r["level"]](figures_of(r))
        status = "stale" if is_stale(r) else r["status"]
        of = " ".join(word for word in (r.get("majors"), r["dtype"], shape) if word)
        table.add_row(r["recipe"], r["level"], of, coloured(status), escape(words), r["device"], r["date"])
    return table


def of_calibration(name: str, found: dict[str, Any]) -> Listing:
    """A recipe's figures in use and those measured here, of what `calibration.measure` gave."""
    table = new_table(name, "in use", "measured", "meaning")
    for key, each in found["changes"].items():
        table.add_row(key, *(_figure(each[which]) for which in ("in_use", "measured")), each["meaning"])
    return table


def _figure(value: Any) -> str:
    """A number; a sequence, by how many it has of how many kinds."""
    return f"{value:.4g}" if isinstance(value, (int, float)) else f"{len(value)}, of {len(set(value))}"


def of_diagnoses(diagnoses: Iterable[Diagnosis]) -> Listing:
    """`cookbook doctor`."""
    table = new_table("what", "status", "found", "means", "fix")
    for d in diagnoses:
        table.add_row(d.what, coloured(d.status), escape(d.found), escape(d.means), escape(d.fix))
    return table


def of_recipe(recipe: Recipe, code: str | None) -> Table:
    """`cookbook show`."""
    table = Listing.grid(padding=(0, 2))
    instructions = [f"{key}: {' '.join(value)}" for key, value in recipe.instructions.items()]
    rows = {
        "recipe": f"[bold]{recipe.name}[/]",
        "title": escape(recipe.title),
        "claim": escape(recipe.claim),
        "data path": escape(recipe.path),
        "builds on": recipe.builds_on or "nothing",
        "dtypes": " ".join(recipe.dtypes),
        "kind": recipe.kind,
        "majors": " ".join(recipe.majors) if "majors" in front_matter_of(recipe.kind).keys else "",
        "targets": " ".join(recipe.targets),
        "runs on": recipe.runs_on,
        "instructions": "\n".join(instructions),
        "file": escape(str(recipe.file)),
        "code hash": (code or "")[:16],
    }
    for key, value in rows.items():
        if value:
            table.add_row(f"[dim]{key}[/]", value)
    return table


def new_table(*columns: str) -> Listing:
    from rich import box

    table = Listing(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim")
    for column in columns:
        table.add_column(column, no_wrap=column in ("recipe", "level", "status"), overflow="fold")
    return table


def _of(levels: Iterable[Level]) -> str:
    """The targets, variants, majors, dtypes and shapes of these levels, each named once."""
    said: list[dict[str, None]] = [{}, {}, {}, {}, {}]
    for level in levels:
        shape = "x".join(map(str, level.shape)) if level.shape else None
        for names, name in zip(said, (level.target, level.variant, level.majors, level.dtype, shape), strict=True):
            names.update({name: None} if name else {})
    return " ".join(name for names in said for name in names)
