"""Runs the probe kernels on the GPU, and checks what they loaded and stored against `cookbook.model`.

A process of its own, for a profiler to watch: `python -m tools.probes.launch MODE FILE [SEED]`. Modes:

lines     one launch for each instruction: every pair a SASS line
launches  one launch for each pair of `sample`, which holds the probe and no other access to shared memory
busy      as lines, of cp.async alone, by many warps at once: its data comes when global memory has it
fresh     as lines, of the random table that SEED draws
forms     one launch for each form of cp.async in `tools.probes.forms`

FILE becomes a JSON list of what was wrong with the values; of `lines` and `fresh`, for the other launches check none.
"""

from __future__ import annotations

import json
import sys
from itertools import groupby
from pathlib import Path

import numpy as np

from cookbook import model
from tools.probes import forms
from tools.probes.fresh import fresh_pairs
from tools.probes.instructions import CTAS_OF_MANY, SMEM_BYTES, SOURCE_BYTES, WARPS_OF_MANY
from tools.probes.pairs import Pair, pairs

__all__ = ["MODES", "VERIFIED", "expected", "grids", "launched", "main", "sample"]

MODES = ("lines", "launches", "busy", "fresh", "forms")
VERIFIED = ("lines", "fresh")  # modes in which values are looked at too
SAMPLED = 12  # pairs of an instruction that are launched alone


def sample() -> list[Pair]:
    """Up to SAMPLED pairs of every instruction, spread over its table."""
    chosen: list[Pair] = []
    for _, group in groupby(pairs(), key=lambda pair: pair.instruction):
        table = list(group)
        chosen += [table[i] for i in np.linspace(0, len(table) - 1, min(SAMPLED, len(table))).astype(int)]
    return chosen


def expected(pair: Pair, probe: int) -> tuple[np.ndarray, np.ndarray]:
    """Return what probe number `probe` of its instruction must write to `out`, by `cookbook.model`.

    Returns:
        (32, registers) uint32, and (32,) bool: lanes whose result is defined. Where two rows of one stmatrix, or two
        lanes of a cp.async, have the same address the PTX ISA does not say which is stored.
    """
    instruction = pair.instruction
    if instruction.kind == "ldmatrix":
        registers = model.ldmatrix(_numbered(), np.maximum(pair.lanes, 0), instruction.num, instruction.trans)
        return registers.reshape(32, -1).view(np.uint32), np.ones(32, bool)
    if instruction.kind == "stmatrix":
        return _stored_rows(pair, probe)
    if instruction.loads:
        values = _elements(_numbered().view(np.uint8), pair.lanes, instruction.width)
    elif instruction.kind == "cp_async":
        return _copied(pair)
    else:
        bits = 8 * min(instruction.width, 4)
        values = _stored(probe, pair.lanes, instruction.registers) & (1 << bits) - 1
    return np.where(pair.lanes[:, None] >= 0, values, 0).astype(np.uint32), np.ones(32, bool)


def _numbered() -> model.SharedMemory:
    """Shared memory in which every 16 bits say which they are."""
    smem = model.SharedMemory(SMEM_BYTES)
    smem.view(np.uint16)[:] = np.arange(SMEM_BYTES // 2)
    return smem


def _elements(data: np.ndarray, addresses: np.ndarray, width: int) -> np.ndarray:
    """(32, registers) uint32 that a load of `width` bytes gives; addresses below 0 give the first bytes."""
    at = np.maximum(addresses, 0)
    if width < 4:
        return data.view({1: np.uint8, 2: np.uint16}[width])[at // width][:, None].astype(np.uint32)
    return data.view(np.uint32)[at[:, None] // 4 + np.arange(width // 4)]


def _stored(probe: int, own: np.ndarray, registers: int) -> np.ndarray:
    return (probe << 20) + (own[:, None] << 2) + np.arange(registers)


def _copied(pair: Pair) -> tuple[np.ndarray, np.ndarray]:
    """A word of global memory holds its number. Two lanes that copy different words to one place race."""
    values = np.array(pair.sources)[:, None] // 4 + np.arange(pair.instruction.width // 4)
    values = np.where(pair.lanes[:, None] >= 0, values, 0).astype(np.uint32)
    return values, np.array([lane < 0 or len(np.unique(values[pair.lanes == lane, 0])) == 1 for lane in pair.lanes])


def _stored_rows(pair: Pair, probe: int) -> tuple[np.ndarray, np.ndarray]:
    instruction, rows = pair.instruction, pair.lanes
    smem = model.SharedMemory(SMEM_BYTES)
    fragments = _stored(probe, np.arange(32), instruction.num).astype(np.uint32)
    model.stmatrix(smem, rows, fragments.view(np.uint16).reshape(32, instruction.num, 2), instruction.trans)
    values = np.where(rows[:, None] >= 0, _elements(smem.view(np.uint8), rows, 16), 0)
    return values.astype(np.uint32), np.array([row < 0 or (rows == row).sum() == 1 for row in rows])


def launched(mode: str, seed: int = 0) -> list[list[Pair]]:
    """The pairs of each launch of a mode, in order.

    Raises:
        ValueError: there is no such mode.
    """
    if mode not in MODES:
        raise ValueError(f"mode: got {mode!r}; needed one of {', '.join(MODES)}")
    if mode == "launches":
        return [[pair] for pair in sample()]
    if mode == "forms":
        return [forms.table(form) for form in forms.FORMS]
    drawn = fresh_pairs(seed) if mode == "fresh" else pairs()
    tables = [list(group) for _, group in groupby(drawn, key=lambda pair: pair.instruction)]
    return tables if mode != "busy" else [t for t in tables if t[0].instruction.kind == "cp_async"]


def grids(mode: str, seed: int = 0) -> list[tuple[int, int]]:
    """(CTAs, warps of each) of each launch of a mode, in order."""
    if mode == "forms":
        return [(form.ctas, form.warps) for form in forms.FORMS]
    return [(CTAS_OF_MANY, WARPS_OF_MANY) if mode == "busy" else (1, 1)] * len(launched(mode, seed))


def run(table: list[Pair], grid: tuple[int, int], verify: bool) -> list[str]:
    """Launch the probes of one instruction; what they got wrong, in words."""
    import torch

    from tools.probes import kernels

    instruction = table[0].instruction
    offsets = torch.tensor([pair.addresses for pair in table], dtype=torch.int32, device="cuda")
    warps = grid[0] * grid[1]
    memory = torch.arange(warps * SOURCE_BYTES // 4, dtype=torch.int32, device="cuda")
    places = torch.tensor([pair.sources or (0,) * 32 for pair in table], dtype=torch.int64, device="cuda")
    sources = places + memory.data_ptr()
    out = torch.zeros((len(table), 32, kernels.REGISTERS), dtype=torch.int32, device="cuda")
    kernel = kernels.compiled(instruction, len(table), verify, grid)
    stream = torch.cuda.current_stream().cuda_stream
    kernel(*kernels.arguments(offsets.data_ptr(), sources.data_ptr(), out.data_ptr(), stream))
    torch.cuda.synchronize()
    return wrong_values(table, out.cpu().numpy().view(np.uint32)) if verify else []


def wrong_values(table: list[Pair], out: np.ndarray) -> list[str]:
    """The pairs whose values are not the model's, in words; `out` is (pairs, 32, 4) uint32."""
    wrong = []
    for probe, (pair, got) in enumerate(zip(table, out, strict=True)):
        values, defined = expected(pair, probe)
        differ = (got[:, : values.shape[1]] != values) & defined[:, None]
        if differ.any():
            lane, register = np.argwhere(differ)[0]
            told = f"lane {lane} got {got[lane, register]:#x}, the model says {values[lane, register]:#x}"
            wrong.append(f"{pair}: {told}")
    return wrong


def main(mode: str, file: str, seed: str = "0") -> None:
    """Launch everything of a mode and write what was wrong to `file`."""
    verify, number = mode in VERIFIED, int(seed)
    wrong = [
        line
        for table, grid in zip(launched(mode, number), grids(mode, number), strict=True)
        for line in run(table, grid, verify)
    ]
    Path(file).write_text(json.dumps(wrong), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
