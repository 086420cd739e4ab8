"""The CuTe-DSL Kernel Cookbook.

`cookbook.load("<track>/<name>")` returns a recipe as a module; its `matmul` is the kernel. Importing
this package imports neither torch nor CuTe: what needs them imports them when it is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

    from cookbook.swizzle import Swizzle

__version__ = "0.1.0"
__all__ = ["Swizzle", "__version__", "load"]


def load(name: str) -> ModuleType:
    """The recipe `name` (`"<track>/<file name>"`, as `cookbook list` prints it) as a module, without its lab cells.

    Raises:
        LookupError: there is no such recipe; the message suggests the nearest names.
    """
    from cookbook.recipe import catalog

    return catalog.load(name)


def __getattr__(name: str) -> Any:
    if name == "Swizzle":
        from cookbook.swizzle import Swizzle

        return Swizzle
    raise AttributeError(f"module 'cookbook' has no attribute {name!r}")
