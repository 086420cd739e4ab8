"""A recipe's layouts, copies and MMA for one dtype and configuration, as CuTe evaluates them."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any

from cookbook.layouts import SmemLayout, TiledCopyTV, TiledMmaTV, evaluate

__all__ = ["Evaluated", "evaluated", "vector_for"]


@dataclass(frozen=True)
class Evaluated:
    smem: dict[str, SmemLayout]  # by field of the recipe's SmemLayouts
    copies: dict[str, TiledCopyTV]  # by field of its TiledCopies
    mma: TiledMmaTV

    @property
    def reads_by_descriptor(self) -> bool:
        """Whether the MMA reads A and B from shared memory itself: then no copy brings them to registers."""
        return "s2r_a" not in self.copies

    @property
    def stores_boxes(self) -> bool:
        """Whether C goes out in boxes by TMA, from buffers (64, EPI_N, BUFFER): then no copy reads it back."""
        return "s2g_c" not in self.copies


@lru_cache(maxsize=16)
def evaluated(module: ModuleType, dtype: Any, config: Any, vec: int = 8) -> Evaluated:
    """Ask CuTe for everything at once.

    Args:
        module: a recipe: see "A recipe" in docs/architecture.md.
        dtype: a cutlass numeric type.
        vec: elements per store of the output, for recipes whose `tiled_copies` has it.
    """
    vectors = (vec,) if "vec" in inspect.signature(module.tiled_copies).parameters else ()

    def everything() -> tuple[Any, Any, Any]:
        copies = module.tiled_copies(dtype, config, *vectors)
        return module.smem_layouts(dtype, config), copies, module.tiled_mma(dtype, config)

    smem, copies, mma = evaluate(everything, element_bits=dtype.width)
    return Evaluated(smem._asdict(), copies._asdict(), mma)


def vector_for(columns: int) -> int:
    """Elements per store (8, 4, 2 or 1) of rows of `columns` elements that follow one another."""
    return next(vec for vec in (8, 4, 2, 1) if columns % vec == 0)
