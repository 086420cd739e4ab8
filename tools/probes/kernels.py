"""The probe kernel: one warp issues one kind of instruction, once for each row of a table of lane addresses.

Every probe is a SASS line of its own, executed once, so a profiler's counters by line are counters by probe. A
barrier stands before each, so that the compiler keeps their order.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, Uint32

from cookbook.recipe.moved import SmemAllocator
from tools.probes.instructions import (
    READ_BACK,
    SMEM_BYTES,
    SOURCE_BYTES,
    Instruction,
)

__all__ = ["arguments", "compiled", "stored_value"]

ALIGN = 1024  # of the probed memory: every swizzle of 16-byte pieces then sees the address bits it wants
REGISTERS = 4  # of `out`, by lane


def stored_value(probe, address, register):
    """Return what a lane stores: by address, so that lanes which store to the same place agree. ints or arrays."""
    return (probe << 20) + (address << 2) + register


@cute.jit
def issue(instruction: cutlass.Constexpr, offset, address, operands):
    """One execution of `instruction`; returns what it loaded as a list of Uint32, empty for stores."""
    loaded = instruction.registers if instruction.loads else 0
    # An argument that the text does not name would shift the ones after it.
    guard = [] if instruction.collective else [offset]
    got = cute.arch.inline_ptx(
        instruction.text(), write_only_types=[Uint32] * loaded, read_only_args=[*guard, address, *operands]
    )
    return list(got) if loaded > 1 else [got] * loaded


@cute.jit
def store_operands(instruction: cutlass.Constexpr, probe: cutlass.Constexpr, lane, offset, source):
    """Return what the instruction reads besides its address: nothing, a global address, or values."""
    if cutlass.const_expr(instruction.kind == "cp_async"):
        return [source]
    if cutlass.const_expr(instruction.loads):
        return []
    own = lane if instruction.collective else offset
    return [Uint32(stored_value(probe, own, i)) for i in range(instruction.registers)]


@cute.kernel
def probe_kernel(
    table: cute.Tensor,  # (PROBE, LANE) Int32 byte offsets in shared memory, negative for a lane that takes no part
    sources: cute.Tensor,  # (PROBE, LANE) Int64 addresses in global memory, for cp.async
    out: cute.Tensor,  # (PROBE, LANE, REGISTER) Uint32: what was loaded, or read back after a store
    instruction: cutlass.Constexpr,
    probes: cutlass.Constexpr,
    verify: cutlass.Constexpr,
    warps: cutlass.Constexpr,
):
    """`verify`: numbered shared memory before loads, and a read back after stores; else the probe alone.

    With more than one warp, which only cp.async is launched with, each reads global memory of its own.
    """
    tidx, _, _ = cute.arch.thread_idx()
    cta, _, _ = cute.arch.block_idx()
    lane, warp = tidx % 32, cta * warps + tidx // 32
    memory = SmemAllocator().allocate(SMEM_BYTES, ALIGN)
    if cutlass.const_expr(verify and instruction.loads):
        words = cute.make_tensor(cute.recast_ptr(memory, dtype=Uint32), cute.make_layout(SMEM_BYTES // 4))
        for i in cutlass.range(SMEM_BYTES // 4 // 32, unroll=1):
            word = i * 32 + lane
            words[word] = Uint32((2 * word + 1) << 16 | 2 * word)  # every 16 bits say which they are
    base = memory.toint()
    for p in cutlass.range_constexpr(probes):
        offset = table[p, lane]
        source = sources[p, lane] + Int64(warp) * SOURCE_BYTES
        address = base + cutlass.max(offset, 0)
        operands = store_operands(instruction, p, lane, offset, source)
        cute.arch.sync_threads()
        got = issue(instruction, offset, address, operands)
        if cutlass.const_expr(verify and not instruction.loads):
            cute.arch.sync_threads()
            got = issue(READ_BACK[instruction.width], offset, address, [])
        for i in cutlass.range_constexpr(len(got)):
            out[p, lane, i] = got[i]
    if cutlass.const_expr(not instruction.waits):
        cute.arch.cp_async_commit_group()
        cute.arch.cp_async_wait_group(0)


@cute.jit
def probe_host(
    p_table: cute.Pointer,
    p_sources: cute.Pointer,
    p_out: cute.Pointer,
    stream: cuda.CUstream,
    instruction: cutlass.Constexpr,
    probes: cutlass.Constexpr,
    verify: cutlass.Constexpr,
    grid: cutlass.Constexpr,
):
    """grid: (CTAs, warps of each)."""
    by_lane = cute.make_layout((probes, 32), stride=(32, 1))
    by_register = cute.make_layout((probes, 32, REGISTERS), stride=(32 * REGISTERS, REGISTERS, 1))
    table, sources = cute.make_tensor(p_table, by_lane), cute.make_tensor(p_sources, by_lane)
    out = cute.make_tensor(p_out, by_register)
    ctas, warps = grid
    probe_kernel(table, sources, out, instruction, probes, verify, warps).launch(
        grid=(ctas, 1, 1), block=(32 * warps, 1, 1), stream=stream
    )


def arguments(table: int, sources: int, out: int, stream: int) -> tuple:
    """Addresses as the typed values that the compiled kernel takes."""
    kinds = ((Int32, table), (Int64, sources), (Uint32, out))
    pointers = (cute.runtime.make_ptr(t, address, cute.AddressSpace.gmem, assumed_align=16) for t, address in kinds)
    return (*pointers, cuda.CUstream(stream))


@cache
def compiled(
    instruction: Instruction, probes: int, verify: bool, grid: tuple[int, int] = (1, 1), options: str = ""
) -> Any:
    """The kernel for `probes` rows.

    Args:
        verify: fill shared memory before loads, read back after stores.
        grid: CTAs, and warps of each.
        options: such as "--gpu-arch sm_90a" where there is no GPU.
    """
    dummies = arguments(16, 16, 16, 0)
    return cute.compile(probe_host, *dummies, instruction, probes, verify, grid, options=options or None)
