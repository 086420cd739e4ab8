"""A recipe's layouts, copies and MMA for one dtype and configuration, as CuTe evaluates them."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import ModuleType
from typing import Any

from cookbook.layouts import Layout, SmemLayout, TiledCopyTV, TiledMmaTV, evaluate
from cookbook.recipe import formats

__all__ = ["Evaluated", "evaluated", "vector_for"]


@dataclass(frozen=True)
class Evaluated:
    smem: dict[str, SmemLayout]  # by field of the recipe's SmemLayouts
    copies: dict[str, TiledCopyTV]  # by field of its TiledCopies
    mma: TiledMmaTV
    fragments: dict[str, Layout] = field(default_factory=dict)  # of tcgen05 alone: see `_fragments`
    scaled: formats.Format | None = None  # what scaled operands are made of
    scale_columns: tuple[int, int] = (0, 0)  # the first in tensor memory of the scale factors of A and of B
    reduction_buffer: Layout | None = None  # of split-K, in float32: (THREAD, (VEC, VECTORS), SENDER)

    @property
    def sums_in_tensor_memory(self) -> bool:
        """True if the MMA leaves its accumulators in tensor memory, as tcgen05 does; a copy loads them."""
        return "t2r_c" in self.copies

    @property
    def majors(self) -> tuple[str, str]:
        """The majors of A and B in shared memory, as the MMA takes them: "K" or "MN" each.

        Raises:
            ValueError: it takes them from registers.
        """
        if self.mma.majors is None:
            raise ValueError(f"mma: got {self.mma!r}; needed one that reads A and B from shared memory")
        return self.mma.majors

    @property
    def ctas(self) -> int:
        """CTAs that share one MMA: two of tcgen05 under .cta_group::2, whose "threads" they are to CuTe."""
        return self.mma.threads if self.sums_in_tensor_memory else 1

    @property
    def reads_by_descriptor(self) -> bool:
        """True if the MMA reads A and B from shared memory itself: then no copy loads them."""
        return "s2r_a" not in self.copies

    @property
    def stores_boxes(self) -> bool:
        """True if C goes out in boxes by TMA, from buffers (64, EPI_N, BUFFER): then no copy reads it back."""
        return "s2g_c" not in self.copies and not self.stores_registers

    @property
    def stores_registers(self) -> bool:
        """True if C goes from registers to global memory with no stay in shared memory."""
        return "c" not in self.smem


@lru_cache(maxsize=16)
def evaluated(module: ModuleType, dtype: Any, config: Any, vec: int = 8) -> Evaluated:
    """Ask CuTe for everything at once.

    Args:
        module: a recipe, `contract.Gemm`.
        dtype: a cutlass numeric type.
        vec: elements per store of the output, for recipes whose `tiled_copies` has it.
    """
    vectors = (vec,) if "vec" in inspect.signature(module.tiled_copies).parameters else ()
    arch = "sm_100a" if module.GEMM.gpus[0] >= (10, 0) else "sm_90a"  # CuTe has tcgen05's MMAs for that one alone
    form = formats.of_module(module)

    def everything() -> tuple[Any, Any, Any, dict[str, Any], Any]:
        copies = module.tiled_copies(dtype, config, *vectors)
        smem, mma = module.smem_layouts(dtype, config), module.tiled_mma(dtype, config)
        fragments = _fragments(smem, mma, dtype, config) if hasattr(copies, "t2r_c") and not form else {}
        fragments = fragments or (_scaled_fragments(module, smem, mma, config) if hasattr(smem, "sfa") else {})
        buffer = module.reduction_buffer(config) if getattr(config, "split_k", 1) > 1 else None
        return smem, copies, mma, fragments, buffer

    smem, copies, mma, fragments, buffer = evaluate(everything, element_bits=dtype.width, arch=arch)
    tiles = {name: layout for name, layout in smem._asdict().items() if isinstance(layout, SmemLayout)}
    found = Evaluated(tiles, copies._asdict(), mma, fragments, reduction_buffer=buffer)
    if not form or "a" not in tiles:  # else the tiles of A and B are of narrow elements
        return found
    in_bytes = {name: x if name == "c" else replace(x, element_bits=8) for name, x in found.smem.items()}
    columns = (config.sfa_column, config.sfb_column) if "sfa" in tiles else (0, 0)
    return replace(found, smem=in_bytes, scaled=form, scale_columns=columns)


def _fragments(smem: Any, mma: Any, dtype: Any, config: Any) -> dict[str, Any]:
    """Return what CuTe makes of a tcgen05 MMA's operands and accumulators.

    "a", "b": (MMA, MMA_M or MMA_N, MMA_K, STAGE) of descriptors, in units of 16 bytes from the first one's address.
    "c": (MMA, MMA_M, MMA_N, STAGE) of addresses in tensor memory, lane << 16 | column, from the first one.

    All of one CTA: of a pair that shares the MMA, each has its half of the rows of A and of B, and of the accumulators.
    """
    import cutlass.cute as cute

    stages, ctas = getattr(config, "acc_stages", 1), cute.size(mma.thr_id)
    m, n, k = mma.shape_mnk
    base = cute.make_ptr(dtype, 0, cute.AddressSpace.smem, assumed_align=1024)

    def blocks(layout: Any, rows: int) -> Any:
        tile = cute.make_tensor(cute.recast_ptr(base, layout.inner, dtype), layout.outer)
        return cute.group_modes(cute.flat_divide(tile, (rows, k)), 0, 2)

    sums = cute.append(mma.partition_shape_C((config.tile_m, config.tile_n)), stages)
    return {
        "a": mma.make_fragment_A(blocks(smem.a, m // ctas)).layout,
        "b": mma.make_fragment_B(blocks(smem.b, n // ctas)).layout,
        "c": mma.make_fragment_C(sums).layout,
    }


def _scaled_fragments(module: ModuleType, smem: Any, mma: Any, config: Any) -> dict[str, Any]:
    """ "a", "b" and "c" as `_fragments` has them; and of the scale factors of each operand, "sfa" and "sfb":

    "sfa.boxes": the recipe's (BOX_M, BOX_K, STAGE) of 8-byte words in shared memory, from the first stage's.
    "sfa.atoms": (CPY, CPY_ATOM, HIGH, WIDE, STAGE) of descriptors of tcgen05.cp, as of "a".
    "sfa.copied": the same of bytes in tensor memory, four to a column, from `config.sfa_column`.
    "sfa.steps": (MMA_K, STAGE) of such bytes, what each tcgen05.mma is told.
    """
    import cutlass
    import cutlass.cute as cute

    def tensor(layout: Any, dtype: Any) -> Any:
        base = cute.make_ptr(dtype, 0, cute.AddressSpace.smem, assumed_align=1024)
        return cute.make_tensor(cute.recast_ptr(base, layout.inner, dtype), layout.outer)

    stored = module.ELEMENT if module.ELEMENT.width == 8 else cutlass.Uint8
    tiles = [tensor(smem.a, stored), tensor(smem.b, stored)]
    tiles += [tensor(smem.sfa, module.SCALE), tensor(smem.sfb, module.SCALE)]
    address = cute.make_ptr(cutlass.Float32, 0, cute.AddressSpace.tmem, assumed_align=16)
    sums = cute.append(mma.partition_shape_C((config.tile_m, config.tile_n)), config.acc_stages)
    found = {"c": mma.make_fragment_C(sums).layout}
    rows = (config.tile_m, config.tile_n)
    for name, one, extent in zip("ab", module.operands(mma, tiles, address, config), rows, strict=True):
        found |= {name: one.elements.layout, f"sf{name}.boxes": module.scale_views(extent, config).boxes}
        found |= {f"sf{name}.{x}": getattr(one, x).layout for x in ("atoms", "copied", "steps")}
    return found


def vector_for(columns: int) -> int:
    """Elements per store (8, 4, 2 or 1) of rows of `columns` elements that follow one another."""
    return next(vec for vec in (8, 4, 2, 1) if columns % vec == 0)
