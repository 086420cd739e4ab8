"""Check with no GPU that every probe kernel compiles, and that its SASS holds each probe once."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from cookbook.check import compiled
from cookbook.check.findings import Finding
from tools.probes.instructions import Instruction
from tools.probes.launch import VERIFIED, grids, launched
from tools.probes.pairs import Pair

__all__ = ["compile_all", "compile_probes"]

_MNEMONIC = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", re.MULTILINE)


def compile_all(arch: str, mode: str = "lines", seed: int = 0) -> list[Finding]:
    """Compile the kernel of every launch of a mode of `launch` for `arch`, with all its pairs."""
    verify = mode in VERIFIED
    return [
        compile_probes(table[0].instruction, table, arch, verify, grid)
        for table, grid in zip(launched(mode, seed), grids(mode, seed), strict=True)
    ]


def compile_probes(
    instruction: Instruction, table: list[Pair], arch: str, verify: bool = True, grid: tuple[int, int] = (1, 1)
) -> Finding:
    """Compile one kernel with a row for each pair; it must hold the instruction that often."""
    from tools.probes import kernels

    with tempfile.TemporaryDirectory(prefix="cookbook-") as folder:
        options = f"--gpu-arch {arch} --keep-cubin --dump-dir {folder}"
        kernels.compiled(instruction, len(table), verify, grid, options)
        sass = "\n".join(compiled.disassemble(cubin) for cubin in Path(folder).glob("*.cubin"))
    found = [name for name in _MNEMONIC.findall(sass) if name.split(".")[0] == instruction.opcode]
    alike = sum(compiled.matches(name, instruction.name) for name in found)
    ok = len(found) == alike == len(table)
    return Finding(
        instruction.name, ok, f"{alike} of {len(found)} {instruction.opcode} in the SASS; {len(table)} pairs"
    )
