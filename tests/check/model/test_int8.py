"""8-bit integers through the numpy model: exact at the ends of the range, and what saturates."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cutlass")

import cutlass

from cookbook.check.model.int8 import simulate_int8
from cookbook.layouts import Layout, SmemLayout
from cookbook.model import SharedMemory, operand_descriptors
from cookbook.model.wgmma import wgmma
from cookbook.recipe import catalog
from cookbook.swizzle import Swizzle

NAME = "hopper/int8_gemm"


def pair(m, n, k):
    rng = np.random.default_rng(m + n + k)
    return tuple(rng.integers(-128, 128, (rows, k), np.int8) for rows in (m, n))


@pytest.mark.parametrize("shape", [(200, 333, 64), (1, 1, 16), (130, 520, 304)])
def test_the_product_is_exact(shape):
    module, (a, b) = catalog.load(NAME), pair(*shape)
    got = simulate_int8(module, a, b, cutlass.Int32, module.CONFIG)
    assert got.dtype == np.int32
    assert np.array_equal(got, a.astype(np.int64) @ b.astype(np.int64).T)


def test_sums_that_float32_cannot_hold_are_exact():
    """Odd sums above 2**24: the model adds integers."""
    module = catalog.load(NAME)
    a, b = np.full((3, 1104), -127, np.int8), np.full((5, 1104), -127, np.int8)
    a[1, 0] = -126
    got = simulate_int8(module, a, b, cutlass.Int32, module.CONFIG)
    assert (got[0] == 1104 * 127**2).all() and (got[1] == 1104 * 127**2 - 127).all()
    assert got[1, 0] > 2**24 and got[1, 0] % 2 == 1


@pytest.mark.parametrize(
    ("a", "b", "before", "after"), [(-128, -128, 2**31 - 5, 2**31 - 1), (-128, 127, -(2**31), -(2**31))]
)
def test_a_sum_that_would_leave_int32_stays_at_its_limit(a, b, before, after):
    layout = SmemLayout(Layout((64, 32, 1), (32, 1, 0)), Swizzle(1, 4, 3), 8)  # SW32: rows of 32 bytes
    smem = SharedMemory(4096)
    for start, value in ((0, a), (2048, b)):
        smem.write(np.arange(start, start + 2048, 16), np.full((128, 16), value, np.int8).view(np.uint8))
    (left,), (right,) = (operand_descriptors(layout, 64, start) for start in (0, 2048))
    got = wgmma(smem, left, right, np.full((128, 32), before, np.int32), "int8")
    assert (got == after).all()


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (np.zeros((8, 32)), np.zeros((8, 32), np.int8), "a: got float64 of shape"),
        (np.zeros((8, 32), np.int8), np.zeros((8, 48), np.int8), "b: got K = 48; needed 32, that of a"),
    ],
    ids=str,
)
def test_other_operands_are_refused(a, b, message):
    module = catalog.load(NAME)
    with pytest.raises(ValueError, match=message):
        simulate_int8(module, a, b, cutlass.Int32, module.CONFIG)


def test_accumulators_of_another_type_are_refused():
    with pytest.raises(ValueError, match=r"d: got float32 of shape .*; needed int32"):
        wgmma(SharedMemory(4096), 0, 0, np.zeros((128, 32), np.float32), "int8")
