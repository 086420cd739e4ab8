"""A recipe's device functions on plain integers, without CuTe."""

from __future__ import annotations

import ast
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from cookbook.recipe import catalog


def plain(name: str, function: str, arch: SimpleNamespace | None = None) -> Callable[..., Any]:
    """A function of a recipe that CuTe traces as a Python function of integers; `arch` stands in for `cute.arch`.

    It is made from the source: CuTe rewrites a function when it traces it, and it may have traced this one before.
    """
    tree = ast.parse(catalog.find(name).file.read_text(encoding="utf-8"))
    (found,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function)
    found.decorator_list = []
    cute = SimpleNamespace(ceil_div=lambda a, b: -(-a // b), FastDivmodDivisorV2=int, arch=arch)
    cutlass = SimpleNamespace(min=min, max=max, const_expr=bool, Constexpr=None)
    names = vars(catalog.load(name)) | {"cute": cute, "cutlass": cutlass}
    exec(compile(ast.Module([found], []), function, "exec", dont_inherit=True), names)
    return names[function]
