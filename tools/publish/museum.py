"""The museum's page as the site has it: each kernel with its line numbers, what the check says of it, and the order.

`docs/museum.md` has the code, marked by `<!-- kernel: NAME -->`, as it stands in `tests/check/kernels/museum.py`. The
picture, the finding and the repair are made by the check when the site is built.
"""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

from cookbook.check.kernels import Report
from cookbook.check.pipeline.order import picture
from cookbook.publish.markdown import fence, figure
from cookbook.recipe import catalog
from cookbook.testing import check

__all__ = ["kernels", "shown"]

FOLDER = catalog.recipes_root().parent / "tests" / "check" / "kernels"
_KERNEL = re.compile(r"(?P<head><!-- kernel: (?P<name>\w+) -->.*?)```python\n(?P<code>.*?)```", re.DOTALL)


def kernels() -> Any:
    """The module with the museum's kernels."""
    if str(FOLDER) not in sys.path:
        sys.path.insert(0, str(FOLDER))
    return importlib.import_module("museum")


def shown(markdown: str) -> str:
    """A page with what the check says after each kernel that it marks; any other page as it is."""
    return _KERNEL.sub(lambda found: _exhibit(found["head"], found["name"], found["code"]), markdown)


def _exhibit(head: str, name: str, code: str) -> str:
    module = kernels()
    source = Path(module.__file__).read_text(encoding="utf-8")
    if code not in source:
        raise ValueError(f"kernel: got {name}, whose code is not that of museum.py; needed the same")
    first = source[: source.index(code)].count("\n") + 1
    report = check(*module.asked(name, False), arch=module.arch(name))
    pictures = [figure(picture(order).svg) for order in report.orders[:1]]
    numbered = f'```python linenums="{first}"\n{code}```'
    return "\n\n".join([f"{head}{numbered}", *pictures, fence(said(report), "text")])


def said(report: Report) -> str:
    """The first finding, and how to mend it, a line each."""
    one = report.found[0]
    lines = [f"line {one.at.line}: {one.rule}: {one.text}", *one.waits]
    lines += [f"instead: {one.instead}"] * bool(one.instead)
    return "\n".join([*lines, *(f"repair: {step.text}" for step in report.repairs)])
