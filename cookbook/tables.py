"""Tables of the command line: recipes, reports, records, diagnoses, as rich renderables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from cookbook.harness.catalog import Recipe
    from cookbook.harness.checking import Level, Report
    from cookbook.harness.doctor import Diagnosis
    from cookbook.harness.freshness import Verdict

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


SIMULATED = "the layouts, simulated (not the kernel's own coordinates)"  # what level "model" is


def coloured(status: str) -> str:
    """A status in the colour that it has in every table."""
    return f"[{COLOURS[status]}]{status}[/]"


def of_recipes(recipes: Iterable[Recipe]) -> Table:
    """`cookbook list`."""
    table = _table("recipe", "what it shows", "targets", "runs on")
    for recipe in recipes:
        table.add_row(f"[bold]{recipe.name}[/]", escape(recipe.claim), " ".join(recipe.targets), recipe.runs_on)
    return table


def of_reports(reports: Iterable[Report]) -> Table:
    """`cookbook check`: one line per recipe and level, lines that say the same made one."""
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


def describe(level: Level) -> str:
    """A level's figures in words: what failed comes first, where it was recorded comes last."""
    if level.status in ("failed", "not checked"):
        return level.reason
    words = WORDS[level.level](level.figures)
    when = f" ({level.device}, {level.date} UTC)" if level.date else f" ({level.device})" if level.device else ""
    return f"{words}{when}" + ("; the code has changed since" if level.status == "stale" else "")


def of_records(records: Iterable[dict[str, Any]], is_stale: Any) -> Table:
    """`cookbook results`."""
    from cookbook.harness.records import figures_of

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


def of_limits(records: Iterable[dict[str, Any]]) -> list[Table]:
    """`cookbook limits`: two tables a record, what each sustains, and what ncu finds of our own variants."""
    from cookbook.harness import limits

    made = []
    for r in records:
        of = " ".join(word for word in (r.get("majors"), r["dtype"], "x".join(map(str, r["shape"]))) if word)
        for columns, own in ((limits.SUSTAINED, False), (limits.PROFILED, True)):
            header, rows = limits.rows(r, columns, own)
            if header:
                table = _table(f"{r['recipe']} {of}", *header)
                for cells in rows:
                    table.add_row(*map(escape, cells))
                made.append(table)
    return made


def of_diagnoses(diagnoses: Iterable[Diagnosis]) -> Table:
    """`cookbook doctor`."""
    table = _table("what", "status", "found", "means", "mend")
    for d in diagnoses:
        table.add_row(d.what, coloured(d.status), escape(d.found), escape(d.means), escape(d.mend))
    return table


def of_recipe(recipe: Recipe, code: str) -> Table:
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
        "code hash": code[:16],
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


def _layout(figures: dict[str, Any]) -> str:
    """The findings by what they look at: `a.bijective, b.bijective` is `bijective: a b`. Of a study, its facts."""
    if "facts" in figures:
        return f"{len(figures['facts'])} facts: {', '.join(figures['facts'])}"
    subjects: dict[str, list[str]] = {}
    for name in figures:
        subject, _, what = name.rpartition(".")
        subjects.setdefault(what, []).append(subject)
    return "; ".join(f"{what}: {' '.join(filter(None, found))}" for what, found in subjects.items())


def _model(figures: dict[str, Any]) -> str:
    if "mismatches" in figures:
        return f"{SIMULATED}: every element where it belongs"
    return f"{SIMULATED}: integers exact, normals {figures['relative_error']:.0e}"


def _compiled(figures: dict[str, Any]) -> str:
    instructions = ", ".join(f"{count} {name}" for name, count in figures["instructions"].items())
    smem = f"{figures['smem_bytes'] / 1024:.0f} of {figures['smem_limit'] // 1024} KiB"
    return f"{figures['registers']} registers, {figures['spills']} spilled, {smem}; {instructions}"


def _pipeline(f: dict[str, Any]) -> str:
    each = f"{f['problems']} problems, {f['warps']} warps, {f['barriers']} mbarriers"
    return f"{each}: {f['steps']} steps, in any order"


def _ran(figures: dict[str, Any]) -> str:
    if "variants" in figures:
        return f"{figures['shapes']} shapes, bit for bit, by {' '.join(figures['variants'])}"
    if "worst_error" not in figures:  # of a recipe that only moves bytes: how many runs of each of its kernels
        runs = ", ".join(f"{count} of {kernel}" for kernel, count in figures.items() if isinstance(count, int))
        return f"bit for bit: {runs}"
    ratio = figures["worst_ratio"]
    beside = f", {ratio:.3f} of torch.matmul's at worst" if ratio else ""
    by = f", by each of {', '.join(figures['by'])}" if "by" in figures else ""
    return f"{figures['shapes']} shapes{by}; error {figures['worst_error']:.1e}{beside}"


def _timed(figures: dict[str, Any]) -> str:
    peers = figures.get("peers", {})
    ratios = ", ".join(f"{peer['ratio']:.3f} of {name}" for name, peer in peers.items())
    spread = f"{figures['min_ms']:.4g}-{figures['max_ms']:.4g}"
    host = {"ours": figures, **peers} if "host_us" in figures else {}
    calls = ", ".join(f"{who} {each['host_us']:.1f}" for who, each in host.items() if "host_us" in each)
    calls = calls or figures.get("host", "")
    return f"{figures['median_ms']:.4g} ms ({spread}), {rate(figures)}; {ratios}" + (calls and f"; us a call: {calls}")


def rate(figures: dict[str, Any]) -> str:
    """A timing's work a second, with its unit."""
    return f"{figures['tflops']:.0f} TFLOP/s" if "tflops" in figures else f"{figures['gbps']:.0f} GB/s"


def _counted(figures: dict[str, Any]) -> str:
    """Figures by instruction, as `counting.compare` gives them, in wavefronts of one execution; or an experiment's."""
    if figures and all("read_bytes" in f for f in figures.values()):
        return "read from memory: " + ", ".join(f"{f['read_bytes'] / 1e9:.2f} GB {name}" for name, f in figures.items())
    each = [f"{f['wavefronts'] / f['executed']:.3g} for {name}" for name, f in figures.items()]
    return f"wavefronts: {', '.join(each)}; {sum(f['excess'] for f in figures.values())} in excess"


def _sanitized(figures: dict[str, Any]) -> str:
    from cookbook.harness import counting

    found = {tool: figures[tool] for tool in counting.TOOLS}
    found["racecheck"] = counting.hazards(figures) or figures["racecheck"]
    each = ", ".join(f"{tool} {number}" for tool, number in found.items())
    return f"{each} over {len(figures['shapes'])} shapes"


# A level's figures in words.
def _probed(f: dict[str, Any]) -> str:
    return f"{f['mismatches']} of {f['probes']} {f['unit']} differ from the model"


def _ceiling(figures: dict[str, Any]) -> str:
    from cookbook.harness import ceilings

    return ceilings.in_words(figures)


def _limits(figures: dict[str, Any]) -> str:
    from cookbook.harness import limits

    return limits.in_words(figures)


WORDS = {
    "layout": _layout,
    "model": _model,
    "pipeline": _pipeline,
    "compiled": _compiled,
    "ran": _ran,
    "timed": _timed,
    "counted": _counted,
    "sanitized": _sanitized,
    "probed": _probed,
    "ceiling": _ceiling,
    "limits": _limits,
}
