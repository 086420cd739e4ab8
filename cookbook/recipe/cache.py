"""Compiled kernels on disk: a process that starts serves its first product without compiling.

`catalog.load` puts `Cached` in front of a recipe's `compile_host`. An entry is one file: the object that CuTe's
`export_to_c` writes, then a line of JSON that says what it is of. It is written under another name and renamed, so that
processes need no lock: two that compile the same kernel at once write the same entry.

Entries lie in `$COOKBOOK_CACHE`, else `$XDG_CACHE_HOME/cute-cookbook`, else `~/.cache/cute-cookbook`; with
`COOKBOOK_CACHE=off` there are none. They are native code: who can write there can run code as you.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import platform
import re
import tempfile
import uuid
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

__all__ = ["SETTING", "Cached", "Entry", "clear", "entries", "folder", "object_of", "put", "serve", "symbol_of"]

SETTING = "COOKBOOK_CACHE"
TVM_FFI = "--enable-tvm-ffi"  # the one way of compiling that is kept: how `Gemm.plan` compiles
_NAME = re.compile(r"kernel_[0-9a-f]{24}\.kernel(\.\w+)?")  # what `clear` deletes: an entry, or one half written


class Entry(NamedTuple):
    """A kernel on disk."""

    path: Path
    size: int  # bytes
    about: dict[str, str] | None  # what it is of; None: the file is damaged, or half of one


def folder() -> Path | None:
    """Return where entries lie; None: nowhere."""
    setting = os.environ.get(SETTING, "")
    if setting == "off":
        return None
    if setting:
        return Path(setting)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cute-cookbook"
    except RuntimeError:  # a user without a home
        return None


def entries() -> list[Entry]:
    """Return what is on disk, by name; what a process that was killed left there too."""
    where = folder()
    files = sorted(where.iterdir()) if where and where.is_dir() else []
    contents = ((file, _read(file)) for file in files if _NAME.fullmatch(file.name))
    return [
        Entry(file, len(content), (_parsed(content) or (None,))[0]) for file, content in contents if content is not None
    ]


def clear() -> list[Entry]:
    """Delete every entry; returns those that were there."""
    found = entries()
    for entry in found:
        entry.path.unlink(missing_ok=True)
    return found


def _read(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except OSError:  # there is none, or another process cleared it
        return None


def _parsed(content: bytes) -> tuple[dict[str, str], bytes] | None:
    """Return what an entry is of, and its object; None if it is damaged."""
    made, _, line = content.rpartition(b"\n")
    try:
        about = json.loads(line)
        intact = about.pop("sha256") == hashlib.sha256(made).hexdigest()
    except (ValueError, AttributeError, KeyError, TypeError):
        return None
    return (about, made) if intact else None


def symbol_of(about: dict[str, str]) -> str:
    """The name of a kernel in its object: another one for each thing that decides over the code."""
    text = json.dumps(about, sort_keys=True)
    return f"kernel_{hashlib.sha256(text.encode()).hexdigest()[:24]}"


def object_of(about: dict[str, str], compiled: Callable[[], bytes]) -> bytes:
    """The object of what `about` says: the one on disk, or else what `compiled()` returns, which is then on disk."""
    where = folder()
    if where is None:
        return compiled()
    path = where / f"{symbol_of(about)}.kernel"
    content = _read(path)
    kept = _parsed(content) if content is not None else None
    if kept and kept[0] == about:
        return kept[1]
    made = compiled()
    _write(path, made, about)
    return made


def _exported(compiled: Any, symbol: str) -> bytes:
    with tempfile.TemporaryDirectory(prefix="cookbook-") as temporary:
        file = Path(temporary) / "kernel.o"
        compiled.export_to_c(str(file), symbol)
        return file.read_bytes()


def _write(path: Path, made: bytes, about: dict[str, str]) -> None:
    line = json.dumps(about | {"sha256": hashlib.sha256(made).hexdigest()})
    put(path, made + b"\n" + line.encode())


def put(path: Path, content: bytes) -> None:
    """Write a file of the folder; warns where it cannot be written."""
    half = path.with_suffix(f"{path.suffix}.{uuid.uuid4().hex}")  # of this process: nobody reads it before it is whole
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        half.write_bytes(content)
        os.replace(half, path)
    except OSError as error:
        warnings.warn(f"{SETTING}: got {path.parent}; needed a folder to write to ({error})", stacklevel=2)
        with suppress(OSError):
            half.unlink()


def load_object(made: bytes, symbol: str) -> Callable[..., None]:
    """The kernel of an object as a function of plain integers, in a process that has imported CuTe."""
    import cutlass.cute as cute

    with tempfile.TemporaryDirectory(prefix="cookbook-") as temporary:
        file = Path(temporary) / "kernel.o"
        file.write_bytes(made)
        return cute.runtime.load_module(str(file), enable_tvm_ffi=True)[symbol]


class Cached:
    """A recipe's `compile_host` with the disk in front of it.

    Only what the recipe's own text makes is kept: a module with a name set anew, or with another function in one of its
    tables, or a file that was edited since it was loaded, compiles as ever. So does everything while a variable
    CUTE_DSL_* is set, for these change what is compiled.
    """

    def __init__(self, module: ModuleType, recipe: str, source: Callable[[], str]) -> None:
        self.compile_host = module.compile_host
        self.module, self.recipe, self.source = module, recipe, source
        self.hash, self.names = source(), dict(vars(module))
        self.tables = {name: dict(value) for name, value in self.names.items() if _is_table(value)}

    def __call__(self, host: Any, arch: str, pointers: tuple, constants: tuple, options: str = "") -> Any:
        if options != TVM_FFI or folder() is None or not self.as_loaded():
            return self.compile_host(host, arch, pointers, constants, options=options)
        symbol, made = self.object(host, arch, pointers, constants, options)
        return load_object(made, symbol)

    def object(self, host: Any, arch: str, pointers: tuple, constants: tuple, options: str) -> tuple[str, bytes]:
        """The name of a kernel in its object, and the object, with the arguments of `compile_host`."""
        from cookbook.recipe.entry import COMPILING

        about = self.about(host, arch, pointers, constants)

        def compiled() -> bytes:
            with COMPILING:  # the export is a part of compiling
                made = self.compile_host(host, arch, pointers, constants, options=options)
                return _exported(made, symbol_of(about))

        return symbol_of(about), object_of(about, compiled) if self.as_loaded() else compiled()

    def as_loaded(self) -> bool:
        """Return whether the text on disk is what makes the kernels of this module."""
        changed = any(
            vars(self.module).get(name) is not value
            for name, value in self.names.items()
            if name not in ("compile_host", "CALIBRATION")  # figures of the host side: no kernel reads them
        )
        changed |= any(vars(self.module)[name] != kept for name, kept in self.tables.items())
        settings = [name for name in os.environ if name.startswith("CUTE_DSL_") and name not in _HARMLESS]
        try:
            return not (changed or settings) and self.source() == self.hash
        except OSError:  # the file is gone
            return False

    def about(self, host: Any, arch: str, pointers: tuple, constants: tuple) -> dict[str, str]:
        """Everything that decides over a kernel's code, as text."""
        import cutlass
        import torch
        import tvm_ffi

        here = arch or "sm_{}{} here".format(*torch.cuda.get_device_capability())
        types = [f"{getattr(element, '__name__', element)} aligned to {align}" for element, align in pointers]
        return {
            "recipe": self.recipe,
            "source": self.hash,
            "function": getattr(host, "__name__", repr(host)),
            "arch": here,
            "pointers": ", ".join(types),
            "configuration": ", ".join(map(_said, constants)),
            "dsl": f"{cutlass.__version__} {cutlass.CUDA_VERSION}",
            "tvm_ffi": tvm_ffi.__version__,
            "machine": platform.machine(),
        }


def _said(constant: Any) -> str:
    """A constant of a kernel as text, in each process alike: a function by its name, for its text is in the source."""
    return constant.__qualname__ if inspect.isroutine(constant) else repr(constant)


def _is_table(value: object) -> bool:
    """Return whether it is a dict of functions."""
    return isinstance(value, dict) and bool(value) and all(map(callable, value.values()))


_HARMLESS = ("CUTE_DSL_LIBS", "CUTE_DSL_CACHE_DIR")


def serve(module: ModuleType, recipe: str, source: Callable[[], str]) -> None:
    """Let the disk serve what a recipe's module compiles. source: a hash of the text that makes its kernels."""
    if hasattr(module, "compile_host"):
        vars(module)["compile_host"] = Cached(module, recipe, source)
