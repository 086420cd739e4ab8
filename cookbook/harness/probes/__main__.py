"""`python -m cookbook.harness.probes`: run a suite of probes on this machine's GPU, or with --dry-run do without."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cookbook.harness.counting import ToolMissing
from cookbook.harness.findings import Finding
from cookbook.harness.probes.measure import Measured, Wrong
from cookbook.harness.probes.pairs import pairs
from cookbook.harness.probes.rules import RULES

console = Console()
COUNTERS = {"lines": "by SASS line", "launches": "by launch", "busy": "by SASS line, many warps at once"}
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
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="No GPU: compile every kernel, print predictions.")
    ] = False,
    arch: Annotated[str, typer.Option(help="The target of --dry-run.")] = "sm_90a",
    record: Annotated[bool, typer.Option("--record", help="Keep the figures in results/.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    keep: Annotated[Path | None, typer.Option(help="Put what ncu reported into this folder.")] = None,
    again: Annotated[Path | None, typer.Option("--from", help="Read such a folder; needs no GPU.")] = None,
) -> None:
    """Wavefronts of shared-memory instructions under ncu against cookbook.banks.

    Exits 1 where they differ, 2 where ncu fails.
    """
    modes = ["lines", *(name for name, asked in (("launches", launches), ("busy", busy)) if asked)]
    if record and again:
        raise typer.BadParameter("--record with --from: a record is of what was run here")
    try:
        if dry_run:
            ok = _dry_tma(arch) if tma else _dry(arch)
        else:
            ok = _tma(record, as_json) if tma else _count(modes, record, as_json, keep, again)
    except (ToolMissing, Wrong) as error:
        console.print(f"[bold red]{escape(str(error))}[/]")
        raise typer.Exit(2) from None
    raise typer.Exit(0 if ok else 1)


def _dry(arch: str) -> bool:
    from cookbook.harness.probes import dry

    found = dry.compile_all(arch)
    table = Table("instruction", "pairs", "predicted wavefronts, by how many pairs", "compiled", box=None)
    for finding in found:
        counts = _histogram([p.predicted for p in pairs() if p.instruction.name == finding.name])
        table.add_row(finding.name, str(sum(counts.values())), _text(counts), _mark(finding))
    console.print(table)
    console.print(f"{len(pairs())} pairs in {len(found)} kernels for {arch}")
    return all(finding.ok for finding in found)


def _dry_tma(arch: str) -> bool:
    from cookbook.harness.probes import boxes

    found = boxes.compile_all(arch)
    for finding in found:
        console.print(f"{finding.name:64}{_mark(finding)}")
    console.print(f"{len(found)} boxes compiled for {arch}")
    return all(finding.ok for finding in found)


def _count(modes: Sequence[str], record: bool, as_json: bool, keep: Path | None, again: Path | None) -> bool:
    from cookbook.harness.probes import measure

    made, wrong = {}, []
    for mode in modes:
        report = measure.Report.read(again, mode) if again else measure.profiled(mode)
        if keep:
            report.write(keep, mode)
        measured = measure.read(report, mode)
        made[mode] = measure.figures(measured, COUNTERS[mode])
        wrong += report.wrong
        if not as_json:
            _print_measured(made[mode], measured)
    for line in wrong if not as_json else ():
        console.print(f"wrong value: {escape(line)}", highlight=False)
    kept = made["lines"] | {mode: _brief(made[mode]) for mode in modes[1:]} | {"wrong_values": wrong[:40]}
    # What many warps take at once is for the reader: it depends on when global memory answers.
    ok = not wrong and not any(made[mode]["mismatches"] for mode in modes if mode != "busy")
    _keep("probes/shared_memory", "uint32", kept, ok, record, as_json)
    return ok


def _brief(figures: dict[str, Any]) -> dict[str, Any]:
    return {key: figures[key] for key in ("probes", "mismatches")}


def _tma(record: bool, as_json: bool) -> bool:
    from cookbook.harness.probes import boxes

    ok = True
    for dtype in boxes.DTYPES:
        figures = boxes.figures(boxes.run(dtype))
        ok &= not figures["mismatches"]
        if not as_json:
            console.print(f"{dtype}: {figures['mismatches']} of {figures['probes']} {figures['unit']} differ")
            for line in figures["differ"]:
                console.print(f"  {escape(line)}")
        _keep("probes/tma", dtype, figures, not figures["mismatches"], record, as_json)
    return ok


def _keep(suite: str, dtype: str, figures: dict[str, Any], ok: bool, record: bool, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"suite": suite, "dtype": dtype, "passed": ok} | figures, indent=1))
    if record:
        import torch

        from cookbook.harness import records

        device = torch.cuda.get_device_name()
        made = records.make(
            records.PROBED, suite, dtype, None, passed=ok, figures=figures, device=device, distribution="counting"
        )
        console.print(f"recorded in {records.write([made])[0]}", highlight=False)


def _print_measured(figures: dict[str, Any], measured: Sequence[Measured]) -> None:
    table = Table("instruction", "pairs", "differ", *RULES, title=f"wavefronts {figures['counter']}", box=None)
    for name, row in figures["by_instruction"].items():
        holds = [str(row["rules"][rule]) for rule in RULES]
        table.add_row(name, str(row["pairs"]), str(row["mismatches"]), *holds)
    console.print(table)
    console.print(
        "by rule: on how many pairs it gives the count; cookbook.banks is 'phases' but for loads and cp.async"
    )
    for m in (m for m in measured if not m.ok):
        console.print(f"  {escape(str(m.pair))}: {m.wavefronts:.4g}, predicted {m.pair.predicted}", highlight=False)
    console.print(f"{figures['probes']} pairs, {figures['mismatches']} mismatches")


def _histogram(values: Sequence[int]) -> dict[int, int]:
    return {value: list(values).count(value) for value in sorted(set(values))}


def _text(counts: dict[int, int]) -> str:
    return "  ".join(f"{value}:{count}" for value, count in counts.items())


def _mark(finding: Finding) -> str:
    return f"[green]{escape(finding.detail)}[/]" if finding.ok else f"[bold red]{escape(finding.detail)}[/]"


if __name__ == "__main__":
    sys.exit(app())
