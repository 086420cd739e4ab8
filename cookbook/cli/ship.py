"""The commands that keep compiled kernels: `cookbook build` for another process, `cookbook cache` for this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from cookbook.cli.console import say, show, show_json
from cookbook.cli.usage import DTYPES, Json, OneLine, of_library

cache = typer.Typer(cls=OneLine, no_args_is_help=True, help="Kernels that were compiled before: the disk cache.")


def build(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A GEMM, such as hopper/tuned_gemm.")],
    arch: Annotated[str, typer.Option("--arch", metavar="ARCH", help="What it compiles for: sm_90a, ...")],
    into: Annotated[Path, typer.Option("-o", "--into", metavar="DIR", help="The folder to write to.")],
    dtypes: Annotated[
        list[str] | None, typer.Option("--dtype", metavar="DTYPE", help="bf16 or f16; else both. Repeatable.")
    ] = None,
    majors: Annotated[
        list[str] | None, typer.Option("--major", metavar="MAJORS", help="tn, nt, ...; else all. Repeatable.")
    ] = None,
    variants: Annotated[
        list[str] | None, typer.Option("--variant", metavar="NAME", help="Of the recipe's; else all. Repeatable.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over files that exist.")] = False,
    as_json: Json = False,
) -> None:
    """Compile a GEMM once, with no GPU: a library, a loader that needs no CuTe, and a signature."""
    from cookbook.recipe import build as building
    from cookbook.recipe import catalog

    recipe = catalog.find(name)
    files = building.files_of(recipe, into)
    there = next((file for file in files if file.exists()), None)
    if there and not force:
        raise typer.BadParameter(f"-o: got {into}, which has {there.name}; needed another folder, or --force")
    options = {"arch": "--arch", "dtype": "--dtype", "major": "--major", "variant": "--variant", "name": "NAME"}
    wanted = building.Wanted([DTYPES.get(each, each) for each in dtypes or ()], majors or (), variants or ())
    with of_library(options):
        try:
            made = building.build(recipe.name, arch, into, wanted, say)
        except OSError as error:
            raise typer.BadParameter(f"-o: got {into}; needed a folder to write to ({error})") from None
    if as_json:
        show_json(made._asdict())
        return
    for file in files:
        show(f"{file}  {file.stat().st_size:,} bytes")
    say(f"call it: from {made.loader.stem} import matmul; it needs torch, apache-tvm-ffi and CuTe's runtime library")


@cache.command("list", epilog="Example: cookbook cache list --json")
def list_(as_json: Json = False) -> None:
    """The kernels on disk, with their sizes in bytes, and which ones are the fastest of products that were tuned."""
    from cookbook.ops import tuner
    from cookbook.recipe import cache as disk

    with _folder_of_ours():
        found, where, tuned = disk.entries(), disk.folder(), tuner.answers()
    if as_json:
        kernels = [{"file": entry.path.name, "bytes": entry.size, **(entry.about or {})} for entry in found]
        size = sum(entry.size for entry in found)
        show_json({"folder": where, "bytes": size, "kernels": kernels, "tuned": [each._asdict() for each in tuned]})
        return
    for entry in found:
        show(f"{entry.size:>9,}  {_told(entry.about)}")
    for each in tuned:
        show(f"{min(each.us.values()):>6.1f} us  {tuner.told(each)}")
    say(_total(len(found), sum(entry.size for entry in found)) if where else f"none: {disk.SETTING}=off")


@cache.command("clear", epilog="Example: cookbook cache clear")
def clear(as_json: Json = False) -> None:
    """Delete every kernel on disk, and what was tuned. Kernels are compiled again when they are needed."""
    from cookbook.ops import tuner
    from cookbook.recipe import cache as disk

    with _folder_of_ours():
        found, tuned = disk.clear(), tuner.clear()
    size = sum(entry.size for entry in found)
    if as_json:
        show_json({"folder": disk.folder(), "bytes": size, "deleted": len(found), "tuned": tuned})
    else:
        say(f"deleted {_total(len(found), size)}")


@cache.command("export", epilog="Example: cookbook cache export tuned.json")
def export(into: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")]) -> None:
    """Write what was tuned on this machine to one file, for others of its kind."""
    from cookbook.ops import tuner

    try:
        count = tuner.export(into)
    except OSError as error:
        raise typer.BadParameter(f"FILE: got {into}; needed a file to write ({error})") from None
    say(f"{count} tuned product{'s' * (count != 1)} in {into}")


@cache.command("import", epilog="Example: cookbook cache import tuned.json")
def import_(file: Annotated[Path, typer.Argument(metavar="FILE", help="What `cookbook cache export` wrote.")]) -> None:
    """Use what was tuned on another machine with the same GPU and versions."""
    from cookbook.ops import tuner

    try:
        with of_library({"file": "FILE"}):
            count = tuner.import_(file)
    except OSError as error:
        raise typer.BadParameter(f"FILE: got {file}; needed a file to read ({error})") from None
    say(f"{count} tuned product{'s' * (count != 1)} from {file}")


def _told(about: dict[str, str] | None) -> str:
    """Everything by which two kernels on disk differ."""
    if not about:
        return "damaged: it is not used"
    made = f"source {about['source'][:8]}, CuTe DSL {about['dsl'].split()[0]}"
    pointers = ", ".join(dict.fromkeys(about["pointers"].split(", ")))
    return f"{about['recipe']} ({made})  {about['arch']}  {pointers}  {about['configuration']}"


@contextmanager
def _folder_of_ours() -> Iterator[None]:
    from cookbook.recipe import cache as disk

    try:
        yield
    except OSError as error:
        raise typer.BadParameter(
            f"{disk.SETTING}: got {disk.folder()}; needed a folder to read and write ({error})"
        ) from None


def _total(count: int, size: int) -> str:
    from cookbook.recipe import cache as disk

    return f"{count} kernel{'s' * (count != 1)}, {size:,} bytes, in {disk.folder()}"


def attach(app: typer.Typer) -> None:
    """Puts the commands under `app`."""
    app.command(epilog="Example: cookbook build hopper/tuned_gemm --arch sm_90a --dtype bf16 -o kernels")(build)
    app.add_typer(cache, name="cache")
