"""What the playground opens of each recipe: its tiles in shared memory, as CuTe evaluates the recipe's own functions.

    python -m tools.publish.playground FILE

writes FILE; the site's hook runs it, in a process of its own, for CuTe reads the options of the program that it is in:

{"hopper/tma_wgmma_gemm": {"title": ..., "stages": 4, "tiles": {"a": {"layout": "((8,16),(64,1)):...",
 "bits": 16, "swizzle": [3, 4, 3], "access": "ldmatrix.x4@16x16"}}}}
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from cookbook.check import moves
from cookbook.check.compiled import cutlass_dtype
from cookbook.check.evaluated import evaluated
from cookbook.layouts import Layout, SmemLayout, evaluate
from cookbook.recipe import catalog
from cookbook.recipe.catalog import Recipe
from cookbook.solve.instructions import Instruction, parse
from cookbook.swizzle import Swizzle

__all__ = ["ROOT", "address", "is_current", "tiles", "write"]

ROOT = catalog.recipes_root().parent


def address(recipe: Recipe) -> str | None:
    """The query behind `playground/` that opens a recipe, such as "?recipe=hopper/tuned_gemm"; None: it has no tile."""
    has_tiles = recipe.measures == "wavefronts" if recipe.kind == "study" else recipe.tensor_cores
    return f"?recipe={recipe.name}" if has_tiles else None


def is_current(path: Path) -> bool:
    """Whether the JSON is younger than all that it is made of."""
    sources = [*catalog.recipes_root().rglob("*.py"), *ROOT.glob("cookbook/**/*.py"), Path(__file__)]
    return path.exists() and path.stat().st_mtime > max(source.stat().st_mtime for source in sources)


def write(path: Path) -> None:
    """Writes the JSON of all recipes that have tiles."""
    found = {recipe.name: tiles(recipe) for recipe in catalog.recipes() if address(recipe)}
    path.write_text(json.dumps(found, separators=(",", ":")) + "\n", encoding="utf-8")


def tiles(recipe: Recipe) -> dict[str, Any]:
    """A recipe's title, stages and tiles, in its first dtype and its own Config."""
    smem, stages = _smem(recipe)
    found = {name: shown for name, layout in smem.items() if (shown := _tile(name, layout))}
    pipeline = {"stages": stages} if stages else {}
    return {"title": recipe.title, **pipeline, "tiles": found}


def _smem(recipe: Recipe) -> tuple[dict[str, SmemLayout], int]:
    """Its tiles by name, and its stages: 0 of what is no GEMM."""
    if recipe.kind == "gemm":
        return _of_gemm(recipe) if recipe.tensor_cores else ({}, 0)
    if recipe.kind == "study":
        return _of_study(recipe), 0
    module, dtype, found = catalog.load(recipe.name), cutlass_dtype(recipe.dtypes[0]), {}
    for variant, config in module.configs_for(recipe.targets[-1], dtype).items():
        found |= {f"{name}, {variant}": tile for name, tile in moves.layouts(module, dtype, config).items()}
    return found, 0


def _of_gemm(recipe: Recipe) -> tuple[dict[str, SmemLayout], int]:
    """The tiles of its Config, and those of its variants that lay out the same tile in another way."""
    module, dtype = catalog.load(recipe.name), cutlass_dtype(recipe.dtypes[0])
    found = dict(evaluated(module, dtype, module.CONFIG).smem)
    own = dict(found)
    for variant, config in getattr(module, "VARIANTS", {}).items():
        if any(getattr(config, side) != getattr(module.CONFIG, side) for side in ("tile_m", "tile_n", "tile_k")):
            continue
        for name, tile in evaluated(module, dtype, config).smem.items():
            if name in own and _shown(tile) not in map(_shown, found.values()):
                found[f"{name}, {variant}"] = tile
    return found, module.CONFIG.stages


def _of_study(recipe: Recipe) -> dict[str, SmemLayout]:
    """The tile of each kernel whose wavefronts are counted."""
    module, found = catalog.load(recipe.name), {}
    for kernel, which in module.KERNELS.items():
        bits = module.DTYPE.width
        layout = evaluate(module.smem_layout, which, element_bits=bits)
        found[kernel] = SmemLayout(layout, Swizzle(0, 4, 3), bits) if isinstance(layout, Layout) else layout
    return found


def _shown(layout: SmemLayout) -> tuple[Any, ...]:
    """What one sees of a tile: no stages."""
    return tuple(map(repr, layout.outer.modes[:2])), layout.swizzle, layout.element_bits


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
    matrix, store = 16 // size, name == "c"
    known = ["ld32@32x1"] if size == 4 else []
    known += [f"{'st' if store else 'ld'}matrix.x4@16x{2 * matrix}"] if size <= 2 else []
    known += [f"ld128@{rows}x{matrix}" for rows in (32, 8)]
    known += [f"ld{8 * width}@{rows}x{width // size}" for width in (8, 4) if width >= size for rows in (32, 8)]
    for text in known:
        access = parse(text)
        assert isinstance(access, Instruction)
        try:
            access.access(np.ascontiguousarray(offsets), layout.element_bits)
        except ValueError:
            continue
        return text
    return None


if __name__ == "__main__":
    write(Path(sys.argv[1]))
