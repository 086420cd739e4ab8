"""Write the tiles that the playground opens: each recipe's shared memory, as CuTe evaluates the recipe's functions.

    python -m tools.publish.playground FILE

writes FILE; the site's hook runs it, in a process of its own, for CuTe reads the options of the program that it is in:

{"hopper/tma_wgmma_gemm": {"title": ..., "stages": 4, "tiles": {"a": {"layout": "((8,16),(64,1)):...",
 "bits": 16, "swizzle": [3, 4, 3], "access": "ld128@8x8", "read_by": "wgmma"}}}}

A tile's access is the first instruction of the recipe's own copy that reads it, or else writes it. Where none does, the
tensor core, or a copy to its memory, reads rows by itself: `read_by` says so, and the access is what these rows are
counted as.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from cookbook import access as lanes_of
from cookbook import atoms, banks
from cookbook.check import moves
from cookbook.check.compiled import cutlass_dtype
from cookbook.check.evaluated import Evaluated, evaluated
from cookbook.check.layout import SIDES, kind_of_copy
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
    """Return whether the JSON is younger than all that it is made of."""
    sources = [*catalog.recipes_root().rglob("*.py"), *ROOT.glob("cookbook/**/*.py"), Path(__file__)]
    return path.exists() and path.stat().st_mtime > max(source.stat().st_mtime for source in sources)


def write(path: Path) -> None:
    """Writes the JSON of all recipes that have tiles."""
    found = {recipe.name: tiles(recipe) for recipe in catalog.recipes() if address(recipe)}
    path.write_text(json.dumps(found, separators=(",", ":")) + "\n", encoding="utf-8")


def tiles(recipe: Recipe) -> dict[str, Any]:
    """A recipe's title, stages and tiles, in its first dtype and its own Config."""
    smem, stages = _smem(recipe)
    asked = _asked(recipe) if recipe.product.is_gemm and recipe.tensor_cores else {}
    found = {
        name: shown for name, layout in smem.items() if (shown := _tile(layout, asked.get(name.partition(",")[0], {})))
    }
    pipeline = {"stages": stages} if stages else {}
    return {"title": recipe.title, **pipeline, "tiles": found}


def _smem(recipe: Recipe) -> tuple[dict[str, SmemLayout], int]:
    """Its tiles by name, and its stages: 0 of what is no GEMM."""
    if recipe.product.is_gemm:
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
    """Return what one sees of a tile: no stages."""
    return tuple(map(repr, layout.outer.modes[:2])), layout.swizzle, layout.element_bits


def _tile(layout: SmemLayout, asked: dict[str, str]) -> dict[str, Any] | None:
    """The first two modes: further ones count stages. asked: its access, where the recipe says it."""
    modes = layout.outer.modes[:2]
    outer = Layout(tuple(m.shape for m in modes), tuple(m.stride for m in modes))
    swizzle, bits = layout.swizzle, layout.element_bits
    if not asked:
        access = _fitting(SmemLayout(outer, swizzle, bits))
        if access is None:
            return None
        asked = {"access": access}
    text = repr(outer).replace(" ", "").replace(",)", ")")
    return {"layout": text, "bits": bits, "swizzle": [swizzle.bits, swizzle.base, swizzle.shift], **asked}


def _asked(recipe: Recipe) -> dict[str, dict[str, str]]:
    """By tile of a GEMM: the access of the copy that reads or writes it, or of the tensor core that reads it."""
    module = catalog.load(recipe.name)
    found = evaluated(module, cutlass_dtype(recipe.dtypes[0]), module.CONFIG)
    asked = {}
    for name, layout in found.smem.items():
        copies = [field for prefix in ("s2r", "r2s", "s2g", "g2s") if (field := f"{prefix}_{name}") in found.copies]
        if name == "c":  # what goes out first lies there by r2s_c
            copies.sort(key=lambda field: field != "r2s_c")
        if copies:
            asked[name] = _first_instruction(copies[0], found, layout)
        else:
            by_copy = name.startswith("sf")  # scale factors: 4 bytes of each of 32 rows
            text = "ld32@32x4" if by_copy else f"ld128@8x{128 // layout.element_bits}"
            asked[name] = {"access": text, "read_by": "tcgen05.cp" if by_copy else atoms.reader(recipe.targets[0])}
    return asked


def _first_instruction(field: str, found: Evaluated, layout: SmemLayout) -> dict[str, str]:
    """The first instruction of a copy, phase for phase in any order; where no text says it, its lanes."""
    copy, side = found.copies[field], SIDES[field[:3]]
    kind = kind_of_copy(field, copy)
    first = lanes_of.of_copy(layout, copy, side, kind)[0]
    table = _rows_contiguous(layout)
    vector, lanes = first.width * 8 // layout.element_bits, int((first.addresses >= 0).sum())
    if kind in ("ldmatrix", "stmatrix"):
        name = f"{kind}.x{lanes // 8}"
    else:
        name = f"cp.async{first.width}" if kind == "cp_async" else f"{_MOVES[field[:3]]}{8 * first.width}"
    shapes = [(rows, lanes // rows * vector) for rows in (8, 16, 32, 4, 2, 1) if lanes % rows == 0]
    for (rows, columns), order in [(shape, order) for shape in shapes for order in ("", "/1x2", "/down")]:
        try:
            access = parse(f"{name}@{rows}x{columns}{order}")
            assert isinstance(access, Instruction)
            same = access.access(table, layout.element_bits).addresses
        except ValueError:
            continue
        if _phases(same, first.width) == _phases(first.addresses, first.width):
            return {"access": str(access)}
    at = {address: divmod(place, table.shape[1]) for place, address in enumerate(table.reshape(-1).tolist())}
    lanes_at = ["-" if address < 0 else "{},{}".format(*at[address]) for address in first.addresses.tolist()]
    return {"access": f"{name}@lanes", "lanes": " ".join(lanes_at)}


def _phases(addresses: np.ndarray, width: int) -> set[frozenset[int]]:
    """Return what is asked for together."""
    return {frozenset(group.tolist()) for group in addresses.reshape(banks.PHASES[width], -1)}


_MOVES = {"s2r": "ld", "s2g": "ld", "r2s": "st", "g2s": "st"}


def _rows_contiguous(layout: SmemLayout) -> np.ndarray:
    """The byte addresses of the first stage, the contiguous mode along the columns."""
    offsets, plain = layout.byte_offsets(), layout.outer.table()
    if offsets.ndim == 3:
        offsets, plain = offsets[..., 0], plain[..., 0]
    if plain.shape[1] < 2 or (plain[0, 1] - plain[0, 0] != 1 and plain[1, 0] - plain[0, 0] == 1):
        offsets = offsets.T
    return np.ascontiguousarray(offsets)


def _fitting(layout: SmemLayout) -> str | None:
    """An access that the tile of a recipe without tiled copies can take."""
    size, table = layout.element_bytes, _rows_contiguous(layout)
    known = ["ld32@32x1"] if size == 4 else []
    known += [f"ld128@{rows}x{16 // size}" for rows in (32, 8)]
    known += [f"ld{8 * width}@{rows}x{width // size}" for width in (8, 4) if width >= size for rows in (32, 8)]
    for text in known:
        access = parse(text)
        assert isinstance(access, Instruction)
        try:
            access.access(table, layout.element_bits)
        except ValueError:
            continue
        return text
    return None


if __name__ == "__main__":
    write(Path(sys.argv[1]))
