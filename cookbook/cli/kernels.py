"""`cookbook check my_kernel.py` and `cookbook check --run script.py`: kernels that are no recipes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand

from cookbook.cli.console import say, show, show_json

__all__ = ["RunsTheRest", "Wanted", "check_files", "run_script"]

RUN = "--run"


class RunsTheRest(TyperCommand):
    """A command in which all that stands behind `--run` is a script's, its options too."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Options behind `--run` are none of this command's."""
        if RUN in args:
            place = args.index(RUN) + 1
            args = [*args[:place], "--", *args[place:]]
        return super().parse_args(ctx, args)


class Wanted(NamedTuple):
    """Files that a command is to write besides its report."""

    json: bool = False
    sarif: Path | None = None
    timeline: Path | None = None


def check_files(files: Sequence[str], targets: Sequence[str], pattern: str, wants: Wanted) -> int:
    """Check the cases of files; the exit status.

    Args:
        targets: compile targets in place of those that the tables name; none: those.
        pattern: a part of the names of the cases wanted; "": all.
    """
    from dataclasses import replace

    from cookbook.check import kernels

    wanted = []
    for name in files:
        if not Path(name).is_file():
            raise typer.BadParameter(f"NAME: got {name}; needed a recipe's name, or a file that exists")
        try:
            wanted += kernels.cases_of(Path(name))
        except kernels.NoTable as error:
            say(str(error))
            return kernels.NOT_ASKED
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
    if not (chosen := [case for case in wanted if pattern in case.name]):
        names = ", ".join(case.name for case in wanted)
        raise typer.BadParameter(f"-k: got {pattern!r}; needed a part of one of {names}")
    reports = []
    for case in (replace(case, arch=target or case.arch) for case in chosen for target in targets or [""]):
        try:
            reports.append(kernels.check(case))
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
    return _tell(reports, wants)


def run_script(names: Sequence[str], targets: Sequence[str], wants: Wanted) -> int:
    """Run a script, and check what it gives to CuTe; the exit status."""
    from contextlib import redirect_stdout
    from sys import stderr

    from cookbook.check.kernels import NOT_ASKED, watching

    if not names or not Path(names[0]).is_file():
        raise typer.BadParameter(f"{RUN}: got {names[0] if names else 'none'}; needed a script that exists")
    if len(targets) > 1:
        raise typer.BadParameter(f"--target: got {', '.join(targets)}; needed one at most with {RUN}")
    with redirect_stdout(stderr):  # results alone go to stdout
        found = watching.run(Path(names[0]), names[1:], (*targets, "")[0], say)
    if found.known:
        say(f"{found.known} checked before, found right and not followed again")
    if not found.reports and not found.known:
        say(f"{RUN}: got {names[0]}, which gave nothing to cute.compile; needed a kernel")
        return NOT_ASKED
    return _tell(found.reports, wants)


def _tell(reports: Iterable[Any], wants: Wanted) -> int:
    from cookbook.check import kernels

    reports = list(reports)
    if wants.sarif is not None:
        with _written("--sarif", wants.sarif):
            wants.sarif.write_text(json.dumps(kernels.sarif(reports), indent=1) + "\n", encoding="utf-8")
    if wants.timeline is not None:
        _draw(reports, wants.timeline)
    if wants.json:
        show_json({"status": kernels.status(reports), "kernels": [report.to_json() for report in reports]})
    else:
        for report in reports:
            show(str(report))
    return kernels.status(reports)


def _draw(reports: list[Any], place: Path) -> None:
    """The orders that lead to what was found: the first one to a file .svg, or each to a folder."""
    from cookbook.check.pipeline.order import picture

    orders = [(report.name, order) for report in reports for order in report.orders]
    if not orders:
        say(f"--timeline: nothing to draw: no fault has an order of steps that leads to it; {place} is not written")
        return
    with _written("--timeline", place):
        if place.suffix == ".svg":
            picture(orders[0][1]).save(place)
            return
        place.mkdir(parents=True, exist_ok=True)
        for number, (name, order) in enumerate(orders, 1):
            picture(order).save(place / f"{re.sub(r'[^A-Za-z0-9_.-]', '_', name)}-{number}.svg")


@contextmanager
def _written(option: str, place: Path) -> Iterator[None]:
    """Say what is wrong with a file that an option names."""
    try:
        yield
    except OSError as error:
        needed = "a file that can be written"
        raise typer.BadParameter(f"{option}: got {place}; needed {needed} ({error.strerror})") from None
