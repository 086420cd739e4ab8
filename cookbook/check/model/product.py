"""Level "model": the product of two matrices by a recipe's own data path, simulated in numpy.

Each output tile goes the way its bytes go on the GPU: global memory -> TMA or cp.async -> swizzled shared memory ->
matrix descriptors or ldmatrix -> MMA -> registers (on Blackwell out of tensor memory) -> shared memory -> predicated
stores, or boxes by TMA. The instructions are those of `cookbook.model`; which thread moves what, and where it lies, is
read from the recipe's own layouts, tiled copies and tiled MMA, as CuTe evaluates them. Order in time is not modelled:
loads are done when they are asked for.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from cookbook.check.evaluated import Evaluated, evaluated, vector_for
from cookbook.check.model.epilogue import BoxStores, VectorStores
from cookbook.check.model.mma_sync import CpAsyncLdmatrix, TmaLdmatrix
from cookbook.check.model.split_k import RegisterStores, SplitK, SplitKWgmma
from cookbook.check.model.tcgen05 import TmaTcgen05
from cookbook.check.model.wgmma import TmaWgmma
from cookbook.model import SharedMemory, from_float32, to_float32
from cookbook.recipe import majors

__all__ = ["simulate", "simulate_evaluated"]


def simulate(module: ModuleType, a: Any, b: Any, dtype: Any, config: Any) -> np.ndarray:
    """`a @ b` as the recipe computes it.

    Args:
        module: a recipe: see docs/contract.md.
        a: (M, K) torch tensor or numpy array of float values; they are rounded to `dtype` first.
        b: (K, N), the same.
        dtype: the cutlass numeric type of a, b and the output: Float16 or BFloat16.
        config: the recipe's Config; where it names the operands' majors, they lie in global memory like that.

    Returns:
        (M, N) float32, rounded to `dtype`. Exact wherever all partial sums are exact in float32.

    Raises:
        ValueError: mismatched shapes, or a layout, copy or size that the recipe's instructions cannot take.
    """
    name = _name(dtype)
    a, b = (np.asarray(x.float().numpy() if hasattr(x, "numpy") else x, np.float32) for x in (a, b))
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0] or 0 in (*a.shape, *b.shape):
        raise ValueError(f"a, b: got shapes {a.shape} and {b.shape}; needed (M, K) and (K, N), none of them 0")
    found = evaluated(module, dtype, config, vector_for(b.shape[1]))
    lie = majors.of_kernel(module, config)
    if majors.swaps(module, config):  # A is b, B is a, and C is transposed
        return simulate_evaluated(found, found, b.T, a.T, name, config, lie).T
    return simulate_evaluated(found, found, a, b, name, config, lie)


def simulate_evaluated(
    writer: Evaluated,
    reader: Evaluated,
    a: np.ndarray,
    b: np.ndarray,
    dtype: str,
    config: Any,
    lie: tuple[str, str] | None = None,
) -> np.ndarray:
    """`simulate` with the layouts of those who write shared memory and of those who read it told apart.

    In a right kernel they are the same. Giving two different ones shows what a kernel with the swizzle on one side
    only would compute.

    Args:
        dtype: "float16" or "bfloat16".
        lie: the majors of a and b in global memory; those of `config` if left out.
    """
    lie = lie or majors.of_config(config)
    along = (1 if lie[0] == "k" else 0, 1 if lie[1] == "k" else 0)
    path = _path(reader)(writer, reader, dtype, along)
    a_bits, b_bits = _global(a, dtype, along[0]), _global(b.T, dtype, along[1])
    return simulate_tiles(path, writer, reader, a_bits, b_bits, dtype, config)


def simulate_tiles(
    path: Any, writer: Evaluated, reader: Evaluated, a: Any, b: Any, dtype: str, config: Any
) -> np.ndarray:
    """Every tile of the product of a (M, K) and b (N, K) in global memory: by `path`, then the epilogue's way.

    Args:
        path: made of the same `writer` and `reader`; `multiply(smem, a, b, row, column)` gives the sums of a tile.

    Returns:
        (M, N) float32, rounded to `dtype`; int32 of "int32".
    """
    kinds = {reader.stores_boxes: BoxStores, reader.stores_registers: RegisterStores}
    epilogue = kinds.get(True, VectorStores)(writer, reader, path.c_coords, dtype, path.smem_bytes)
    smem = SharedMemory(max(path.smem_bytes, epilogue.smem_bytes))
    m, n = a.shape[0], b.shape[0]
    out = _output(m, n, dtype) if epilogue.along == 1 else _output(n, m, dtype).T
    for row in range(0, a.shape[0], config.tile_m):
        for column in range(0, b.shape[0], config.tile_n):
            smem.poison()
            accumulators = path.multiply(smem, a, b, row, column)
            smem.poison()  # C is staged where A and B were, or in buffers that hold an earlier tile's
            epilogue.store(smem, accumulators, out, row, column)
    return out if dtype == "int32" else to_float32(out, dtype)


def _path(reader: Evaluated) -> type[CpAsyncLdmatrix | TmaLdmatrix | TmaWgmma | TmaTcgen05]:
    """The way of A and B that the recipe's MMA takes."""
    if reader.sums_in_tensor_memory:
        return SplitK if reader.reduction_buffer else TmaTcgen05
    if reader.reads_by_descriptor:
        return SplitKWgmma if reader.reduction_buffer else TmaWgmma
    return CpAsyncLdmatrix if "g2s_a" in reader.copies else TmaLdmatrix


def global_bytes(x: np.ndarray) -> np.ndarray:
    """Bytes (rows, bytes) in global memory, rows a multiple of 16 apart; what lies between them is 0xFF."""
    rows, width = x.shape
    memory = np.full((rows, -(-width // 16) * 16), 0xFF, np.uint8)
    memory[:, :width] = x
    return memory[:, :width]


def _global(x: np.ndarray, dtype: str, along: int) -> np.ndarray:
    """The operand (rows, K) in global memory: uint16, in lines along mode `along`, each padded with NaN to the next
    multiple of 16 bytes."""
    if along == 0:
        return _global(x.T, dtype, 1).T
    rows, columns = x.shape
    memory = np.full((rows, -(-columns // 8) * 8), 0xFFFF, np.uint16)
    memory[:, :columns] = from_float32(x, dtype)
    return memory[:, :columns]


def _output(rows: int, columns: int, dtype: str) -> np.ndarray:
    """(rows, columns) uint16 full of NaN, or int32 of its lowest number, so that an element never stored would show;
    the rows multiples of 16 bytes apart, as TMA needs them and as `matmul` makes them for its sake."""
    full = (-(2**31), np.int32) if dtype == "int32" else (0xFFFF, np.uint16)
    return np.full((rows, -(-columns // 8) * 8), *full)[:, :columns]


def _name(dtype: Any) -> str:
    names = {"Float16": "float16", "BFloat16": "bfloat16"}
    if getattr(dtype, "__name__", None) not in names:
        raise ValueError(f"dtype: got {dtype!r}; needed cutlass.Float16 or cutlass.BFloat16")
    return names[dtype.__name__]
