"""`cookbook check my_kernel.py` and `cookbook check --run script.py`: kernels that are no recipes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

from cookbook.cli.console import say, show, show_json

__all__ = ["RunsTheRest", "check_files", "run_script"]

RUN = "--run"


class RunsTheRest(TyperCommand):
    """A command in which all that stands behind `--run` is a script's, its options too."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Options behind `--run` are none of this command's."""
        if RUN in args:
            place = args.index(RUN) + 1
            args = [*args[:place], "--", *args[place:]]
        return super().parse_args(ctx, args)


def check_files(
    files: Sequence[str], targets: Sequence[str], pattern: str, as_json: bool, sarif_file: Path | None
) -> int:
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
    return _tell(reports, as_json, sarif_file)


def run_script(names: Sequence[str], targets: Sequence[str], as_json: bool, sarif_file: Path | None) -> int:
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
    return _tell(found.reports, as_json, sarif_file)


def _tell(reports: Iterable[Any], as_json: bool, sarif_file: Path | None) -> int:
    from cookbook.check import kernels

    reports = list(reports)
    if sarif_file is not None:
        try:
            sarif_file.write_text(json.dumps(kernels.sarif(reports), indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            needed = "a file that can be written"
            raise typer.BadParameter(f"--sarif: got {sarif_file}; needed {needed} ({error.strerror})") from None
    if as_json:
        show_json({"status": kernels.status(reports), "kernels": [report.to_json() for report in reports]})
    else:
        for report in reports:
            show(str(report))
    return kernels.status(reports)
