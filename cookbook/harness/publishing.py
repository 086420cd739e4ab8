"""What is published, all of it from recipes/, notebooks/ and results/: tables, recipe pages, README's blocks.

    python -m cookbook.harness.publishing notebooks [NAME ...] [--check]   notebooks/ from recipes/
    python -m cookbook.harness.publishing readme [--check]      the generated blocks of README.md
    python -m cookbook.harness.publishing pages                 docs/recipes/ (the site's hook calls this too)

No figure is typed by hand anywhere: a figure on a page is in a table that one of these functions wrote.
"""

from __future__ import annotations

import argparse
import difflib
import math
import re
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from cookbook import draw
from cookbook.harness import catalog, ceilings, notebooks, records, transposing
from cookbook.harness.benching import QUACK, TORCH
from cookbook.harness.catalog import Recipe
from cookbook.harness.records import Record

NOT_MEASURED = "*Not measured yet.*"
_GENERATED = "<!-- {name}:{edge} -->"


# --- tables ---------------------------------------------------------------------------------------------------


def table(header: list[str], rows: list[list[str]], right: int = 1) -> str:
    """A markdown table whose columns from number `right` on are set flush right."""
    rule = ["---" if column < right else "---:" for column in range(len(header))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, rule, *rows))


def recipes_table(link: Callable[[Recipe], str]) -> str:
    """The recipes in reading order; `link` gives the address behind a recipe's name."""
    rows = [
        [f"[`{r.name}`]({link(r)})", r.claim, ", ".join(r.dtypes), " ".join(r.targets), _runs_on(r)]
        for r in catalog.recipes()
    ]
    return table(["recipe", "claim", "dtypes", "compiles for", "runs on"], rows, right=5)


def _runs_on(recipe: Recipe) -> str:
    return recipe.runs_on.replace("+", " and later")


def _shape(record: Record) -> str:
    return " x ".join(map(str, record["shape"])) if record["shape"] else "many shapes"


PEERS = (TORCH, QUACK, ceilings.PEER, transposing.COPY, transposing.TORCH)
MANY = 8  # more of a recipe's own variants than this have a table to themselves, and no bars


def _peer_names(timed: list[Record]) -> tuple[list[str], list[str]]:
    """Who was timed beside ours: (what stands in the table of ours, a recipe's own variants if they are many)."""
    names = list(dict.fromkeys(name for record in timed for name in record["peers"]))
    own = [name for name in names if name not in PEERS and "/" not in name]
    return ([name for name in names if name not in own], own) if len(own) > MANY else (names, [])


def _timed_of(record: Record, majors: bool) -> list[str]:
    return [_shape(record), *([record.get("majors", "")] if majors else []), record["dtype"]]


def _timed_row(record: Record, peers: list[str], majors: bool) -> list[str]:
    ours, key, row = record["figures"], _rate(record)[0], _timed_of(record, majors)
    row += [f"{ours['median_ms']:.4g} ({ours['min_ms']:.4g} to {ours['max_ms']:.4g})", f"{ours[key]:.0f}"]
    for name in peers:
        peer = record["peers"].get(name)
        row.append(f"{peer[key]:.0f} ({peer['ratio']:.3f})" if peer else "not timed")
    return row


def _rate(record: Record) -> tuple[str, str]:
    """Under which key a timed record says its work a second, and the unit."""
    return ("tflops", "TFLOP/s") if "tflops" in record["figures"] else ("gbps", "GB/s")


def _timed_tables(timed: list[Record]) -> str:
    peers, own = _peer_names(timed)
    unit, sizes = _rate(timed[0])[1], "M x N x K"[: 4 * len(timed[0]["shape"]) - 3]
    majors = any(record.get("majors") for record in timed)  # else they go without saying
    header = [sizes, *(["majors"] if majors else []), "dtype", "ours, ms (min to max)", f"ours, {unit}"]
    header += [f"{name}, {unit} (ours / it)" for name in peers]
    timed = sorted(timed, key=lambda r: (r["dtype"], math.prod(r["shape"]), r["shape"], r.get("majors", "")))
    of = len(_timed_of(timed[0], majors))
    shown = table(header, [_timed_row(record, peers, majors) for record in timed], right=of)
    several = [record for record in timed if record["peers"].keys() & set(own)]
    if several:
        rows = [_timed_of(record, majors) + _variants_row(record, own) for record in several]
        shown += f"\n\nEach variant by name, {unit}:\n\n{table([*header[:of], *own], rows, right=of)}"
    return shown


def _variants_row(record: Record, own: list[str]) -> list[str]:
    key, found = _rate(record)[0], record["peers"]
    return [f"{found[name][key]:.0f}" if name in found else "not timed" for name in own]


def _host_line(timed: list[Record]) -> str:
    """What a call takes of the host beside its peers, from the newest record that knows; "" if none does."""
    timed = [r for r in timed if records.has_host_times(r["figures"])]
    known = [r for r in timed if not records.host_is_stale(r)]
    if not known:
        return "What a call takes of the host has not been timed since the host's code changed." if timed else ""
    newest = max(known, key=lambda r: r["date"])
    costs = {"ours": newest["figures"], **newest["peers"]}
    said = [f"{who} {f['host_us']:.1f} ({f['host_new_us']:.1f})" for who, f in costs.items() if "host_us" in f]
    return f"A call takes so many microseconds of the host, with `out` given (without): {', '.join(said)}."


def circumstances(found: list[Record]) -> str:
    """One sentence for each set of circumstances: the device, when, which versions, which inputs."""
    said = []
    for r in found:
        versions = ", ".join(f"{name} {version}" for name, version in r["versions"].items() if version)
        driver = f", driver {r['driver']}" if r.get("driver") else ""
        day = r["date"].split()[0]
        said.append(f"{r['device']}, {day}, inputs {r['distribution']}; {versions}{driver}.")
    return " ".join(dict.fromkeys(said))


def results_table(name: str, dtype: str | None = None, root: Path | None = None) -> str:
    """What was timed of a recipe, as markdown: current records, then stale ones under a line that says so.

    Args:
        name: a recipe's name.
        dtype: only this one (torch's name); all if left out.
        root: the folder of the records; results/ if left out.
    """
    name = catalog.find(name).name
    timed = [r for r in records.select(name, "timed", dtype, root) if r["shape"]]
    old = [r for r in timed if records.is_stale(r)]
    current = [r for r in timed if r not in old]
    parts = [_timed_tables(current), _host_line(current), circumstances(current)] if current else [NOT_MEASURED]
    if old:
        if not current:
            parts = ["*The code as it is now has not been timed.*"]
        parts += ["**Stale: measured on an earlier version of the code.**", _timed_tables(old), circumstances(old)]
    return "\n\n".join(part for part in parts if part)


def beside_tn(name: str, root: Path | None = None) -> str:
    """How each layout of a GEMM's operands stands to `tn` and to torch.matmul, as markdown: of the current records.

    Args:
        name: the name of a recipe that takes operands of several majors.
        root: the folder of the records; results/ if left out.
    """
    timed = [r for r in records.select(catalog.find(name).name, "timed", None, root) if not records.is_stale(r)]
    timed = sorted(timed, key=lambda r: (r["device"], r["dtype"], math.prod(r["shape"]), r["shape"]))
    tn = {(r["device"], r["dtype"], *r["shape"]): r["figures"] for r in timed if r["majors"] == "tn"}
    rows = []
    for r in timed:
        own = tn.get((r["device"], r["dtype"], *r["shape"]))
        ratio = f"{own['median_ms'] / r['figures']['median_ms']:.3f}" if own else "not timed"
        rows.append([r["device"], _shape(r), r["dtype"], r["majors"], ratio, f"{r['figures']['ratio']:.3f}"])
    header = ["device", "M x N x K", "dtype", "majors", "times its tn", "times torch.matmul"]
    return table(header, rows, right=4) if rows else NOT_MEASURED


def limits_table(name: str, root: Path | None = None) -> str:
    """What limits a GEMM, as markdown: what each of its current records says; stale ones are only named.

    Args:
        name: a recipe's name.
        root: the folder of the records; results/ if left out.
    """
    from cookbook.harness import limits

    found = records.select(catalog.find(name).name, records.LIMITS, None, root)
    current = [record for record in found if not records.is_stale(record)]
    parts = []
    for record in current:
        parts.append(f"**{' '.join(filter(None, (_shape(record), record.get('majors'), record['dtype'])))}**")
        for columns, own in ((limits.SUSTAINED, False), (limits.PROFILED, True)):
            header, rows = limits.rows(record, columns, own)
            parts += [table(["variant" if own else "variant or peer", *header], rows)] if header else []
        parts += [limits.of_the_gpu(record), circumstances([record])]
    if found and not current:
        return "*What limits the code as it is now has not been measured.*"
    return "\n\n".join(part for part in parts if part) or NOT_MEASURED


def checked_table(name: str, root: Path | None = None) -> str:
    """What the records say about a recipe at each level that needs a GPU, as markdown."""
    name = catalog.find(name).name
    rows = [_checked_row(level, records.select(name, level, None, root)) for level in records.LEVELS]
    return table(["level", "recorded", "on", "date"], rows, right=4)


def _checked_row(level: str, found: list[Record]) -> list[str]:
    current = [r for r in found if not records.is_stale(r)]
    if not current:
        return [level, "stale: the code has changed since" if found else "not measured", "", ""]
    failed = sum(r["status"] != "passed" for r in current)
    status = f"{failed} of {len(current)} failed" if failed else f"passed ({len(current)})"
    devices, days = ({r[key].split()[0] if key == "date" else r[key] for r in current} for key in ("device", "date"))
    return [level, status, ", ".join(sorted(devices)), ", ".join(sorted(days))]


def results_chart(name: str, root: Path | None = None) -> draw.Picture | None:
    """The current timed records of a recipe as bars, or None if there is none."""
    recipe = catalog.find(name)
    timed = [r for r in records.select(recipe.name, "timed", None, root) if r["shape"] and not records.is_stale(r)]
    if not timed:
        return None
    timed = [r for r in timed if r["dtype"] == timed[0]["dtype"]]
    bars = [bar for record in timed for bar in _bars(record)]
    title = f"{recipe.name}, {timed[0]['dtype']}, {timed[0]['device']}"
    standard = next(iter(timed[0]["peers"]), None)
    return draw.bar_chart(bars, unit=_rate(timed[0])[1], title=title, baseline=standard)


def _bars(record: Record) -> list[draw.Bar]:
    key = _rate(record)[0]
    _, own = _peer_names([record])
    everyone = {"ours": record["figures"], **{name: f for name, f in record["peers"].items() if name not in own}}
    return [
        draw.Bar(
            " ".join(word for word in (_shape(record), record.get("majors")) if word),
            name,
            f[key],
            *(round(f[key] * f["median_ms"] / f[e], 2) for e in ("max_ms", "min_ms")),
        )
        for name, f in everyone.items()
    ]


# --- README ---------------------------------------------------------------------------------------------------


def readme_blocks() -> dict[str, str]:
    """The generated blocks of README.md by name."""
    from cookbook.harness import bench_pages

    return {"recipes": recipes_table(lambda r: f"recipes/{r.name}.py"), "results": bench_pages.short()}


def with_blocks(text: str, blocks: dict[str, str]) -> str:
    """`text` with what stands between `<!-- name:begin -->` and `<!-- name:end -->` replaced.

    Raises:
        ValueError: a block's marks are not there, once each and in order.
    """
    for name, content in blocks.items():
        begin, end = (_GENERATED.format(name=name, edge=edge) for edge in ("begin", "end"))
        if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
            raise ValueError(f"text: got no single pair of {begin} and {end}, needed one for the block {name!r}")
        before, rest = text.split(begin)
        text = f"{before}{begin}\n{content}\n{end}{rest.split(end)[1]}"
    return text


def update_readme(check: bool, path: Path | None = None) -> bool:
    """Writes README's generated blocks, or with `check` only compares; whether it was in step before."""
    path = path or catalog.recipes_root().parent / "README.md"
    old = path.read_text(encoding="utf-8")
    new = with_blocks(old, readme_blocks())
    if not check and new != old:
        path.write_text(new, encoding="utf-8")
    return new == old


# --- recipe pages -----------------------------------------------------------------------------------------------


def fence(content: str, language: str) -> str:
    """A fenced block, its fence longer than any run of backticks inside."""
    marks = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", content)), default=0))
    return f"{marks}{language}\n{content.rstrip()}\n{marks}"


def _folded(title: str, content: str) -> str:
    """`content` behind a line that opens it."""
    return f'??? abstract "{title}"\n\n' + "\n".join(f"    {line}" if line else "" for line in content.split("\n"))


def figure(svg: str) -> str:
    """An SVG document as one block of HTML: markdown must see no blank line in it."""
    return '<figure class="picture">' + re.sub(r"\s*\n\s*", " ", svg.strip()) + "</figure>"


def _output(output: Any) -> str:
    if output.output_type == "stream":
        return fence(output.text, "text")
    data = output.get("data", {})
    if "image/svg+xml" in data:
        return figure("".join(data["image/svg+xml"]))
    if "text/markdown" in data:
        return "".join(data["text/markdown"])
    if "text/html" in data:
        return '<div class="output">' + re.sub(r"\s*\n\s*", " ", "".join(data["text/html"])) + "</div>"
    return fence("".join(data.get("text/plain", "")), "text")


def _live(name: str) -> dict[str, Callable[[], str]]:
    """What cells that call these functions show: results/ as it is now, not as it was when the notebook ran."""
    from cookbook.harness import study_tables

    made: dict[str, Callable[[str], str]] = {"results_table(": _measured}
    made |= {"limits_table(": limits_table, "beside_tn(": beside_tn}
    if catalog.find(name).kind == "study":
        made |= {
            "counted_table(": study_tables.counted_table,
            "experiment_table(": study_tables.experiment_report,
            "ceiling_table(": ceilings.ceiling_report,
        }
    return {call: partial(shown, name) for call, shown in made.items()}


def _cell(cell: Any, live: dict[str, Callable[[], str]]) -> list[str]:
    if cell.cell_type == "markdown":
        source = re.sub(r"\]\(([\w/.]+)\.ipynb\)", r"](\1.md)", cell.source)  # another recipe: its page
        return [source.replace("](../../docs/", "](../../")]  # the site's pages lie in docs/recipes/<track>/
    if not cell.source.strip():
        return []
    code = fence(cell.source, "python")
    if "lab" in cell.metadata.get("tags", []):
        code = _folded("The code of this step", code)
    now = [shown() for call, shown in live.items() if call in cell.source]
    return [code, *(now or map(_output, cell.outputs))]


def _measured(name: str) -> str:
    chart = results_chart(name)
    return results_table(name) + (f"\n\n{figure(chart.svg)}" if chart else "")


def _facts(recipe: Recipe) -> str:
    stem = recipe.name.split("/")[1]
    rows = [
        ["data path", recipe.path or "see below"],
        ["dtypes", ", ".join(recipe.dtypes) or "none of its own"],
        *([["majors", ", ".join(recipe.majors)]] if len(recipe.majors) > 1 else []),
        ["compiles for", " ".join(recipe.targets) or "nothing: it has no kernel"],
        ["runs on", _runs_on(recipe)],
        ["download", f"[{stem}.py]({stem}.py), [{stem}.ipynb]({stem}.ipynb)"],
        ["copy without the lab", f"`cookbook copy {recipe.name} my_{stem}.py`"],
    ]
    return table(["recipe", f"`{recipe.name}`"], rows, right=2)


def _diff(recipe: Recipe) -> str:
    base = catalog.find(recipe.builds_on)
    texts = [catalog.without_lab(r.file.read_text(encoding="utf-8")).splitlines() for r in (base, recipe)]
    lines = difflib.unified_diff(*texts, base.name, recipe.name, lineterm="", n=2)
    return _folded(f"All changes from {base.name}", fence("\n".join(lines), "diff"))


def page(name: str) -> str:
    """A recipe's page as markdown, from its executed notebook and the records.

    Raises:
        notebooks.OutOfStep: the notebook is not the recipe's.
    """
    recipe = catalog.find(name)
    live = _live(recipe.name)
    measured = live["results_table("]()
    cells = notebooks.read(recipe.name).cells
    body = [part for cell in cells for part in _cell(cell, live)]
    if body and body[0].startswith("# "):
        body[0] = body[0].partition("\n")[2].strip()
    parts = [f"# {recipe.title}", f"*{recipe.claim}*", _facts(recipe), *body]
    if recipe.kind != "study" and measured not in body:
        parts += ["## Measured", measured]
    if recipe.kind != "study":
        parts += ["## Recorded checks", checked_table(recipe.name)]
    if recipe.builds_on:
        parts += [f"## What changed from {recipe.builds_on}", _diff(recipe)]
    return "\n\n".join(parts) + "\n"


def write_pages(docs: Path | None = None) -> list[Recipe]:
    """Writes docs/recipes/<track>/<name>.md with the .py and .ipynb it offers beside it; files that would not change
    are left alone, so that a server that watches them does not build for ever."""
    docs = docs or catalog.recipes_root().parent / "docs"
    found = catalog.recipes()
    for recipe in found:
        path = docs / "recipes" / f"{recipe.name}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, page(recipe.name))
        for source in (recipe.file, notebooks.notebook_path(recipe.name)):
            copy = path.with_suffix(source.suffix)
            if not copy.exists() or copy.read_bytes() != source.read_bytes():
                shutil.copyfile(source, copy)
    for stray in (docs / "recipes").rglob("*.md"):
        if stray.relative_to(docs / "recipes").with_suffix("").as_posix() not in {r.name for r in found}:
            stray.unlink()
    return found


def _write(path: Path, text: str) -> None:
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


# --- command line -----------------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> int:
    """The command line in the module's text; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m cookbook.harness.publishing")
    parser.add_argument("what", choices=("notebooks", "readme", "pages"))
    parser.add_argument("name", nargs="*", help="with notebooks: only these recipes")
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 if something is out of step")
    given = parser.parse_args(argv)
    if given.what == "notebooks":
        return 1 if notebooks.main(given.check, given.name) else 0
    if given.what == "pages":
        sys.stdout.write(f"{len(write_pages())} pages written\n")
        return 0
    in_step = update_readme(given.check)
    sys.stdout.write("README.md: " + ("in step\n" if in_step else "out of step\n" if given.check else "rewritten\n"))
    return 1 if given.check and not in_step else 0


if __name__ == "__main__":
    sys.exit(main())
