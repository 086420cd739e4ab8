"""`python -m tools.handlers`: writes docs/operations.md, which lists what the simulator knows.

Of each operation that CuTe traces: the file of its one handler, and what the handler asks of a judge.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections import defaultdict
from pathlib import Path
from types import FunctionType

from cookbook.simulate import launch, warp  # noqa: F401, all handlers are known then
from cookbook.simulate.judge import Judge

PAGE = Path(__file__).parent.parent / "docs" / "operations.md"
HEAD = """# Operations that are simulated

<!-- by python -m tools.handlers -->

Each operation of a trace has one handler. It works out bytes, barriers and lanes, and asks the judges what comes of it:
*pipeline* records an event, *product* moves the origins of elements. See [the simulator](pipelines.md#the-simulator).

| operations | file in `cookbook/simulate/` | what is asked of a judge |
|---|---|---|
"""


def asks(handler: FunctionType) -> list[str]:
    """The methods of a judge that a handler calls, also through functions of its own file."""
    judged = {name for name in vars(Judge) if not name.startswith("_")} | {"data"}
    found, left, seen = set(), [handler], set()
    while left:
        one = left.pop()
        seen.add(one)
        names = [node for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(one)))) if _is_name(node)]
        found |= {node.attr for node in names if isinstance(node, ast.Attribute) and node.attr in judged}
        called = (one.__globals__.get(node.id) for node in names if isinstance(node, ast.Name))
        left += [x for x in called if isinstance(x, FunctionType) and x.__module__ == one.__module__ and x not in seen]
    return sorted(found)


def _is_name(node: ast.AST) -> bool:
    of_warp = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("f", "self")
    return of_warp or isinstance(node, ast.Name)


def table() -> str:
    """The page."""
    rows: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, entry in warp.TABLE.items():
        asked = ", ".join(f"`{x}`" for x in asks(entry.handler)) or "nothing: a value"
        rows[entry.handler.__module__.rpartition(".")[2], asked].append(name)
    lines = [f"| {', '.join(f'`{x}`' for x in sorted(rows[key]))} | `{key[0]}.py` | {key[1]} |" for key in sorted(rows)]
    return HEAD + "\n".join(lines) + "\n"


def main() -> int:
    """Write the page."""
    PAGE.write_text(table(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
