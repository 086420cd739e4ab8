"""MMAs, of every architecture, and the tensor memory that some add to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cookbook.simulate.judge import Judge
from cookbook.simulate.trace import Operation
from cookbook.simulate.types import mma_of
from cookbook.simulate.values import Atom, CannotFollow, Lay, Pointer, View, offset
from cookbook.simulate.warp import handles


@handles("cute.gemm", "cute.mma_atom_call")
def _gemm(f: Judge, op: Operation, args: list[Any]) -> None:
    if max(op.get("operandSegmentSizes", (1,))) > 1:
        _scaled(f, op, args)
        return
    atom, target, a, b, addend = args[:5]
    text = op.operand_types[0]
    arch, shape, _ = mma_of(text)
    if addend.pointer is not target.pointer and addend.pointer.array is not target.pointer.array:
        raise CannotFollow("an MMA that adds to other accumulators than it writes")
    adds = atom.values.get("accum_c", 1) if isinstance(atom, Atom) else 1
    adds = bool(f.integer(adds, "whether an MMA adds to its accumulators"))
    if not arch:
        f.multiply_add(op, target)
    elif arch in (80, 89, 120):
        f.mma_sync(op, text, shape, target, (a, b))
    elif arch == 90:
        f.wgmma(op, text, shape, target, (a, b), adds)
    elif arch == 100:
        f.tcgen05_mma(op, text, shape, target, (a, b), adds, atom)
    else:
        raise CannotFollow(f"an MMA of type {text}")


def _scaled(f: Judge, op: Operation, args: list[Any]) -> None:
    """One tcgen05.mma for each step along K; the scale factors of A and B stand beside them, and move on with them."""
    if op.attributes["operandSegmentSizes"] != (1, 1, 2, 2, 1):
        raise CannotFollow("an MMA whose operands are several, and not an operand with its scale factors")
    atom, target, a, of_a, b, of_b, addend = args
    text = op.operand_types[0]
    _, shape, _ = mma_of(text)
    steps = a.layout.modes[2].size
    if addend.pointer is not target.pointer or a.layout.size != steps or b.layout.size != steps:
        raise CannotFollow("a scaled MMA of several tiles, or that adds to other accumulators than it writes")
    adds = bool(f.integer(atom.values.get("accum_c", 1), "whether an MMA adds to its accumulators"))
    for k in range(steps):
        scales = {"sf_a": _step(of_a, k).pointer, "sf_b": _step(of_b, k).pointer}
        each = replace(atom, values=atom.values | scales)
        f.tcgen05_mma(op, text, shape, target, (_step(a, k), _step(b, k)), adds or k > 0, each)


def _step(view: View, k: int) -> View:
    """The part of an operand, or of its scale factors, for one step along K."""
    values, tiles, along = view.layout.modes
    by = offset(along.shape, along.stride, k)
    return replace(view, pointer=view.moved(by), layout=Lay((values.shape, tiles.shape), (values.stride, tiles.stride)))


# --- tensor memory -----------------------------------------------------------------------------------------------


@handles("cute_nvgpu.arch.sm100.alloc_tmem")
def _alloc(f: Judge, op: Operation, args: list[Any]) -> None:
    f.tensor_alloc(op, f.integer(args[0], "the columns of tensor memory"), args[1], op.get("is_two_cta") is not None)


@handles("cute_nvgpu.arch.sm100.dealloc_tmem")
def _free(f: Judge, op: Operation, args: list[Any]) -> None:
    f.tensor_free(op, f.integer(args[1], "the columns of tensor memory"), op.get("is_two_cta") is not None)


@handles("cute_nvgpu.arch.sm100.retrieve_tmem_ptr")
def _pointer(f: Judge, op: Operation, args: list[Any]) -> Any:
    """The address that the allocation left in shared memory; a kernel that allocates once has all columns from 0 on."""
    f.tensor_pointer(op, args[0])
    return Pointer("tmem", 0)


@handles("nvvm.tcgen05.commit")
def _commit(f: Judge, op: Operation, args: list[Any]) -> None:
    """When all MMAs that the thread has asked for so far are done, each of the barriers gets an arrival."""
    cta, address = f.barrier(args[0])
    ranks = f.multicast(args[1] if len(args) > 1 else None, cta)
    f.tensor_commit(op, [(rank, address) for rank in ranks], f.lanes)
