"""`python -m tools.probes`: run a suite of probes on this machine's GPU, or with --dry-run do without."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cookbook.check.counted import ToolMissing
from cookbook.check.findings import Finding
from cookbook.measure import records
from tools.probes import bound, launch, measure
from tools.probes.measure import Measured, Wrong
from tools.probes.rules import RULES
from tools.records import freshness

console = Console()
COUNTERS = {
    "lines": "by SASS line",
    "launches": "by launch",
    "busy": "by SASS line, many warps at once",
    "fresh": "by SASS line",
}


class Kept(NamedTuple):
    """Where figures go, and where reports come from and go."""

    record: bool
    as_json: bool
    keep: Path | None
    again: Path | None


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    tma: Annotated[
        bool, typer.Option("--tma", help="Load boxes by TMA and compare shared memory byte by byte.")
    ] = False,
    launches: Annotated[
        bool, typer.Option("--launches", help="Count a sample again, each pair a launch, by the SM's own counter.")
    ] = False,
    busy: Annotated[bool, typer.Option("--busy", help="Also show what cp.async takes when many warps copy.")] = False,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Count a random table drawn from this seed, none of it in the other.")
    ] = None,
    forms: Annotated[
        bool, typer.Option("--forms", help="Issue cp.async past L1 in several ways; which count?")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="No GPU: compile every kernel, print predictions.")
    ] = False,
    arch: Annotated[str, typer.Option(help="The target of --dry-run.")] = "sm_90a",
    restamp: Annotated[
        bool, typer.Option("--restamp", help="No GPU: renew records of probes that compile to the same machine code.")
    ] = False,
    record: Annotated[bool, typer.Option("--record", help="Keep the figures in results/.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    keep: Annotated[Path | None, typer.Option(help="Put what ncu reported into this folder.")] = None,
    again: Annotated[Path | None, typer.Option("--from", help="Read such a folder; needs no GPU.")] = None,
) -> None:
    """Wavefronts of shared-memory instructions under ncu against cookbook.banks.

    Exits 1 where they differ, 2 where ncu fails.
    """
    more = [name for name, asked in (("launches", launches), ("busy", busy)) if asked]
    if record and again:
        raise typer.BadParameter("--record with --from: a record is of what was run here")
    if sum((tma, forms, seed is not None, bool(more))) > 1:
        raise typer.BadParameter("--tma, --forms, --seed: one of them, and none with --launches or --busy")
    where = Kept(record, as_json, keep, again)
    try:
        if restamp:
            ok = _restamp()
        elif dry_run:
            ok = _dry_tma(arch) if tma else _dry(arch, "forms" if forms else "lines" if seed is None else "fresh", seed)
        elif tma:
            ok = _tma(where)
        elif forms:
            ok = _forms(where)
        else:
            ok = _count(["lines", *more], where) if seed is None else _count(["fresh"], where, seed)
    except (ToolMissing, Wrong) as error:
        console.print(f"[bold red]{escape(str(error))}[/]")
        raise typer.Exit(2) from None
    raise typer.Exit(0 if ok else 1)


def _restamp() -> bool:
    _compare_probes()
    done = freshness.restamp([record for record in records.read() if record["level"] == records.PROBED])
    for verdict in done.refused:
        console.print(f"{verdict.record['recipe']}: {verdict.status}: {verdict.why}", highlight=False)
    counts = f"{len(done.current)} current, {len(done.renewed)} renewed, {len(done.refused)} refused"
    console.print(counts + (f", {len(done.stamped)} stamped" if done.stamped else ""), highlight=False)
    return not done.refused


def _compare_probes() -> None:
    """Compare records of the probes' kernels too."""
    freshness.use_probes(freshness.Probes(bound.launches, bound.compile_launch, bound.model_hash))


def _dry(arch: str, mode: str, seed: int | None) -> bool:
    from tools.probes import dry

    tables, found = launch.launched(mode, seed or 0), dry.compile_all(arch, mode, seed or 0)
    table = Table("instruction", "pairs", "predicted wavefronts, by how many pairs", "compiled", box=None)
    for pairs, finding in zip(tables, found, strict=True):
        counts = _histogram([pair.predicted for pair in pairs])
        table.add_row(finding.name, str(len(pairs)), _text(counts), _mark(finding))
    console.print(table)
    console.print(f"{sum(map(len, tables))} pairs in {len(found)} kernels for {arch}")
    return all(finding.ok for finding in found)


def _dry_tma(arch: str) -> bool:
    from tools.probes import boxes

    found = boxes.compile_all(arch)
    for finding in found:
        console.print(f"{finding.name:64}{_mark(finding)}")
    console.print(f"{len(found)} boxes compiled for {arch}")
    return all(finding.ok for finding in found)


def _count(modes: Sequence[str], where: Kept, seed: int | None = None) -> bool:
    made, wrong = {}, []
    for mode in modes:
        report = _report(mode, where, seed or 0)
        measured = measure.read(report, mode, seed or 0)
        made[mode] = measure.figures(measured, COUNTERS[mode])
        wrong += report.wrong
        if not where.as_json:
            _print_measured(made[mode], measured)
    for line in wrong if not where.as_json else ():
        console.print(f"wrong value: {escape(line)}", highlight=False)
    kept = made[modes[0]] | {mode: _brief(made[mode]) for mode in modes[1:]} | {"wrong_values": wrong[:40]}
    # What many warps take at once is for the reader: it depends on when global memory answers.
    ok = not wrong and not any(made[mode]["mismatches"] for mode in modes if mode != "busy")
    if seed is None:
        _keep("probes/shared_memory", "uint32", kept, ok, where)
    else:
        _keep("probes/fresh", "uint32", kept, ok, where, {"seed": seed})
    return ok


def _report(mode: str, where: Kept, seed: int = 0) -> measure.Report:
    """Return what ncu said of a mode: now, or then."""
    report = measure.Report.read(where.again, mode) if where.again else measure.profiled(mode, seed)
    if where.keep:
        report.write(where.keep, mode)
    return report


def _forms(where: Kept) -> bool:
    figures = measure.of_forms(_report("forms", where))
    if not where.as_json:
        table = Table("cp.async", "CTAs x warps", *figures["pairs"], title="wavefronts, first and again (predicted)")
        for row in figures["forms"]:
            each = list(zip(row["wavefronts"][::2], row["wavefronts"][1::2], row["predicted"][::2], strict=True))
            told = [f"{first:.4g} {again:.4g} ({said})" for first, again, said in each]
            table.add_row(row["form"], f"{row['ctas']} x {row['warps']}", *told)
        console.print(table)
    _keep("probes/past_l1", "uint32", figures, not figures["mismatches"], where)
    return not figures["mismatches"]


def _brief(figures: dict[str, Any]) -> dict[str, Any]:
    return {key: figures[key] for key in ("probes", "mismatches", "ranges")}


def _tma(where: Kept) -> bool:
    from tools.probes import boxes

    ok = True
    for dtype in boxes.DTYPES:
        figures = boxes.figures(boxes.run(dtype))
        ok &= not figures["mismatches"]
        if not where.as_json:
            console.print(f"{dtype}: {figures['mismatches']} of {figures['probes']} {figures['unit']} differ")
            for line in figures["differ"]:
                console.print(f"  {escape(line)}")
        _keep("probes/tma", dtype, figures, not figures["mismatches"], where)
    return ok


def _keep(suite: str, dtype: str, figures: dict[str, Any], ok: bool, where: Kept, config: Any = None) -> None:
    if where.as_json:
        print(json.dumps({"suite": suite, "dtype": dtype, "passed": ok, "config": config} | figures, indent=1))
    if where.record:
        import torch

        _compare_probes()
        device = torch.cuda.get_device_name()
        made = records.make(
            records.PROBED,
            suite,
            dtype,
            None,
            passed=ok,
            figures=figures,
            device=device,
            config=config,
            distribution="counting",
        )
        stamped, _ = freshness.stamp([made])
        console.print(f"recorded in {records.write(stamped or [made])[0]}", highlight=False)


def _print_measured(figures: dict[str, Any], measured: Sequence[Measured]) -> None:
    table = Table(
        "instruction", "pairs", "differ", "ranges", *RULES, title=f"wavefronts {figures['counter']}", box=None
    )
    for name, row in figures["by_instruction"].items():
        holds = [str(row["rules"][rule]) for rule in RULES]
        table.add_row(name, str(row["pairs"]), str(row["mismatches"]), str(row["ranges"]), *holds)
    console.print(table)
    console.print(
        "ranges: pairs of which cookbook.banks gives the least and the most; by rule: on how many pairs it gives the "
        "count; cookbook.banks is 'phases' but for loads and cp.async"
    )
    for m in (m for m in measured if not m.ok):
        said = f"{m.pair.predicted} to {m.pair.at_most}" if m.pair.at_most > m.pair.predicted else m.pair.predicted
        console.print(f"  {escape(str(m.pair))}: {m.wavefronts:.4g}, predicted {said}", highlight=False)
    told = f"{figures['probes']} pairs, {figures['mismatches']} mismatches, {figures['ranges']} predicted as a range"
    console.print(told)


def _histogram(values: Sequence[int]) -> dict[int, int]:
    return {value: list(values).count(value) for value in sorted(set(values))}


def _text(counts: dict[int, int]) -> str:
    return "  ".join(f"{value}:{count}" for value, count in counts.items())


def _mark(finding: Finding) -> str:
    return f"[green]{escape(finding.detail)}[/]" if finding.ok else f"[bold red]{escape(finding.detail)}[/]"


if __name__ == "__main__":
    sys.exit(app())
