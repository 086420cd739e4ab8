"""Tries every recipe under several versions of CuTe DSL, Python and torch: `python -m tools.versions`; no GPU.

    python -m tools.versions                                   each of VERSIONS, under this Python and its packages
    python -m tools.versions NAME ...                          some recipes only: those that have changed
    python -m tools.versions --python 3.10 --torch 2.6.0       another Python, with torch and all else of its own

Each version gets an environment in a temporary folder, which pip fills from the package index: its wheels alone, before
the packages of this environment, or for another Python all that the cookbook needs. There every recipe is loaded, the
facts of a study are computed, and each kernel is compiled with its default configuration: for each target, but under
another Python for the first. What comes out is kept in results/versions.json, which the docs show and `cookbook doctor`
reads.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

from cookbook.check import compiled
from cookbook.publish.markdown import table, wrapped
from cookbook.recipe import catalog, versions

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ("4.5.2", "4.6.2", "4.7.1", "4.8.1")  # of CuTe DSL; the first is too old for some recipes
OLDEST_TORCH = "2.6.0"  # pyproject.toml's range begins here


class NoIndex(RuntimeError):
    """pip found no version of a package at all: the package index cannot be reached."""


# --- environments -----------------------------------------------------------------------------------------------------


def lent(dsl: str, folder: Path) -> Path:
    """An environment of this Python whose CuTe DSL is version `dsl` and whose other packages are those here.

    Returns its interpreter.

    Raises:
        NoIndex: see there.
    """
    python = _venv(sys.executable, folder)
    wanted, packages = [f"{versions.DSL}=={dsl}"], _packages(folder)
    while wanted:
        _pip(python, "--no-deps", *wanted)
        wanted = _missing_wheels(packages, versions.DSL)
    here = {sysconfig.get_paths()[key] for key in ("purelib", "platlib")}
    (packages / "zz_lent.pth").write_text("\n".join(sorted(here)) + "\n")  # sorted behind the DSL's own .pth file
    return python


def whole(interpreter: str, dsl: str, torch: str, folder: Path) -> Path:
    """An environment of another Python, where pip installed the cookbook with all it needs. Returns its interpreter.

    Raises:
        NoIndex: see there.
    """
    python = _venv(interpreter, folder)
    _pip(python, str(ROOT), f"{versions.DSL}=={dsl}", f"torch=={torch}")
    return python


def interpreter(version: str) -> str | None:
    """The path of a Python of this version (`"3.12"`) on PATH, or among pyenv's; None if there is none that runs."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for found in (shutil.which(f"python{version}"), *sorted(map(str, pyenv.glob(f"{version}.*/bin/python")))):
        if found and subprocess.run([found, "-V"], capture_output=True).returncode == 0:
            return found
    return None


def _venv(interpreter: str, folder: Path) -> Path:
    subprocess.run([interpreter, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder / "bin" / "python"


def _packages(folder: Path) -> Path:
    (found,) = (folder / "lib").glob("python*/site-packages")
    return found


def _pip(python: Path, *wanted: str) -> None:
    """Install into another environment by this one's pip."""
    options = ["--quiet", "--disable-pip-version-check", "--retries", "1"]
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", *options, *wanted]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [done.stderr.strip()]
        raise (NoIndex if "(from versions: none)" in errors[0] else RuntimeError)(errors[0])


def _missing_wheels(packages: Path, dsl: str) -> list[str]:
    """The wheels of its own libraries that the CuTe DSL in a folder needs and has not: `name==version` each."""
    found = {each.metadata["Name"]: each for each in metadata.distributions(path=[str(packages)])}
    needed = [line for each in found.values() for line in each.requires or () if line.startswith(f"{dsl}-libs")]
    return sorted({line for line in needed if ";" not in line and line.partition("==")[0] not in found})


# --- what an environment makes of the recipes ---------------------------------------------------------------------


def run(python: Path, names: Iterable[str] = (), source: bool = True, every_target: bool = True) -> dict[str, Any]:
    """Return what an environment makes of recipes, as `here` gives it in there.

    Args:
        python: its interpreter.
        names: of recipes; all if left out.
        source: whether it takes the cookbook from this source tree: else from what is installed there.
        every_target: whether to compile for each target: else for a recipe's first.
    """
    outside = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment = outside | ({"PYTHONPATH": str(ROOT)} if source else {})
    with tempfile.TemporaryDirectory(prefix="cookbook-") as folder:
        answer = Path(folder) / "answer.json"
        command = [str(python), str(Path(__file__).resolve()), "--here", str(answer), *names]
        command += [] if every_target else ["--one-target"]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder)
        if done.returncode or not answer.is_file():
            raise RuntimeError(f"{python}: {done.stderr.strip()[-2000:]}")
        return json.loads(answer.read_text(encoding="utf-8"))


def here(names: Iterable[str] = (), every_target: bool = True) -> dict[str, Any]:
    """Load and compile recipes in this process: the fields of a `versions.Tried`."""
    import platform

    import cutlass
    import torch

    versions.RECORD = Path(os.devnull)  # or what failed before would be refused, and never tried again
    failed = {}
    chosen = [catalog.find(name) for name in names] or catalog.recipes()
    for recipe in chosen:
        try:
            _compile(recipe, every_target)
        except Exception as error:  # whatever a version has against it
            failed[recipe.name] = said(error)
    return {
        "dsl": cutlass.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "compiled": [recipe.name for recipe in chosen if recipe.name not in failed],
        "failed": failed,
        "targets": "each" if every_target else "first",
    }


def said(error: Exception, root: Path = ROOT) -> str:
    """The first line of an error, with the files of this tree as the repository names them."""
    return f"{type(error).__name__}: {error}".replace(f"{root}{os.sep}", "").splitlines()[0][:200]


def _compile(recipe: Any, every_target: bool) -> None:
    """Every kernel of a recipe, for its targets, in its default configuration; the facts of a study."""
    module = catalog.load(recipe.name)
    if recipe.kind == "study" and (wrong := [name for name, holds, _ in module.facts() if not holds]):
        raise ValueError(f"facts: got wrong ones, {', '.join(wrong)}; needed all to hold")
    which = [] if recipe.kind == "study" else [compiled.cutlass_dtype(recipe.dtypes[0])]
    options = catalog.TVM_FFI if recipe.product.is_gemm else ""  # as a call of `matmul` compiles it
    for target in recipe.targets if every_target else recipe.targets[:1]:
        module.compile_for(target, *which, options=options)


# --- the record and its table -----------------------------------------------------------------------------------------


def write(row: dict[str, Any], file: Path | None = None) -> Path:
    """Put what an environment made of recipes into the record, in place of what was there of them.

    An environment is known by its versions of CuTe DSL and Python, without the last number of the latter.
    """
    file = file or versions.RECORD
    rows = {_place(each): each for each in map(versions.Tried._asdict, versions.tried(file))}
    before = rows.get(_place(row), {"compiled": [], "failed": {}})
    kept = {recipe.name for recipe in catalog.recipes()} - {*row["compiled"], *row["failed"]}
    failed = {name: why for name, why in before["failed"].items() if name in kept} | row["failed"]
    good = sorted({*row["compiled"], *kept.intersection(before["compiled"])})
    rows[_place(row)] = row | {"compiled": good, "failed": failed}
    file.write_text(json.dumps([rows[each] for each in sorted(rows)], indent=1) + "\n", encoding="utf-8")
    return file


def _place(row: dict[str, Any]) -> Any:
    return versions.key(row["dsl"], row["python"].rpartition(".")[0])


def markdown() -> str:
    """The record as tables: recipes by environment and track, and the errors of those that do not compile."""
    from tools.publish.pages import folded  # which the environments that this file runs in do not have

    rows = versions.tried()
    tracks = [track for track in catalog.TRACKS if any(r.track == track for r in catalog.recipes())]
    heads = ["CuTe-DSL", "Python", "torch", "targets", *(track.capitalize() for track in tracks)]
    cells = [
        [row.dsl, row.python, row.torch.partition("+")[0], row.targets, *(_share(row, track) for track in tracks)]
        for row in rows
    ]
    said: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for name, why in row.failed.items():
            said.setdefault((row.dsl, why), []).append(name)
    wrong = [[dsl, ", ".join(names), f"`{why}`"] for (dsl, why), names in said.items()]
    errors = wrapped(table(["CuTe-DSL", "recipes", "what it says"], wrong, right=3))
    lacking = [folded("What does not compile, and why", errors)] if wrong else []
    return "\n\n".join([table(heads, cells), *lacking])


def _share(row: Any, track: str) -> str:
    """`all 7`, or `5 of 7`."""
    good = sum(name.startswith(f"{track}/") for name in row.compiled)
    every = good + sum(name.startswith(f"{track}/") for name in row.failed)
    return f"all {every}" if good == every else f"{good} of {every}"


# --- the command ------------------------------------------------------------------------------------------------------


def main() -> int:
    """The exit status: whether a version that every recipe has to compile under left one out."""
    parser = argparse.ArgumentParser(description="Which recipes compile under which versions.")
    parser.add_argument("names", nargs="*", help="recipes; all if left out")
    parser.add_argument("--dsl", action="append", help="versions of CuTe DSL; VERSIONS if left out")
    parser.add_argument("--python", help="another Python, as 3.12, which gets packages of its own")
    parser.add_argument("--torch", default=OLDEST_TORCH, help="with --python: the version of torch")
    parser.add_argument("--here", type=Path, help=argparse.SUPPRESS)  # in such an environment: where to answer
    parser.add_argument(
        "--one-target", action="store_true", help="compile for each recipe's first target only, and record nothing"
    )
    given = parser.parse_args()
    if given.here:
        given.here.write_text(json.dumps(here(given.names, not given.one_target)), encoding="utf-8")
        return 0
    if given.python and interpreter(given.python) is None:
        parser.error(f"--python: got {given.python}; needed a version that is installed here, as 3.12")
    bad = False
    for dsl in given.dsl or VERSIONS:
        with tempfile.TemporaryDirectory(prefix="cookbook-") as folder:
            start = time.perf_counter()
            other = interpreter(given.python) if given.python else None
            python = whole(other, dsl, given.torch, Path(folder)) if other else lent(dsl, Path(folder))
            made = time.perf_counter()
            row = run(python, given.names, source=not other, every_target=not (other or given.one_target))
        print(f"CuTe DSL {dsl}, Python {row['python']}, torch {row['torch']}: {len(row['compiled'])} compile", end="")
        print(f" ({made - start:.0f} s to install, {time.perf_counter() - made:.0f} s to compile)")
        for name, why in row["failed"].items():
            print(f"  {name}: {why}")
        bad |= bool(row["failed"]) and not versions.is_old(dsl)
        if not given.one_target:
            write(row)
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
