"""recipes/<track>/<name>.py -> notebooks/<track>/<name>.ipynb, executed, the same bytes every time.

git ignores notebooks/: it keeps what was executed, so that only what changed is executed again. The kernel runs without
a GPU even where there is one, so that a notebook made anywhere is the same: what a GPU has to say comes from results/.
Cell ids, metadata and execution counts depend on the recipe alone.
"""

from __future__ import annotations

import ast
import fcntl
import hashlib
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from functools import lru_cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from cookbook.recipe import catalog, imports, tasks
from tools.publish import address

_TIMEOUT = 900  # seconds a cell may take: a cell compiles a kernel for several targets
_KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
SETUP = "setup"  # the tag of the first cell: how to get the package
IMPORTED = "imported"  # the tag of a cell that shows definitions which the next code cell takes from another page
MADE_FROM = "made_from"  # the key of an executed notebook's metadata: the digest of what its outputs come from
_RECIPE = re.compile(rf"\b(?:{'|'.join(catalog.TRACKS)})/\w+")
_OF_ADDRESS = """\
# This notebook needs the package {name}. Where it is missing, as in a hosted notebook, this cell installs it.
from importlib.util import find_spec

if find_spec("cookbook") is None:
    %pip install --quiet "{name} @ git+{where}\""""
_OF_CLONE = """\
# This notebook needs {name}. Where it is missing, this cell installs it from the clone that it lies in.
from importlib.util import find_spec
from pathlib import Path

if find_spec("cookbook") is None:
    folders = [Path.cwd(), *Path.cwd().parents]
    clone = next((folder for folder in folders if (folder / "cookbook" / "lab.py").is_file()), None)
    if clone is None:
        raise ModuleNotFoundError(f"cookbook: got no clone of it around {{folders[0]}}; needed one: pip install CLONE")
    %pip install --quiet --editable "{{clone}}\""""
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def notebook_path(name: str, root: Path | None = None) -> Path:
    """Return where the notebook of a recipe lies: `root`/<track>/<name>.ipynb, in the source tree if left out."""
    recipe = catalog.find(name)
    root = root or catalog.recipes_root().parent / "notebooks"
    return root / f"{recipe.name}.ipynb"


def setup(settings: Path | None = None) -> str:
    """The code that installs the package where it is missing: from its repository, once that has an address, else from
    the clone that the notebook lies in. The package is on no index.

    Args:
        settings: a pyproject.toml; this tree's if left out.
    """
    settings = settings or catalog.recipes_root().parent / "pyproject.toml"
    name = re.findall(r'^\[project\]\nname = "(.*)"', settings.read_text(encoding="utf-8"), re.MULTILINE)[0]
    where = address.repository(settings)
    return _OF_ADDRESS.format(name=name, where=where) if where else _OF_CLONE.format(name=name)


def from_recipe(name: str, settings: Path | None = None) -> Any:
    """The recipe as a notebook (an nbformat NotebookNode) that has not been executed: lab cells included, and before
    them the cell that gets the package; `settings` as of `setup`."""
    text = catalog.find(name).file.read_text(encoding="utf-8")
    shown = tuple((group.cell, imported_cell(group)) for group in imports.groups(text))
    alone = catalog.standalone_source(name) if tasks.TASKS in text else ""  # what its exercises are made of
    return deepcopy(_unexecuted(text, shown, alone, setup(settings)))


@lru_cache(maxsize=128)
def _unexecuted(text: str, shown: tuple[tuple[int, str], ...], alone: str, setup: str) -> Any:
    """Make the notebook of a text, which a page asks for several times; jupytext alone takes a tenth of a second."""
    import jupytext
    from nbformat.v4 import new_code_cell

    notebook = jupytext.reads(text, fmt="py:percent")
    _show_imports(notebook, shown)
    _write_tasks(notebook, text, alone)
    described = notebook.metadata.get("cookbook", {})
    notebook.metadata = {"cookbook": described, "kernelspec": _KERNEL, "language_info": {"name": "python"}}
    notebook.cells.insert(0, new_code_cell(setup, metadata={"tags": ["lab", SETUP]}))
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number:03d}"
        cell.metadata = {"tags": list(cell.metadata["tags"])} if cell.metadata.get("tags") else {}
    return notebook


def _show_imports(notebook: Any, shown: Iterable[tuple[int, str]]) -> None:
    """Put a cell with the imported definitions before the first cell that uses them."""
    from nbformat.v4 import new_markdown_cell

    found: dict[int, list[str]] = {}
    for cell, made in shown:
        found.setdefault(cell, []).append(made)
    tags = [cell.metadata.get("tags", []) for cell in notebook.cells]
    code = [n for n, cell in enumerate(notebook.cells) if cell.cell_type == "code" and "lab" not in tags[n]]
    for number in sorted(found, reverse=True):
        for made in reversed(found[number]):
            notebook.cells.insert(code[number], new_markdown_cell(made, metadata={"tags": [IMPORTED]}))


def _write_tasks(notebook: Any, text: str, alone: str) -> None:
    """Put the cells of exercises where their rows stand."""
    from nbformat.v4 import new_code_cell, new_markdown_cell

    make = {"code": new_code_cell, "markdown": new_markdown_cell}
    for number, cell in enumerate(notebook.cells):
        if tasks.TASKS in cell.metadata.get("tags", []):
            written = tasks.written_out(text, alone)
            made = [make[each.kind](each.text, metadata={"tags": list(each.tags)}) for each in written]
            notebook.cells[number : number + 1] = made
            return


def imported_cell(group: imports.Group) -> str:
    """The text of a cell that shows imported definitions, folded, with a link to the page that explains them."""
    recipe, names = catalog.find(group.recipe), ", ".join(group.names)
    where = f"../{group.recipe}.ipynb"
    return (
        f'<details><summary>Imported from <a href="{where}">{recipe.title}</a>: {names}</summary>\n\n'
        f"```python\n{group.text}\n```\n\n</details>"
    )


@contextmanager
def _without_gpu() -> Iterator[None]:
    """The environment of the kernel: no device, no hash order, this source tree on the path."""
    tree = str(catalog.recipes_root().parent)
    wanted = {
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": os.pathsep.join([tree, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
        "COLUMNS": "110",
    }
    before = {key: os.environ.get(key) for key in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for key, value in before.items():
            os.environ.pop(key, None) if value is None else os.environ.__setitem__(key, value)


def execute(notebook: Any, folder: Path) -> Any:
    """Runs every cell in `folder` with no GPU and tidies the outputs.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell raised.
    """
    from nbclient import NotebookClient

    with _without_gpu():
        client = NotebookClient(
            notebook,
            timeout=_TIMEOUT,
            kernel_name="python3",
            record_timing=False,
            coalesce_streams=True,
            extra_arguments=["--IPKernelApp.log_level=40"],  # no warning for each page that its kernel's TCP is plain
            resources={"metadata": {"path": str(folder)}},
        )
        client.execute()
    notebook.metadata["language_info"] = {"name": "python"}
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            _tidy(output)
    return notebook


def _tidy(output: Any) -> None:
    """Drops what differs from run to run and says nothing: colour codes, metadata, carriage returns."""
    if "text" in output:
        output["text"] = _ANSI.sub("", output["text"])
    if "metadata" in output:
        output["metadata"] = {}
    if isinstance(output.get("data", {}).get("text/plain"), str):
        output["data"]["text/plain"] = _ANSI.sub("", output["data"]["text/plain"])
    if "image/svg+xml" in output.get("data", {}):
        output["data"].pop("text/plain", None)  # the object's repr: the whole picture once more


def make(name: str, root: Path | None = None) -> Path:
    """Makes, executes and writes the notebook of a recipe; returns its path.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell raised; what was there before is left.
    """
    fresh = from_recipe(name)
    notebook = execute(deepcopy(fresh), catalog.recipes_root().parent)
    notebook.metadata[MADE_FROM] = digest(fresh, name)
    return _write(notebook_path(name, root), written(notebook))


def make_if_changed(name: str, root: Path | None = None) -> Any:
    """Return the executed notebook of a recipe. It is executed where its digest is another; else it gets the recipe's
    present text. Processes that ask for one notebook at once execute it once.

    Raises:
        nbclient.exceptions.CellExecutionError: as of `make`.
    """
    path = notebook_path(name, root)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _renewed(name, root):
            make(name, root)
    return read(name, root)


def _renewed(name: str, root: Path | None = None) -> bool:
    """Say whether a notebook is current; if so, it gets the recipe's present text."""
    path, fresh = notebook_path(name, root), from_recipe(name)
    if not _is_of(path, fresh, name):
        return False
    fresh.metadata[MADE_FROM] = _executed(path).metadata[MADE_FROM]
    text = written(_with_outputs(fresh, path))
    if path.read_text(encoding="utf-8") != text:
        _write(path, text)
    return True


def _write(path: Path, text: str) -> Path:
    """Write a file at once: another process may read it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(text, encoding="utf-8")
    return part.replace(path)


def written(notebook: Any) -> str:
    """Return the text of a notebook's file."""
    import nbformat

    return nbformat.writes(notebook) + "\n"


# --- whether the outputs are today's ------------------------------------------------------------------------------


def digest(fresh: Any, name: str) -> str:
    """Return a digest of what a notebook's outputs come from, as far as that is cheap to say.

    That is its code, definitions that it imports, records of the recipes that it names, the compiler's version, and
    modules of the package that its cells import: of a room all, of `cookbook.lab` what that imports too.
    """
    cells = [cell for cell in fresh.cells if cell.cell_type == "code" or IMPORTED in cell.metadata.get("tags", [])]
    texts = [_ran(cell)[0] for cell in cells]
    named = {name, *(found[0] for text in texts for found in _RECIPE.finditer(text))}
    root = catalog.recipes_root().parent
    files = {file for each in named for file in (root / "results").glob(f"*/{each}.json")}
    files |= _modules(text for cell, text in zip(cells, texts, strict=True) if cell.cell_type == "code")
    made = hashlib.sha256("\0".join([version("nvidia-cutlass-dsl"), *texts]).encode())
    for file in sorted(files):
        made.update(_hash(file))
    return made.hexdigest()


def _modules(sources: Iterable[str]) -> set[Path]:
    """The files of the package that these sources import."""
    from cookbook.lab import ELSEWHERE

    package, lab = catalog.recipes_root().parent / "cookbook", "cookbook.lab"
    names = {name for source in sources for name in _imported_names(source)}
    if asked := {name for name in names if name.startswith(lab)}:
        names |= {ELSEWHERE[name.split(".")[-1]] for name in asked if name.split(".")[-1] in ELSEWHERE}
        names |= set(_imported_names((package / "lab.py").read_text(encoding="utf-8")))
    found: set[Path] = set()
    for name in names:
        place = package.joinpath(*name.split(".")[1:])
        place = place if place.is_dir() or place.with_suffix(".py").is_file() else place.parent  # a name of a module
        found |= set(place.rglob("*.py")) if place.is_dir() and place != package else {place.with_suffix(".py")}
    return {file for file in found if file.is_file()}


@lru_cache(maxsize=4096)
def _imported_names(source: str) -> tuple[str, ...]:
    """Return what a source imports of the package, "cookbook.draw.svg"; recipes left out, whose text a notebook
    shows."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, (ast.Import, ast.ImportFrom))]
    froms = [f"{node.module}.{each.name}" for node in nodes if isinstance(node, ast.ImportFrom) for each in node.names]
    names = [*froms, *(each.name for node in nodes if isinstance(node, ast.Import) for each in node.names)]
    return tuple(name for name in names if name.startswith("cookbook.") and ".recipes." not in name)


@lru_cache(maxsize=4096)
def _hash(file: Path) -> bytes:
    return hashlib.sha256(file.read_bytes()).digest()


def is_current(name: str, root: Path | None = None) -> bool:
    """Say whether a notebook was executed, without an error, from what there is now."""
    return _is_of(notebook_path(name, root), from_recipe(name), name)


def _is_of(path: Path, fresh: Any, name: str) -> bool:
    if not path.exists() or difference(notebook := _executed(path), fresh):
        return False
    return notebook.metadata.get(MADE_FROM) == digest(fresh, name)


def _ran(cell: Any) -> tuple[str, list[str]]:
    """Return what a cell's outputs come from; the setup cell has none."""
    tags = cell.metadata.get("tags", [])
    return ("" if SETUP in tags else cell.source), tags


def read(name: str, root: Path | None = None, settings: Path | None = None) -> Any:
    """Return the recipe as a notebook, with the outputs of the last run of this code: a change of text needs no run.

    Where there was none, the notebook has no outputs: `was_executed` says so.
    """
    path, fresh = notebook_path(name, root), from_recipe(name, settings)
    return _with_outputs(fresh, path) if path.exists() and not difference(_executed(path), fresh) else fresh


def _with_outputs(fresh: Any, path: Path) -> Any:
    for old, new in zip(_code(_executed(path)), _code(fresh), strict=True):
        new.outputs, new.execution_count = deepcopy(old.outputs), old.execution_count
    return fresh


def was_executed(notebook: Any) -> bool:
    """Say whether each code cell was executed."""
    return all(cell.execution_count for cell in _code(notebook))


def _code(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def _executed(path: Path) -> Any:
    return _known(path.read_text(encoding="utf-8"))


@lru_cache(maxsize=128)
def _known(text: str) -> Any:
    """A notebook file's text as a notebook, validated: as of `_unexecuted`."""
    import nbformat

    return nbformat.reads(text, as_version=4)


def difference(notebook: Any, fresh: Any) -> str:
    """Say why the outputs of an executed notebook are not those of `fresh`; "" if they are."""
    parts = [[_ran(cell) for cell in _code(nb)] for nb in (notebook, fresh)]
    for number, (have, want) in enumerate(zip(*parts, strict=False)):
        if have != want:
            return f"code cell {number} differs from the recipe"
    if len(parts[0]) != len(parts[1]):
        return f"{len(parts[0])} code cells, the recipe has {len(parts[1])}"
    code = _code(notebook)
    if [c.execution_count for c in code] != list(range(1, len(code) + 1)):
        return "not every code cell was executed, in order"
    failed = [o["ename"] for c in code for o in c.outputs if o.output_type == "error"]
    return f"shows an error: {failed[0]}" if failed else ""


# --- all of them ---------------------------------------------------------------------------------------------------


def main(names: Sequence[str] = (), changed: bool = False, jobs: int | None = None) -> int:
    """Executes every notebook, or those of `names`; with `changed` only where something did. Returns how many failed.

    Args:
        jobs: how many at once; as many as there are processors, at most four, if left out.
    """
    wanted = [catalog.find(name).name for name in names] or [recipe.name for recipe in catalog.recipes()]
    if changed:
        wanted = [name for name in wanted if not _renewed(name)]
    with ProcessPoolExecutor(jobs or min(4, os.cpu_count() or 1)) as pool:
        failed = list(filter(None, pool.map(partial(_made, of=len(wanted)), wanted, range(1, len(wanted) + 1))))
    sys.stderr.writelines(f"error: {each}\n" for each in failed)
    return len(failed)


def _made(name: str, number: int, of: int) -> str:
    """Make a notebook; return what went wrong, "" if nothing did."""
    sys.stderr.write(f"executing {name} ({number} of {of})\n")
    try:
        make(name)
    except Exception as error:  # a cell may raise anything
        return f"{name}: {error}"
    return ""
