"""Predict the clocks that a k-tile takes of an SM: the rules of the first GEMMs' pages, for the pages after.

A unit's clocks are counted from the recipe's own layouts. With one stage the units of a CTA wait for one another, and
the CTAs that share an SM divide the sum, down to what the busiest unit needs. What is assumed stands by the constants.
"""

from __future__ import annotations

from typing import Any

from cookbook.check.compiled import compile_recipe, cutlass_dtype
from cookbook.check.layout import copy_wavefronts
from cookbook.check.model.wgmma import boxes_of
from cookbook.layouts import evaluate
from cookbook.recipe import catalog

__all__ = ["L2_PORT", "LATENCY", "by_cp_async", "by_tma", "ctas_of"]

TENSOR_RATE = 2048  # dense 16-bit multiply-adds of an SM a clock, on Hopper (NVIDIA's figure)
L2_PORT, SECTOR = 64, 32  # bytes that L2 gives an SM a clock (assumed), and bytes that it gives at least
LATENCY = 800  # clocks until a load arrives (assumed)
REGISTERS, RESERVED = 65536, 1024  # of an SM; bytes of shared memory that it keeps for each CTA
ARCH = "sm_90a"


def ctas_of(name: str, dtype: str) -> int:
    """Return how many of a recipe's CTAs an SM holds, by registers (given in eights) and shared memory."""
    made = compile_recipe(name, ARCH, dtype)
    registers = -(-made.registers // 8) * 8 * made.threads
    return min(REGISTERS // registers, made.smem_limit // (made.smem_bytes + RESERVED))


def by_cp_async(name: str, dtype: str = "float16") -> dict[str, float]:
    """Clocks of an SM for one k-tile that comes by `cp.async` and goes to `mma.sync`, by unit.

    Then how many CTAs share it, and what a k-tile takes. With several stages L2 and its latency are not waited for: 0.
    """
    config, smem, copies = _evaluated(name, dtype, "smem_layouts", "tiled_copies")
    clocks = {"ldmatrix": 0.0, "cp.async": 0.0}
    for copy in ("s2r_a", "s2r_b", "g2s_a", "g2s_b"):
        counted = copy_wavefronts(copy, getattr(copies, copy), getattr(smem, copy[-1]))
        unit = "ldmatrix" if copy.startswith("s2r") else "cp.async"
        clocks[unit] += sum(each * n for (each, _), n in counted.items())
    m, n, k = config.tile_m, config.tile_n, config.tile_k
    clocks["mma.sync"], l2 = m * n * k / TENSOR_RATE, 2 * (m + n) * k / L2_PORT
    busiest = max(clocks["ldmatrix"] + clocks["cp.async"], l2, clocks["mma.sync"])  # both go through shared memory
    clocks |= {"L2": l2, "latency": LATENCY} if config.stages == 1 else {"L2": 0, "latency": 0}
    ctas = ctas_of(name, dtype)
    return clocks | {"CTAs an SM": ctas, "a k-tile takes": max(busiest, sum(clocks.values()) / ctas)}


def by_tma(name: str, dtype: str = "bfloat16") -> dict[str, float]:
    """Clocks of an SM for one k-tile that comes by TMA (a line of a box each, assumed) and goes to `wgmma`, by unit.

    Then how many CTAs share it, and what a k-tile takes. With several stages only the busiest unit counts.
    """
    config, smem = _evaluated(name, dtype, "smem_layouts")
    boxes, ctas = [boxes_of(smem.a), boxes_of(smem.b)], ctas_of(name, dtype)
    lines = sum(len(each.origins) * each.shape[0] for each in boxes)
    loading = {"TMA": lines, "L2": lines * max(boxes[0].mode or 16, SECTOR) / L2_PORT}
    multiply = config.tile_m * config.tile_n * config.tile_k / TENSOR_RATE
    latency = LATENCY if config.stages == 1 else 0
    alone = (latency + max(loading.values()) + multiply) / ctas if config.stages == 1 else 0
    clocks = loading | {"wgmma": multiply, "latency": latency, "CTAs an SM": ctas}
    return clocks | {"a k-tile takes": max(*loading.values(), multiply, alone)}


def _evaluated(name: str, dtype: str, *made: str) -> list[Any]:
    """A recipe's Config, and what its functions of these names make of it."""
    module = catalog.load(name)
    return [module.CONFIG, *(evaluate(getattr(module, each), cutlass_dtype(dtype), module.CONFIG) for each in made)]
