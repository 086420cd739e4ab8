"""The recipes as modules: `from cookbook.recipes.TRACK.NAME import make_load`.

The files lie in `recipes/` of the source tree, or in the wheel's copy. A module holds what the cells above the
appendix define. `cookbook.load("TRACK/NAME")` returns the same module.
"""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

from cookbook.recipe import catalog


class _Finder(importlib.abc.MetaPathFinder):
    """Finds `cookbook.recipes.<track>`, a package without code, and `cookbook.recipes.<track>.<name>`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, name = fullname.partition(f"{__name__}.")
        track, _, stem = name.partition(".")
        if package or not name or "." in stem:
            return None
        if not stem:
            return ModuleSpec(fullname, None, is_package=True) if track in catalog.TRACKS else None
        file = catalog.recipes_root() / track / f"{stem}.py"
        if not file.is_file():
            return None
        return catalog.spec_of(catalog.find(f"{track}/{stem}"), fullname)


sys.meta_path.append(_Finder())
