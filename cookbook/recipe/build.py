"""A recipe's kernels as a library, with a loader: who has them serves a product without compiling, and without CuTe.

A build is three files. `libNAME.so` holds the objects that CuTe's `export_to_c` writes, linked. `NAME.py` is the
loader: the recipe's `matmul` with its checks and heuristics, whose kernels come out of the library. `NAME.json`, the
signature, says what was built.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NamedTuple
from unittest.mock import patch

from cookbook.recipe import cache, catalog, copy, majors

__all__ = ["Build", "Wanted", "build", "files_of", "kernels_of", "loader", "parts_of"]

# What a heuristic is asked with. 132 SMs are an H200's, of which the defaults of a CALIBRATION are: whether a kernel
# remaps clusters is a matter of the product's size there.
_SHAPES, _SMS, _WIDTHS = ((256, 256, 256), (16384, 16384, 16384)), 132, (8, 4, 2, 1)

_HEADER = """\
# {title}. Compiled for {arch}.
#
# From the CuTe-DSL Kernel Cookbook {version}, recipe {name}. Apache-2.0; keep this note when you pass it on.
# lib{stem}.so and {stem}.json belong next to this file.
# Needs torch, apache-tvm-ffi and the runtime library of nvidia-cutlass-dsl (NVIDIA's own licence), and a GPU that runs
# {arch}. It imports no CuTe and compiles nothing.
#
#     from {stem} import matmul
#     c = matmul(a, b)    # {where}

from __future__ import annotations

"""


class Build(NamedTuple):
    """The files that were written."""

    loader: Path
    library: Path
    signature: Path
    kernels: int


class Wanted(NamedTuple):
    """A part of what a recipe has; an empty one is everything."""

    dtypes: Collection[str] = ()  # torch's names
    majors: Collection[str] = ()  # "tn", ...
    variants: Collection[str] = ()


def files_of(recipe: catalog.Recipe, into: Path) -> tuple[Path, Path, Path]:
    """Loader, library and signature of a recipe in the folder `into`."""
    stem = recipe.file.stem
    return into / f"{stem}.py", into / f"lib{stem}.so", into / f"{stem}.json"  # Python would import STEM.so


def build(
    name: str, arch: str, into: Path, wanted: Wanted | None = None, advance: Callable[[str], None] = lambda _: None
) -> Build:
    """Compile a recipe's kernels for `arch` and write library, loader and signature to the folder `into`. No GPU.

    advance: called with the text of each kernel before it is compiled.

    Raises:
        UnknownRecipe: there is no such recipe.
        ValueError: no product of two matrices, no target or dtype or variant of it, or no C compiler to link with.
        OSError: `into` cannot be written to.
    """
    recipe = catalog.find(name)
    parts = parts_of(recipe, arch, wanted or Wanted())
    module, kernels, linker = catalog.load(recipe.name), kernels_of(recipe, arch, parts), _linker()
    files = files_of(recipe, into)
    into.mkdir(parents=True, exist_ok=True)  # before minutes of compiling
    objects: dict[str, bytes] = {}
    symbols: dict[str, str] = {}
    for number, (key, which) in enumerate(kernels.items(), 1):
        advance(f"{number} of {len(kernels)}: {key}")
        symbols[key], made = _compiled(module, arch, which)
        objects[symbols[key]] = made
    files[0].write_text(loader(recipe, arch), encoding="utf-8")
    files[1].write_bytes(_linked(linker, objects))
    files[2].write_text(json.dumps(_signature(recipe, arch, parts, symbols), indent=1) + "\n", encoding="utf-8")
    return Build(*files, len(symbols))


def parts_of(recipe: catalog.Recipe, arch: str, wanted: Wanted) -> Wanted:
    """Return what is built: of each part all that there is, if none is wanted. A recipe without variants has none.

    Raises ValueError as `build`.
    """
    if not recipe.product.of_two_matrices:
        raise ValueError(f"name: got {recipe.name}; needed a product of two matrices alone")
    if arch not in recipe.targets:
        raise ValueError(f"arch: got {arch!r}; needed one of {', '.join(recipe.targets)}, which {recipe.name} has")
    variants = tuple(getattr(catalog.load(recipe.name), "VARIANTS", ()))
    known = Wanted(recipe.dtypes, recipe.majors, variants)
    for what, asked, there in zip(("dtype", "major", "variant"), wanted, known, strict=True):
        for each in asked:
            if each not in there:
                raise ValueError(f"{what}: got {each!r}; needed {' or '.join(there) or 'none: there are none'}")
    return Wanted(*(asked or there for asked, there in zip(wanted, known, strict=True)))


def kernels_of(recipe: catalog.Recipe, arch: str, wanted: Wanted) -> dict[str, tuple]:
    """Return what `compile_for` takes behind `arch`, by its text, for each kernel that `matmul` may launch there.

    Raises ValueError as `build`.
    """
    module = catalog.load(recipe.name)
    made = [_asked(module, call) for call in _calls(arch, parts_of(recipe, arch, wanted))]
    return {repr((which[0].__name__, *which[1:])): which for which in made}


def _calls(arch: str, parts: Wanted) -> Iterator[Any]:
    """A call of each kind that may need a kernel of its own."""
    import torch

    from cookbook.recipe.entry import Call

    here = arch.rstrip("af")
    for dtype, both, variant, (m, n, k), vec in product(*parts[:2], parts.variants or [""], _SHAPES, _WIDTHS):
        of = getattr(torch, dtype)
        strides, spans = (k, k, n), (2 * m * k, 2 * k * n, 2 * m * n)
        yield Call(
            of, (of, of), 0, here, _SMS, (m, n, k), majors.MAJORS[both], strides, vec, True, spans, variant, (m, n), {}
        )


def _asked(module: ModuleType, call: Any) -> tuple:
    """Return what the recipe compiles for a call."""
    from cookbook.recipe.entry import DTYPES

    with _replaced(module, "remap_table", lambda *_: 1):  # the address of a table, which takes a GPU
        which, _ = module.prepare(call)
    return DTYPES[call.dtype], *which


def _compiled(module: ModuleType, arch: str, which: tuple) -> tuple[str, bytes]:
    """The name of a kernel, and its object."""
    with _replaced(module, "compile_host", module.compile_host.object):  # compile_for returns what this does
        return module.compile_for(arch, *which, options=cache.TVM_FFI)


@contextmanager
def _replaced(module: ModuleType, name: str, value: Any) -> Iterator[None]:
    """Another meaning of a name, in a recipe and in all modules that it has functions of."""
    functions = (each for each in vars(module).values() if isinstance(each, FunctionType))
    spaces = {id(names): names for names in (vars(module), *(each.__globals__ for each in functions))}
    with ExitStack() as stack:
        for names in spaces.values():
            if name in names:
                stack.enter_context(patch.dict(names, {name: value}))
        yield


def _linker() -> str:
    found = os.environ.get("CC") or next(filter(shutil.which, ("cc", "gcc", "clang")), "")
    if not shutil.which(found):
        raise ValueError(f"CC: got {found or 'no C compiler'}; needed cc, gcc or clang: it links the library")
    return found


def _linked(linker: str, objects: dict[str, bytes]) -> bytes:
    """A shared library of objects. Nothing of NVIDIA's is linked in: the loader loads the runtime library before it."""
    with tempfile.TemporaryDirectory(prefix="cookbook-") as temporary:
        files = [Path(temporary) / f"{symbol}.o" for symbol in objects]
        for file, made in zip(files, objects.values(), strict=True):
            file.write_bytes(made)
        library = Path(temporary) / "library.so"
        command = [linker, "-shared", "-Wl,-z,noexecstack", "-o", str(library), *map(str, files)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ValueError(f"CC: got {linker}, which failed; needed one that links a library: {done.stderr[-500:]}")
        return library.read_bytes()


def loader(recipe: catalog.Recipe, arch: str) -> str:
    """The text of the module that serves a recipe's `matmul` from a library.

    Raises ValueError for a recipe whose host side needs CuTe.
    """
    from cookbook import __version__

    built = Path(__file__).with_name("built.py").read_text(encoding="utf-8")
    text = copy.host_alone(catalog.code(recipe), "matmul", built)
    said = {"title": recipe.title, "name": recipe.name, "stem": recipe.file.stem}
    said["where"] = recipe.product.usage(recipe).where
    return _HEADER.format(arch=arch, version=__version__, **said) + text


def _signature(recipe: catalog.Recipe, arch: str, parts: Wanted, symbols: dict[str, str]) -> dict[str, Any]:
    import cutlass

    from cookbook import __version__

    return {
        "recipe": recipe.name,
        "arch": arch,
        **parts._asdict(),
        "cookbook": __version__,
        "source": catalog.source_hash(recipe),
        "dsl": f"{cutlass.__version__}, CUDA {cutlass.CUDA_VERSION.major}.{cutlass.CUDA_VERSION.minor}",
        "kernels": symbols,
    }
