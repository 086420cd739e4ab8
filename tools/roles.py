"""Write who waits for whom into the docstring of each warp-specialized kernel, as its trace says.

    python -m tools.roles [NAME ...]            what each kernel's docstring should say
    python -m tools.roles --write [NAME ...]    write it there

A kernel that a page imports has the table of the page where it stands, and of that page's CONFIG.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from cookbook.check import pipeline
from cookbook.check.compiled import cutlass_dtype
from cookbook.recipe import catalog
from tools.warp_roles import said

__all__ = ["HEAD", "docstring_of", "kernels", "table", "with_table"]

HEAD = "Who waits for whom, with the CONFIG of {name}:"
KERNEL = "kernel"  # the function that a GEMM's page launches


def kernels() -> list[str]:
    """The recipes that define their kernel, and in which warps wait for one another."""
    found = [recipe for recipe in catalog.recipes() if recipe.product.is_gemm and pipeline.is_pipelined(recipe)]
    return [recipe.name for recipe in found if re.search(rf"^def {KERNEL}\(", recipe.file.read_text("utf-8"), re.M)]


def table(name: str) -> list[str]:
    """The lines that a kernel's docstring ends with; none where its warps all do the same."""
    recipe, module = catalog.find(name), catalog.load(name)
    run = pipeline.Run(module, recipe.targets[0], cutlass_dtype(recipe.dtypes[0]), module.CONFIG)
    if not pipeline.has_pipeline(run.trace):
        return []
    firsts = (next(run.clusters(problem)) for problem in run.problems)
    lines = said([programs for _, programs in firsts])
    return [HEAD.format(name=name), "", *lines] if lines else []


def _kernel(text: str) -> ast.FunctionDef | None:
    functions = (node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef))
    return next((node for node in functions if node.name == KERNEL), None)


def docstring_of(text: str) -> str:
    """The docstring of the kernel in a recipe's text, as `inspect.cleandoc` leaves it."""
    kernel = _kernel(text)
    return (ast.get_docstring(kernel) or "") if kernel else ""


def with_table(text: str, lines: Sequence[str]) -> str:
    """A recipe's text with these lines at the end of its kernel's docstring, in place of those that were there."""
    kernel = _kernel(text)
    assert kernel is not None, KERNEL
    first = kernel.body[0]
    said = docstring_of(text).partition(HEAD.partition("{")[0])[0].rstrip()
    body = [*said.splitlines(), "", *lines] if lines else said.splitlines()
    quoted = ["    " + line if line else "" for line in body]
    quoted[0] = '    """' + body[0]
    whole = [*quoted, '    """'] if len(quoted) > 1 else [quoted[0] + '"""']
    old = text.split("\n")
    return "\n".join([*old[: first.lineno - 1], *whole, *old[first.end_lineno :]])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.roles")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("names", nargs="*")
    given = parser.parse_args(argv)
    for name in given.names or kernels():
        lines = table(name)
        print(f"{name}\n" + "\n".join(f"    {line}".rstrip() for line in lines), flush=True)
        if given.write:
            file = Path(catalog.find(name).file)
            file.write_text(with_table(file.read_text(encoding="utf-8"), lines), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
