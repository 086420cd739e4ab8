"""Follows tcgen05: tensor memory, and the MMAs that add to accumulators there, of one CTA or of a pair."""

from __future__ import annotations

from typing import Any

import numpy as np

from cookbook.check.pipeline.shapes import CannotFollow
from cookbook.check.product import origins
from cookbook.check.product.barriers import barrier_at
from cookbook.check.product.follower import Fault, Follower, follows
from cookbook.check.product.memory import TMEM_LANES
from cookbook.check.product.multiply import BY_ARCH, block, check_types, majors_of, parent_of, starts
from cookbook.check.product.places import Ptr, View
from cookbook.simulate.trace import Operation


@follows("cute_nvgpu.arch.sm100.alloc_tmem")
def _alloc(f: Follower, op: Operation, args: list[Any]) -> None:
    """A kernel that allocates once has all columns from 0 on."""
    if f.cta.tensor.allocated:
        raise CannotFollow("a second allocation of tensor memory")
    f.cta.tensor.allocated = f.integer(args[0], "the columns of tensor memory")


@follows("cute_nvgpu.arch.sm100.dealloc_tmem")
def _free(f: Follower, op: Operation, args: list[Any]) -> None:
    f.cta.tensor.allocated = 0


@follows("cute_nvgpu.arch.sm100.retrieve_tmem_ptr")
def _pointer(f: Follower, op: Operation, args: list[Any]) -> Any:
    return Ptr("tmem", 0)


@follows("nvvm.tcgen05.commit")
def _commit(f: Follower, op: Operation, args: list[Any]) -> None:
    """What was asked for has ended already: each of the barriers gets its arrival."""
    pointer = args[0]
    for rank in f.multicast(args[1] if len(args) > 1 else None, f.barrier(pointer)[0]):
        barrier_at(f, pointer, rank).arrive(int(f.active.sum()))


def multiply(
    f: Follower,
    text: str,
    shape: tuple[int, int, int],
    target: View,
    operands: tuple[View, View],
    adds: bool,
    scales: tuple[np.ndarray, np.ndarray] | None = None,
) -> None:
    """tcgen05.mma: D in tensor memory, A and B by their descriptors; a pair of CTAs has half of the rows of each."""
    m, n, _ = shape
    a, b = operands
    pair = "num_cta = 2" in text
    each = m // 2 if pair else m
    if each != TMEM_LANES:
        raise CannotFollow(f"tcgen05.mma with {each} rows a CTA")
    if a.pointer.space != "smem" or b.pointer.space != "smem":
        raise CannotFollow("tcgen05.mma with an operand in tensor memory")
    if pair and f.place.rank % 2:
        raise Fault("tcgen05.mma of a pair: got the second CTA; needed the first to ask for it")
    ctas = f.cta.cluster.ctas[f.place.rank :][: 2 if pair else 1]
    majors = majors_of(text)
    words = int(target.pointer.address) // 4 + target.offsets()
    if scales is not None and len(starts(a)) > 1:
        raise CannotFollow("tcgen05.mma of several blocks along K at once, with one set of scale factors")
    rows_b = n // 2 if pair else n
    for k, (down, across) in enumerate(zip(starts(a), starts(b), strict=True)):
        if len(words) != each * n * len(down) * len(across):
            raise CannotFollow(f"an MMA of {len(down)} x {len(across)} matrices to {len(words)} accumulators")
        for j, start_b in enumerate(across):
            ids_b = np.concatenate([block(cta.memory, b, start_b, rows_b, majors[1]) for cta in ctas])
            check_types(f, text, ids_b[:1], 1)
            for i, start_a in enumerate(down):
                mine = words[(j * len(down) + i) * each * n :][: each * n].reshape(n, each)
                for cta in ctas:
                    ids_a = block(cta.memory, a, start_a, each, majors[0])
                    check_types(f, text, ids_a[:1], 0)
                    _accumulate(f, cta, mine, ids_a, ids_b, adds or k > 0, scales)


def _accumulate(
    f: Follower, cta: Any, words: np.ndarray, a: np.ndarray, b: np.ndarray, adds: bool, scales: Any = None
) -> None:
    """words: (columns, rows) of D."""
    lane, column = cta.tensor.places(words)
    places = np.arange(words.shape[1])[None, :] * origins.WIDTH + np.arange(words.shape[0])[:, None]
    if (lane != np.arange(words.shape[1])[None, :]).any():
        raise CannotFollow("accumulators whose rows are not the lanes of tensor memory")
    parent = -1
    if adds:
        before = cta.tensor.cells[lane, column]
        parent = parent_of(before, places)
    number = f.launch.sums.tile(parent, a, b, f.line, scales)
    cta.tensor.cells[lane, column] = origins.numbered(origins.TILE, number, places)
    for byte in range(4):
        cta.tensor.scales[lane, 4 * column + byte] = origins.MIXED


def _multiply(f: Follower, text: str, shape: Any, target: View, operands: Any, adds: bool, atom: Any = None) -> None:
    multiply(f, text, shape, target, operands, adds)


BY_ARCH[100] = _multiply
