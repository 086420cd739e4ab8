"""recipes/<track>/<name>.py -> notebooks/<track>/<name>.ipynb, executed, the same bytes every time.

The kernel runs without a GPU even where there is one, so that a notebook made anywhere is the same: what a GPU has
to say comes from results/. Cell ids, metadata and execution counts depend on the recipe alone.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any

from cookbook.recipe import catalog, imports, tasks
from tools.publish import address

_TIMEOUT = 900  # seconds a cell may take: a cell compiles a kernel for several targets
_KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
SETUP = "setup"  # the tag of the first cell: how to get the package
IMPORTED = "imported"  # the tag of a cell that shows definitions which the next code cell takes from another page
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


class OutOfStep(ValueError):
    """A notebook is missing, was made from another text of its recipe, was not executed, or shows an error."""


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
    from nbformat.v4 import new_code_cell

    text = catalog.find(name).file.read_text(encoding="utf-8")
    notebook = deepcopy(_parsed(text))
    _show_imports(notebook, text)
    _write_tasks(notebook, text, name)
    described = notebook.metadata.get("cookbook", {})
    notebook.metadata = {"cookbook": described, "kernelspec": _KERNEL, "language_info": {"name": "python"}}
    notebook.cells.insert(0, new_code_cell(setup(settings), metadata={"tags": ["lab", SETUP]}))
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number:03d}"
        cell.metadata = {"tags": list(cell.metadata["tags"])} if cell.metadata.get("tags") else {}
    return notebook


def _show_imports(notebook: Any, text: str) -> None:
    """Put a cell with the imported definitions before the first cell that uses them."""
    from nbformat.v4 import new_markdown_cell

    found: dict[int, list[imports.Group]] = {}
    for group in imports.groups(text):
        found.setdefault(group.cell, []).append(group)
    tags = [cell.metadata.get("tags", []) for cell in notebook.cells]
    code = [n for n, cell in enumerate(notebook.cells) if cell.cell_type == "code" and "lab" not in tags[n]]
    for number in sorted(found, reverse=True):
        for group in reversed(found[number]):
            cell = new_markdown_cell(imported_cell(group), metadata={"tags": [IMPORTED]})
            notebook.cells.insert(code[number], cell)


def _write_tasks(notebook: Any, text: str, name: str) -> None:
    """Put the cells of exercises where their rows stand."""
    from nbformat.v4 import new_code_cell, new_markdown_cell

    make = {"code": new_code_cell, "markdown": new_markdown_cell}
    for number, cell in enumerate(notebook.cells):
        if tasks.TASKS in cell.metadata.get("tags", []):
            written = tasks.written_out(text, catalog.standalone_source(name))
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


@lru_cache(maxsize=128)
def _parsed(text: str) -> Any:
    """A recipe's text as a notebook: a page asks for it several times, and jupytext takes a tenth of a second."""
    import jupytext

    return jupytext.reads(text, fmt="py:percent")


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
    """Makes, executes and writes the notebook of a recipe; returns its path."""
    import nbformat

    path = notebook_path(name, root)
    notebook = execute(from_recipe(name), catalog.recipes_root().parent)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
    return path


def renew_texts(name: str, root: Path | None = None, settings: Path | None = None) -> Path:
    """Gives an executed notebook the recipe's present text, and the setup cell, with its outputs as they are.

    Args:
        root: the folder of the notebooks; the source tree's if left out.
        settings: as of `setup`.

    Raises:
        OutOfStep: it is missing, or other code differs, so that it has to be executed.
    """
    path = notebook_path(name, root)
    path.write_text(written(read(name, root, settings)), encoding="utf-8")
    return path


def written(notebook: Any) -> str:
    """Return the text of a notebook's file."""
    import nbformat

    return nbformat.writes(notebook) + "\n"


def _ran(cell: Any) -> tuple[str, list[str]]:
    """Return what a cell's outputs come from; the setup cell has none."""
    tags = cell.metadata.get("tags", [])
    return ("" if SETUP in tags else cell.source), tags


def read(name: str, root: Path | None = None, settings: Path | None = None) -> Any:
    """Return the recipe as a notebook with the committed outputs: a change of text alone needs no run.

    Raises:
        OutOfStep: the outputs are not those of the recipe's code; says what differs.
    """
    path = notebook_path(name, root)
    if not path.exists():
        raise OutOfStep(f"{path}: missing; run `make notebooks`")
    notebook, fresh = deepcopy(_committed(path.read_text(encoding="utf-8"))), from_recipe(name, settings)
    if problem := difference(notebook, fresh):
        raise OutOfStep(f"{path}: {problem}; run `make notebooks`")
    for old, new in zip(_code(notebook), _code(fresh), strict=True):
        new.outputs, new.execution_count = old.outputs, old.execution_count
    return fresh


def _code(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@lru_cache(maxsize=128)
def _committed(text: str) -> Any:
    """A notebook file's text as a notebook, validated: as of `_parsed`."""
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


def main(check: bool, names: Sequence[str] = (), texts: bool = False) -> int:
    """Makes every notebook, or those of `names`; with `check` only compares, with `texts` executes none. Returns how
    many are out of step."""
    wrong = 0
    for recipe in [catalog.find(name) for name in names] or catalog.recipes():
        try:
            if texts:
                renew_texts(recipe.name)
            elif not check:
                sys.stderr.write(f"executing {recipe.name}\n")
                make(recipe.name)
            path, text = notebook_path(recipe.name), written(read(recipe.name))
            if path.read_text(encoding="utf-8") != text:
                raise OutOfStep(f"{path}: its text is older than the recipe's; run `make notebooks`")
            sys.stdout.write(f"{notebook_path(recipe.name)}: in step\n")
        except OutOfStep as error:
            sys.stderr.write(f"error: {error}\n")
            wrong += 1
    return wrong
