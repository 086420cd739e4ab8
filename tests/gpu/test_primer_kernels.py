"""The two kernels of the primer on a GPU, on sizes that fill no last CTA or tile: what torch gives, and no more."""

from __future__ import annotations

import pytest
import torch
from cutlass.cute.runtime import from_dlpack

import cookbook

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("length", [1, 255, 256, 1_000_003])
def test_vector_add(length):
    page = cookbook.load("primer/hello_kernel")
    a, b = torch.randn(2, length, device="cuda")
    c = torch.full((length + 8,), -1.0, device="cuda")
    page.add(*map(page.any_length, (a, b, c[:length])))
    torch.cuda.synchronize()
    assert torch.equal(c[:length], a + b) and bool((c[length:] == -1).all())


@pytest.mark.parametrize(("rows", "cols"), [(10, 20), (8, 16), (1, 4), (1001, 2004)])
def test_ragged_copy(rows, cols):
    page = cookbook.load("primer/who_holds_what")
    x, y = torch.randn(rows, cols, device="cuda"), torch.full((rows + 8, cols), -1.0, device="cuda")
    page.launch(*(from_dlpack(z, assumed_align=16) for z in (x, y[:rows])))
    torch.cuda.synchronize()
    assert torch.equal(x, y[:rows]) and bool((y[rows:] == -1).all())
