"""What the package and CuTe say of a few addresses, to compare a page's own functions with."""

from __future__ import annotations

import numpy as np

from cookbook import banks
from cookbook.layouts import evaluate


def actual(addresses, width: int = 4) -> int:
    """Wavefronts by the package; fewer than 32 addresses leave the other lanes inactive."""
    lanes = np.full(32, -1)
    lanes[: len(addresses)] = addresses
    return banks.wavefronts(lanes, width).actual


def by_cute(shape, strides, spec=None) -> np.ndarray:
    """Offsets in elements as CuTe computes them, coordinate by coordinate, of shape `shape`."""
    import cutlass.cute as cute

    def table():
        layout = cute.make_layout(shape, stride=strides)
        if spec:
            layout = cute.make_composed_layout(cute.make_swizzle(*spec), 0, layout)
        return [layout((row, col)) for row in range(shape[0]) for col in range(shape[1])]

    return np.array(evaluate(table)).reshape(shape)
