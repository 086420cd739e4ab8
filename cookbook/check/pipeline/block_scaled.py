"""Scale factors on their way into tensor memory: tcgen05.cp, and the tcgen05.mma that reads them.

To the checker of pipelines a tcgen05.cp is like a tcgen05.mma: one thread asks for it, it reads shared memory and
writes tensor memory later, the two kinds keep their order where one thread asks for both, and tcgen05.commit waits for
either.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from cookbook.check.pipeline.interpreter import TABLE, Atom, handles
from cookbook.check.pipeline.programs import Recorder
from cookbook.check.pipeline.shapes import CannotFollow, Lay, Pointer, View, tensor_region
from cookbook.check.pipeline.views import layout_of
from cookbook.simulate.trace import Operation
from cookbook.swizzle import Swizzle

__all__ = ["ATOM_BYTES"]

ATOM_BYTES = 512  # what tcgen05.cp.32x128b reads
SCALED, COPY = "sm100.mma_bs", "s2t_copy"
_copy, _partition, _copy_partition, _gemm = (
    TABLE[name] for name in ("cute.copy", "cute.tiled.mma.partition", "cute.tiled.copy.partition_S", "cute.gemm")
)


@handles("cute_nvgpu.atom.make_s2t_copy")
def _make_copy(f: Recorder, op: Operation, args: list[Any]) -> Any:
    return Atom(op.result_types[0])


@handles("cute.tiled.copy.partition_S", "cute.tiled.copy.partition_D")
def _share(f: Recorder, op: Operation, args: list[Any]) -> Any:
    """One thread copies all of it: its share begins where the view does."""
    if COPY not in op.operand_types[0]:
        return _copy_partition(f, op, args)
    source = args[1]
    return View(source.pointer, layout_of(op, [source]), source.bits, source.swizzle)


@handles("cute_nvgpu.atom.get_copy_s2t_smem_desc_view")
def _descriptors(f: Recorder, op: Operation, args: list[Any]) -> Any:
    """Descriptors of atoms: views of 16-byte chunks, each of which stands for a whole atom from there on."""
    source, layout = args[1], layout_of(op, [])
    atom = tuple(range(0, ATOM_BYTES, 4))
    return View(replace(source.pointer, warp=atom), layout, 128, source.swizzle)


@handles("cute.copy", "cute.copy_atom_call")
def _copies(f: Recorder, op: Operation, args: list[Any]) -> None:
    if COPY not in op.operand_types[0]:
        _copy(f, op, args)
        return
    source, target = args[1:3]
    if f.place.rank and "1 cta" not in op.operand_types[0]:
        raise CannotFollow("a copy into the tensor memory of a pair of CTAs")
    f.add("tensor mma", op, targets=f.mine(source), tensor=((f.place.rank, tensor_region(target)),))


@handles("cute.tiled.mma.partition")
def _mma_partition(f: Recorder, op: Operation, args: list[Any]) -> Any:
    if SCALED not in op.operand_types[0]:
        return _partition(f, op, args)
    if "num_cta = 1," not in op.operand_types[0]:
        raise CannotFollow(f"an MMA of type {op.operand_types[0]}")
    return replace(args[1], layout=layout_of(op, [args[1]]))  # one CTA has it all


@handles("cute.gemm")
def _multiply(f: Recorder, op: Operation, args: list[Any]) -> None:
    """An MMA reads the cells that its scale factors begin in too: of as many columns as rows of 32."""
    _gemm(f, op, args)
    if SCALED not in op.operand_types[0]:
        return
    atom, target = args[:2]
    rows, columns = (int(np.prod(list(_flat(x)))) for x in target.layout.modes[0].shape)
    for name, extent in (("sf_a", rows), ("sf_b", columns)):
        first = atom.values.get(name)
        if not isinstance(first, Pointer) or not isinstance(first.address, (int, np.integer)):
            raise CannotFollow(f"scale factors at {first}")
        layout = Lay((128, extent // 32), (1 << 16, 1))
        cells = View(Pointer("tmem", first.address // 4 * 4), layout, 32, Swizzle(0, 4, 3))
        f.add("tensor mma", op, targets=((f.place.rank, 0),), tensor=((f.place.rank, tensor_region(cells)),))


def _flat(shape: Any) -> Any:
    return [x for part in shape for x in _flat(part)] if isinstance(shape, tuple) else [shape]
