"""What the threads of a persistent `cp.async` GEMM ask for, k-tile by k-tile: the recipe's own code, run on the host.

A kernel whose loads run ahead of its multiplications into the next tile keeps a cursor. The level "model" simulates one
tile at a time and never moves it. But the functions that make and move it are integer arithmetic, and CuTe-DSL
compiles them for the host as well as for a GPU: so here they run as they are, for any thread of any CTA.
"""

from collections.abc import Callable, Sequence
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.runtime import from_dlpack

__all__ = ["Asked", "Thread", "asked_for"]

A_AT, B_AT = 1 << 40, 1 << 41  # where A and B are said to be: nothing is read there
_CURSOR = ("a", "b", "rows_a", "rows_b", "k", "left", "tile")


class Asked(NamedTuple):
    """One k-tile that a thread asks for."""

    tile: int  # its number; one that does not exist if it is behind the last
    a: tuple[int, int]  # (row, element along K) of A where the thread's first piece begins; K may be negative
    b: tuple[int, int]
    inside_a: tuple[bool, ...]  # for each of its pieces, down the rows: whether it is copied, or filled with zeros
    inside_b: tuple[bool, ...]


class Thread(NamedTuple):
    """What one thread asks for."""

    asked: list[Asked]  # in order
    targets: tuple[int, int]  # byte addresses in shared memory of its first pieces of A and of B in stage 0


def asked_for(
    module: ModuleType,
    dtype: Any,
    config: Any,
    shape: tuple[int, int, int],
    cta: int,
    ctas: int,
    threads: Sequence[int],
    steps: int,
) -> list[Thread]:
    """The first `steps` k-tiles that each of `threads` of a CTA asks for.

    Args:
        module: a recipe with `Problem`, `make_way`, `cursor_at` and `cursor_after`.
        dtype: a cutlass numeric type.
        shape: (M, N, K), the rows of A and B following one another.
        cta: of `ctas` in the grid.
    """
    cursors = torch.zeros(len(threads), steps, len(_CURSOR), dtype=torch.int64)
    ways, who = torch.zeros(len(threads), 6, dtype=torch.int64), torch.tensor(threads, dtype=torch.int32)
    tensors = (from_dlpack(x) for x in (cursors, ways, who))
    _host(module, dtype, config)(*tensors, *shape, cta, ctas, len(threads), steps)
    return [_thread(*each, shape[2]) for each in zip(cursors.tolist(), ways.tolist(), strict=True)]


def _thread(cursors: list[list[int]], way: list[int], depth: int) -> Thread:
    """One thread's numbers, as `trace` below leaves them, in words."""
    apart, pieces, targets, asked = way[:2], way[2:4], (way[4], way[5]), []
    for row in cursors:
        c = dict(zip(_CURSOR, row, strict=True))
        at = [divmod((address - base) // 2 - c["k"], depth) for address, base in ((c["a"], A_AT), (c["b"], B_AT))]
        inside_a, inside_b = (
            tuple(c["k"] >= 0 and i * step < rows for i in range(count))
            for step, count, rows in zip(apart, pieces, (c["rows_a"], c["rows_b"]), strict=True)
        )
        a, b = ((m, over + c["k"]) for m, over in at)
        asked.append(Asked(c["tile"], a, b, inside_a, inside_b))
    return Thread(asked, targets)


@cache
def _host(module: ModuleType, dtype: Any, config: Any) -> Callable[..., None]:
    """The trace for one configuration, compiled once."""

    @cute.jit
    def one(cursors, facts, m, n, depth, cta, ctas, tidx, steps):
        layouts, copies = module.smem_layouts(dtype, config), module.tiled_copies(dtype, config)
        smem = cute.make_ptr(cutlass.Uint8, 0, cute.AddressSpace.smem, assumed_align=1024)
        ways = []
        k_tiles = cutlass.max(cute.ceil_div(depth, config.tile_k), config.stages - 1)
        tiles = cute.ceil_div(m, config.tile_m) * cute.ceil_div(n, config.tile_n)
        problem = module.Problem((m, n), depth - k_tiles * config.tile_k, k_tiles, tiles)
        for copy, layout, base, rows in ((copies.g2s_a, layouts.a, A_AT, m), (copies.g2s_b, layouts.b, B_AT, n)):
            staged = cute.make_tensor(cute.recast_ptr(smem, layout.inner, dtype), layout.outer)
            pointer = cute.make_ptr(dtype, base, cute.AddressSpace.gmem, assumed_align=16)
            matrix = cute.make_tensor(pointer, cute.make_layout((rows, depth), stride=(cutlass.Int64(depth), 1)))
            ways.append(module.make_way(copy, matrix, staged, problem.before, tidx, config))
        for i in cutlass.range_constexpr(2):
            facts[i], facts[2 + i] = cutlass.Int64(ways[i].rows_apart), cutlass.Int64(ways[i].chunks)
            facts[4 + i] = cutlass.Int64(ways[i].target)
        c = module.cursor_at(cta, *ways, problem, tidx, config)
        for step in cutlass.range(steps, unroll=1):
            for i in cutlass.range_constexpr(len(_CURSOR)):
                cursors[step, i] = cutlass.Int64(c[i])
            c = module.cursor_after(c, ctas, *ways, problem, tidx, config)

    @cute.jit
    def trace(
        cursors: cute.Tensor,  # (THREAD, STEP, field)
        facts: cute.Tensor,  # (THREAD, fact)
        threads: cute.Tensor,
        m: cutlass.Int32,
        n: cutlass.Int32,
        depth: cutlass.Int32,
        cta: cutlass.Int32,
        ctas: cutlass.Int32,
        count: cutlass.Int32,
        steps: cutlass.Int32,
    ):
        for i in cutlass.range(count, unroll=1):
            one(cursors[i, None, None], facts[i, None], m, n, depth, cta, ctas, threads[i], steps)

    return trace
