"""Products that no figure of the choice was fitted to, drawn anew for each seed: by these the choice is judged.

Rows are log-uniform from 1 to ROWS. Three of four products have the weight of a layer of one of ten language models; of
the others N and K are log-uniform between SIDES, N any integer and K a multiple of 8, so that tiles are ragged.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from cookbook.ops import choice
from cookbook.recipe import catalog
from cookbook.recipe.cache import TVM_FFI
from cookbook.recipe.entry import TYPES_OF_C
from tools.ops import measuring
from tools.records import of_device

__all__ = ["COUNT", "MODELS", "ROWS", "compile_ahead", "draw", "read", "write"]

COUNT, ROWS = 40, 8192
FILE = "unseen.json"
ODD = 1 / 4  # of the products: of sizes that no model has
SIDES = 128, 16_384  # of their weights

# (N, K) of linear layers: attention in and out, up (gate and up in one) and down, and a vocabulary.
MODELS: dict[str, tuple[tuple[int, int], ...]] = {
    "Llama 3.1 8B": ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096)),
    "Llama 3.3 70B": ((10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672), (128256, 8192)),
    "Qwen2.5 0.5B": ((1152, 896), (896, 896), (9728, 896), (896, 4864), (151936, 896)),
    "Qwen3 8B": ((6144, 4096), (4096, 4096), (24576, 4096), (4096, 12288), (151936, 4096)),
    "Qwen3 32B": ((10240, 5120), (5120, 8192), (51200, 5120), (5120, 25600), (151936, 5120)),
    "Mistral Small 24B": ((6144, 5120), (5120, 4096), (65536, 5120), (5120, 32768), (131072, 5120)),
    "Gemma 3 27B": ((8192, 5376), (5376, 4096), (43008, 5376), (5376, 21504), (262208, 5376)),
    "Phi-4 14B": ((7680, 5120), (5120, 5120), (35840, 5120), (5120, 17920), (100352, 5120)),
    "DeepSeek-V3": ((1536, 7168), (24576, 1536), (7168, 16384), (4096, 7168), (7168, 2048)),
    "gpt-oss 20B": ((5120, 2880), (2880, 4096), (5760, 2880), (2880, 2880), (201088, 2880)),
}


def draw(seed: int, count: int, rows: tuple[int, int] = (1, ROWS)) -> list[tuple[int, int, int]]:
    """`count` products (M, N, K), the same ones for the same seed.

    Args:
        rows: the least and the most of them.
    """
    luck = random.Random(f"unseen {seed}")
    weights = sorted({weight for layers in MODELS.values() for weight in layers})
    found = []
    for _ in range(count):
        m = round(_log_uniform(luck, *rows))
        n, k = luck.choice(weights)
        if luck.random() < ODD:
            n, k = round(_log_uniform(luck, *SIDES)), 8 * round(_log_uniform(luck, *SIDES) / 8)
        found.append((m, n, k))
    return found


def _log_uniform(luck: random.Random, least: float, most: float) -> float:
    return math.exp(luck.uniform(math.log(least), math.log(most)))


def compile_ahead(cases: Iterable[measuring.Case], gpu: choice.Gpu, arch: str = "", workers: int | None = None) -> int:
    """Compile what is to be timed at some cases, in parallel processes, onto the disk; returns how many kernels.

    Args:
        arch: what it compiles for; the GPU that is here if left out.
        workers: processes; as many as there are cores if left out.
    """
    jobs = {}
    for case in cases:
        for option in measuring.kernels(case, gpu).values():
            made = measuring.made_of(case, option, gpu)
            jobs.setdefault((option.recipe, case.dtype, repr(made)), (option.recipe, case.dtype, made, arch))
    with ProcessPoolExecutor(workers or os.cpu_count(), mp_context=get_context("spawn")) as pool:
        return sum(pool.map(_compile, jobs.values(), chunksize=4))


def _compile(job: tuple[str, str, tuple[Any, ...], str]) -> int:
    """One kernel, as its recipe's plan of a call would have it compiled."""
    recipe, dtype, made, arch = job
    gemm = catalog.load(recipe).GEMM
    gemm.compile_for(arch, TYPES_OF_C[getattr(torch, dtype)], *made, options=TVM_FFI)
    return 1


def read(root: Path | None = None) -> dict[str, dict[int, list[dict[str, Any]]]]:
    """Return what is recorded, by device and seed.

    Raises ValueError if a file is not what `write` writes.
    """

    def seeds_of(content: dict[str, Any]) -> dict[int, list[dict[str, Any]]]:
        return {int(seed): shapes for seed, shapes in content["seeds"].items()}

    return of_device.read(FILE, seeds_of, "unseen products", root)


def write(device: str, seed: int, shapes: list[dict[str, Any]], root: Path | None = None) -> Path:
    """Put what was measured of a seed into a device's file."""
    seeds = read(root).get(device, {}) | {seed: shapes}
    content = {"device": device, "seeds": {str(each): seeds[each] for each in sorted(seeds)}}
    return of_device.write(FILE, content, root)
