"""The command that begins a recipe."""

from __future__ import annotations

from typing import Annotated

import typer

from cookbook.cli.console import say


def new(
    name: Annotated[str, typer.Argument(metavar="TRACK/NAME", help="The new recipe, such as hopper/my_gemm.")],
    base: Annotated[
        str, typer.Option("--from", help="The GEMM to begin with; the first of the track if left out.")
    ] = "",
) -> None:
    """Begin a recipe: a copy of a GEMM under a new name, and its test. In a checkout only."""
    from cookbook.recipe import new as beginning

    try:
        files = beginning.skeleton(name, base)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    for file, text in files.items():
        file.write_text(text, encoding="utf-8")
        say(f"wrote {file}")
    say(f"next: change one idea in it, then cookbook check {name}, and make site")


def attach(app: typer.Typer) -> None:
    """Puts the command under `app`."""
    app.command(epilog="Example: cookbook new hopper/my_gemm --from hopper/tma_wgmma_gemm")(new)
