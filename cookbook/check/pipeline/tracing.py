"""What CuTe's tracer wrote down of a recipe's kernel: MLIR with `scf` loops and branches, before anything is lowered.

The text is what `CUTE_DSL_KEEP=ir-debug` writes to a file. At this stage every barrier, copy and MMA that the kernel's
Python asked for stands there as one operation, with the line of Python it came from.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

from cookbook.check import positions
from cookbook.settings import cute_settings

# MLIR's parser takes the location after an `nvvm.barrier` for an attribute of it: the generic form has no such doubt.
_BARRIER = re.compile(
    r"^(?P<indent>\s*)nvvm\.barrier(?: id = (?P<id>%\w+))?(?: number_of_threads = (?P<threads>%\w+))?"
    r" *(?P<loc>loc\(.*\))$"
)


def traced(module: Any, arch: str, dtype: Any, config: Any, **options: Any) -> str:
    """The kernel of a GEMM recipe and its host function, as MLIR in the generic form, with source lines.

    Args:
        module: a recipe's module.
        arch: a compile target, `"sm_90a"`.
        dtype: a `cutlass` numeric type.
        config: the recipe's `Config`.
        **options: what more its `compile_for` takes: `vec=1`.
    """
    with tempfile.TemporaryDirectory(prefix="cookbook-") as folder:
        wanted = {"keep_ir": True, "dump_dir": folder, "lineinfo": True, "dryrun": True}  # dryrun: nothing is compiled
        with cute_settings(**wanted), positions.read_once():
            module.compile_for(arch, dtype, config, **options)
        written = [file.read_text(encoding="utf-8") for file in Path(folder).glob("*.mlir")]
    if len(written) != 1:
        raise RuntimeError(f"the tracer wrote {len(written)} files of MLIR; needed 1")
    return generic(written[0])


def generic(text: str) -> str:
    """The module with equal expressions merged and constants folded, every operation printed in the generic form."""
    from cutlass._mlir import ir, passmanager

    lines = text.splitlines()
    aliases = [line for line in lines if line.startswith("#loc")]
    rest = [_BARRIER.sub(_generic_barrier, line) for line in lines if not line.startswith("#loc")]
    mlir: Any = ir  # its classes are compiled: no type checker sees them
    passes: Any = passmanager
    with mlir.Context():
        module = mlir.Module.parse("\n".join(aliases + rest))
        passes.PassManager.parse("builtin.module(canonicalize,cse)").run(module.operation)
        return module.operation.get_asm(print_generic_op_form=True, enable_debug_info=True, large_elements_limit=4)


def _generic_barrier(line: re.Match[str]) -> str:
    operands = [name for name in (line["id"], line["threads"]) if name]
    present = ", ".join("1" if name else "0" for name in (line["id"], line["threads"]))
    sizes = f"<{{operandSegmentSizes = array<i32: {present}, 0>}}>"
    types = ", ".join("i32" for _ in operands)
    return f'{line["indent"]}"nvvm.barrier"({", ".join(operands)}) {sizes} : ({types}) -> () {line["loc"]}'
