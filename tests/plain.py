"""A recipe's device functions on plain integers, without CuTe."""

from __future__ import annotations
import __future__

import ast
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from cookbook.recipe import catalog, imports


def plain(name: str, function: str, arch: SimpleNamespace | None = None) -> Callable[..., Any]:
    """A function of a recipe that CuTe traces as a Python function of integers; `arch` stands in for `cute.arch`.

    It is made from the source, with the functions that it calls: CuTe rewrites a function when it traces it, and it may
    have traced this one before.
    """
    tree = ast.parse(catalog.without_lab(imports.written_in(catalog.find(name).file.read_text(encoding="utf-8"))))
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    found, waiting = {}, [function]
    while waiting:
        node = functions[called := waiting.pop()]
        node.decorator_list = []
        found[called] = node
        used = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
        waiting += (used & functions.keys()) - found.keys()
    cute = SimpleNamespace(ceil_div=lambda a, b: -(-a // b), FastDivmodDivisorV2=int, arch=arch)
    cutlass = SimpleNamespace(min=min, max=max, const_expr=bool, Int32=int)
    names: dict[str, Any] = vars(catalog.load(name)) | {"cute": cute, "cutlass": cutlass}
    code = ast.Module(list(found.values()), [])
    exec(compile(code, function, "exec", __future__.annotations.compiler_flag, dont_inherit=True), names)
    return names[function]
