"""Substitutes for CuTe in a built loader: kernels come out of a library, and nothing is compiled.

`cookbook build` writes what a recipe's `matmul` uses of this text into the loader. These names take the place of those
that the recipe and `entry.py` have.
"""

import ctypes
import importlib.util
import json
import os
import re
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch

from cookbook.recipe.entry import require

DTYPES = {torch.float16: "Float16", torch.bfloat16: "BFloat16"}
TYPES_OF_C = DTYPES
COMPILING = threading.RLock()  # here: one loads at a time
LOADER = Path(__file__)


@cache
def signature() -> dict[str, Any]:
    """Return what was built: the JSON file next to this one."""
    return json.loads(LOADER.with_suffix(".json").read_text(encoding="utf-8"))


def compile_for(arch: str, dtype: str, *which, options: str = "") -> Callable[..., None]:
    """The kernel of a configuration, out of the library next to this file. `arch` and `options` are the recipe's."""
    made, found = signature(), torch.cuda.get_device_capability()
    symbol, needed = made["kernels"].get(repr((dtype, *which))), f"one that runs {made['arch']}, as this was built"
    require(serves(made["arch"], found), "a", f"a GPU of compute capability {found}", needed)
    several = f"one of the {len(made['kernels'])} kernels in {LOADER.with_suffix('.json').name}: build more of them"
    require(symbol is not None, "a", f"a product by {dtype}, {', '.join(map(repr, which))}", several)
    return library()[symbol]


def serves(arch: str, capability: tuple[int, int]) -> bool:
    """Return whether a GPU runs machine code of `arch`: "sm_80" also later minors, "sm_90a" compute capability 9.0
    alone."""
    ((major, minor, only),) = re.findall(r"^sm_(\d+)(\d)(a?)f?$", arch)
    built = int(major), int(minor)
    return capability == built if only else capability[0] == built[0] and capability[1] >= built[1]


@cache
def library() -> Any:
    """The functions by symbol. CuTe itself is not imported: of NVIDIA's packages the runtime library is enough.

    Raises ImportError where a package is missing, or of a version that lacks what the kernels call.
    """
    file = LOADER.with_name(f"lib{LOADER.stem}.so")
    try:
        import tvm_ffi
    except ImportError:
        raise ImportError("tvm_ffi: got no such package; needed one: pip install apache-tvm-ffi") from None
    ctypes.CDLL(runtime_library(), ctypes.RTLD_GLOBAL)
    try:
        ctypes.CDLL(str(file))  # looks every symbol up; load_module would leave that to the first call
    except OSError as error:
        needed = f"the runtime library of CuTe DSL {signature()['dsl']}"
        raise ImportError(f"{file.name}: got {error}; needed {needed}, with which it was built") from None
    return tvm_ffi.load_module(str(file))


def runtime_library() -> str:
    """NVIDIA's runtime library that the kernels call: the one of CUTE_DSL_LIBS, or the one that pip installed."""
    name, spec = "libcute_dsl_runtime.so", importlib.util.find_spec("nvidia_cutlass_dsl")
    said = os.environ.get("CUTE_DSL_LIBS", "").split(os.pathsep)
    roots = [Path(root) for root in (spec.submodule_search_locations or ())] if spec else []
    there = [
        str(file) for root in roots for places in ("lib", "cu*/lib") for file in sorted(root.glob(f"{places}/{name}"))
    ]
    found = [file for file in (*said, *there) if file.endswith(name) and Path(file).is_file()]
    if not found:
        raise ImportError(f"{name}: got no such file; needed NVIDIA's package: pip install nvidia-cutlass-dsl")
    return found[0]
