"""Tables of the command line: recipes, reports, records, diagnoses, as rich renderables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from rich.console import Group

    from cookbook.check.levels import Level, Report
    from cookbook.measure.doctor import Diagnosis
    from cookbook.measure.freshness import Verdict
    from cookbook.ops.measuring import Regret
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


_WIDTHS = (11, 8, 30, 23)  # of the columns of `in_short`: 78 with what is between them


def coloured(status: str) -> str:
    """A status in the colour that it has in every table."""
    return f"[{COLOURS[status]}]{status}[/]"


def of_recipes(recipes: Iterable[Recipe]) -> Table:
    """`cookbook list`."""
    table = _table("recipe", "what it shows", "targets", "runs on")
    for recipe in recipes:
        table.add_row(f"[bold]{recipe.name}[/]", escape(recipe.claim), " ".join(recipe.targets), recipe.runs_on)
    return table


def of_regrets(device: str, found: Iterable[Regret]) -> Table:
    """`cookbook bench --regret`: a line for each product on one device."""
    table = _table(f"M x N x K ({device})", "operands", "chosen", "fastest", "regret", "torch.matmul's time / ours")
    for each in found:
        of = "x".join(map(str, each.case.shape)), f"{each.case.majors} {each.case.dtype}", each.chosen, each.best
        table.add_row(*of, f"{each.part:.1%}", f"{each.against_torch:.3f}")
    return table


def of_reports(reports: Iterable[Report]) -> Table:
    """`cookbook check --details`: one line per recipe and level, lines that say the same made one."""
    from cookbook.publish.words import describe

    table = _table("recipe", "level", "of", "status", "figures")
    for number, report in enumerate(reports):
        if number:
            table.add_section()
        alike: dict[tuple[str, str, str], list[Level]] = {}
        for level in report.levels:
            alike.setdefault((level.level, level.status, describe(level)), []).append(level)
        for row, ((level, status, words), levels) in enumerate(alike.items()):
            name = f"[bold]{report.recipe}[/]" if row == 0 else ""
            table.add_row(name, level, _of(levels), coloured(status), escape(words))
    return table


def in_short(reports: Iterable[Report]) -> Group:
    """`cookbook check`: a line a level under the recipe's name, so that two recipes fit a screen; of a level that
    failed, why."""
    from rich.console import Group

    parts: list[Any] = []
    for report in reports:
        table = Table(box=None, show_header=False, pad_edge=False)
        for width in _WIDTHS:
            table.add_column(min_width=width, overflow="fold")
        alike: dict[tuple[str, str], list[Level]] = {}
        for level in report.levels:
            alike.setdefault((level.level, level.status), []).append(level)
        for (level, status), levels in alike.items():
            table.add_row(f"  {level}", coloured(status), escape(_counted(levels)), escape(_where(levels)))
        parts += [f"[bold]{report.recipe}[/]", table]
    return Group(*parts)


def _counted(levels: list[Level]) -> str:
    """How many targets, variants, majors, dtypes and shapes these levels are of, a single one by its name; of those
    that failed, which and why."""
    if levels[0].status == "failed":
        return "\n".join(f"{_of([level])}: {level.reason}" for level in levels)
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


def of_records(records: Iterable[dict[str, Any]], is_stale: Any) -> Table:
    """`cookbook results`."""
    from cookbook.measure.records import figures_of
    from cookbook.publish.words import WORDS

    table = _table("recipe", "level", "of", "status", "figures", "device", "date")
    for r in records:
        shape = "x".join(map(str, r["shape"])) if r["shape"] else ""
        words = WORDS[r["level"]](figures_of(r))
        status = "stale" if is_stale(r) else r["status"]
        of = " ".join(word for word in (r.get("majors"), r["dtype"], shape) if word)
        table.add_row(r["recipe"], r["level"], of, coloured(status), escape(words), r["device"], r["date"])
    return table


def of_verdicts(verdicts: Iterable[Verdict]) -> Table | str:
    """`cookbook results --exact`: what is not current, and why."""
    table = _table("recipe", "level", "of", "status", "why")
    for record, status, why in verdicts:
        words = (record.get("majors"), record["dtype"], "x".join(map(str, record["shape"] or ())))
        of = " ".join(word for word in words if word)
        table.add_row(record["recipe"], record["level"], of, coloured(status), escape(why))
    return table if table.row_count else "every record is of the kernels that are compiled today"


def of_calibration(name: str, found: dict[str, Any]) -> Table:
    """A recipe's figures in use and those measured here, of what `calibration.measure` gave."""
    table = _table(name, "in use", "measured", "meaning")
    for key, each in found["changes"].items():
        table.add_row(key, *(_figure(each[which]) for which in ("in_use", "measured")), each["meaning"])
    return table


def _figure(value: Any) -> str:
    """A number; a sequence, by how many it has of how many kinds."""
    return f"{value:.4g}" if isinstance(value, (int, float)) else f"{len(value)}, of {len(set(value))}"


def of_diagnoses(diagnoses: Iterable[Diagnosis]) -> Table:
    """`cookbook doctor`."""
    table = _table("what", "status", "found", "means", "fix")
    for d in diagnoses:
        table.add_row(d.what, coloured(d.status), escape(d.found), escape(d.means), escape(d.fix))
    return table


def of_recipe(recipe: Recipe, code: str | None) -> Table:
    """`cookbook show`."""
    table = Table.grid(padding=(0, 2))
    instructions = [f"{key}: {' '.join(value)}" for key, value in recipe.instructions.items()]
    rows = {
        "recipe": f"[bold]{recipe.name}[/]",
        "title": escape(recipe.title),
        "claim": escape(recipe.claim),
        "data path": escape(recipe.path),
        "builds on": recipe.builds_on or "nothing",
        "dtypes": " ".join(recipe.dtypes),
        "kind": recipe.kind,
        "majors": " ".join(recipe.majors) if recipe.kind == "gemm" else "",
        "targets": " ".join(recipe.targets),
        "runs on": recipe.runs_on,
        "instructions": "\n".join(instructions),
        "file": str(recipe.file),
        "code hash": (code or "")[:16],
    }
    for key, value in rows.items():
        table.add_row(f"[dim]{key}[/]", value)
    return table


def _table(*columns: str) -> Table:
    from rich import box

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim")
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
