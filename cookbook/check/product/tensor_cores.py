"""tcgen05: tensor memory, and the MMAs that add to accumulators there, of one CTA or of a pair."""

from __future__ import annotations

from typing import Any

import numpy as np

from cookbook.check.product import origins
from cookbook.check.product.barriers import barrier_at
from cookbook.check.product.memory import TMEM_LANES
from cookbook.check.product.multiply import block, check_types, majors_of, parent_of, starts
from cookbook.check.product.scaling import SCALED, copy_atoms, factors_of
from cookbook.simulate.judge import Judge
from cookbook.simulate.trace import Operation
from cookbook.simulate.values import CannotFollow, Fault, Pointer, View
from cookbook.simulate.warp import Barrier


class TensorCores(Judge):
    """A warp that uses tensor memory."""

    cta: Any
    launch: Any

    def tensor_alloc(self, op: Operation, columns: int, pointer: Pointer, pair: bool) -> None:
        """A kernel that allocates once has all columns from 0 on."""
        if self.cta.tensor.allocated:
            raise CannotFollow("a second allocation of tensor memory")
        self.cta.tensor.allocated = columns

    def tensor_free(self, op: Operation, columns: int, pair: bool) -> None:
        self.cta.tensor.allocated = 0

    def tensor_pointer(self, op: Operation, pointer: Pointer) -> None:
        """All columns from 0 on."""

    def tensor_commit(self, op: Operation, barriers: list[Barrier], lanes: int) -> None:
        """Give each of the barriers its arrival: what was asked for has ended already."""
        for barrier in barriers:
            barrier_at(self, barrier).arrive(lanes)

    def copy_scales(self, op: Operation, text: str, source: View, target: View) -> None:
        copy_atoms(self, text, source, target)

    def tensor_core(self, op: Operation, reads: list[View], taken: list[View], writes: View, pair: bool) -> None:
        raise CannotFollow("what tcgen05 does by descriptors that the kernel makes as numbers")

    def tcgen05_mma(
        self, op: Operation, text: str, shape: Any, target: View, operands: tuple[View, View], adds: bool, atom: Any
    ) -> None:
        scales = factors_of(self, text, shape, atom) if SCALED in text else None
        multiply(self, text, shape, target, operands, adds, scales)


def multiply(
    f: Any,
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
    f: Any, cta: Any, words: np.ndarray, a: np.ndarray, b: np.ndarray, adds: bool, scales: Any = None
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
