"""What the playground opens of each recipe: its tiles in shared memory, as CuTe evaluates the recipe's own functions.

{"hopper/tma_wgmma_gemm": {"title": ..., "stages": 4, "tiles": {"a": {"layout": "((8,16),(64,1)):...",
 "bits": 16, "swizzle": [3, 4, 3], "access": "ldmatrix.x4@16x16"}}}}
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from cookbook.check import moves
from cookbook.check.compiled import cutlass_dtype
from cookbook.check.evaluated import evaluated
from cookbook.layouts import Layout, SmemLayout
from cookbook.recipe import catalog
from cookbook.recipe.catalog import Recipe
from cookbook.solve.instructions import parse

__all__ = ["address", "tiles", "write"]


def address(name: str) -> str | None:
    """The query behind `playground/` that opens a recipe, such as "?recipe=hopper/tma_copy"; None: it has no tile."""
    return f"?recipe={name}" if tiles(catalog.find(name)) else None


def write(path: Path) -> None:
    """Writes the JSON of all recipes that have tiles, unless it is there already."""
    found = {recipe.name: entry for recipe in catalog.recipes() if (entry := tiles(recipe))}
    text = json.dumps(found, separators=(",", ":")) + "\n"
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def tiles(recipe: Recipe) -> dict[str, Any]:
    """A recipe's title, stages and tiles, in its first dtype and its own Config; {} of one that has none."""
    smem, stages = _smem(recipe)
    found = {name: shown for name, layout in smem.items() if (shown := _tile(name, layout))}
    pipeline = {"stages": stages} if stages else {}
    return {"title": recipe.title, **pipeline, "tiles": found} if found else {}


def _smem(recipe: Recipe) -> tuple[dict[str, SmemLayout], int]:
    if recipe.kind not in ("gemm", "transpose"):
        return {}, 0
    module, dtype = catalog.load(recipe.name), cutlass_dtype(recipe.dtypes[0])
    if recipe.kind == "gemm":
        return evaluated(module, dtype, module.CONFIG).smem, module.CONFIG.stages
    found = {}
    for variant, config in module.configs_for(recipe.targets[-1], dtype).items():
        found |= {f"{variant} {name}": tile for name, tile in moves.layouts(module, dtype, config).items()}
    return found, 0


def _tile(name: str, layout: SmemLayout) -> dict[str, Any] | None:
    """The first two modes: further ones count stages."""
    modes = layout.outer.modes[:2]
    outer = Layout(tuple(m.shape for m in modes), tuple(m.stride for m in modes))
    swizzle, bits = layout.swizzle, layout.element_bits
    access = _access(name, SmemLayout(outer, swizzle, bits))
    if access is None:
        return None
    text = repr(outer).replace(" ", "").replace(",)", ")")
    return {"layout": text, "bits": bits, "swizzle": [swizzle.bits, swizzle.base, swizzle.shift], "access": access}


def _access(name: str, layout: SmemLayout) -> str | None:
    """An access that the tile can take, its columns along the contiguous mode: what reads A and B, what writes C."""
    offsets = layout.byte_offsets()
    size = layout.element_bytes
    plain = layout.outer.table()
    if plain.shape[1] < 2 or (plain[0, 1] - plain[0, 0] != 1 and plain[1, 0] - plain[0, 0] == 1):
        offsets = offsets.T
    matrix, store = 16 // size, name.endswith("c")
    known = [f"{'st' if store else 'ld'}matrix.x4@16x{2 * matrix}"] if size <= 2 else []
    known += [f"ld128@{rows}x{matrix}" for rows in (32, 8)]
    known += [f"ld{8 * width}@{rows}x{width // size}" for width in (8, 4) if width >= size for rows in (32, 8)]
    for text in known:
        try:
            parse(text).access(np.ascontiguousarray(offsets), layout.element_bits)
        except ValueError:
            continue
        return text
    return None
