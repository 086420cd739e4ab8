"""Row-scaled 8-bit operands through the numpy model: which accumulator each factor multiplies."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cutlass")

import cutlass

from cookbook.check import scaled
from cookbook.check.model.fp8 import simulate_fp8
from cookbook.recipe import catalog

NAME, BF16, F16 = "hopper/fp8_gemm", cutlass.BFloat16, cutlass.Float16


def pair(m, n, k):
    return scaled.integers(m, k, "fp8", 1), scaled.integers(n, k, "fp8", 2)


@pytest.mark.parametrize("variant", ["128x256", "128x224", "promoted"])
@pytest.mark.parametrize("shape", [(200, 333, 64), (1, 1, 32), (130, 520, 288)])
def test_the_product_is_exact(shape, variant):
    module, (a, b) = catalog.load(NAME), pair(*shape)
    exact = a.values().astype(np.float64) @ b.values().astype(np.float64).T
    got = simulate_fp8(module, a, b, F16, module.VARIANTS[variant])
    assert np.array_equal(got, exact.astype(np.float16).astype(np.float32))


def test_a_factor_belongs_to_its_row():
    """Other factors of one row of A and of one column of C change that row and that column."""
    module, (a, b) = catalog.load(NAME), pair(140, 270, 64)
    before = simulate_fp8(module, a, b, BF16, module.CONFIG)
    a.scales[137], b.scales[258] = 4.0, 8.0
    changed = simulate_fp8(module, a, b, BF16, module.CONFIG) != before
    assert changed[137].any() and changed[:, 258].any()
    changed[137], changed[:, 258] = False, False
    assert not changed.any()


def test_operands_of_two_depths_are_refused():
    module = catalog.load(NAME)
    with pytest.raises(ValueError, match="a, b: got fp8 of K = 64, fp8 of 96; needed one"):
        simulate_fp8(module, pair(8, 8, 64)[0], pair(8, 8, 96)[1], BF16, module.CONFIG)
